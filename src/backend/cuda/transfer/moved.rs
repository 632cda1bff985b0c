//! Copies that own both sides until they are done.
//!
//! Rank 7. Part of `backend::cuda::transfer`.

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use cudarc::driver::CudaStream;

use super::scope::check_len;
use crate::backend::cuda::allocator::address;
use crate::backend::cuda::driver;
use crate::backend::cuda::event::Event;
use crate::backend::cuda::lane::{Lane, Unsettled};
use crate::backend::cuda::status::{Outcome, Status};
use crate::buffer::DeviceMemoryBuffer;
use crate::error::{Error, Operation, Result};

/// Starts to copy all of `host` to all of `device`, in the order of `stream`.
///
/// `host` is memory that the host can read. Only for page-locked memory, of a
/// [`CudaHostAllocator`](crate::backend::cuda::CudaHostAllocator), does this return before the
/// copy is done.
///
/// # Errors
///
/// A [`TransferError`], with both buffers and the reason:
///
/// - [`NotHostAccessible`](crate::ErrorKind::NotHostAccessible): the host can not
///   read `host`.
/// - those of [`TransferScope::copy_to_device`](crate::backend::cuda::TransferScope::copy_to_device).
///
/// # Examples
///
/// ```no_run
/// use device_memory::backend::cuda::cudarc::driver::CudaContext;
/// use device_memory::backend::cuda::upload;
/// use device_memory::{DeviceMemoryBuffer, DeviceType};
///
/// let stream = CudaContext::new(0)?.new_stream()?;
/// let mut host = DeviceMemoryBuffer::create(4, DeviceType::CudaHost, 0)?;
/// host.as_slice_mut()?.fill(7);
/// let device = DeviceMemoryBuffer::create(4, DeviceType::Cuda, 0)?;
///
/// let transfer = upload(&stream, host, device)?;
/// // Something else is done while the copy goes on.
/// let (_host, device) = transfer.wait()?;
///
/// assert_eq!(device.to_vec()?, [7; 4]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn upload(
    stream: &Arc<CudaStream>,
    host: DeviceMemoryBuffer,
    device: DeviceMemoryBuffer,
) -> Result<Transfer, TransferError> {
    Transfer::start(stream, host, device, Operation::CopyHostToDevice)
}

/// Starts to copy all of `device` to all of `host`, in the order of `stream`.
///
/// As [`upload`], the other way round.
///
/// # Errors
///
/// As [`upload`].
pub fn download(
    stream: &Arc<CudaStream>,
    host: DeviceMemoryBuffer,
    device: DeviceMemoryBuffer,
) -> Result<Transfer, TransferError> {
    Transfer::start(stream, host, device, Operation::CopyDeviceToHost)
}

/// A copy that was started, and both its sides.
///
/// Dropping it waits for the copy and frees the buffers. Forgetting it leaks them,
/// which leaves the device something to read and write. It may be moved to and
/// dropped on any thread.
///
/// If the driver refuses every way of waiting that there is, the buffers are
/// leaked rather than freed under the copy, and the hook for failed frees
/// ([`set_free_failure_hook`](crate::set_free_failure_hook)) is told of each.
#[must_use = "dropping it waits for the copy and frees the buffers"]
pub struct Transfer {
    /// # Invariants
    ///
    /// 0. From the first call of the driver on, the buffers leave this, or are
    ///    freed, only after the copy is done.
    buffers: Option<Buffers>,
    /// Marks the end of the copy, if there is one to wait for.
    fence: Option<Event>,
    lane: Option<Lane>,
    operation: Operation,
}

/// The host's side and the device's.
type Buffers = (DeviceMemoryBuffer, DeviceMemoryBuffer);

/// A copy that could not be started or waited for, and why.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct TransferError {
    /// The host's buffer and the device's; the bytes of the destination are
    /// unspecified. `None` if the driver refused every way of waiting: it may
    /// still copy, so they are leaked.
    pub buffers: Option<(DeviceMemoryBuffer, DeviceMemoryBuffer)>,
    /// Why the copy could not be started or waited for.
    #[source]
    pub error: Error,
}

impl From<TransferError> for Error {
    /// Keeps the reason and drops the buffers.
    fn from(failure: TransferError) -> Self {
        failure.error
    }
}

impl Transfer {
    fn start(
        stream: &Arc<CudaStream>,
        host: DeviceMemoryBuffer,
        device: DeviceMemoryBuffer,
        operation: Operation,
    ) -> Result<Self, TransferError> {
        // The owner comes first: what fails after this waits before it lets go.
        let mut transfer = Self {
            buffers: Some((host, device)),
            fence: None,
            lane: None,
            operation,
        };
        match transfer.begin(stream) {
            Ok(()) => Ok(transfer),
            Err(error) => {
                // All that was given to the stream is waited for, not only what
                // the fence marks, which may be less than the copy.
                let settled = match &transfer.lane {
                    Some(lane) => lane.settle(None),
                    None => Ok(()),
                };
                Err(transfer.fail(error, settled))
            }
        }
    }

    /// Checks both sides and gives the stream the copy.
    #[expect(unsafe_code, reason = "calls the driver")]
    fn begin(&mut self, stream: &Arc<CudaStream>) -> Result<()> {
        let Some((host, device)) = &mut self.buffers else {
            return Ok(());
        };
        let operation = self.operation;
        let lane = Lane::new(stream)?;
        device.as_span().check_process()?;
        check_len(device.device(), device.size(), host.size())?;
        lane.check_device(device.device())?;
        let to_device = operation == Operation::CopyHostToDevice;
        let bytes = host.as_slice_mut()?;
        if bytes.is_empty() {
            return Ok(());
        }
        lane.follow(device.as_span(), operation)?;
        let (size, ptr) = (bytes.len(), address(device.ptr()));
        let bytes = bytes.as_mut_ptr().cast::<c_void>();
        let fence = lane.call(operation, Event::new)?;
        let begun = &mut self.lane;
        lane.call(operation, |lane| -> Outcome<()> {
            // From here on there may be a copy.
            *begun = Some(lane.clone());
            if to_device {
                // SAFETY: both are valid and owned by this transfer, which keeps
                // them until the copy is done (invariant 0).
                unsafe { driver::copy_to_device_async(ptr, bytes, size, lane.handle()) }
            } else {
                // SAFETY: as above.
                unsafe { driver::copy_to_host_async(bytes, ptr, size, lane.handle()) }
            }?;
            fence.record()
        })?;
        self.fence = Some(fence);
        Ok(())
    }

    /// Whether the copy is done.
    ///
    /// # Errors
    ///
    /// - [`ForkedProcess`](crate::ErrorKind::ForkedProcess): the driver is a parent
    ///   process's.
    /// - [`Driver`](crate::ErrorKind::Driver): it can not be known.
    pub fn is_complete(&self) -> Result<bool> {
        let (Some(lane), Some(fence)) = (&self.lane, &self.fence) else {
            return Ok(true);
        };
        lane.check_process()?;
        let failed = |status: Status| lane.error(status, self.operation);
        let _entered = lane.enter().map_err(failed)?;
        fence.is_done().map_err(failed)
    }

    /// Waits for the copy, and gives the host's buffer and the device's back.
    ///
    /// # Errors
    ///
    /// - [`ForkedProcess`](crate::ErrorKind::ForkedProcess): the driver is a parent
    ///   process's.
    /// - [`Driver`](crate::ErrorKind::Driver): the first way of waiting failed. The
    ///   buffers come back if another worked, and are leaked if none did.
    pub fn wait(mut self) -> Result<(DeviceMemoryBuffer, DeviceMemoryBuffer), TransferError> {
        let settled = self.settle();
        if let Err(error) = self.check_process() {
            return Err(self.fail(error, Ok(())));
        }
        if let (Err(failed), Some(lane)) = (&settled, &self.lane) {
            let error = lane.error(failed.status, self.operation);
            return Err(self.fail(error, settled));
        }
        Ok(self.buffers.take().unwrap_or_default())
    }

    fn check_process(&self) -> Result<()> {
        self.lane.as_ref().map_or(Ok(()), Lane::check_process)
    }

    /// Waits for the copy, once.
    fn settle(&mut self) -> Result<(), Unsettled> {
        match (&self.lane, self.fence.take()) {
            (Some(lane), Some(fence)) => lane.settle_fence(&fence),
            _ => Ok(()),
        }
    }

    /// The error for a copy whose end was waited for with the outcome `settled`.
    #[cold]
    fn fail(mut self, error: Error, settled: Result<(), Unsettled>) -> TransferError {
        if settled.is_err_and(|failed| !failed.done) {
            self.leak();
        }
        TransferError {
            buffers: self.buffers.take(),
            error,
        }
    }

    /// Leaves the memory to a copy that may never end.
    #[cold]
    fn leak(&mut self) {
        let Some((host, device)) = self.buffers.take() else {
            return;
        };
        super::leak(host, self.operation);
        super::leak(device, self.operation);
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if self.settle().is_err_and(|failed| !failed.done) {
            self.leak();
        }
    }
}

impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer")
            .field("operation", &format_args!("{}", self.operation))
            .field("buffers", &self.buffers)
            .finish_non_exhaustive()
    }
}
