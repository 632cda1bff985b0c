//! Views as slices of cudarc's, for a while.
//!
//! Rank 7. Part of `backend::cuda::interop`.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, CudaViewMut, DeviceRepr};

use super::plain::PlainData;
use super::shell;
use crate::backend::cuda::lane::{Lane, Unsettled};
use crate::error::{Operation, Result};
use crate::span::{DeviceSpan, DeviceSpanMut};

/// Lends `span` to `body` as a slice of cudarc's on `stream`, and waits for all
/// work of the device before it returns, also if `body` panics.
///
/// The slice may be given to what only reads: copies, libraries, kernels. It is
/// not freed. To wait for less, see [`BorrowedCudaSlice`].
///
/// cudarc panics where it can not make events. Whether it can is looked at first,
/// and should it panic even so, that is caught and is the error; only with
/// `panic = "abort"` would it end the process.
///
/// # Errors
///
/// - [`LengthMismatch`](crate::ErrorKind::LengthMismatch): the length is no
///   multiple of the size of `T`, or that is 0.
/// - [`Backend`](crate::ErrorKind::Backend): the address is not aligned for `T`, or
///   cudarc could not make an event.
/// - [`DeviceMismatch`](crate::ErrorKind::DeviceMismatch): the view is not on the
///   device of the stream.
/// - [`ContextMismatch`](crate::ErrorKind::ContextMismatch): the stream is not of
///   the primary context of its device.
/// - [`NotSupported`](crate::ErrorKind::NotSupported): its allocator is none of
///   CUDA's and does not wrap one.
/// - [`Capturing`](crate::ErrorKind::Capturing): the stream is recording a graph.
/// - [`ForkedProcess`](crate::ErrorKind::ForkedProcess): the memory or the driver
///   is a parent process's.
/// - [`Driver`](crate::ErrorKind::Driver): the driver failed, before `body` was run
///   or when it was waited for after that.
///
/// # Examples
///
/// ```no_run
/// use device_memory::backend::cuda::cudarc::driver::CudaContext;
/// use device_memory::backend::cuda::lend;
/// use device_memory::{DeviceMemoryBuffer, DeviceType};
///
/// let stream = CudaContext::new(0)?.new_stream()?;
/// let buffer = DeviceMemoryBuffer::from_host(&[1, 0, 2, 0], DeviceType::Cuda, 0)?;
///
/// let values = lend::<u16, _>(buffer.as_span(), &stream, |slice| stream.clone_dtoh(slice))??;
///
/// assert_eq!(values, [1, 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The slice can not be kept:
///
/// ```compile_fail,E0521
/// use std::sync::Arc;
/// use device_memory::backend::cuda::cudarc::driver::{CudaSlice, CudaStream};
/// use device_memory::backend::cuda::lend;
/// use device_memory::{DeviceSpan, Result};
///
/// fn f<'a>(
///     span: DeviceSpan<'_>,
///     stream: &Arc<CudaStream>,
///     kept: &mut Option<&'a CudaSlice<u8>>,
/// ) -> Result<()> {
///     lend(span, stream, |slice| *kept = Some(slice))
/// }
/// ```
#[expect(unsafe_code, reason = "see SAFETY")]
pub fn lend<T: PlainData, R>(
    span: DeviceSpan<'_>,
    stream: &Arc<CudaStream>,
    body: impl FnOnce(&CudaSlice<T>) -> R,
) -> Result<R> {
    let lane = Lane::new(stream)?;
    // SAFETY: the slice ends in this function, which waits for all work of the
    // device before it returns; any bytes are values of `T`.
    let slice = unsafe { BorrowedCudaSlice::over(&lane, span) }?;
    let loan = Loan::new(lane);
    let result = body(&slice);
    drop(slice);
    loan.end()?;
    Ok(result)
}

/// Lends `span` to `body` as a slice of cudarc's that may be written, as [`lend`].
///
/// # Errors
///
/// As [`lend`].
///
/// # Examples
///
/// ```no_run
/// use device_memory::backend::cuda::cudarc::driver::CudaContext;
/// use device_memory::backend::cuda::lend_mut;
/// use device_memory::{DeviceMemoryBuffer, DeviceType};
///
/// let stream = CudaContext::new(0)?.new_stream()?;
/// let mut buffer = DeviceMemoryBuffer::create(8, DeviceType::Cuda, 0)?;
///
/// lend_mut::<f32, _>(buffer.as_span_mut(), &stream, |slice| {
///     stream.memset_zeros(&mut slice.as_view_mut())
/// })??;
///
/// assert_eq!(buffer.to_vec()?, [0; 8]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[expect(unsafe_code, reason = "see SAFETY")]
pub fn lend_mut<T: PlainData, R>(
    span: DeviceSpanMut<'_>,
    stream: &Arc<CudaStream>,
    body: impl FnOnce(&mut BorrowedCudaSliceMut<'_, T>) -> R,
) -> Result<R> {
    let lane = Lane::new(stream)?;
    // SAFETY: as in `lend`.
    let inner = unsafe { BorrowedCudaSlice::over(&lane, span.into()) }?;
    let loan = Loan::new(lane);
    let mut slice = BorrowedCudaSliceMut { inner };
    let result = body(&mut slice);
    drop(slice);
    loan.end()?;
    Ok(result)
}

/// The end of a loan, which lies in a function and nowhere else, so that nobody
/// can forget it.
struct Loan {
    lane: Lane,
    ended: bool,
}

impl Loan {
    fn new(lane: Lane) -> Self {
        Self { lane, ended: false }
    }

    fn settle(&mut self) -> Result<(), Unsettled> {
        if std::mem::replace(&mut self.ended, true) {
            return Ok(());
        }
        self.lane.settle_context()
    }

    fn end(mut self) -> Result<()> {
        let settled = self.settle();
        self.lane.check_process()?;
        settled.map_err(|failed| self.lane.error(failed.status, Operation::Synchronize))
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        // The first failure, or the panic, is what the caller is told of.
        let _ = self.settle();
    }
}

/// Borrowed memory as a slice of cudarc's, which never frees it.
///
/// Dropping it makes its stream wait for the uses that cudarc keeps track of, and
/// gives the events and the stream back. It does not wait itself, which is why
/// making one is unsafe; [`lend`] is the safe way.
pub struct BorrowedCudaSlice<'a, T> {
    /// # Invariants
    ///
    /// 0. Its memory is borrowed for `'a`, and not its own: it is leaked, never
    ///    dropped.
    slice: ManuallyDrop<CudaSlice<T>>,
    lane: Lane,
    memory: PhantomData<&'a [u8]>,
}

impl<'a, T> BorrowedCudaSlice<'a, T> {
    /// Lends `span` as a slice on `stream`.
    ///
    /// # Errors
    ///
    /// As [`lend`], before its `body` is run.
    ///
    /// # Safety
    ///
    /// - All work that is given to streams through this is done before the memory
    ///   is freed or used otherwise, or is ordered before that: by the stream, by
    ///   [`record_use`](crate::backend::cuda::CudaAllocator::record_use), or by waiting.
    /// - The bytes are values of `T` where cudarc takes them to be, as in copies
    ///   to the host.
    #[expect(unsafe_code, reason = "the order of work is the caller's to keep")]
    pub unsafe fn new(span: DeviceSpan<'a>, stream: &Arc<CudaStream>) -> Result<Self>
    where
        T: DeviceRepr,
    {
        // SAFETY: the caller's promises are the same.
        unsafe { Self::over(&Lane::new(stream)?, span) }
    }

    /// # Safety
    ///
    /// As for [`new`](Self::new).
    #[expect(unsafe_code, reason = "the order of work is the caller's to keep")]
    unsafe fn over(lane: &Lane, span: DeviceSpan<'a>) -> Result<Self> {
        let operation = Operation::Open;
        span.check_process()?;
        lane.check_device(span.device())?;
        let len = shell::count::<T>(lane, span.ptr(), span.len())?;
        if len != 0 {
            lane.follow(span, operation)?;
        }
        // SAFETY: the memory is one block on this device for `'a`, and has room
        // for so many values; the slice is never dropped (invariant 0).
        let slice = unsafe { shell::over(lane, span.ptr(), len, operation) }?;
        Ok(Self {
            slice: ManuallyDrop::new(slice),
            lane: lane.clone(),
            memory: PhantomData,
        })
    }
}

impl<T> Deref for BorrowedCudaSlice<'_, T> {
    type Target = CudaSlice<T>;

    fn deref(&self) -> &CudaSlice<T> {
        &self.slice
    }
}

impl<T> Drop for BorrowedCudaSlice<'_, T> {
    #[expect(unsafe_code, reason = "see SAFETY")]
    fn drop(&mut self) {
        if !self.lane.is_in_its_process() {
            return;
        }
        // SAFETY: `drop` runs once, and nothing else takes the slice.
        let slice = unsafe { ManuallyDrop::take(&mut self.slice) };
        shell::discard(&self.lane, slice);
    }
}

impl<T> fmt::Debug for BorrowedCudaSlice<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BorrowedCudaSlice")
            .field("lane", &self.lane)
            .field("len", &self.slice.len())
            .finish_non_exhaustive()
    }
}

/// Memory borrowed exclusively as a slice of cudarc's, which never frees it.
///
/// As [`BorrowedCudaSlice`], and [`as_view_mut`](Self::as_view_mut) gives what
/// writes. There is no safe way to a `&mut CudaSlice<T>`: it could be swapped for
/// another slice, which would then be leaked, and this memory freed.
///
/// ```compile_fail,E0596
/// use device_memory::backend::cuda::BorrowedCudaSliceMut;
/// use device_memory::backend::cuda::cudarc::driver::CudaSlice;
///
/// fn f(mut lent: BorrowedCudaSliceMut<'_, u8>, mut own: CudaSlice<u8>) {
///     std::mem::swap(&mut *lent, &mut own);
/// }
/// ```
pub struct BorrowedCudaSliceMut<'a, T> {
    inner: BorrowedCudaSlice<'a, T>,
}

impl<'a, T> BorrowedCudaSliceMut<'a, T> {
    /// Lends `span` as a slice on `stream`.
    ///
    /// # Errors
    ///
    /// As [`lend`], before its `body` is run.
    ///
    /// # Safety
    ///
    /// As for [`BorrowedCudaSlice::new`], and what is written are bytes that
    /// whoever reads the memory next takes for what they are.
    #[expect(unsafe_code, reason = "the order of work is the caller's to keep")]
    pub unsafe fn new(span: DeviceSpanMut<'a>, stream: &Arc<CudaStream>) -> Result<Self>
    where
        T: DeviceRepr,
    {
        // SAFETY: the caller's promises include those of the shared form.
        let inner = unsafe { BorrowedCudaSlice::new(span.into(), stream) }?;
        Ok(Self { inner })
    }

    /// All values, to be written: for copies, libraries and kernels.
    pub fn as_view_mut(&mut self) -> CudaViewMut<'_, T> {
        self.inner.slice.as_view_mut()
    }

    /// The slice itself, for what takes no view.
    ///
    /// # Safety
    ///
    /// It is neither dropped nor exchanged for another, as by `std::mem::swap`.
    #[expect(unsafe_code, reason = "the slice must stay where it is")]
    pub unsafe fn as_cuda_slice_mut(&mut self) -> &mut CudaSlice<T> {
        &mut self.inner.slice
    }
}

impl<T> Deref for BorrowedCudaSliceMut<'_, T> {
    type Target = CudaSlice<T>;

    fn deref(&self) -> &CudaSlice<T> {
        &self.inner
    }
}

impl<T> fmt::Debug for BorrowedCudaSliceMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BorrowedCudaSliceMut")
            .field("inner", &self.inner)
            .finish()
    }
}
