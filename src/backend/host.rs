//! Memory of the host.
//!
//! Rank 4. Imports `allocator`, `span` and the words.
//!
//! All memory is zeroed when allocated: host memory is handed out as slices, and
//! a slice of uninitialized bytes would be undefined behavior.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::ptr;

use crate::address::DevicePtr;
use crate::allocator::DeviceAllocator;
use crate::device::{Device, DeviceIndex, DeviceType};
use crate::error::{Error, Result};
use crate::layout::{DeviceLayout, LayoutError};
use crate::span::{DeviceSpan, DeviceSpanMut};

/// The allocator of `cpu:0`: the process's own heap, zeroed, of any alignment.
///
/// It is always available and needs no registration. It works in a forked
/// child, for memory that the child allocates itself.
///
/// A block is what `std::alloc` gives for a `Layout` of the same size and
/// alignment, and is freed with it. So memory goes to a `Vec` or a `Box` of that
/// layout ([`RawDeviceMemory::into_ptr`](crate::RawDeviceMemory::into_ptr)), and
/// comes from one
/// ([`DeviceMemoryBuffer::from_raw_parts`](crate::DeviceMemoryBuffer::from_raw_parts)),
/// without a copy.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostAllocator;

impl HostAllocator {
    /// A view of bytes that the host owns, for copies to and from devices.
    ///
    /// # Examples
    ///
    /// ```
    /// use device_memory::{DeviceMemoryBuffer, DeviceType, HostAllocator};
    ///
    /// let mut buffer = DeviceMemoryBuffer::create(3, DeviceType::Cpu, 0)?;
    /// buffer.as_span_mut().copy_from(HostAllocator::span(b"abc"))?;
    ///
    /// assert_eq!(buffer.as_slice()?, b"abc");
    /// # Ok::<(), device_memory::Error>(())
    /// ```
    #[must_use]
    #[expect(unsafe_code, reason = "see SAFETY")]
    pub fn span(bytes: &[u8]) -> DeviceSpan<'_> {
        let ptr = ptr::from_ref(bytes).cast::<u8>().cast_mut();
        let ptr = DevicePtr::from_raw(ptr).unwrap_or(DevicePtr::dangling(1));
        // SAFETY: the bytes are valid and not written during the borrow, and
        // copies by this allocator are plain memory copies.
        unsafe { DeviceSpan::from_raw_parts(ptr, bytes.len(), Device::CPU, &Self) }
    }

    /// An exclusive view of bytes that the host owns.
    #[must_use]
    #[expect(unsafe_code, reason = "see SAFETY")]
    pub fn span_mut(bytes: &mut [u8]) -> DeviceSpanMut<'_> {
        let len = bytes.len();
        let ptr = DevicePtr::from_raw(bytes.as_mut_ptr()).unwrap_or(DevicePtr::dangling(1));
        // SAFETY: the bytes are valid and borrowed exclusively, and copies by
        // this allocator are plain memory copies.
        unsafe { DeviceSpanMut::from_raw_parts(ptr, len, Device::CPU, &Self) }
    }
}

// SAFETY: by number of the promises,
// 1. Both answers are constants.
// 2. to 4. Blocks come from `std::alloc` with the size and alignment asked for.
// 5. They are zeroed, and are ordinary host memory.
// 6. Copies are done by the calling thread before it returns.
// 7. A failed allocation has no effect, and freeing can not fail.
// 8. A layout of no bytes is refused, and copies of no bytes touch nothing.
// 10. It answers with itself, and wraps none.
#[expect(unsafe_code, reason = "implements an unsafe trait")]
unsafe impl DeviceAllocator for HostAllocator {
    fn device_type(&self) -> DeviceType {
        DeviceType::Cpu
    }

    fn device_count(&self) -> usize {
        1
    }

    fn allocate(&self, layout: DeviceLayout, index: DeviceIndex) -> Result<DevicePtr> {
        self.check_index(index)?;
        let Some(std_layout) = std_layout(layout) else {
            return Err(LayoutError::ZeroSize.into());
        };
        // SAFETY: `std_layout` gives only layouts of a size other than 0.
        let raw = unsafe { alloc_zeroed(std_layout) };
        DevicePtr::from_raw(raw).ok_or_else(|| Error::host_out_of_memory(layout))
    }

    unsafe fn deallocate(
        &self,
        ptr: DevicePtr,
        layout: DeviceLayout,
        _index: DeviceIndex,
    ) -> Result<()> {
        if let Some(std_layout) = std_layout(layout) {
            // SAFETY: the caller promises that `ptr` came from `allocate` with
            // this layout, which passed the same layout to `alloc_zeroed`.
            unsafe { dealloc(ptr.as_raw(), std_layout) };
        }
        Ok(())
    }

    unsafe fn copy_host_to_device(
        &self,
        dst: DevicePtr,
        src: *const u8,
        size: usize,
        _index: DeviceIndex,
    ) -> Result<()> {
        // SAFETY: the caller promises that both ranges are valid; `ptr::copy`
        // allows them to overlap.
        unsafe { ptr::copy(src, dst.as_raw(), size) };
        Ok(())
    }

    unsafe fn copy_device_to_host(
        &self,
        dst: *mut u8,
        src: DevicePtr,
        size: usize,
        _index: DeviceIndex,
    ) -> Result<()> {
        // SAFETY: as for the other direction.
        unsafe { ptr::copy(src.as_raw(), dst, size) };
        Ok(())
    }

    unsafe fn copy_device_to_device(
        &self,
        dst: DevicePtr,
        _dst_index: DeviceIndex,
        src: DevicePtr,
        _src_index: DeviceIndex,
        size: usize,
    ) -> Result<()> {
        // SAFETY: the caller promises that both ranges are valid.
        unsafe { ptr::copy(src.as_raw(), dst.as_raw(), size) };
        Ok(())
    }

    unsafe fn fill(
        &self,
        dst: DevicePtr,
        byte: u8,
        size: usize,
        _index: DeviceIndex,
    ) -> Result<()> {
        // SAFETY: the caller promises that the range is valid for writes.
        unsafe { ptr::write_bytes(dst.as_raw(), byte, size) };
        Ok(())
    }

    fn is_host_accessible(&self) -> bool {
        true
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

/// The same layout for `std::alloc`, or `None` for one of no bytes.
fn std_layout(layout: DeviceLayout) -> Option<Layout> {
    if layout.is_empty() {
        return None;
    }
    Layout::from_size_align(layout.size(), layout.align()).ok()
}
