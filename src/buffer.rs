//! The one owner of device memory, with the one `Drop` that frees it.
//!
//! Rank 6. Imports `registry`, `span`, `allocator`, `backend::host` and the words.
//!
//! The recipe for freeing (allocator, address, layout, index) is fixed when the
//! memory is allocated. Nothing is looked up when it is freed.

mod batch;
mod copy;
mod raw;

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use crate::address::DevicePtr;
use crate::allocator::{AllocatorHandle, DeviceAllocator, device_type_of, guarded};
use crate::backend::host::HostAllocator;
use crate::device::{Device, DeviceIndex, DeviceType};
use crate::error::{AllocatorFault, Error, ErrorKind, Operation, Result};
use crate::free_failure::{self, FreeFailure};
use crate::layout::DeviceLayout;
use crate::process::ProcessGeneration;
use crate::registry::DeviceAllocatorRegistry;
use crate::span::{DeviceSpan, DeviceSpanMut};
use crate::unwind::caught;

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
pub struct DeviceMemoryBuffer {
    /// # Invariants
    ///
    /// 0. With `counted`, the parts of an [`AllocatorHandle`] that this owns. That
    ///    of an empty default buffer is the host's.
    allocator: NonNull<dyn DeviceAllocator>,
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
    /// - [`NotRegistered`](ErrorKind::NotRegistered): no allocator serves the type.
    /// - [`InvalidDevice`](ErrorKind::InvalidDevice): there is no such index.
    /// - [`Layout`](ErrorKind::Layout): `size` is more than one allocation can have.
    /// - [`OutOfMemory`](ErrorKind::OutOfMemory): the device has no room.
    /// - [`BadAllocator`](ErrorKind::BadAllocator): the memory it returned is unusable.
    /// - [`ForkedProcess`](ErrorKind::ForkedProcess): the allocator is a parent process's.
    /// - [`Backend`](ErrorKind::Backend): the driver failed otherwise.
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
    /// As [`create`](Self::create); [`Layout`](ErrorKind::Layout) too if the number of
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
    // Always: the look-up folds to one load where the type is known.
    #[inline(always)]
    pub fn create_in(
        registry: &DeviceAllocatorRegistry,
        layout: DeviceLayout,
        device: Device,
    ) -> Result<Self> {
        match registry.registered(device.device_type()) {
            Some(allocator) => Self::allocate(allocator, layout, device),
            None => Self::create_builtin(registry, layout, device),
        }
    }

    /// [`create_in`](Self::create_in) where nothing is registered.
    #[cold]
    fn create_builtin(
        registry: &DeviceAllocatorRegistry,
        layout: DeviceLayout,
        device: Device,
    ) -> Result<Self> {
        let allocator = registry.lookup(device.device_type())?;
        Self::allocate(allocator, layout, device)
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
        let device = Device::new(device_type_of(&*allocator)?, index);
        Self::allocate(&allocator, layout, device)
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
        // SAFETY: these are the parts of the handle that this buffer owns
        // (invariant 0); it is not dropped here.
        let handle =
            ManuallyDrop::new(unsafe { AllocatorHandle::from_parts(self.allocator, self.counted) });
        let mut clone = Self::allocate(&handle, self.layout(), self.device)?;
        clone.copy_from(self.as_span())?;
        Ok(clone)
    }

    /// The one place that allocates.
    #[inline(always)]
    fn allocate(allocator: &AllocatorHandle, layout: DeviceLayout, device: Device) -> Result<Self> {
        let ptr = if layout.is_empty() {
            dangling(&**allocator, layout, device)?
        } else {
            guarded(device, Operation::Allocate, || {
                (**allocator).allocate(layout, device.index())
            })?
        };
        let fits = ptr.addr().checked_add(layout.size()).is_some();
        let aligned = ptr.addr().trailing_zeros() >= u32::from(layout.align_log2());
        if fits && aligned {
            Ok(Self::own(allocator, ptr, layout, device))
        } else {
            Err(Self::refuse(allocator, ptr, layout, device))
        }
    }

    /// The owner of what `allocator` has just returned for `layout` on `device`.
    #[inline]
    fn own(
        allocator: &AllocatorHandle,
        ptr: DevicePtr,
        layout: DeviceLayout,
        device: Device,
    ) -> Self {
        let (allocator, counted) = allocator.clone().into_parts();
        Self {
            allocator,
            ptr,
            size: layout.size(),
            device,
            generation: ProcessGeneration::of_watched_process(),
            align_log2: layout.align_log2(),
            counted,
        }
    }

    /// Gives back what an allocator should not have returned.
    #[cold]
    fn refuse(
        allocator: &AllocatorHandle,
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

    /// Frees the memory and says whether that worked.
    ///
    /// A driver that is already shut down counts as success.
    ///
    /// # Errors
    ///
    /// A [`FreeError`] with the buffer, which still owns the memory, and the
    /// reason:
    ///
    /// - [`AllocatorPanicked`](ErrorKind::AllocatorPanicked): the allocator panicked.
    /// - [`ForkedProcess`](ErrorKind::ForkedProcess): the memory is a parent process's.
    /// - what the allocator returns.
    #[expect(unsafe_code, reason = "see SAFETY")]
    pub fn free(mut self) -> Result<(), FreeError> {
        if self.size != 0 && !self.generation.is_current() {
            let device = self.device;
            return Err(FreeError {
                buffer: self,
                error: ErrorKind::ForkedProcess { device }.into(),
            });
        }
        let mut failure = None;
        // SAFETY: `self` is consumed, and on success its size is set to 0.
        unsafe { self.deallocate(|error| failure = Some(error)) };
        match failure {
            None => {
                self.size = 0;
                Ok(())
            }
            Some(error) => Err(FreeError {
                buffer: self,
                error,
            }),
        }
    }

    /// The one place that frees. `failed` is told of a failure other than that
    /// the driver is shut down.
    ///
    /// # Safety
    ///
    /// Nothing uses the memory any more, and this is not called again if it
    /// succeeds.
    #[inline]
    #[expect(unsafe_code, reason = "see SAFETY")]
    unsafe fn deallocate(&self, failed: impl FnOnce(Error)) {
        if self.size == 0 {
            return;
        }
        let allocator = self.allocator();
        let freed = guarded(self.device, Operation::Deallocate, || {
            // SAFETY: `ptr` came from this allocator with this layout and index
            // (invariant 1) and was not given back (invariant 2). The caller
            // promises that nothing uses it any more.
            unsafe { allocator.deallocate(self.ptr, self.layout(), self.device.index()) }
        });
        if let Err(error) = freed
            && let Some(error) = unless_shut_down(error)
        {
            failed(error);
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

    /// Gives the counted handle of the allocator back.
    ///
    /// Kept out of line: it would make every `drop` larger.
    #[inline(never)]
    #[expect(unsafe_code, reason = "see SAFETY")]
    fn drop_handle(&self) {
        // SAFETY: these are the parts of the handle that this buffer owns
        // (invariant 0), which ends here.
        let handle = unsafe { AllocatorHandle::from_parts(self.allocator, true) };
        // An allocator that panics when it is dropped has no one to tell.
        let _ = caught(|| drop(handle));
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
        if self.counted {
            self.drop_handle();
        }
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

/// The error, unless it says that the memory is gone with its driver.
#[cold]
fn unless_shut_down(error: Error) -> Option<Error> {
    (!error.is_shut_down()).then_some(error)
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

impl From<FreeError> for Error {
    /// Keeps the reason and drops the buffer, which tries to free once more.
    fn from(failure: FreeError) -> Self {
        failure.error
    }
}
