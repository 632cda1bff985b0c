//! Views to read.
//!
//! Rank 3. Part of `span`.

use std::fmt;

use crate::address::DevicePtr;
use crate::allocator::{DeviceAllocator, host_bytes};
use crate::device::Device;
use crate::error::{Operation, Result};
use crate::process::ProcessGeneration;
use crate::span::region::Region;

/// A shared view of device memory.
///
/// It carries the device, can not outlive the owner, and may exist any number of
/// times. `Send` and `Sync`: copies through it may run on any thread.
///
/// # Examples
///
/// ```
/// use device_memory::{DeviceMemoryBuffer, DeviceType};
///
/// let buffer = DeviceMemoryBuffer::from_host(&[1, 2, 3, 4], DeviceType::Cpu, 0)?;
/// let tail = buffer.as_span().subspan(2, 2)?;
/// let mut bytes = [0; 2];
/// tail.copy_to_host(&mut bytes)?;
///
/// assert_eq!(bytes, [3, 4]);
/// # Ok::<(), device_memory::Error>(())
/// ```
///
/// It can not outlive the owner:
///
/// ```compile_fail,E0505
/// use device_memory::{DeviceMemoryBuffer, DeviceType};
///
/// let buffer = DeviceMemoryBuffer::create(64, DeviceType::Cpu, 0).unwrap();
/// let span = buffer.as_span();
/// drop(buffer);
/// span.len();
/// ```
///
/// Nor be written through:
///
/// ```compile_fail,E0599
/// use device_memory::{DeviceMemoryBuffer, DeviceType};
///
/// let buffer = DeviceMemoryBuffer::create(4, DeviceType::Cpu, 0).unwrap();
/// buffer.as_span().copy_from_host(&[0; 4]).unwrap();
/// ```
///
/// Nor can the owner be written while one lives:
///
/// ```compile_fail,E0502
/// use device_memory::{DeviceMemoryBuffer, DeviceType};
///
/// let mut buffer = DeviceMemoryBuffer::create(4, DeviceType::Cpu, 0).unwrap();
/// let span = buffer.as_span();
/// buffer.fill(0).unwrap();
/// span.len();
/// ```
#[derive(Clone, Copy)]
pub struct DeviceSpan<'a> {
    pub(super) region: Region<'a>,
}

impl<'a> DeviceSpan<'a> {
    /// A view of memory that this crate does not own.
    ///
    /// # Safety
    ///
    /// `ptr` to `ptr + len` lies in one block of `allocator` on `device`, which is
    /// one of the allocator's devices, that stays allocated during `'a`, and that
    /// nothing writes during `'a`. If `len` is 0 nothing is promised of `ptr`.
    #[must_use]
    #[expect(unsafe_code, reason = "the invariants are the caller's to keep")]
    pub unsafe fn from_raw_parts(
        ptr: DevicePtr,
        len: usize,
        device: Device,
        allocator: &'a dyn DeviceAllocator,
    ) -> Self {
        Self {
            region: Region {
                ptr,
                len,
                allocator,
                device,
                generation: ProcessGeneration::current(),
            },
        }
    }

    /// As [`from_raw_parts`](Self::from_raw_parts), in the name of an owner that
    /// was made in `generation`.
    ///
    /// # Safety
    ///
    /// As there.
    #[inline]
    #[expect(unsafe_code, reason = "the invariants are the caller's to keep")]
    pub(crate) unsafe fn from_owner(
        ptr: DevicePtr,
        len: usize,
        device: Device,
        allocator: &'a dyn DeviceAllocator,
        generation: ProcessGeneration,
    ) -> Self {
        Self {
            region: Region {
                ptr,
                len,
                allocator,
                device,
                generation,
            },
        }
    }

    /// The address of the first byte. Dangling if the view is empty.
    #[inline]
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.region.ptr
    }

    /// The length in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.region.len
    }

    /// Whether the view has no bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.region.len == 0
    }

    /// Where the memory is.
    #[inline]
    #[must_use]
    pub fn device(&self) -> Device {
        self.region.device
    }

    /// Checks that the memory is of this process.
    pub(crate) fn check_process(&self) -> Result<()> {
        self.region.check_process()
    }

    /// The allocator that the memory came from.
    #[cfg(feature = "cuda")]
    pub(crate) fn allocator(&self) -> &'a dyn DeviceAllocator {
        self.region.allocator
    }

    /// A view of `size` bytes from `offset` on.
    ///
    /// # Errors
    ///
    /// - [`OutOfBounds`](crate::ErrorKind::OutOfBounds): the range passes the end or overflows.
    #[inline]
    pub fn subspan(&self, offset: usize, size: usize) -> Result<DeviceSpan<'a>> {
        self.region
            .subregion(offset, size)
            .map(|region| DeviceSpan { region })
    }

    /// The views before and from `offset` on.
    ///
    /// # Errors
    ///
    /// - [`OutOfBounds`](crate::ErrorKind::OutOfBounds): `offset` lies beyond the end.
    pub fn split_at(&self, offset: usize) -> Result<(DeviceSpan<'a>, DeviceSpan<'a>)> {
        let (front, back) = self.region.split_at(offset)?;
        Ok((DeviceSpan { region: front }, DeviceSpan { region: back }))
    }

    /// Copies the whole view to the host. Returns when `dst` may be read.
    ///
    /// # Errors
    ///
    /// - [`LengthMismatch`](crate::ErrorKind::LengthMismatch): `dst` is not as long as the view.
    /// - [`ForkedProcess`](crate::ErrorKind::ForkedProcess): the memory is a parent process's.
    /// - what the allocator returns; `dst` is unspecified then.
    #[expect(unsafe_code, reason = "see SAFETY")]
    pub fn copy_to_host(&self, dst: &mut [u8]) -> Result<()> {
        let region = self.region;
        region.check_len(dst.len())?;
        if dst.is_empty() {
            return Ok(());
        }
        // SAFETY: the source is one live block of the allocator (invariant 0)
        // that is not written while this shared view exists; `dst` is exclusive
        // and of the same length.
        region.call(Operation::CopyDeviceToHost, |allocator, index| unsafe {
            allocator.copy_device_to_host(dst.as_mut_ptr(), region.ptr, dst.len(), index)
        })
    }

    /// The bytes of the view, copied to the host.
    ///
    /// # Errors
    ///
    /// As [`copy_to_host`](Self::copy_to_host), and
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory) of the host.
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let mut bytes = host_bytes(self.len(), 0)?;
        self.copy_to_host(&mut bytes)?;
        Ok(bytes)
    }

    /// The bytes as a slice, where the host can read them.
    ///
    /// # Errors
    ///
    /// - [`NotHostAccessible`](crate::ErrorKind::NotHostAccessible): the host can not.
    /// - [`ForkedProcess`](crate::ErrorKind::ForkedProcess): the memory is a parent process's.
    #[expect(unsafe_code, reason = "see SAFETY")]
    pub fn as_slice(&self) -> Result<&'a [u8]> {
        self.region.check_host_accessible()?;
        if self.is_empty() {
            return Ok(&[]);
        }
        // SAFETY: the bytes are one live block during `'a` (invariant 0) that the
        // host may read and that is initialized (promise 5 of the allocator);
        // nothing writes it while this shared view exists; blocks are at most
        // `isize::MAX` bytes (`DeviceLayout`).
        Ok(unsafe { std::slice::from_raw_parts(self.region.ptr.as_raw(), self.region.len) })
    }
}

impl fmt::Debug for DeviceSpan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.region.fmt("DeviceSpan", f)
    }
}
