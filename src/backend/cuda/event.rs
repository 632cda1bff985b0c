//! A mark in the work of a stream.
//!
//! Rank 4. Part of `backend::cuda`.

use cudarc::driver::sys::{CUevent, CUstream};

use super::driver;
use super::lane::Lane;
use super::status::{NOT_READY, Outcome, Status};

/// An event of the driver's, for one stream.
///
/// # Invariants
///
/// 0. `handle` is an event of the context of `lane`, alive until `drop`.
#[derive(Debug)]
pub(super) struct Event {
    handle: CUevent,
    lane: Lane,
}

// SAFETY: the handle is a name for a thing that the driver guards itself.
#[expect(unsafe_code, reason = "a raw handle is only Send by declaration")]
unsafe impl Send for Event {}

// SAFETY: as for `Send`.
#[expect(unsafe_code, reason = "a raw handle is only Sync by declaration")]
unsafe impl Sync for Event {}

impl Event {
    /// An event that marks nothing yet. The context of the lane is current.
    #[expect(unsafe_code, reason = "calls the driver")]
    pub(super) fn new(lane: &Lane) -> Outcome<Self> {
        // SAFETY: the caller entered the context of the lane.
        let handle = unsafe { driver::event_create() }?;
        Ok(Self {
            handle,
            lane: lane.clone(),
        })
    }

    /// Marks the work given to the stream until now.
    #[expect(unsafe_code, reason = "calls the driver")]
    pub(super) fn record(&self) -> Outcome<()> {
        // SAFETY: both are alive (invariant 0), and of one context.
        unsafe { driver::event_record(self.handle, self.lane.handle()) }
    }

    /// Makes `stream`, of the same context, wait for what was marked last. The
    /// driver keeps what that needs of the event.
    #[expect(unsafe_code, reason = "calls the driver")]
    pub(super) fn hold_up(&self, stream: CUstream) -> Outcome<()> {
        // SAFETY: the event is alive (invariant 0), and the stream is the caller's.
        unsafe { driver::stream_wait_event(stream, self.handle) }
    }

    /// Waits for what was marked last.
    #[expect(unsafe_code, reason = "calls the driver")]
    pub(super) fn wait(&self) -> Outcome<()> {
        // SAFETY: the event is alive (invariant 0).
        unsafe { driver::event_synchronize(self.handle) }
    }

    /// Whether what was marked last is done.
    #[expect(unsafe_code, reason = "calls the driver")]
    pub(super) fn is_done(&self) -> Outcome<bool> {
        // SAFETY: the event is alive (invariant 0).
        match unsafe { driver::event_query(self.handle) } {
            Ok(()) => Ok(true),
            Err(Status {
                code: NOT_READY, ..
            }) => Ok(false),
            Err(status) => Err(status),
        }
    }
}

impl Drop for Event {
    #[expect(unsafe_code, reason = "calls the driver")]
    fn drop(&mut self) {
        if !self.lane.is_in_its_process() {
            return;
        }
        // Failures have nobody to be told to: the driver is shut down or broken.
        let entered = self.lane.enter();
        // SAFETY: the event is ours (invariant 0) and not used again. The driver
        // finds its context by itself.
        let _ = unsafe { driver::event_destroy(self.handle) };
        drop(entered);
    }
}
