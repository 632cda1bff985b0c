//! Work on other streams that uses a block.
//!
//! Rank 4. Part of `backend::cuda`.
//!
//! A block is freed in the order of one stream. Work on others that uses it has
//! to be told of, and the free waits for it then.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUstream;
use parking_lot::Mutex;

use super::driver;
use super::status::Outcome;

/// The streams that use blocks, by the address of the block.
#[derive(Debug, Default)]
pub(super) struct Uses {
    streams: Mutex<HashMap<u64, Vec<Arc<CudaStream>>>>,
    /// How many blocks are in the map, to leave it alone when there are none.
    count: AtomicUsize,
}

impl Uses {
    /// Notes that work given to `stream` so far or later uses the block at `ptr`.
    pub(super) fn record(&self, ptr: u64, stream: &Arc<CudaStream>) {
        let mut streams = self.streams.lock();
        let of_block = streams.entry(ptr).or_default();
        if !of_block
            .iter()
            .any(|known| known.cu_stream() == stream.cu_stream())
        {
            of_block.push(Arc::clone(stream));
        }
        self.count.store(streams.len(), Ordering::Release);
    }

    /// Whether any work on the block at `ptr` was noted.
    #[inline]
    pub(super) fn take(&self, ptr: u64) -> Vec<Arc<CudaStream>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let mut streams = self.streams.lock();
        let of_block = streams.remove(&ptr).unwrap_or_default();
        self.count.store(streams.len(), Ordering::Release);
        of_block
    }

    /// Notes again what [`take`](Self::take) took.
    #[cold]
    pub(super) fn put_back(&self, ptr: u64, streams: Vec<Arc<CudaStream>>) {
        for stream in &streams {
            self.record(ptr, stream);
        }
    }
}

/// Makes `stream` wait for all work given to `others` so far.
#[expect(unsafe_code, reason = "calls the driver")]
pub(super) fn wait_for(stream: CUstream, others: &[Arc<CudaStream>]) -> Outcome<()> {
    for other in others.iter().filter(|other| other.cu_stream() != stream) {
        // SAFETY: the caller entered the context of the streams.
        let event = unsafe { driver::event_create() }?;
        // SAFETY: the event was just made, and the stream is kept alive.
        let recorded = unsafe { driver::event_record(event, other.cu_stream()) };
        // SAFETY: as above, and `stream` is alive.
        let waits = recorded.and_then(|()| unsafe { driver::stream_wait_event(stream, event) });
        // SAFETY: the driver keeps what the wait needs of the event.
        let destroyed = unsafe { driver::event_destroy(event) };
        waits.and(destroyed)?;
    }
    Ok(())
}
