//! Views to read and write, one at a time.
//!
//! Rank 3. Part of `span`.

use std::fmt;
use std::marker::PhantomData;

use crate::address::DevicePtr;
use crate::allocator::{DeviceAllocator, copy_through_host};
use crate::device::Device;
use crate::error::{Operation, Result};
use crate::span::DeviceSpan;
use crate::span::region::Region;

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
///
/// Nor can one be copied:
///
/// ```compile_fail,E0382
/// use device_memory::{DeviceMemoryBuffer, DeviceType};
///
/// let mut buffer = DeviceMemoryBuffer::create(4, DeviceType::Cpu, 0).unwrap();
/// let span = buffer.as_span_mut();
/// let moved = span;
/// span.len();
/// ```
pub struct DeviceSpanMut<'a> {
    region: Region<'a>,
    /// Makes the view exclusive, and not `Copy`.
    exclusive: PhantomData<&'a mut [u8]>,
}

impl<'a> DeviceSpanMut<'a> {
    /// An exclusive view of memory that this crate does not own.
    ///
    /// # Safety
    ///
    /// As for [`DeviceSpan::from_raw_parts`], except that the bytes are written
    /// through this view; nothing else accesses them during `'a`.
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
    /// - [`OutOfBounds`](crate::ErrorKind::OutOfBounds): the range passes the end or overflows.
    #[inline]
    pub fn subspan_mut(&mut self, offset: usize, size: usize) -> Result<DeviceSpanMut<'_>> {
        self.reborrow().into_subspan(offset, size)
    }

    /// [`subspan_mut`](Self::subspan_mut) for the whole life of the view.
    ///
    /// # Errors
    ///
    /// - [`OutOfBounds`](crate::ErrorKind::OutOfBounds): the range passes the end or overflows.
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
    /// - [`OutOfBounds`](crate::ErrorKind::OutOfBounds): `offset` lies beyond the end.
    pub fn split_at_mut(
        &mut self,
        offset: usize,
    ) -> Result<(DeviceSpanMut<'_>, DeviceSpanMut<'_>)> {
        self.reborrow().into_split_at(offset)
    }

    /// [`split_at_mut`](Self::split_at_mut) for the whole life of the view.
    ///
    /// # Errors
    ///
    /// - [`OutOfBounds`](crate::ErrorKind::OutOfBounds): `offset` lies beyond the end.
    pub fn into_split_at(self, offset: usize) -> Result<(DeviceSpanMut<'a>, DeviceSpanMut<'a>)> {
        let halves = self.region.split_at(offset)?;
        let [front, back] = <[_; 2]>::from(halves).map(|region| DeviceSpanMut {
            region,
            exclusive: PhantomData,
        });
        Ok((front, back))
    }

    /// Copies from the host to the whole view. Returns when `src` may be reused.
    ///
    /// # Errors
    ///
    /// - [`LengthMismatch`](crate::ErrorKind::LengthMismatch): `src` is not as long as the view.
    /// - [`ForkedProcess`](crate::ErrorKind::ForkedProcess): the memory is a parent process's.
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
    /// - [`LengthMismatch`](crate::ErrorKind::LengthMismatch): `src` is not as long as the view.
    /// - [`ForkedProcess`](crate::ErrorKind::ForkedProcess): the memory is a parent process's.
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
                // SAFETY: as above, each of its own allocator.
                unsafe { copy_through_host(dst.end(), src.end(), dst.len) }
            }
        })
    }

    /// Sets every byte to `byte`.
    ///
    /// # Errors
    ///
    /// - [`ForkedProcess`](crate::ErrorKind::ForkedProcess): the memory is a parent process's.
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
    /// - [`NotHostAccessible`](crate::ErrorKind::NotHostAccessible): the host can not.
    /// - [`ForkedProcess`](crate::ErrorKind::ForkedProcess): the memory is a parent process's.
    pub fn as_slice(&self) -> Result<&[u8]> {
        self.as_span().as_slice()
    }

    /// The bytes as a slice to write, where the host can.
    ///
    /// # Errors
    ///
    /// - [`NotHostAccessible`](crate::ErrorKind::NotHostAccessible): the host can not.
    /// - [`ForkedProcess`](crate::ErrorKind::ForkedProcess): the memory is a parent process's.
    pub fn as_slice_mut(&mut self) -> Result<&mut [u8]> {
        self.reborrow().into_slice_mut()
    }

    /// [`as_slice_mut`](Self::as_slice_mut) for the whole life of the view.
    ///
    /// # Errors
    ///
    /// - [`NotHostAccessible`](crate::ErrorKind::NotHostAccessible): the host can not.
    /// - [`ForkedProcess`](crate::ErrorKind::ForkedProcess): the memory is a parent process's.
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

impl fmt::Debug for DeviceSpanMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.region.fmt("DeviceSpanMut", f)
    }
}
