//! Streams, for adaptors that hand memory from one to another.
//!
//! Rank 4. Part of `backend::cuda`. Imports `allocator`, `stream` and the words.

use std::sync::Arc;

use cudarc::driver::CudaStream;

use super::allocator::CudaAllocator;
use super::event::Event;
use super::lane::Lane;
use crate::allocator::{DeviceAllocator, forward};
use crate::error::{Operation, Result};
use crate::stream::{Fence, StreamAllocator, StreamId, StreamOrdered};

/// A [`CudaAllocator`] in the order of a stream, with the stream at hand; what
/// [`Pool`](crate::adaptor::Pool) binds to.
#[derive(Debug)]
pub struct CudaOnStream {
    allocator: CudaAllocator,
    lane: Lane,
}

/// An event, and the stream whose context it is of.
#[derive(Debug)]
struct CudaFence {
    event: Event,
    lane: Lane,
}

// SAFETY: it is the allocator inside, by another name.
#[expect(unsafe_code, reason = "implements an unsafe trait")]
unsafe impl DeviceAllocator for CudaOnStream {
    forward!(self => self.allocator; identity, upstream, blocks, copies, memory_info, synchronize, trim);
}

// SAFETY: by number of the promises,
// 1. The lane keeps the stream, and its handle is its number.
// 2. The event is recorded after all work that the stream was given.
// 3. Lanes and events check the process before they call the driver.
#[expect(unsafe_code, reason = "implements an unsafe trait")]
unsafe impl StreamAllocator for CudaOnStream {
    fn id(&self) -> StreamId {
        let number = u64::try_from(self.lane.handle().addr()).unwrap_or(u64::MAX);
        let device = self.lane.device();
        StreamId { device, number }
    }

    fn fence(&self) -> Result<Box<dyn Fence>> {
        let event = self.lane.call(Operation::Synchronize, |lane| {
            let event = Event::new(lane)?;
            event.record()?;
            Ok(event)
        })?;
        let lane = self.lane.clone();
        Ok(Box::new(CudaFence { event, lane }))
    }
}

impl Fence for CudaFence {
    fn is_done(&self) -> Result<bool> {
        self.lane.check_process()?;
        let done = self.lane.enter().and_then(|_entered| self.event.is_done());
        done.map_err(|status| self.lane.error(status, Operation::Synchronize))
    }

    fn wait(&self) -> Result<()> {
        self.lane.check_process()?;
        match self.lane.settle_fence(&self.event) {
            Err(unsettled) if !unsettled.done => {
                let status = unsettled.status;
                Err(self.lane.error(status, Operation::Synchronize))
            }
            _ => Ok(()),
        }
    }
}

// SAFETY: what is bound shares the devices, so it may copy and fill all blocks of
// this allocator on the device of the stream.
#[expect(unsafe_code, reason = "implements an unsafe trait")]
unsafe impl StreamOrdered for CudaAllocator {
    type Stream = Arc<CudaStream>;
    type Bound = CudaOnStream;

    fn bind(&self, stream: &Arc<CudaStream>) -> Result<CudaOnStream> {
        let allocator = self.on_stream(stream)?;
        let lane = Lane::of_any_thread(stream)?;
        Ok(CudaOnStream { allocator, lane })
    }
}
