//! In what order the driver does what is asked of it.
//!
//! Rank 4. Part of `backend::cuda`.

use std::ptr;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUstream;

use super::device::CudaDevice;
use super::driver;
use super::status::Outcome;

/// Whose order the calls of an allocator are in.
#[derive(Clone, Debug)]
pub(super) enum Order {
    /// Each call is complete for all streams when it returns, and a free waits
    /// for all work of the device.
    Device,
    /// Calls are done when the stream gets there; copies are waited for.
    Stream(Arc<CudaStream>),
}

impl Order {
    /// The stream that allocations and frees go to.
    #[inline]
    pub(super) fn stream(&self, device: &CudaDevice) -> CUstream {
        match self {
            Self::Device => device.stream(),
            Self::Stream(stream) => stream.cu_stream(),
        }
    }

    /// The stream that copies go to: without a stream of the caller's, the null
    /// stream, which is done with the work of all blocking streams first.
    #[inline]
    pub(super) fn copy_stream(&self) -> CUstream {
        match self {
            Self::Device => ptr::null_mut(),
            Self::Stream(stream) => stream.cu_stream(),
        }
    }

    /// Waits until memory that was just allocated may be used by anyone who may
    /// see it.
    #[inline]
    #[expect(unsafe_code, reason = "calls the driver")]
    pub(super) fn after_allocate(&self, device: &CudaDevice) -> Outcome<()> {
        match self {
            // SAFETY: the stream lives as long as the device.
            Self::Device => unsafe { driver::stream_synchronize(device.stream()) },
            Self::Stream(_) => Ok(()),
        }
    }

    /// Waits until all work that may use memory is done, as far as the stream
    /// does not wait for it anyway.
    #[inline]
    #[expect(unsafe_code, reason = "calls the driver")]
    pub(super) fn before_free(&self) -> Outcome<()> {
        match self {
            // SAFETY: the caller entered the context.
            Self::Device => unsafe { driver::context_synchronize() },
            Self::Stream(_) => Ok(()),
        }
    }

    /// Whether the stream is recording a graph.
    #[inline]
    #[expect(unsafe_code, reason = "calls the driver")]
    pub(super) fn is_capturing(&self) -> Outcome<bool> {
        match self {
            Self::Device => Ok(false),
            // SAFETY: the stream is kept alive by the handle.
            Self::Stream(stream) => unsafe { driver::is_capturing(stream.cu_stream()) },
        }
    }
}
