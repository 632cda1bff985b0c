//! The contract between an owner of memory and the source of it.
//!
//! Rank 2. Imports the words: `device`, `layout`, `address`, `error`.
//!
//! The trait is unsafe to implement because `Drop` and host slices rely on it;
//! what an implementation promises is numbered under [`DeviceAllocator`]. The
//! trait is stream-free: a handle bound to a stream is an allocator of its own.

pub(crate) mod below;
mod forward;
mod guard;
mod handle;
mod staging;

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use crate::address::DevicePtr;
use crate::device::{Device, DeviceIndex, DeviceType};
use crate::error::{ErrorKind, Result};
use crate::layout::DeviceLayout;

pub(crate) use forward::{forward, forward_group};
pub(crate) use guard::{add_memory_info, device_type_of, guarded, no_room};
pub use handle::AllocatorHandle;
pub(crate) use staging::{End, copy as copy_through_host, host_bytes};

/// The memory of one device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// What an allocation can still be made from.
    pub free: usize,
    /// What the device has.
    pub total: usize,
}

/// A source of memory on the devices of one type.
///
/// Safe code uses it through [`DeviceMemoryBuffer`](crate::DeviceMemoryBuffer)
/// and the views that lends, which check bounds and devices first. Methods may
/// be called from any thread at any time, and none depends on the calling
/// thread's current device or context, nor leaves it changed. One that panics is an
/// error ([`AllocatorPanicked`](ErrorKind::AllocatorPanicked)) to who owns the memory.
///
/// To write one, implement the six required methods and run the suite in
/// `testing::conformance` on it (feature `testing`).
///
/// # Safety
///
/// An implementation promises:
///
/// 1. **Type.** [`device_type`](Self::device_type) always answers the same, and
///    [`device_count`](Self::device_count) never falls.
/// 2. **Validity.** What [`allocate`](Self::allocate) returns stays valid for
///    copies of up to `layout.size()` bytes, on that index, until a
///    [`deallocate`](Self::deallocate) of it succeeds or fails with
///    [`ShutDown`](ErrorKind::ShutDown), whatever else is called meanwhile.
/// 3. **Disjointness.** Blocks that are allocated at the same time do not overlap.
/// 4. **Alignment.** The address is a multiple of `layout.align()`.
/// 5. **Host access.** If [`is_host_accessible`](Self::is_host_accessible), the
///    answer never changes, the returned pointer may be read and written by the
///    host like memory from `std::alloc`, and its bytes are initialized.
/// 6. **Completion.** When a copy or a fill ends, by success, failure or panic, it
///    no longer touches the host's side, and its effect is visible to every
///    later call on any thread and to all later work of the device.
/// 7. **Failure.** An `allocate` that fails or panics changes nothing. A
///    `deallocate` that does leaves the block allocated, unless it fails with
///    [`ShutDown`](ErrorKind::ShutDown).
/// 8. **Size.** Methods are not called with a layout or a copy of no bytes, and
///    do not rely on that for memory safety.
/// 9. **Forks.** In a process forked off from the one that the allocator was made
///    in, dropping it calls no driver.
/// 10. **Identity.** [`as_any`](Self::as_any) answers with the allocator itself,
///     and [`upstream`](Self::upstream) with one that this one's addresses may be
///     taken to be of: they are good for the same driver, device and context.
#[expect(
    unsafe_code,
    reason = "declares the contract that unsafe code relies on"
)]
pub unsafe trait DeviceAllocator: Send + Sync + Debug {
    /// The type of the devices whose memory this gives.
    fn device_type(&self) -> DeviceType;

    /// How many devices there are; valid indices are below it.
    fn device_count(&self) -> usize;

    /// Allocates a block of `layout` on the device `index`, uninitialized unless
    /// the host can read it.
    ///
    /// # Errors
    ///
    /// - [`InvalidDevice`](ErrorKind::InvalidDevice): no such index.
    /// - [`OutOfMemory`](ErrorKind::OutOfMemory): the device has no room, known to be so.
    /// - [`Backend`](ErrorKind::Backend): any other failure of the driver.
    /// - [`ForkedProcess`](ErrorKind::ForkedProcess): the allocator was made in a
    ///   parent process and can not go on in this one.
    fn allocate(&self, layout: DeviceLayout, index: DeviceIndex) -> Result<DevicePtr>;

    /// Gives a block back.
    ///
    /// # Errors
    ///
    /// - [`ShutDown`](ErrorKind::ShutDown): the driver is gone and the block with it.
    /// - [`Backend`](ErrorKind::Backend): any other failure; the block stays allocated.
    ///
    /// # Safety
    ///
    /// `ptr` came from [`allocate`](Self::allocate) of this allocator with the
    /// same `layout` and `index`, was not given back since, and no work on the
    /// device uses it any more.
    unsafe fn deallocate(
        &self,
        ptr: DevicePtr,
        layout: DeviceLayout,
        index: DeviceIndex,
    ) -> Result<()>;

    /// Copies `size` bytes from the host to the device `index`.
    ///
    /// # Errors
    ///
    /// - [`Backend`](ErrorKind::Backend): the driver failed; the bytes at `dst` are unspecified.
    ///
    /// # Safety
    ///
    /// `dst` to `dst + size` lies in one live block of this allocator on `index`
    /// that nothing else accesses during the call, and `src` is valid for reads
    /// of `size` bytes.
    unsafe fn copy_host_to_device(
        &self,
        dst: DevicePtr,
        src: *const u8,
        size: usize,
        index: DeviceIndex,
    ) -> Result<()>;

    /// Copies `size` bytes from the device `index` to the host.
    ///
    /// On success all bytes of `dst` are initialized.
    ///
    /// # Errors
    ///
    /// - [`Backend`](ErrorKind::Backend): the driver failed; the bytes at `dst` are unspecified.
    ///
    /// # Safety
    ///
    /// `src` to `src + size` lies in one live block of this allocator on `index`
    /// that nothing writes during the call, and `dst` is valid for writes of
    /// `size` bytes.
    unsafe fn copy_device_to_host(
        &self,
        dst: *mut u8,
        src: DevicePtr,
        size: usize,
        index: DeviceIndex,
    ) -> Result<()>;

    /// Copies `size` bytes between two blocks of this allocator, on one device or
    /// across two.
    ///
    /// The default goes through the host in pieces.
    ///
    /// # Errors
    ///
    /// - [`Backend`](ErrorKind::Backend): the driver failed; the bytes at `dst` are unspecified.
    ///
    /// # Safety
    ///
    /// Both ranges lie in live blocks of this allocator on their index, they do
    /// not overlap, nothing else accesses `dst` and nothing writes `src` during
    /// the call.
    unsafe fn copy_device_to_device(
        &self,
        dst: DevicePtr,
        dst_index: DeviceIndex,
        src: DevicePtr,
        src_index: DeviceIndex,
        size: usize,
    ) -> Result<()> {
        let dst = End {
            allocator: self,
            ptr: dst,
            index: dst_index,
        };
        let src = End {
            allocator: self,
            ptr: src,
            index: src_index,
        };
        // SAFETY: the caller's promises are the same for both ends.
        unsafe { copy_through_host(dst, src, size) }
    }

    /// Sets `size` bytes from `dst` to `byte`.
    ///
    /// The default copies from the host in pieces.
    ///
    /// # Errors
    ///
    /// - [`Backend`](ErrorKind::Backend): the driver failed; the bytes at `dst` are unspecified.
    ///
    /// # Safety
    ///
    /// `dst` to `dst + size` lies in one live block of this allocator on `index`
    /// that nothing else accesses during the call.
    unsafe fn fill(&self, dst: DevicePtr, byte: u8, size: usize, index: DeviceIndex) -> Result<()> {
        let dst = End {
            allocator: self,
            ptr: dst,
            index,
        };
        // SAFETY: the caller's promises are the same.
        unsafe { staging::fill(dst, byte, size) }
    }

    /// Whether the host can read and write the memory itself. See promise 5.
    fn is_host_accessible(&self) -> bool {
        false
    }

    /// The free and the total memory of the device `index`, or `None` if the
    /// device can not tell, which is the default.
    ///
    /// # Errors
    ///
    /// - [`InvalidDevice`](ErrorKind::InvalidDevice): no such index.
    /// - [`Backend`](ErrorKind::Backend): the driver failed.
    fn memory_info(&self, index: DeviceIndex) -> Result<Option<MemoryInfo>> {
        self.check_index(index)?;
        Ok(None)
    }

    /// Waits until the device `index` has done all work given to it.
    ///
    /// The default has nothing to wait for.
    ///
    /// # Errors
    ///
    /// - [`InvalidDevice`](ErrorKind::InvalidDevice): no such index.
    /// - [`Backend`](ErrorKind::Backend): the driver, or work that it did, failed.
    fn synchronize(&self, index: DeviceIndex) -> Result<()> {
        self.check_index(index)
    }

    /// Gives memory that is cached but unused back to the layer below, and
    /// returns how many bytes that were.
    ///
    /// The default caches nothing.
    ///
    /// # Errors
    ///
    /// - [`InvalidDevice`](ErrorKind::InvalidDevice): no such index.
    /// - [`Backend`](ErrorKind::Backend): the driver failed.
    fn trim(&self, index: DeviceIndex) -> Result<usize> {
        self.check_index(index)?;
        Ok(0)
    }

    /// The allocator as what it is, for back ends that can do more with memory of
    /// their own than this trait says. The default does not tell.
    ///
    /// A wrapper answers with itself or not at all, never with what it wraps: for
    /// that there is [`upstream`](Self::upstream). See promise 10.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }

    /// The allocator that this one wraps, where it hands out addresses of that
    /// one's blocks, whole or in part. The default wraps none. See promise 10.
    fn upstream(&self) -> Option<&dyn DeviceAllocator> {
        None
    }

    /// Checks that there is a device `index`.
    ///
    /// # Errors
    ///
    /// - [`InvalidDevice`](ErrorKind::InvalidDevice): there is none.
    fn check_index(&self, index: DeviceIndex) -> Result<()> {
        let count = self.device_count();
        if usize::from(index) < count {
            Ok(())
        } else {
            Err(ErrorKind::InvalidDevice {
                device: Device::new(self.device_type(), index),
                count,
            }
            .into())
        }
    }
}

// SAFETY: it is the allocator inside by another name; every call is passed on.
#[expect(unsafe_code, reason = "implements an unsafe trait")]
unsafe impl<A: DeviceAllocator + ?Sized> DeviceAllocator for Arc<A> {
    forward!(self => (**self); identity, blocks, copies);

    // It is no layer: what panics here is what was asked.
    fn memory_info(&self, index: DeviceIndex) -> Result<Option<MemoryInfo>> {
        (**self).memory_info(index)
    }

    fn synchronize(&self, index: DeviceIndex) -> Result<()> {
        (**self).synchronize(index)
    }

    fn trim(&self, index: DeviceIndex) -> Result<usize> {
        (**self).trim(index)
    }

    fn as_any(&self) -> Option<&dyn Any> {
        (**self).as_any()
    }

    fn upstream(&self) -> Option<&dyn DeviceAllocator> {
        (**self).upstream()
    }
}

const _: Option<&dyn DeviceAllocator> = None;
