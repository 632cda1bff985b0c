//! The one owner of device memory, with the one `Drop` that frees it.
//!
//! Rank 5. Imports `registry`, `span`, `allocator`, `backend::host` and the words.
//!
//! The recipe for freeing (allocator, address, layout, index) is fixed when the
//! memory is allocated. Nothing is looked up when it is freed.

mod batch;
mod copy;
mod raw;

use std::fmt;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use crate::address::DevicePtr;
use crate::allocator::{AllocatorHandle, DeviceAllocator};
use crate::backend::host::HostAllocator;
use crate::device::{Device, DeviceIndex, DeviceType};
use crate::error::{AllocatorFault, Error, Operation, Result};
use crate::free_failure::{self, FreeFailure};
use crate::layout::DeviceLayout;
use crate::process::ProcessGeneration;
use crate::registry::DeviceAllocatorRegistry;
use crate::span::{DeviceSpan, DeviceSpanMut};

pub(crate) use batch::BufferStack;
pub use raw::RawDeviceMemory;

/// A move-only owner of memory on one device. Dropping it frees the memory.
///
/// It may be moved to and dropped on any thread, and never panics when dropped:
/// a failed free goes to [`set_free_failure_hook`](crate::set_free_failure_hook).
/// The memory is uninitialized, unless the host can read it; then it is
/// initialized to unspecified bytes.
///
/// In a forked child, a buffer of the parent is inert: its operations return
/// [`ForkedProcess`](Error::ForkedProcess) and dropping it does nothing.
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
pub struct DeviceMemoryBuffer {
    /// # Invariants
    ///
    /// 0. With `counted`, the parts of an [`AllocatorHandle`] that this owns.
    allocator: Option<NonNull<dyn DeviceAllocator>>,
    /// # Invariants
    ///
    /// 1. If `size` is not 0, it came from `allocator.allocate(layout,
    ///    device.index())`, with the layout of `size` and `align_log2`, in the
    ///    process `generation`.
    /// 2. If `size` is not 0, it was not given back since.
    ptr: DevicePtr,
    size: usize,
    device: Device,
    generation: ProcessGeneration,
    align_log2: u8,
    counted: bool,
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
    /// Allocates `size` bytes on the device `index` of type `device_type`.
    ///
    /// The allocator is that of [`DeviceAllocatorRegistry::global`]. A size of 0
    /// needs it too, and a valid index, but does not call `allocate`.
    ///
    /// # Errors
    ///
    /// - [`NotRegistered`](Error::NotRegistered): no allocator serves the type.
    /// - [`InvalidDevice`](Error::InvalidDevice): there is no such index.
    /// - [`Layout`](Error::Layout): `size` is more than one allocation can have.
    /// - [`OutOfMemory`](Error::OutOfMemory): the device has no room.
    /// - [`BadAllocator`](Error::BadAllocator): the memory it returned is unusable.
    /// - [`ForkedProcess`](Error::ForkedProcess): the allocator is a parent process's.
    /// - [`Backend`](Error::Backend): the driver failed otherwise.
    ///
    /// # Examples
    ///
    /// ```
    /// use device_memory::{DeviceMemoryBuffer, DeviceType};
    ///
    /// let buffer = DeviceMemoryBuffer::create(1024, DeviceType::Cpu, 0)?;
    ///
    /// assert_eq!(buffer.device().to_string(), "cpu:0");
    /// assert!(DeviceMemoryBuffer::create(1024, DeviceType::Custom(9), 0).is_err());
    /// # Ok::<(), device_memory::Error>(())
    /// ```
    #[inline]
    pub fn create(size: usize, device_type: DeviceType, index: DeviceIndex) -> Result<Self> {
        let registry = DeviceAllocatorRegistry::global();
        let layout = DeviceLayout::from_size(size)?;
        Self::create_in(registry, layout, Device::new(device_type, index))
    }

    /// Allocates `len` values of `T`, without initializing them.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create); [`Layout`](Error::Layout) too if the number of
    /// bytes overflows.
    #[inline]
    pub fn create_array<T>(
        len: usize,
        device_type: DeviceType,
        index: DeviceIndex,
    ) -> Result<Self> {
        let registry = DeviceAllocatorRegistry::global();
        let layout = DeviceLayout::array::<T>(len)?;
        Self::create_in(registry, layout, Device::new(device_type, index))
    }

    /// Allocates with the allocator that serves the device in `registry`.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create).
    #[inline]
    pub fn create_in(
        registry: &DeviceAllocatorRegistry,
        layout: DeviceLayout,
        device: Device,
    ) -> Result<Self> {
        Self::allocate(registry.try_get(device.device_type())?, layout, device)
    }

    /// Allocates with `allocator`, which no registry needs to know.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create), without `NotRegistered`.
    ///
    /// # Examples
    ///
    /// ```
    /// use device_memory::{DeviceLayout, DeviceMemoryBuffer, HostAllocator};
    ///
    /// let page = DeviceMemoryBuffer::create_with(&HostAllocator, DeviceLayout::new(4096, 4096)?, 0)?;
    ///
    /// assert!(page.ptr().is_aligned_to(4096));
    /// # Ok::<(), device_memory::Error>(())
    /// ```
    #[inline]
    pub fn create_with(
        allocator: impl Into<AllocatorHandle>,
        layout: DeviceLayout,
        index: DeviceIndex,
    ) -> Result<Self> {
        let allocator = allocator.into();
        let device = Device::new(allocator.device_type(), index);
        Self::allocate(allocator, layout, device)
    }

    /// Allocates `size` bytes and sets them to 0.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create) and [`fill`](Self::fill).
    pub fn create_zeroed(size: usize, device_type: DeviceType, index: DeviceIndex) -> Result<Self> {
        let mut buffer = Self::create(size, device_type, index)?;
        buffer.fill(0)?;
        Ok(buffer)
    }

    /// Allocates as many bytes as `bytes` and copies them there.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create) and [`copy_from_host`](Self::copy_from_host).
    pub fn from_host(bytes: &[u8], device_type: DeviceType, index: DeviceIndex) -> Result<Self> {
        let mut buffer = Self::create(bytes.len(), device_type, index)?;
        buffer.copy_from_host(bytes)?;
        Ok(buffer)
    }

    /// Allocates the same layout with the same allocator on the same device, and
    /// copies the bytes there.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create) and [`copy_from`](Self::copy_from).
    #[expect(unsafe_code, reason = "see SAFETY")]
    pub fn try_clone(&self) -> Result<Self> {
        let Some(ptr) = self.allocator else {
            return Ok(Self::default());
        };
        // SAFETY: these are the parts of the handle that this buffer owns
        // (invariant 0); it is not dropped here, only cloned.
        let handle = ManuallyDrop::new(unsafe { AllocatorHandle::from_parts(ptr, self.counted) });
        let mut clone =
            Self::allocate(AllocatorHandle::clone(&handle), self.layout(), self.device)?;
        clone.copy_from(self.as_span())?;
        Ok(clone)
    }

    /// The one place that allocates.
    #[inline]
    fn allocate(handle: AllocatorHandle, layout: DeviceLayout, device: Device) -> Result<Self> {
        let ptr = if layout.is_empty() {
            handle.check_index(device.index())?;
            DevicePtr::dangling(layout.align())
        } else {
            handle.allocate(layout, device.index())?
        };
        let (allocator, counted) = handle.into_parts();
        // From here on the memory has its owner, and no error below can leak it.
        let buffer = Self {
            allocator: Some(allocator),
            ptr,
            size: layout.size(),
            device,
            generation: ProcessGeneration::current(),
            align_log2: layout.align_log2(),
            counted,
        };
        if !ptr.is_aligned_to(layout.align()) || ptr.checked_add(layout.size()).is_none() {
            return Err(buffer.bad_allocator());
        }
        Ok(buffer)
    }

    #[cold]
    fn bad_allocator(self) -> Error {
        let (addr, align, size) = (self.ptr.addr(), self.layout().align(), self.size);
        let fault = if self.ptr.is_aligned_to(align) {
            AllocatorFault::Wraps { addr, size }
        } else {
            AllocatorFault::Misaligned { addr, align }
        };
        Error::BadAllocator {
            device: self.device,
            fault,
        }
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

    /// The size and alignment that were asked for.
    #[inline]
    #[must_use]
    pub fn layout(&self) -> DeviceLayout {
        DeviceLayout::from_parts(self.size, self.align_log2)
    }

    /// The address of the first byte; dangling but aligned if the size is 0.
    #[inline]
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// The allocator, or `None` for a default buffer.
    #[inline]
    #[must_use]
    #[expect(unsafe_code, reason = "see SAFETY")]
    pub fn allocator(&self) -> Option<&dyn DeviceAllocator> {
        // SAFETY: the allocator is alive while this buffer owns a handle of it
        // (invariant 0), and is only used by shared reference.
        self.allocator.map(|ptr| unsafe { ptr.as_ref() })
    }

    /// A shared view of all bytes.
    #[inline]
    #[must_use]
    #[expect(unsafe_code, reason = "see SAFETY")]
    pub fn as_span(&self) -> DeviceSpan<'_> {
        let allocator = self.allocator().unwrap_or(&HostAllocator);
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
    /// - [`NotHostAccessible`](Error::NotHostAccessible): the host can not.
    /// - [`ForkedProcess`](Error::ForkedProcess): the memory is a parent process's.
    pub fn as_slice(&self) -> Result<&[u8]> {
        self.as_span().as_slice()
    }

    /// The bytes as a slice to write, where the host can.
    ///
    /// # Errors
    ///
    /// - [`NotHostAccessible`](Error::NotHostAccessible): the host can not.
    /// - [`ForkedProcess`](Error::ForkedProcess): the memory is a parent process's.
    pub fn as_slice_mut(&mut self) -> Result<&mut [u8]> {
        self.as_span_mut().into_slice_mut()
    }

    /// Frees the memory and says whether that worked.
    ///
    /// A driver that is already shut down counts as success.
    ///
    /// # Errors
    ///
    /// A [`FreeError`] with the buffer, which still owns the memory, and the
    /// reason:
    ///
    /// - [`AllocatorPanicked`](Error::AllocatorPanicked): the allocator panicked.
    /// - [`ForkedProcess`](Error::ForkedProcess): the memory is a parent process's.
    /// - what the allocator returns.
    pub fn free(mut self) -> Result<(), FreeError> {
        if self.size != 0 && !self.generation.is_current() {
            let device = self.device;
            return Err(FreeError {
                buffer: self,
                error: Error::ForkedProcess { device },
            });
        }
        match self.deallocate() {
            Ok(()) => Ok(()),
            Err(error) => Err(FreeError {
                buffer: self,
                error,
            }),
        }
    }

    /// The one place that frees. On success nothing is left to free.
    #[inline]
    #[expect(unsafe_code, reason = "see SAFETY")]
    fn deallocate(&mut self) -> Result<()> {
        let Some(allocator) = self.allocator() else {
            return Ok(());
        };
        if self.size == 0 {
            return Ok(());
        }
        let (ptr, layout, index) = (self.ptr, self.layout(), self.device.index());
        let freed = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: `ptr` came from this allocator with this layout and index
            // (invariant 1) and was not given back (invariant 2). `self` is
            // borrowed exclusively, so no view is left to use it.
            unsafe { allocator.deallocate(ptr, layout, index) }
        }));
        let freed = match freed {
            Ok(freed) => freed,
            Err(payload) => {
                // Dropping the payload could panic again.
                std::mem::forget(payload);
                Err(Error::AllocatorPanicked {
                    device: self.device,
                    operation: Operation::Deallocate,
                })
            }
        };
        match freed {
            Ok(()) | Err(Error::ShutDown { .. }) => {
                self.size = 0;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Tells the hook of a failed free. The memory is leaked.
    #[cold]
    fn report(&self, error: Error) {
        free_failure::report(&FreeFailure {
            device: self.device,
            ptr: self.ptr,
            layout: self.layout(),
            error,
        });
    }

    /// Gives the handle of the allocator back.
    #[inline]
    #[expect(unsafe_code, reason = "see SAFETY")]
    fn drop_handle(&mut self) {
        let Some(ptr) = self.allocator.take() else {
            return;
        };
        if !self.counted {
            return;
        }
        // SAFETY: these are the parts of the handle that this buffer owns
        // (invariant 0), and it is forgotten by now.
        let handle = unsafe { AllocatorHandle::from_parts(ptr, true) };
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(handle)));
        if let Err(payload) = dropped {
            std::mem::forget(payload);
        }
    }
}

impl Drop for DeviceMemoryBuffer {
    #[inline]
    fn drop(&mut self) {
        if !self.generation.is_current() {
            // The memory and the allocator are the parent's.
            return;
        }
        if let Err(error) = self.deallocate() {
            self.report(error);
        }
        self.drop_handle();
    }
}

impl Default for DeviceMemoryBuffer {
    /// An empty buffer without an allocator.
    fn default() -> Self {
        Self {
            allocator: None,
            ptr: DevicePtr::dangling(1),
            size: 0,
            device: Device::CPU,
            generation: ProcessGeneration::current(),
            align_log2: 0,
            counted: false,
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

/// A buffer that could not be freed, and why.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct FreeError {
    /// The buffer, which still owns its memory.
    pub buffer: DeviceMemoryBuffer,
    /// Why it could not be freed.
    #[source]
    pub error: Error,
}
