//! Allocators whose devices work in streams.
//!
//! Rank 3. Imports `allocator` and the words.
//!
//! The trait [`DeviceAllocator`] knows no streams. An adaptor that hands memory
//! from one stream to another needs to know when work is done, and no more than
//! that is asked for here.

use std::fmt::Debug;
use std::sync::Arc;

use crate::allocator::DeviceAllocator;
use crate::device::Device;
use crate::error::Result;

/// A mark in the work of a stream.
pub trait Fence: Send + Sync + Debug {
    /// Whether the work before the mark is done.
    ///
    /// # Errors
    ///
    /// - [`Backend`](crate::ErrorKind::Backend): the driver failed; it is not known.
    fn is_done(&self) -> Result<bool>;

    /// Waits until the work before the mark is done.
    ///
    /// # Errors
    ///
    /// - [`Backend`](crate::ErrorKind::Backend): the driver failed; it is not known.
    fn wait(&self) -> Result<()>;
}

/// Which stream: its device, and a number that no other stream of the device has
/// while this one is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamId {
    /// The device that the stream is of.
    pub device: Device,
    /// The number, as a driver's handle is one.
    pub number: u64,
}

/// An allocator bound to one stream.
///
/// # Safety
///
/// An implementation promises, besides what [`DeviceAllocator`] asks:
///
/// 1. [`id`](Self::id) always answers the same, and the stream is alive for as
///    long as this is.
/// 2. A fence that [`fence`](Self::fence) returns says that it is done, or
///    returns from waiting with success, only when all work that the stream was
///    given before is done.
/// 3. Dropping it, or a fence of it, calls no driver in a forked child.
#[expect(unsafe_code, reason = "declares what reuse of memory relies on")]
pub unsafe trait StreamAllocator: DeviceAllocator {
    /// Which stream it is.
    fn id(&self) -> StreamId;

    /// Marks the end of the work given to the stream until now.
    ///
    /// # Errors
    ///
    /// - [`Backend`](crate::ErrorKind::Backend): the driver failed.
    /// - [`Capturing`](crate::ErrorKind::Capturing): the stream is recording a
    ///   graph, which a mark would become part of.
    fn fence(&self) -> Result<Box<dyn Fence>>;
}

/// An allocator that can be bound to streams of its devices.
///
/// # Safety
///
/// An implementation promises that what [`bind`](Self::bind) returns may copy,
/// fill and synchronize blocks of this allocator, on the device of the stream, as
/// this allocator may.
#[expect(unsafe_code, reason = "declares what copies on a stream rely on")]
pub unsafe trait StreamOrdered: DeviceAllocator {
    /// A stream of the caller's.
    type Stream;

    /// The allocator bound to one.
    type Bound: StreamAllocator + 'static;

    /// Binds to a stream.
    ///
    /// # Errors
    ///
    /// Those of the implementation: the stream is none that it can use.
    fn bind(&self, stream: &Self::Stream) -> Result<Self::Bound>;
}

// SAFETY: it is the allocator inside by another name.
#[expect(unsafe_code, reason = "implements an unsafe trait")]
unsafe impl<A: StreamOrdered + ?Sized> StreamOrdered for Arc<A> {
    type Stream = A::Stream;
    type Bound = A::Bound;

    fn bind(&self, stream: &Self::Stream) -> Result<Self::Bound> {
        (**self).bind(stream)
    }
}

const _: Option<&dyn StreamAllocator> = None;
const _: Option<&dyn Fence> = None;
