//! In what order the driver does what is asked of it.
//!
//! Rank 4. Part of `backend::cuda`.

use std::ptr;

use cudarc::driver::sys::CUstream;

use super::device::{CudaDevice, wait_for_context};
use super::driver;
use super::lane::{Lane, settle};
use super::status::Outcome;

/// Whose order the calls of an allocator are in.
#[derive(Clone, Debug)]
pub(super) enum Order {
    /// Each call is complete for all streams when it returns, and a free waits
    /// for all work of the device.
    Device,
    /// Calls are done when the stream gets there; copies are waited for.
    Stream(Lane),
}

impl Order {
    /// The stream that allocations and frees go to.
    #[inline]
    pub(super) fn stream(&self, device: &CudaDevice) -> CUstream {
        match self {
            Self::Device => device.stream(),
            Self::Stream(lane) => lane.handle(),
        }
    }

    /// The stream that copies go to: without a stream of the caller's, the null
    /// stream, which is done with the work of all blocking streams first.
    #[inline]
    pub(super) fn copy_stream(&self) -> CUstream {
        match self {
            Self::Device => ptr::null_mut(),
            Self::Stream(lane) => lane.handle(),
        }
    }

    /// Waits for a copy that was given to [`copy_stream`](Self::copy_stream). The
    /// host's side may be another's when this returns, so if one way to wait
    /// fails, others are tried before it says so.
    #[inline]
    pub(super) fn after_copy(&self) -> Outcome<()> {
        let settled = match self {
            Self::Device => settle([
                &|| wait_for(ptr::null_mut()),
                &wait_for_context,
                &wait_for_context,
            ]),
            Self::Stream(lane) => lane.settle(None),
        };
        settled.map_err(|unsettled| unsettled.status)
    }

    /// Waits until memory that was just allocated may be used by anyone who may
    /// see it.
    #[inline]
    pub(super) fn after_allocate(&self, device: &CudaDevice) -> Outcome<()> {
        match self {
            Self::Device => wait_for(device.stream()),
            Self::Stream(_) => Ok(()),
        }
    }

    /// Waits until all work that may use memory is done, as far as the stream
    /// does not wait for it anyway.
    #[inline]
    pub(super) fn before_free(&self) -> Outcome<()> {
        match self {
            Self::Device => wait_for_context(),
            Self::Stream(_) => Ok(()),
        }
    }

    /// Waits for all work of the device, so that what it is still to free is free.
    #[cold]
    pub(super) fn drain(&self) -> Outcome<()> {
        wait_for_context()
    }

    /// Waits for all work that is in this order.
    pub(super) fn synchronize(&self) -> Outcome<()> {
        match self {
            Self::Device => wait_for_context(),
            Self::Stream(lane) => wait_for(lane.handle()),
        }
    }
}

/// Waits for all work of a stream, in its context.
#[inline]
#[expect(unsafe_code, reason = "calls the driver")]
fn wait_for(stream: CUstream) -> Outcome<()> {
    // SAFETY: the stream is alive: it is the context's null stream, the device's
    // own, or kept by a lane.
    unsafe { driver::stream_synchronize(stream) }
}
