//! Work on other streams that uses a block.
//!
//! Rank 4. Part of `backend::cuda`. Imports `span` and the words.
//!
//! A block is freed in the order of one stream. Work on others that uses it has
//! to be told of, and the free waits for it then. What is told of may be a part
//! of a block, so uses are found by where they are, not by where the block starts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUstream;
use parking_lot::Mutex;

use super::allocator::{CudaAllocator, address};
use super::event::Event;
use super::lane::Lane;
use super::status::Outcome;
use crate::device::Device;
use crate::error::{ErrorKind, Operation, Result};
use crate::span::DeviceSpan;

/// The streams that use memory, by the address of it.
#[derive(Debug, Default)]
pub(super) struct Uses {
    streams: Mutex<BTreeMap<u64, Vec<Lane>>>,
    /// How many addresses are in the map, to leave it alone when there are none.
    count: AtomicUsize,
}

impl CudaAllocator {
    /// Tells that work on `stream`, of any device, uses the memory of `span`: a
    /// block of a [`CudaAllocator`], or a part of one. Freeing the block waits for
    /// what the stream was given until then.
    ///
    /// # Errors
    ///
    /// - [`NotSupported`](ErrorKind::NotSupported): the allocator of the memory is
    ///   another one, be it one that wraps this, which may hand the memory out again
    ///   and not free it; or the stream is the per-thread stream, which is another
    ///   one on another thread.
    /// - [`ForkedProcess`](ErrorKind::ForkedProcess): the memory or the driver is a
    ///   parent process's.
    /// - what [`open`](Self::open) returns, if the driver was never found.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use device_memory::backend::cuda::CudaAllocator;
    /// use device_memory::backend::cuda::cudarc::driver::CudaContext;
    /// use device_memory::{DeviceMemoryBuffer, DeviceType};
    ///
    /// let stream = CudaContext::new(0)?.new_stream()?;
    /// let buffer = DeviceMemoryBuffer::create(1024, DeviceType::Cuda, 0)?;
    /// // Kernels that use the first half are launched on the stream.
    /// CudaAllocator::record_use(buffer.as_span().subspan(0, 512)?, &stream)?;
    ///
    /// drop(buffer);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn record_use(span: DeviceSpan<'_>, stream: &Arc<CudaStream>) -> Result<()> {
        let lane = Lane::of_any_thread(stream)?;
        span.check_process()?;
        let Some(maker) = Self::of(span.allocator()) else {
            return Err(ErrorKind::NotSupported {
                device: span.device(),
                operation: Operation::Deallocate,
            }
            .into());
        };
        if !span.is_empty() {
            maker.shared.uses.record(address(span.ptr()), lane);
        }
        Ok(())
    }
}

impl Uses {
    /// Notes that work given to the stream so far or later uses memory at `ptr`.
    pub(super) fn record(&self, ptr: u64, lane: Lane) {
        let mut streams = self.streams.lock();
        let here = streams.entry(ptr).or_default();
        if !here.iter().any(|known| known.is_same(&lane)) {
            here.push(lane);
        }
        self.count.store(streams.len(), Ordering::Release);
    }

    /// Whether no memory is known to be used.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// The streams that use a part of the `size` bytes at `ptr`, each once. They
    /// are forgotten: once the block is freed, the addresses may be another's.
    pub(super) fn take(&self, ptr: u64, size: usize) -> Vec<Lane> {
        if self.is_empty() {
            return Vec::new();
        }
        let size = u64::try_from(size).unwrap_or(u64::MAX);
        let within = ptr..ptr.saturating_add(size);
        let mut streams = self.streams.lock();
        let at: Vec<u64> = streams.range(within).map(|(at, _)| *at).collect();
        let taken = at.iter().filter_map(|at| streams.remove(at));
        let taken: Vec<Lane> = taken.flatten().collect();
        self.count.store(streams.len(), Ordering::Release);
        drop(streams);
        let mut lanes: Vec<Lane> = Vec::new();
        for lane in taken {
            if !lanes.iter().any(|known| known.is_same(&lane)) {
                lanes.push(lane);
            }
        }
        lanes
    }

    /// Notes again what [`take`](Self::take) took of the block at `ptr`.
    #[cold]
    pub(super) fn put_back(&self, ptr: u64, lanes: Vec<Lane>) {
        for lane in lanes {
            self.record(ptr, lane);
        }
    }
}

/// Whether any of the streams is recording a graph, which waiting for it would
/// spoil.
pub(super) fn any_is_capturing(lanes: &[Lane]) -> Outcome<bool> {
    for lane in lanes {
        if lane.is_capturing()? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Makes work given to `stream` of `device` from now on come after all work given
/// to `others` so far. The context of the device is current.
///
/// Streams of the same device are waited for by the stream, those of others by
/// the calling thread.
pub(super) fn wait_for(stream: CUstream, device: Device, others: &[Lane]) -> Outcome<()> {
    for other in others {
        if other.device() != device {
            other.settle(None).map_err(|unsettled| unsettled.status)?;
        } else if other.handle() != stream {
            let event = Event::new(other)?;
            event.record()?;
            event.hold_up(stream)?;
        }
    }
    Ok(())
}
