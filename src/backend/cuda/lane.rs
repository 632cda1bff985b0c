//! A stream of the caller's, ready for work of this crate.
//!
//! Rank 4. Part of `backend::cuda`. Imports `allocator`, `span` and the words.
//!
//! The stream came from cudarc, which asks nobody whether there is a driver; so
//! the driver is looked for here before the first call on such a stream.

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::{Arc, OnceLock};

use cudarc::driver::CudaStream;
use cudarc::driver::sys::{CUcontext, CUstream, CUstreamCaptureMode};

use super::allocator::{self, CudaAllocator};
use super::device::{self, Entered, wait_for_context};
use super::driver;
use super::event::Event;
use super::order::Order;
use super::probe;
use super::status::{DEINITIALIZED, Outcome, Status};
use super::uses;
use crate::allocator::{DeviceAllocator, guarded};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::process::ProcessGeneration;
use crate::span::DeviceSpan;

/// How many wrappers are looked into for the allocator at the bottom.
const MAX_WRAPPERS: usize = 32;

/// A stream, the device it is of, and the process it may be used in.
///
/// In a child of that process the stream is never dropped, as that would call the
/// driver of the parent.
#[derive(Clone)]
pub(super) struct Lane {
    stream: ManuallyDrop<Arc<CudaStream>>,
    device: Device,
    made_in: ProcessGeneration,
}

/// Work that could not be waited for in the first way tried.
#[derive(Debug)]
pub(super) struct Unsettled {
    /// Why not.
    pub(super) status: Status,
    /// Whether another way worked, so that the work is done. If none did, the
    /// driver has lost the context, or is broken beyond what can be known.
    pub(super) done: bool,
}

impl Lane {
    /// Finds the driver, unless it was found before.
    pub(super) fn new(stream: &Arc<CudaStream>) -> Result<Self> {
        static FOUND: OnceLock<ProcessGeneration> = OnceLock::new();
        let device = allocator::device_of(stream)?;
        let made_in = match FOUND.get() {
            Some(made_in) => *made_in,
            None => {
                probe::device_count(device.device_type())?;
                *FOUND.get_or_init(ProcessGeneration::current)
            }
        };
        let lane = Self {
            stream: ManuallyDrop::new(Arc::clone(stream)),
            device,
            made_in,
        };
        lane.check_process()?;
        Ok(lane)
    }

    /// As [`new`](Self::new), for work that may be waited for on any thread. The
    /// handle of the per-thread stream means another one on each.
    pub(super) fn of_any_thread(stream: &Arc<CudaStream>) -> Result<Self> {
        const PER_THREAD: usize = 2;
        let lane = Self::new(stream)?;
        if lane.handle().addr() == PER_THREAD {
            return Err(ErrorKind::NotSupported {
                device: lane.device,
                operation: Operation::Open,
            }
            .into());
        }
        Ok(lane)
    }

    /// The device that the stream is of.
    pub(super) fn device(&self) -> Device {
        self.device
    }

    /// The stream.
    pub(super) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// The stream as the driver knows it.
    pub(super) fn handle(&self) -> CUstream {
        self.stream.cu_stream()
    }

    /// Whether both are the same stream.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.handle() == other.handle() && self.device == other.device
    }

    /// Whether the calling process is the one that the driver was found in.
    pub(super) fn is_in_its_process(&self) -> bool {
        self.made_in.is_current()
    }

    /// Checks that the driver may be called from this process.
    pub(super) fn check_process(&self) -> Result<()> {
        if self.is_in_its_process() {
            Ok(())
        } else {
            Err(ErrorKind::ForkedProcess {
                device: self.device,
            }
            .into())
        }
    }

    /// Checks that memory is on the device of the stream.
    pub(super) fn check_device(&self, found: Device) -> Result<()> {
        if found == self.device {
            Ok(())
        } else {
            Err(ErrorKind::DeviceMismatch {
                expected: self.device,
                found,
            }
            .into())
        }
    }

    /// The error for a call of the driver that was part of `operation`.
    #[cold]
    pub(super) fn error(&self, status: Status, operation: Operation) -> Error {
        status.into_error(self.device, operation)
    }

    /// Makes the context of the stream current until the result is dropped.
    #[inline]
    #[expect(unsafe_code, reason = "see SAFETY")]
    pub(super) fn enter(&self) -> Outcome<Entered> {
        // SAFETY: the stream keeps its context alive, and is kept by this lane,
        // which callers keep for as long as the context is current.
        unsafe { device::enter(self.stream.context().cu_ctx()) }
    }

    /// Whether the stream is recording a graph. The context is current.
    #[expect(unsafe_code, reason = "calls the driver")]
    pub(super) fn is_capturing(&self) -> Outcome<bool> {
        // SAFETY: the stream is kept alive by this lane.
        unsafe { driver::is_capturing(self.handle()) }
    }

    /// Runs `call` with the context current, unless the stream is recording a
    /// graph or the process is a child.
    pub(super) fn call<T>(
        &self,
        operation: Operation,
        call: impl FnOnce(&Self) -> Outcome<T>,
    ) -> Result<T> {
        self.check_process()?;
        let failed = |status| self.error(status, operation);
        let _entered = self.enter().map_err(failed)?;
        if self.is_capturing().map_err(failed)? {
            let device = self.device;
            return Err(ErrorKind::Capturing { device, operation }.into());
        }
        call(self).map_err(failed)
    }

    /// Checks that the memory of `span` may be used by work on the stream, and
    /// makes the stream wait until it is allocated. Returns the context that the
    /// memory is of.
    ///
    /// The addresses of an allocator that is not known need not be the driver's,
    /// whatever device it says they are of.
    pub(super) fn follow(&self, span: DeviceSpan<'_>, operation: Operation) -> Result<CUcontext> {
        let (allocator, device) = (span.allocator(), span.device());
        let Some((cuda, wrapped)) = CudaAllocator::below(allocator) else {
            return Err(ErrorKind::NotSupported { device, operation }.into());
        };
        if device == self.device {
            cuda.check_context(self, operation)?;
        }
        let devices = &cuda.shared.devices;
        let ready = devices.get(device.device_type(), device.index(), operation)?;
        if wrapped {
            // When the block was allocated, and for which stream, is not known.
            guarded(device, operation, || allocator.synchronize(device.index()))?;
        } else if let Order::Stream(own) = &cuda.order
            && !own.is_same(self)
        {
            let own = std::slice::from_ref(own);
            self.call(operation, |lane| {
                uses::wait_for(lane.handle(), lane.device, own)
            })?;
        }
        Ok(ready.context())
    }

    /// Waits for all work given to the stream until now, in one of several ways.
    ///
    /// `fence`, if there is one, marks the end of that work. A stream that has
    /// begun to record a graph can not be waited for, but the event can. In a
    /// child process there is nothing to wait for.
    pub(super) fn settle(&self, fence: Option<&Event>) -> Result<(), Unsettled> {
        if !self.is_in_its_process() {
            return Ok(());
        }
        let by_fence = || fence.map_or_else(|| self.wait_for_stream(), wait_relaxed);
        let by_stream = || {
            if fence.is_some() && self.is_capturing()? {
                by_fence()
            } else {
                self.wait_for_stream()
            }
        };
        settle([
            &|| self.enter().and_then(|_entered| by_stream()),
            &|| self.enter().and_then(|_entered| by_fence()),
            &|| self.enter().and_then(|_entered| wait_for_context()),
        ])
    }

    /// Waits for what `fence` marks, in one of several ways, on any thread.
    ///
    /// The stream itself is not asked: the handle of a per-thread stream means
    /// another one on another thread.
    pub(super) fn settle_fence(&self, fence: &Event) -> Result<(), Unsettled> {
        if !self.is_in_its_process() {
            return Ok(());
        }
        settle([
            &|| self.enter().and_then(|_entered| wait_relaxed(fence)),
            &|| self.enter().and_then(|_entered| fence.wait()),
            &|| self.enter().and_then(|_entered| wait_for_context()),
        ])
    }

    /// Waits for all work of the context, and tries again if that fails.
    pub(super) fn settle_context(&self) -> Result<(), Unsettled> {
        if !self.is_in_its_process() {
            return Ok(());
        }
        let way = || self.enter().and_then(|_entered| wait_for_context());
        settle([&way, &way, &way])
    }

    #[expect(unsafe_code, reason = "calls the driver")]
    fn wait_for_stream(&self) -> Outcome<()> {
        // SAFETY: the stream is kept alive by this lane.
        unsafe { driver::stream_synchronize(self.handle()) }
    }
}

/// Waits for an event where the thread may wait although a stream is capturing.
#[expect(unsafe_code, reason = "calls the driver")]
fn wait_relaxed(fence: &Event) -> Outcome<()> {
    let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: the mode is a variable of ours.
    unsafe { driver::exchange_capture_mode(&mut mode) }?;
    let waited = fence.wait();
    // SAFETY: as above; the mode is the one that the thread had.
    let _ = unsafe { driver::exchange_capture_mode(&mut mode) };
    waited
}

/// Waits in the first way that works. A driver that is shut down does no work.
pub(super) fn settle(ways: [&dyn Fn() -> Outcome<()>; 3]) -> Result<(), Unsettled> {
    let mut first = None;
    for way in ways {
        match (way(), first) {
            (Ok(()), None) => return Ok(()),
            (Ok(()), Some(status)) => return Err(Unsettled { status, done: true }),
            (Err(status), _) if status.code == DEINITIALIZED => {
                return Err(Unsettled { status, done: true });
            }
            (Err(status), None) => first = Some(status),
            (Err(_), Some(_)) => {}
        }
    }
    match first {
        Some(status) => Err(Unsettled {
            status,
            done: false,
        }),
        None => Ok(()),
    }
}

impl CudaAllocator {
    /// The allocator of this type that `allocator` is, or that it wraps, and
    /// whether it wraps it.
    pub(super) fn below(allocator: &dyn DeviceAllocator) -> Option<(&Self, bool)> {
        let mut current = allocator;
        for depth in 0..MAX_WRAPPERS {
            if let Some(cuda) = Self::of(current) {
                return Some((cuda, depth > 0));
            }
            current = current.upstream()?;
        }
        None
    }

    /// The allocator of this type that `allocator` is.
    pub(super) fn of(allocator: &dyn DeviceAllocator) -> Option<&Self> {
        allocator.as_any()?.downcast_ref()
    }

    /// Checks that the stream is of the context that memory is allocated in.
    pub(super) fn check_context(&self, lane: &Lane, operation: Operation) -> Result<()> {
        let device = lane.device();
        let devices = &self.shared.devices;
        let ready = devices.get(device.device_type(), device.index(), operation)?;
        if ready.context() == lane.stream().context().cu_ctx() {
            Ok(())
        } else {
            Err(ErrorKind::ContextMismatch { device }.into())
        }
    }
}

impl Drop for Lane {
    #[expect(unsafe_code, reason = "see SAFETY")]
    fn drop(&mut self) {
        if !self.is_in_its_process() {
            return;
        }
        // SAFETY: `drop` runs once, and nothing uses the stream after it.
        let stream = unsafe { ManuallyDrop::take(&mut self.stream) };
        if let Some(last) = Arc::into_inner(stream) {
            // cudarc makes the context of a stream current to destroy it, and
            // leaves it so.
            // SAFETY: the stream keeps its context alive until it is dropped, and
            // the context is another's too: the allocator retains it.
            let _entered = unsafe { device::enter(last.context().cu_ctx()) };
            drop(last);
        }
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane")
            .field("device", &format_args!("{}", self.device))
            .field("stream", &self.handle())
            .finish_non_exhaustive()
    }
}
