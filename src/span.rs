//! Views of device memory.
//!
//! Rank 3. Imports `allocator` and the words.
//!
//! A view is an address, a length and a device, not a `&[u8]`: the host may not
//! be able to read what it points at. Only [`as_slice`](DeviceSpan::as_slice)
//! makes a slice, and only where the host can.

use std::fmt;
use std::marker::PhantomData;

use crate::address::DevicePtr;
use crate::allocator::{DeviceAllocator, copy_through_host, guarded, host_bytes};
use crate::device::{Device, DeviceIndex};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::process::ProcessGeneration;

/// What both kinds of view consist of.
///
/// # Invariants
///
/// 0. `ptr` to `ptr + len` lies in one block of `allocator` on `device.index()`
///    that stays allocated during `'a`, or `len` is 0.
/// 1. `device.device_type()` is the allocator's.
#[derive(Clone, Copy)]
struct Region<'a> {
    ptr: DevicePtr,
    len: usize,
    allocator: &'a dyn DeviceAllocator,
    device: Device,
    generation: ProcessGeneration,
}

impl<'a> Region<'a> {
    /// Checks that `offset` to `offset + size` lies within.
    #[inline]
    fn subregion(self, offset: usize, size: usize) -> Result<Self> {
        match offset.checked_add(size) {
            Some(end) if end <= self.len => Ok(Self {
                ptr: self.ptr.saturating_add(offset),
                len: size,
                ..self
            }),
            _ => Err(self.out_of_bounds(offset, size)),
        }
    }

    #[cold]
    fn out_of_bounds(self, offset: usize, size: usize) -> Error {
        ErrorKind::OutOfBounds {
            device: self.device,
            offset,
            size,
            len: self.len,
        }
        .into()
    }

    fn check_len(self, len: usize) -> Result<()> {
        if self.len == len {
            Ok(())
        } else {
            Err(ErrorKind::LengthMismatch {
                device: self.device,
                expected: self.len,
                found: len,
            }
            .into())
        }
    }

    fn check_process(self) -> Result<()> {
        if self.generation.is_current() {
            Ok(())
        } else {
            Err(ErrorKind::ForkedProcess {
                device: self.device,
            }
            .into())
        }
    }

    fn check_host_accessible(self) -> Result<()> {
        self.check_process()?;
        let accessible = self.len == 0
            || guarded(self.device, Operation::HostAccess, || {
                Ok(self.allocator.is_host_accessible())
            })?;
        if accessible {
            Ok(())
        } else {
            Err(ErrorKind::NotHostAccessible {
                device: self.device,
            }
            .into())
        }
    }

    /// Makes one call of the allocator, in the process that the memory is of.
    fn call(
        self,
        operation: Operation,
        call: impl FnOnce(&dyn DeviceAllocator, DeviceIndex) -> Result<()>,
    ) -> Result<()> {
        self.check_process()?;
        guarded(self.device, operation, || {
            call(self.allocator, self.device.index())
        })
    }

    /// Whether both are memory of one allocator, as far as can be told.
    ///
    /// Allocators without fields may share an address, so the type counts too; a
    /// type may have several vtables, and then the answer is no, which costs a
    /// detour and nothing else.
    fn same_allocator(self, other: Region<'_>) -> bool {
        std::ptr::eq(self.allocator, other.allocator)
    }

    fn fmt(self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("device", &format_args!("{}", self.device))
            .field("ptr", &format_args!("{}", self.ptr))
            .field("len", &self.len)
            .finish()
    }
}

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
#[derive(Clone, Copy)]
pub struct DeviceSpan<'a> {
    region: Region<'a>,
}

/// An exclusive view of device memory.
///
/// No other view of the same bytes exists while it does. See [`DeviceSpan`].
///
/// # Examples
///
/// Two exclusive views of one buffer can not exist at once:
///
/// ```compile_fail,E0499
/// use device_memory::{DeviceMemoryBuffer, DeviceType};
///
/// let mut buffer = DeviceMemoryBuffer::create(64, DeviceType::Cpu, 0).unwrap();
/// let first = buffer.as_span_mut();
/// let second = buffer.as_span_mut();
/// first.len();
/// ```
pub struct DeviceSpanMut<'a> {
    region: Region<'a>,
    /// Invariant in nothing, but not `Copy` and exclusive.
    exclusive: PhantomData<&'a mut [u8]>,
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

    /// A view of `size` bytes from `offset` on.
    ///
    /// # Errors
    ///
    /// - [`OutOfBounds`](ErrorKind::OutOfBounds): the range passes the end or overflows.
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
    /// - [`OutOfBounds`](ErrorKind::OutOfBounds): `offset` lies beyond the end.
    pub fn split_at(&self, offset: usize) -> Result<(DeviceSpan<'a>, DeviceSpan<'a>)> {
        let front = self.subspan(0, offset)?;
        let back = self.subspan(offset, self.len().saturating_sub(offset))?;
        Ok((front, back))
    }

    /// Copies the whole view to the host. Returns when `dst` may be read.
    ///
    /// # Errors
    ///
    /// - [`LengthMismatch`](ErrorKind::LengthMismatch): `dst` is not as long as the view.
    /// - [`ForkedProcess`](ErrorKind::ForkedProcess): the memory is a parent process's.
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
    /// [`OutOfMemory`](ErrorKind::OutOfMemory) of the host.
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let mut bytes = host_bytes(self.len(), 0)?;
        self.copy_to_host(&mut bytes)?;
        Ok(bytes)
    }

    /// The bytes as a slice, where the host can read them.
    ///
    /// # Errors
    ///
    /// - [`NotHostAccessible`](ErrorKind::NotHostAccessible): the host can not.
    /// - [`ForkedProcess`](ErrorKind::ForkedProcess): the memory is a parent process's.
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

impl<'a> DeviceSpanMut<'a> {
    /// An exclusive view of memory that this crate does not own.
    ///
    /// # Safety
    ///
    /// As for [`DeviceSpan::from_raw_parts`], and nothing else accesses the bytes
    /// during `'a`.
    #[must_use]
    #[expect(unsafe_code, reason = "the invariants are the caller's to keep")]
    pub unsafe fn from_raw_parts(
        ptr: DevicePtr,
        len: usize,
        device: Device,
        allocator: &'a dyn DeviceAllocator,
    ) -> Self {
        // SAFETY: the caller's promises include those of the shared view.
        let span = unsafe { DeviceSpan::from_raw_parts(ptr, len, device, allocator) };
        // SAFETY: the caller promises exclusive access.
        unsafe { Self::from_shared(span) }
    }

    /// Takes a view to be exclusive.
    ///
    /// # Safety
    ///
    /// Nothing else accesses the bytes during `'a`.
    #[inline]
    #[expect(unsafe_code, reason = "exclusiveness is the caller's to keep")]
    pub(crate) unsafe fn from_shared(span: DeviceSpan<'a>) -> Self {
        Self {
            region: span.region,
            exclusive: PhantomData,
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

    /// A shared view of the same bytes.
    #[inline]
    #[must_use]
    pub fn as_span(&self) -> DeviceSpan<'_> {
        DeviceSpan {
            region: self.region,
        }
    }

    /// An exclusive view of the same bytes, for a shorter time.
    #[inline]
    #[must_use]
    pub fn reborrow(&mut self) -> DeviceSpanMut<'_> {
        DeviceSpanMut {
            region: self.region,
            exclusive: PhantomData,
        }
    }

    /// A view of `size` bytes from `offset` on.
    ///
    /// # Errors
    ///
    /// - [`OutOfBounds`](ErrorKind::OutOfBounds): the range passes the end or overflows.
    #[inline]
    pub fn subspan_mut(&mut self, offset: usize, size: usize) -> Result<DeviceSpanMut<'_>> {
        self.reborrow().into_subspan(offset, size)
    }

    /// [`subspan_mut`](Self::subspan_mut) for the whole life of the view.
    ///
    /// # Errors
    ///
    /// - [`OutOfBounds`](ErrorKind::OutOfBounds): the range passes the end or overflows.
    #[inline]
    pub fn into_subspan(self, offset: usize, size: usize) -> Result<DeviceSpanMut<'a>> {
        self.region
            .subregion(offset, size)
            .map(|region| DeviceSpanMut {
                region,
                exclusive: PhantomData,
            })
    }

    /// The exclusive views before and from `offset` on.
    ///
    /// # Errors
    ///
    /// - [`OutOfBounds`](ErrorKind::OutOfBounds): `offset` lies beyond the end.
    pub fn split_at_mut(self, offset: usize) -> Result<(DeviceSpanMut<'a>, DeviceSpanMut<'a>)> {
        let front = self.region.subregion(0, offset)?;
        let back = self
            .region
            .subregion(offset, self.len().saturating_sub(offset))?;
        Ok((
            DeviceSpanMut {
                region: front,
                exclusive: PhantomData,
            },
            DeviceSpanMut {
                region: back,
                exclusive: PhantomData,
            },
        ))
    }

    /// Copies from the host to the whole view. Returns when `src` may be reused.
    ///
    /// # Errors
    ///
    /// - [`LengthMismatch`](ErrorKind::LengthMismatch): `src` is not as long as the view.
    /// - [`ForkedProcess`](ErrorKind::ForkedProcess): the memory is a parent process's.
    /// - what the allocator returns; the bytes are unspecified then.
    #[expect(unsafe_code, reason = "see SAFETY")]
    pub fn copy_from_host(&mut self, src: &[u8]) -> Result<()> {
        let region = self.region;
        region.check_len(src.len())?;
        if src.is_empty() {
            return Ok(());
        }
        // SAFETY: the destination is one live block of the allocator (invariant
        // 0) that this view has exclusively; `src` is valid and of the same length.
        region.call(Operation::CopyHostToDevice, |allocator, index| unsafe {
            allocator.copy_host_to_device(region.ptr, src.as_ptr(), src.len(), index)
        })
    }

    /// Copies from another view of the same length, on the same device or not.
    ///
    /// Between devices of different allocators the bytes go through the host.
    ///
    /// # Errors
    ///
    /// - [`LengthMismatch`](ErrorKind::LengthMismatch): `src` is not as long as the view.
    /// - [`ForkedProcess`](ErrorKind::ForkedProcess): the memory is a parent process's.
    /// - what an allocator returns; the bytes are unspecified then.
    #[expect(unsafe_code, reason = "see SAFETY")]
    pub fn copy_from(&mut self, src: DeviceSpan<'_>) -> Result<()> {
        let (dst, src) = (self.region, src.region);
        dst.check_len(src.len)?;
        if dst.len == 0 {
            return Ok(());
        }
        src.check_process()?;
        let src_index = src.device.index();
        dst.call(Operation::CopyDeviceToDevice, |allocator, dst_index| {
            if dst.same_allocator(src) {
                // SAFETY: both are live blocks of one allocator (invariant 0).
                // `self` is exclusive, so `src` neither overlaps it nor is written.
                unsafe {
                    allocator.copy_device_to_device(dst.ptr, dst_index, src.ptr, src_index, dst.len)
                }
            } else {
                let from = (src.allocator, src.ptr, src_index);
                // SAFETY: as above, each of its own allocator.
                unsafe { copy_through_host((allocator, dst.ptr, dst_index), from, dst.len) }
            }
        })
    }

    /// Sets every byte to `byte`.
    ///
    /// # Errors
    ///
    /// - [`ForkedProcess`](ErrorKind::ForkedProcess): the memory is a parent process's.
    /// - what the allocator returns; the bytes are unspecified then.
    #[expect(unsafe_code, reason = "see SAFETY")]
    pub fn fill(&mut self, byte: u8) -> Result<()> {
        let region = self.region;
        if region.len == 0 {
            return Ok(());
        }
        // SAFETY: one live block of the allocator (invariant 0) that this view
        // has exclusively.
        region.call(Operation::Fill, |allocator, index| unsafe {
            allocator.fill(region.ptr, byte, region.len, index)
        })
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
        self.reborrow().into_slice_mut()
    }

    /// [`as_slice_mut`](Self::as_slice_mut) for the whole life of the view.
    ///
    /// # Errors
    ///
    /// - [`NotHostAccessible`](ErrorKind::NotHostAccessible): the host can not.
    /// - [`ForkedProcess`](ErrorKind::ForkedProcess): the memory is a parent process's.
    #[expect(unsafe_code, reason = "see SAFETY")]
    pub fn into_slice_mut(self) -> Result<&'a mut [u8]> {
        self.region.check_host_accessible()?;
        if self.is_empty() {
            return Ok(&mut []);
        }
        // SAFETY: the bytes are one live block during `'a` (invariant 0) that the
        // host may write and that is initialized (promise 5 of the allocator);
        // the view is exclusive and consumed; blocks are at most `isize::MAX`
        // bytes (`DeviceLayout`).
        Ok(unsafe { std::slice::from_raw_parts_mut(self.region.ptr.as_raw(), self.region.len) })
    }
}

impl<'a> From<DeviceSpanMut<'a>> for DeviceSpan<'a> {
    fn from(span: DeviceSpanMut<'a>) -> Self {
        Self {
            region: span.region,
        }
    }
}

impl fmt::Debug for DeviceSpan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.region.fmt("DeviceSpan", f)
    }
}

impl fmt::Debug for DeviceSpanMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.region.fmt("DeviceSpanMut", f)
    }
}
