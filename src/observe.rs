//! Watching what an allocator gives and takes back.
//!
//! Rank 3. Imports `allocator`, `free_failure` and the words.
//!
//! Most wrappers of allocators add bookkeeping and nothing else. That is written
//! once here, in the only order that is right when other threads reuse
//! addresses: a block is noted after the layer below has given it, and forgotten
//! before the layer below gets it back. What is noted is safe code of an
//! [`Observer`].

use std::fmt::Debug;
use std::ops::Deref;

use crate::address::DevicePtr;
use crate::allocator::{DeviceAllocator, add_memory_info, below, forward, guarded};
use crate::device::{Device, DeviceIndex};
use crate::error::{Error, Operation, Result};
use crate::free_failure;
use crate::layout::DeviceLayout;
use crate::unwind::caught;

/// A block of memory that an allocator has given and not got back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Block {
    /// Its first byte.
    pub ptr: DevicePtr,
    /// What was asked for.
    pub layout: DeviceLayout,
    /// Where it is.
    pub device: Device,
}

/// What is done before and after an allocator gives memory or takes it back.
///
/// Each call of [`allocate`](DeviceAllocator::allocate) is reported as
/// `before_allocate`, then `allocated` or `allocate_failed`; each
/// [`deallocate`](DeviceAllocator::deallocate) as `before_free`, then `freed` or
/// `free_failed`. The second of a pair comes if and only if the first was `Ok`,
/// also if the allocator panics in between.
///
/// The devices that it is told of are there: for others, the layer below is not
/// asked. Methods are called from any thread, under no lock of this crate, and may use
/// allocators, the observed one too. One that panics has the call fail.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// use device_memory::adaptor::{Block, Observed, Observer};
/// use device_memory::{DeviceLayout, DeviceMemoryBuffer, HostAllocator};
///
/// #[derive(Debug, Default)]
/// struct Largest(AtomicUsize);
///
/// impl Observer for Largest {
///     fn allocated(&self, block: &Block) {
///         self.0.fetch_max(block.layout.size(), Ordering::Relaxed);
///     }
/// }
///
/// let allocator = Arc::new(Observed::new(HostAllocator, Largest::default()));
/// let layout = DeviceLayout::from_size(64)?;
/// DeviceMemoryBuffer::create_with(allocator.clone(), layout, 0)?;
///
/// assert_eq!(allocator.observer().0.load(Ordering::Relaxed), 64);
/// # Ok::<(), device_memory::Error>(())
/// ```
pub trait Observer: Send + Sync + Debug {
    /// Memory is asked for.
    ///
    /// # Errors
    ///
    /// An error refuses it: the layer below is not asked, but for what the device has
    /// free where the error says that memory is out.
    fn before_allocate(&self, device: Device, layout: DeviceLayout) -> Result<()> {
        let _ = (device, layout);
        Ok(())
    }

    /// Memory was given.
    fn allocated(&self, block: &Block) {
        let _ = block;
    }

    /// Memory was not given, for a reason that may be added to.
    fn allocate_failed(&self, device: Device, layout: DeviceLayout, error: &mut Error) {
        let _ = (device, layout, error);
    }

    /// Memory is about to be given back.
    ///
    /// # Errors
    ///
    /// An error refuses it: the layer below is not told, and the block stays
    /// allocated.
    fn before_free(&self, block: &Block) -> Result<()> {
        let _ = block;
        Ok(())
    }

    /// Memory was given back. Its address may be another's already.
    fn freed(&self, block: &Block) {
        let _ = block;
    }

    /// Memory was not given back, and is still allocated.
    fn free_failed(&self, block: &Block) {
        let _ = block;
    }

    /// So many bytes that were cached and unused went back to the layer below.
    fn trimmed(&self, device: Device, bytes: usize) {
        let _ = (device, bytes);
    }
}

/// An allocator that tells an observer what it gives and takes back.
///
/// Everything else is passed on to the allocator inside. Dereferences to the
/// observer, so that what that has noted can be read from the allocator. There is
/// no virtual call, lock or allocation besides those of the two.
#[derive(Clone, Debug)]
pub struct Observed<A, O> {
    upstream: A,
    observer: O,
}

impl<A, O> Observed<A, O> {
    /// Watches `upstream`, from which nothing is allocated yet.
    #[must_use]
    pub fn new(upstream: A, observer: O) -> Self {
        Self { upstream, observer }
    }

    /// The allocator inside.
    #[must_use]
    pub fn inner(&self) -> &A {
        &self.upstream
    }

    /// What watches.
    #[must_use]
    pub fn observer(&self) -> &O {
        &self.observer
    }
}

impl<A, O> Deref for Observed<A, O> {
    type Target = O;

    fn deref(&self) -> &O {
        &self.observer
    }
}

// SAFETY: the promises are those of the allocator inside, whose blocks are
// handed out as they are and given back as they came. By number of those that
// this could break:
// 2, 3. A block is given back to the layer below when the caller gives it back,
//    or if the observer panics before the caller has it, and not otherwise.
// 7. A refusal before either call changes nothing below. What panics later is
//    caught: in `allocate`, the block is given back; in `deallocate`, the result
//    says what the layer below did.
// 10. The default of `as_any` does not tell; the layer below is the upstream.
#[expect(unsafe_code, reason = "implements an unsafe trait")]
unsafe impl<A: DeviceAllocator, O: Observer> DeviceAllocator for Observed<A, O> {
    forward!(self => self.upstream; identity, upstream, copies, memory_info, synchronize);

    fn trim(&self, index: DeviceIndex) -> Result<usize> {
        let bytes = below::trim(&self.upstream, index)?;
        let device = Device::new(self.upstream.device_type(), index);
        // The bytes are gone, whatever the observer makes of it.
        let _ = caught(|| self.observer.trimmed(device, bytes));
        Ok(bytes)
    }

    #[inline]
    fn allocate(&self, layout: DeviceLayout, index: DeviceIndex) -> Result<DevicePtr> {
        self.upstream.check_index(index)?;
        let device = Device::new(self.upstream.device_type(), index);
        if let Err(refusal) = self.observer.before_allocate(device, layout) {
            return Err(self.refused(refusal));
        }
        let ptr = guarded(device, Operation::Allocate, || {
            self.upstream.allocate(layout, index)
        });
        match ptr {
            Ok(ptr) => self.hand_out(Block {
                ptr,
                layout,
                device,
            }),
            Err(mut error) => {
                self.observer.allocate_failed(device, layout, &mut error);
                Err(error)
            }
        }
    }

    #[inline]
    unsafe fn deallocate(
        &self,
        ptr: DevicePtr,
        layout: DeviceLayout,
        index: DeviceIndex,
    ) -> Result<()> {
        let device = Device::new(self.upstream.device_type(), index);
        let block = Block {
            ptr,
            layout,
            device,
        };
        self.observer.before_free(&block)?;
        let freed = guarded(device, Operation::Deallocate, || {
            // SAFETY: the caller's promises are the same; `ptr` came from the
            // allocator inside.
            unsafe { self.upstream.deallocate(ptr, layout, index) }
        });
        // The block is gone or not, whatever the observer makes of it.
        let _ = caught(|| match &freed {
            Err(error) if !error.is_shut_down() => self.observer.free_failed(&block),
            _ => self.observer.freed(&block),
        });
        freed
    }
}

impl<A: DeviceAllocator, O> Observed<A, O> {
    /// What the observer refuses. If memory is out, the report gets what the layer below
    /// says of the device, and is an event: for who looks for a reason, no more than
    /// that, for a layer above may have another way.
    #[cold]
    pub(crate) fn refused(&self, refusal: Error) -> Error {
        refusal.explained(|report| {
            add_memory_info(report, &self.upstream);
            #[cfg(feature = "tracing")]
            let _ = caught(|| tracing::debug!(error = %report, "device memory was refused"));
        })
    }
}

impl<A: DeviceAllocator, O: Observer> Observed<A, O> {
    /// Tells the observer of a block and hands it out. A panic of the observer
    /// gives the block back, for no one would own it.
    #[inline]
    fn hand_out(&self, block: Block) -> Result<DevicePtr> {
        let noted = guarded(block.device, Operation::Allocate, || {
            self.observer.allocated(&block);
            Ok(())
        });
        match noted {
            Ok(()) => Ok(block.ptr),
            Err(panicked) => {
                self.take_back(&block);
                Err(panicked)
            }
        }
    }

    /// Gives back a block that no caller has seen. If that fails too, it is lost, and
    /// the hook for failed frees is told.
    #[cold]
    #[expect(unsafe_code, reason = "see SAFETY")]
    fn take_back(&self, block: &Block) {
        let index = block.device.index();
        let freed = guarded(block.device, Operation::Deallocate, || {
            // SAFETY: the allocator inside has just given the block with this
            // layout and index, and nothing uses it.
            unsafe { self.upstream.deallocate(block.ptr, block.layout, index) }
        });
        free_failure::report_lost(block.device, block.ptr, block.layout, freed);
    }
}
