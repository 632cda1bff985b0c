//! The one owner of device memory, with the one `Drop` that frees it.
//!
//! Rank 6. Imports `registry`, `span`, `allocator`, `backend::host` and the words.
//!
//! The recipe for freeing (allocator, address, layout, index) is fixed when the
//! memory is allocated. Nothing is looked up when it is freed.

mod batch;
mod copy;
mod create;
mod free;
mod raw;

use std::borrow::Borrow;
use std::fmt;
use std::ptr::NonNull;

use crate::address::DevicePtr;
use crate::allocator::{AllocatorHandle, DeviceAllocator, guarded};
use crate::backend::host::HostAllocator;
use crate::device::Device;
use crate::error::{AllocatorFault, Error, ErrorKind, Operation, Result};
use crate::layout::{DeviceLayout, SPARE_TRAIT};
use crate::process::ProcessGeneration;
use crate::span::{DeviceSpan, DeviceSpanMut};

pub(crate) use batch::BufferStack;
pub use free::FreeError;
pub use raw::RawDeviceMemory;

/// A move-only owner of memory on one device. Dropping it frees the memory.
///
/// It may be moved to and dropped on any thread, and never panics when dropped:
/// a failed free goes to [`set_free_failure_hook`](crate::set_free_failure_hook).
/// The memory is uninitialized, unless the host can read it; then it is
/// initialized to unspecified bytes.
///
/// In a forked child, a buffer of the parent is inert: its operations return
/// [`ForkedProcess`](ErrorKind::ForkedProcess) and dropping it does nothing.
///
/// # Examples
///
/// ```
/// use device_memory::{DeviceMemoryBuffer, DeviceType};
///
/// let mut buffer = DeviceMemoryBuffer::create(4, DeviceType::Cpu, 0)?;
/// buffer.copy_from_host(&[1, 2, 3, 4])?;
///
/// assert_eq!(buffer.size(), 4);
/// assert_eq!(buffer.to_vec()?, [1, 2, 3, 4]);
/// # Ok::<(), device_memory::Error>(())
/// ```
///
/// It can not be cloned by accident; see [`try_clone`](Self::try_clone):
///
/// ```compile_fail,E0599
/// use device_memory::{DeviceMemoryBuffer, DeviceType};
///
/// let buffer = DeviceMemoryBuffer::create(4, DeviceType::Cpu, 0).unwrap();
/// let copy = buffer.clone();
/// ```
///
/// Nor used after it was given away:
///
/// ```compile_fail,E0382
/// use device_memory::{DeviceMemoryBuffer, DeviceType};
///
/// let buffer = DeviceMemoryBuffer::create(4, DeviceType::Cpu, 0).unwrap();
/// drop(buffer);
/// buffer.size();
/// ```
///
/// Nor outlived by a slice of it:
///
/// ```compile_fail,E0505
/// use device_memory::{DeviceMemoryBuffer, DeviceType};
///
/// let buffer = DeviceMemoryBuffer::create(4, DeviceType::Cpu, 0).unwrap();
/// let bytes = buffer.as_slice().unwrap();
/// drop(buffer);
/// assert_eq!(bytes.len(), 4);
/// ```
pub struct DeviceMemoryBuffer {
    /// # Invariants
    ///
    /// 0. With `is_counted`, the parts of an [`AllocatorHandle`] that this owns.
    ///    That of an empty default buffer is the host's.
    allocator: NonNull<dyn DeviceAllocator>,
    /// # Invariants
    ///
    /// 1. If `size` is not 0, it came from `allocator.allocate(layout,
    ///    device.index())`, with the layout of `size` and `traits`, in the process
    ///    `generation`.
    /// 2. If `size` is not 0, no `deallocate` of it has succeeded since.
    ptr: DevicePtr,
    size: usize,
    device: Device,
    generation: ProcessGeneration,
    /// Those of the layout. [`SPARE_TRAIT`] says whether the handle is counted.
    traits: u16,
}

// SAFETY: the buffer owns its memory and its handle, which is Send and Sync;
// allocators accept calls from any thread.
#[expect(unsafe_code, reason = "a raw pointer is only Send by declaration")]
unsafe impl Send for DeviceMemoryBuffer {}

// SAFETY: as for `Send`; shared references only read the fields and the memory.
#[expect(unsafe_code, reason = "a raw pointer is only Sync by declaration")]
unsafe impl Sync for DeviceMemoryBuffer {}

const _: () = assert!(size_of::<DeviceMemoryBuffer>() <= 40);
const _: () = assert!(size_of::<Result<DeviceMemoryBuffer>>() <= 40);

impl DeviceMemoryBuffer {
    /// The one place that allocates.
    #[inline(always)]
    fn allocate<H>(allocator: H, layout: DeviceLayout, device: Device) -> Result<Self>
    where
        H: Borrow<AllocatorHandle> + Into<AllocatorHandle>,
    {
        let source = &**allocator.borrow();
        let ptr = if layout.is_empty() {
            dangling(source, layout, device)?
        } else {
            guarded(device, Operation::Allocate, || {
                source.allocate(layout, device.index())
            })?
        };
        let fits = ptr.addr().checked_add(layout.size()).is_some();
        let aligned = ptr.addr().trailing_zeros() >= layout.align_log2();
        if fits && aligned {
            Ok(Self::own(allocator.into(), ptr, layout, device))
        } else {
            Err(Self::refuse(allocator.into(), ptr, layout, device))
        }
    }

    /// The owner of what `allocator` has just returned for `layout` on `device`.
    #[inline]
    fn own(
        allocator: AllocatorHandle,
        ptr: DevicePtr,
        layout: DeviceLayout,
        device: Device,
    ) -> Self {
        let (allocator, counted) = allocator.into_parts();
        let counted = if counted { SPARE_TRAIT } else { 0 };
        Self {
            allocator,
            ptr,
            size: layout.size(),
            device,
            generation: ProcessGeneration::of_watched_process(),
            traits: layout.traits() | counted,
        }
    }

    /// Gives back what an allocator should not have returned.
    #[cold]
    fn refuse(
        allocator: AllocatorHandle,
        ptr: DevicePtr,
        layout: DeviceLayout,
        device: Device,
    ) -> Error {
        drop(Self::own(allocator, ptr, layout, device));
        let (addr, align, size) = (ptr.addr(), layout.align(), layout.size());
        let fault = if ptr.is_aligned_to(align) {
            AllocatorFault::Wraps { addr, size }
        } else {
            AllocatorFault::Misaligned { addr, align }
        };
        Error::from(ErrorKind::BadAllocator { device, fault })
    }

    /// The size in bytes.
    #[inline]
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Whether the size is 0.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.size == 0
    }

    /// The device that the memory is on; `cpu:0` for a default buffer.
    #[inline]
    #[must_use]
    pub fn device(&self) -> Device {
        self.device
    }

    /// The layout that was asked for.
    #[inline]
    #[must_use]
    pub fn layout(&self) -> DeviceLayout {
        DeviceLayout::from_parts(self.size, self.traits & !SPARE_TRAIT)
    }

    /// The address of the first byte; dangling but aligned if the size is 0.
    #[inline]
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// The allocator that the memory came from; the host's for a default buffer.
    #[inline]
    #[must_use]
    #[expect(unsafe_code, reason = "see SAFETY")]
    pub fn allocator(&self) -> &dyn DeviceAllocator {
        // SAFETY: the allocator is alive while this buffer owns a handle of it
        // (invariant 0), and is only used by shared reference.
        unsafe { self.allocator.as_ref() }
    }

    /// A shared view of all bytes.
    #[inline]
    #[must_use]
    #[expect(unsafe_code, reason = "see SAFETY")]
    pub fn as_span(&self) -> DeviceSpan<'_> {
        let allocator = self.allocator();
        // SAFETY: the bytes are one block of the allocator (invariants 1 and 2)
        // that is neither freed nor written while `self` is borrowed.
        unsafe {
            DeviceSpan::from_owner(self.ptr, self.size, self.device, allocator, self.generation)
        }
    }

    /// An exclusive view of all bytes.
    #[inline]
    #[must_use]
    #[expect(unsafe_code, reason = "see SAFETY")]
    pub fn as_span_mut(&mut self) -> DeviceSpanMut<'_> {
        // SAFETY: `self` is borrowed exclusively, and owns the bytes.
        unsafe { DeviceSpanMut::from_shared(self.as_span()) }
    }

    /// The bytes as a slice, where the host can read them.
    ///
    /// # Errors
    ///
    /// - [`NotHostAccessible`](ErrorKind::NotHostAccessible): the host can not.
    /// - [`ForkedProcess`](ErrorKind::ForkedProcess): the memory is a parent process's.
    pub fn as_slice(&self) -> Result<&[u8]> {
        self.as_span().as_slice()
    }

    /// The bytes as a slice to write, where the host can.
    ///
    /// # Errors
    ///
    /// - [`NotHostAccessible`](ErrorKind::NotHostAccessible): the host can not.
    /// - [`ForkedProcess`](ErrorKind::ForkedProcess): the memory is a parent process's.
    pub fn as_slice_mut(&mut self) -> Result<&mut [u8]> {
        self.as_span_mut().into_slice_mut()
    }

    /// Whether the handle of the allocator is counted.
    #[inline]
    fn is_counted(&self) -> bool {
        self.traits & SPARE_TRAIT != 0
    }

    /// Gives the handle of the allocator back.
    ///
    /// # Safety
    ///
    /// This is called once, and the allocator is not used any more.
    #[inline]
    #[expect(unsafe_code, reason = "see SAFETY")]
    unsafe fn drop_handle(&self) {
        if self.is_counted() {
            // SAFETY: these are the parts of the handle that this buffer owns
            // (invariant 0), and no other handle made of them is dropped.
            drop(unsafe { AllocatorHandle::from_parts(self.allocator, true) });
        }
    }
}

impl Drop for DeviceMemoryBuffer {
    // Not inlined: the glue around it is smaller and faster without.
    #[inline(never)]
    #[expect(unsafe_code, reason = "see SAFETY")]
    fn drop(&mut self) {
        if !self.generation.is_current() {
            // The memory and the allocator are the parent's.
            return;
        }
        // SAFETY: no view outlives the buffer, and `drop` runs once.
        unsafe { self.deallocate(|error| self.report(error)) };
        // SAFETY: `drop` runs once, and this is its end.
        unsafe { self.drop_handle() };
    }
}

impl Default for DeviceMemoryBuffer {
    /// An empty buffer, for which no allocator was asked.
    fn default() -> Self {
        Self {
            allocator: NonNull::from(&HostAllocator),
            ptr: DevicePtr::dangling(1),
            size: 0,
            device: Device::CPU,
            generation: ProcessGeneration::of_watched_process(),
            traits: 0,
        }
    }
}

impl fmt::Debug for DeviceMemoryBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceMemoryBuffer")
            .field("device", &format_args!("{}", self.device))
            .field("ptr", &format_args!("{}", self.ptr))
            .field("size", &self.size)
            .field("align", &self.layout().align())
            .finish_non_exhaustive()
    }
}

/// What stands for an allocation of no bytes.
#[cold]
fn dangling(
    allocator: &dyn DeviceAllocator,
    layout: DeviceLayout,
    device: Device,
) -> Result<DevicePtr> {
    guarded(device, Operation::Allocate, || {
        allocator.check_index(device.index())
    })?;
    Ok(DevicePtr::dangling(layout.align()))
}
