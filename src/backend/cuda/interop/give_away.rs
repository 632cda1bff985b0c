//! Buffers that cudarc frees, or that are freed in the order of a stream.
//!
//! Rank 7. Part of `backend::cuda::interop`.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DeviceRepr};

use super::plain::PlainData;
use super::shell;
use crate::backend::cuda::allocator::{CudaAllocator, address};
use crate::backend::cuda::driver;
use crate::backend::cuda::lane::Lane;
use crate::backend::cuda::order::Order;
use crate::backend::cuda::overaligned::Overaligned;
use crate::backend::cuda::uses;
use crate::buffer::{DeviceMemoryBuffer, FreeError};
use crate::error::{Error, ErrorKind, Operation, Result};

/// A buffer that could not be given away, and why.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct GiveAwayError {
    /// The buffer, which still owns its memory.
    pub buffer: DeviceMemoryBuffer,
    /// Why it could not be given away.
    #[source]
    pub error: Error,
}

impl From<GiveAwayError> for Error {
    /// Keeps the reason and drops the buffer.
    fn from(failure: GiveAwayError) -> Self {
        failure.error
    }
}

impl CudaAllocator {
    /// Gives the memory of `buffer` to cudarc: a slice on `stream`, which frees it
    /// there when it is dropped.
    ///
    /// The stream waits for what the memory was used by, as far as that was told
    /// to [`record_use`](Self::record_use), and until it is allocated.
    ///
    /// # Errors
    ///
    /// A [`GiveAwayError`], with the buffer and the reason:
    ///
    /// - [`NotSupported`](ErrorKind::NotSupported): the memory is not the whole of
    ///   a block that a [`CudaAllocator`] allocated in stream order, with an
    ///   alignment of at most 256 bytes. cudarc would free it in the wrong way.
    /// - [`DeviceMismatch`](ErrorKind::DeviceMismatch): it is not on the device of
    ///   the stream.
    /// - [`ContextMismatch`](ErrorKind::ContextMismatch): the stream is not of the
    ///   primary context of its device.
    /// - [`LengthMismatch`](ErrorKind::LengthMismatch): its length is no multiple
    ///   of the size of `T`, or that is 0.
    /// - [`Backend`](ErrorKind::Backend): cudarc could not make an event.
    /// - [`Capturing`](ErrorKind::Capturing): the stream is recording a graph.
    /// - [`ForkedProcess`](ErrorKind::ForkedProcess): the memory is a parent
    ///   process's.
    /// - [`Driver`](ErrorKind::Driver): the driver failed.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use device_memory::backend::cuda::CudaAllocator;
    /// use device_memory::backend::cuda::cudarc::driver::CudaContext;
    /// use device_memory::{DeviceMemoryBuffer, DeviceType};
    ///
    /// let stream = CudaContext::new(0)?.new_stream()?;
    /// let buffer = DeviceMemoryBuffer::create_zeroed(64, DeviceType::Cuda, 0)?;
    ///
    /// let slice = CudaAllocator::into_cuda_slice::<f32>(buffer, &stream)?;
    ///
    /// assert_eq!(slice.len(), 16);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[expect(unsafe_code, reason = "see SAFETY")]
    pub fn into_cuda_slice<T: PlainData>(
        buffer: DeviceMemoryBuffer,
        stream: &Arc<CudaStream>,
    ) -> Result<CudaSlice<T>, GiveAwayError> {
        // SAFETY: any bytes are values of `T`.
        unsafe { Self::into_cuda_slice_of(buffer, stream) }
    }

    /// [`into_cuda_slice`](Self::into_cuda_slice) for types of which not any bytes
    /// are a value, or that this crate does not know, such as `half::f16`.
    ///
    /// # Errors
    ///
    /// As there.
    ///
    /// # Safety
    ///
    /// The bytes are values of `T` where cudarc takes them to be, as in copies to
    /// the host.
    #[expect(unsafe_code, reason = "what the bytes are is the caller's to know")]
    pub unsafe fn into_cuda_slice_of<T: DeviceRepr>(
        buffer: DeviceMemoryBuffer,
        stream: &Arc<CudaStream>,
    ) -> Result<CudaSlice<T>, GiveAwayError> {
        match give_away(&buffer, stream) {
            Ok(slice) => {
                buffer.give_up();
                Ok(slice)
            }
            Err(error) => Err(GiveAwayError { buffer, error }),
        }
    }

    /// Frees `buffer` in the order of `stream`: after the work given to it until
    /// now, without waiting for it, and so that later work on the stream may
    /// reuse the memory.
    ///
    /// The stream first waits for what the memory was used by, as far as that was
    /// told to [`record_use`](Self::record_use). Where the device has no memory
    /// pools, this waits for the stream.
    ///
    /// # Errors
    ///
    /// A [`FreeError`] with the buffer, which still owns the memory, and the
    /// reason. All but the last are found before anything is done:
    ///
    /// - [`NotSupported`](ErrorKind::NotSupported): the memory is not of this
    ///   allocator, its clones or its handles on streams.
    /// - [`DeviceMismatch`](ErrorKind::DeviceMismatch): it is not on the device of
    ///   the stream.
    /// - [`ContextMismatch`](ErrorKind::ContextMismatch): the stream is not of the
    ///   primary context of its device.
    /// - [`Capturing`](ErrorKind::Capturing): the stream is recording a graph.
    /// - [`ForkedProcess`](ErrorKind::ForkedProcess): the memory is a parent
    ///   process's.
    /// - [`Driver`](ErrorKind::Driver): the driver failed.
    pub fn free_on(
        &self,
        buffer: DeviceMemoryBuffer,
        stream: &Arc<CudaStream>,
    ) -> Result<(), FreeError> {
        match self.free_in_order(&buffer, stream) {
            Ok(()) => {
                buffer.give_up();
                Ok(())
            }
            Err(error) => Err(FreeError { buffer, error }),
        }
    }

    fn free_in_order(&self, buffer: &DeviceMemoryBuffer, stream: &Arc<CudaStream>) -> Result<()> {
        let operation = Operation::Deallocate;
        let lane = Lane::new(stream)?;
        let maker = maker_of(buffer, &lane, operation)?;
        if !Arc::ptr_eq(&maker.shared, &self.shared) {
            return Err(not_supported(&lane, operation));
        }
        if buffer.is_empty() {
            return Ok(());
        }
        let device = lane.device();
        let devices = &self.shared.devices;
        let ready = devices.get(device.device_type(), device.index(), operation)?;
        let layout = buffer.layout();
        let overaligned = &self.shared.overaligned;
        after_uses(maker, &lane, buffer, operation, |lane| {
            let ptr = address(buffer.ptr());
            let freed = lane.call(operation, |lane| {
                let start = overaligned.take_back(ptr, layout);
                let freed = free(start, lane, ready.has_pools());
                if freed.is_err() {
                    overaligned.put_back(ptr, start, layout);
                }
                freed
            });
            match freed {
                // The memory is gone with the driver.
                Err(error) if error.is_shut_down() => Ok(()),
                freed => freed,
            }
        })
    }
}

/// Frees a block after the work given to a stream.
#[expect(unsafe_code, reason = "calls the driver")]
fn free(start: u64, lane: &Lane, in_order: bool) -> crate::backend::cuda::status::Outcome<()> {
    let stream = lane.handle();
    if in_order {
        // SAFETY: the block was allocated in stream order on this device, and all
        // work that uses it is before this on the stream.
        return unsafe { driver::free_async(start, stream) };
    }
    // SAFETY: the stream is kept alive by the lane.
    unsafe { driver::stream_synchronize(stream) }?;
    // SAFETY: the block was allocated synchronously on this device, and all work
    // that uses it is done.
    unsafe { driver::free(start) }
}

/// Makes a slice of all of `buffer`, which still owns the memory if this fails.
#[expect(unsafe_code, reason = "see SAFETY")]
fn give_away<T: DeviceRepr>(
    buffer: &DeviceMemoryBuffer,
    stream: &Arc<CudaStream>,
) -> Result<CudaSlice<T>> {
    let operation = Operation::Deallocate;
    let lane = Lane::new(stream)?;
    let maker = maker_of(buffer, &lane, operation)?;
    let device = lane.device();
    let devices = &maker.shared.devices;
    let ready = devices.get(device.device_type(), device.index(), operation)?;
    let by_stream = ready.has_pools() && stream.context().has_async_alloc();
    let layout = buffer.layout();
    if !by_stream || buffer.is_empty() || layout.align() > Overaligned::NATURAL_ALIGN {
        return Err(not_supported(&lane, operation));
    }
    let len = shell::count::<T>(&lane, buffer.ptr(), buffer.size())?;
    after_uses(maker, &lane, buffer, operation, |lane| {
        // SAFETY: the memory is a whole block that was allocated in stream order
        // on this device, which is how cudarc frees it; the buffer gives it up if
        // this succeeds, and the slice is on a stream that waits for its uses.
        unsafe { shell::over(lane, buffer.ptr(), len, operation) }
    })
}

/// The allocator that made `buffer`, on the device and of the context of a lane.
fn maker_of<'a>(
    buffer: &'a DeviceMemoryBuffer,
    lane: &Lane,
    operation: Operation,
) -> Result<&'a CudaAllocator> {
    buffer.as_span().check_process()?;
    lane.check_device(buffer.device())?;
    let maker =
        CudaAllocator::of(buffer.allocator()).ok_or_else(|| not_supported(lane, operation))?;
    maker.check_context(lane, operation)?;
    Ok(maker)
}

/// Makes the stream wait for the allocation and the uses of a block, and runs
/// `last`. If anything fails, the uses are noted again.
fn after_uses<T>(
    maker: &CudaAllocator,
    lane: &Lane,
    buffer: &DeviceMemoryBuffer,
    operation: Operation,
    last: impl FnOnce(&Lane) -> Result<T>,
) -> Result<T> {
    // Without a stream of its own, allocations and copies are complete for all;
    // else the stream waits for that one, which is also the stream of what used
    // the memory without telling.
    if let Order::Stream(_) = maker.order {
        lane.follow(buffer.as_span(), operation)?;
    }
    let uses = &maker.shared.uses;
    let ptr = address(buffer.ptr());
    let others = uses.take(ptr, buffer.size());
    let done = lane
        .call(operation, |lane| {
            uses::wait_for(lane.handle(), lane.device(), &others)
        })
        .and_then(|()| last(lane));
    if done.is_err() {
        uses.put_back(ptr, others);
    }
    done
}

#[cold]
fn not_supported(lane: &Lane, operation: Operation) -> Error {
    ErrorKind::NotSupported {
        device: lane.device(),
        operation,
    }
    .into()
}
