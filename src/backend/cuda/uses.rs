//! Work on other streams that uses a block.
//!
//! Rank 4. Part of `backend::cuda`.
//!
//! A block is freed in the order of one stream. Work on others that uses it has
//! to be told of, and the free waits for it then.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::sys::CUstream;
use parking_lot::Mutex;

use super::event::Event;
use super::lane::Lane;
use super::status::Outcome;
use crate::device::Device;

/// The streams that use blocks, by the address of the block.
#[derive(Debug, Default)]
pub(super) struct Uses {
    streams: Mutex<HashMap<u64, Vec<Lane>>>,
    /// How many blocks are in the map, to leave it alone when there are none.
    count: AtomicUsize,
}

impl Uses {
    /// Notes that work given to the stream so far or later uses the block at
    /// `ptr`.
    pub(super) fn record(&self, ptr: u64, lane: Lane) {
        let mut streams = self.streams.lock();
        let of_block = streams.entry(ptr).or_default();
        if !of_block.iter().any(|known| known.is_same(&lane)) {
            of_block.push(lane);
        }
        self.count.store(streams.len(), Ordering::Release);
    }

    /// Whether no block is known to be used.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// The streams that use the block at `ptr`, which are forgotten: once it is
    /// freed, the address may be another's.
    pub(super) fn take(&self, ptr: u64) -> Vec<Lane> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut streams = self.streams.lock();
        let of_block = streams.remove(&ptr).unwrap_or_default();
        self.count.store(streams.len(), Ordering::Release);
        of_block
    }

    /// Notes again what [`take`](Self::take) took.
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
