//! A pool in the order of a stream.
//!
//! Rank 4. Part of `adaptor::pool`. Imports `allocator`, `stream` and the words.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::slots::Slots;
use super::{Core, Pool};
use crate::address::DevicePtr;
use crate::allocator::{DeviceAllocator, MemoryInfo, forward, guarded};
use crate::device::{Device, DeviceIndex};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::layout::DeviceLayout;
use crate::stream::{Fence, StreamAllocator, StreamId, StreamOrdered};

/// A handle of a [`Pool`] whose allocations, frees and copies are in the order of
/// a stream; made by [`Pool::on_stream`].
///
/// A block that is freed here may still be used by work that the stream was given
/// before. Work that the stream is given later may have the block at once, and
/// nobody is asked; others may when the work is done, which is marked only when
/// memory is short. It serves the device of the stream only.
///
/// A block may be freed by any handle of its pool: the free is in the order of
/// that handle.
///
/// # Cost
///
/// That of the pool. A block that the stream freed last costs one atomic exchange to
/// have, and one to give; no call of the driver, and no event, until memory is short.
#[derive(Debug)]
pub struct PoolOnStream<A: StreamOrdered> {
    core: Arc<Core<A>>,
    bound: A::Bound,
    state: Arc<StreamState>,
}

/// A stream that blocks are freed in the order of.
#[derive(Debug)]
pub(super) struct StreamState {
    id: StreamId,
    allocator: Box<dyn StreamAllocator>,
    /// How many handles there are.
    handles: AtomicUsize,
    /// Free blocks that are kept, for work of the stream.
    pub(super) slots: Slots,
}

impl StreamState {
    /// Marks the work given to the stream until now.
    pub(super) fn fence(&self) -> Result<Arc<dyn Fence>> {
        guarded(self.id.device, Operation::Synchronize, || {
            self.allocator.fence().map(Arc::from)
        })
    }

    /// Whether a handle can free blocks in the order of the stream.
    pub(super) fn has_handles(&self) -> bool {
        self.handles.load(Ordering::Acquire) > 0
    }
}

impl<A: StreamOrdered> Pool<A> {
    /// A handle of this pool in the order of `stream`.
    ///
    /// # Errors
    ///
    /// - [`ForkedProcess`](ErrorKind::ForkedProcess): the pool is a parent process's.
    /// - those of the layer below, if it can not use the stream.
    pub fn on_stream(&self, stream: &A::Stream) -> Result<PoolOnStream<A>> {
        let (bound, state) = self.core.stream(stream, true)?;
        let handle = PoolOnStream {
            core: Arc::clone(&self.core),
            bound,
            state,
        };
        let index = handle.state.id.device.index();
        let device = self.core.device(index)?;
        let ready = device.transient.lock().expect(&handle.state);
        match ready {
            Some(()) => Ok(handle),
            None => Err(Core::<A>::too_many(handle.state.id.device, Operation::Open)),
        }
    }

    /// Tells that work on `stream`, of any device, uses the block of the device `index`
    /// that `ptr` is in. When the block is freed, nobody has it again before the work
    /// given to the stream until then is done.
    ///
    /// Each use costs an event at the free. The layer below is not told.
    ///
    /// # Errors
    ///
    /// - those of [`on_stream`](Self::on_stream).
    /// - [`InvalidDevice`](ErrorKind::InvalidDevice): no such index.
    /// - [`Backend`](ErrorKind::Backend): `ptr` is in no memory of the pool.
    pub fn record_use(&self, ptr: DevicePtr, index: DeviceIndex, stream: &A::Stream) -> Result<()> {
        let device = self.core.device(index)?;
        if !device.holds(ptr) {
            let message = format!("{ptr} is in no memory of the pool");
            return Err(Error::backend(
                device.device,
                Operation::Synchronize,
                message,
            ));
        }
        let (_, state) = self.core.stream(stream, false)?;
        self.core.uses.record((index, ptr.addr()), &state);
        Ok(())
    }
}

impl<A: StreamOrdered> Core<A> {
    /// The stream, bound, and what is kept of it. `handle` has it kept for as long
    /// as there are handles.
    fn stream(&self, stream: &A::Stream, handle: bool) -> Result<(A::Bound, Arc<StreamState>)> {
        self.check_process(0)?;
        let bind = || guarded(self.at(0), Operation::Open, || self.upstream.bind(stream));
        let bound = bind()?;
        let id = bound.id();
        let allocator: Box<dyn StreamAllocator> = Box::new(bind()?);
        let mut streams = self.streams.lock();
        let state = match streams.iter().find(|state| state.id == id) {
            Some(state) => Arc::clone(state),
            None => {
                let state = Arc::new(StreamState {
                    id,
                    allocator,
                    handles: AtomicUsize::new(0),
                    slots: Slots::new(1),
                });
                streams.push(Arc::clone(&state));
                state
            }
        };
        if handle {
            state.handles.fetch_add(1, Ordering::AcqRel);
        }
        Ok((bound, state))
    }
}

impl<A: StreamOrdered> Drop for PoolOnStream<A> {
    fn drop(&mut self) {
        self.state.handles.fetch_sub(1, Ordering::AcqRel);
    }
}

impl<A: StreamOrdered> PoolOnStream<A> {
    /// Checks that a device is that of the stream.
    #[inline]
    fn check_device(&self, index: DeviceIndex) -> Result<()> {
        if self.state.id.device.index() == index {
            Ok(())
        } else {
            self.refuse(index)
        }
    }

    #[cold]
    fn refuse(&self, index: DeviceIndex) -> Result<()> {
        self.core.upstream.check_index(index)?;
        Err(ErrorKind::DeviceMismatch {
            expected: self.state.id.device,
            found: Device::new(self.core.upstream.device_type(), index),
        }
        .into())
    }
}

// SAFETY: by number of the promises,
// 1. and 5. They are those of the pool's upstream.
// 2. to 4. As for the pool. A block that was freed here is handed out to work of
//    the same stream, or after a fence of it.
// 6. Copies and fills are those of the upstream bound to the stream, which
//    promises that it may copy the upstream's blocks.
// 7. and 9. As for the pool.
// 8. A layout of no bytes is refused.
// 10. Addresses are in blocks of the pool's upstream.
#[expect(unsafe_code, reason = "implements an unsafe trait")]
unsafe impl<A: StreamOrdered> DeviceAllocator for PoolOnStream<A> {
    forward!(self => self.bound; copies, synchronize);
    forward!(self => self.core.upstream; identity, upstream);

    #[inline]
    fn allocate(&self, layout: DeviceLayout, index: DeviceIndex) -> Result<DevicePtr> {
        self.check_device(index)?;
        self.core.allocate(layout, index, Some(&self.state))
    }

    unsafe fn deallocate(
        &self,
        ptr: DevicePtr,
        layout: DeviceLayout,
        index: DeviceIndex,
    ) -> Result<()> {
        self.check_device(index)?;
        self.core.deallocate(ptr, layout, index, Some(&self.state))
    }

    fn memory_info(&self, index: DeviceIndex) -> Result<Option<MemoryInfo>> {
        self.core.memory_info(index)
    }

    fn trim(&self, index: DeviceIndex) -> Result<usize> {
        self.core.trim(index)
    }
}

/// Which streams use memory, by device and address.
#[derive(Debug, Default)]
pub(super) struct Uses {
    streams: Mutex<BTreeMap<Place, Vec<Arc<StreamState>>>>,
    /// How many places are in the map, to leave it alone when there are none.
    count: AtomicUsize,
}

type Place = (DeviceIndex, usize);

impl Uses {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    fn record(&self, place: Place, stream: &Arc<StreamState>) {
        let mut streams = self.streams.lock();
        let here = streams.entry(place).or_default();
        if !here.iter().any(|known| known.id == stream.id) {
            here.push(Arc::clone(stream));
        }
        self.count.store(streams.len(), Ordering::Release);
    }

    /// A fence for each stream that uses a part of the `size` bytes at a place, besides
    /// the one in the order of which they are freed. The uses are forgotten, unless a
    /// fence can not be had.
    pub(super) fn fences(
        &self,
        place: Place,
        size: usize,
        order: Option<&Arc<StreamState>>,
    ) -> Result<Vec<Arc<dyn Fence>>> {
        if self.is_empty() {
            return Ok(Vec::new());
        }
        let uses = self.take(place, size);
        let mut known: Vec<StreamId> = order.iter().map(|order| order.id).collect();
        let mut fences = Vec::new();
        for (_, stream) in &uses {
            if known.contains(&stream.id) {
                continue;
            }
            match stream.fence() {
                Ok(fence) => fences.push(fence),
                Err(error) => {
                    for (place, stream) in &uses {
                        self.record(*place, stream);
                    }
                    return Err(error);
                }
            }
            known.push(stream.id);
        }
        Ok(fences)
    }

    /// Takes the uses of the `size` bytes at a place out.
    fn take(&self, (index, start): Place, size: usize) -> Vec<(Place, Arc<StreamState>)> {
        let mut streams = self.streams.lock();
        let end = start.saturating_add(size);
        let places = streams.range((index, start)..(index, end));
        let places: Vec<Place> = places.map(|(place, _)| *place).collect();
        let mut uses = Vec::new();
        for place in places {
            let here = streams.remove(&place).unwrap_or_default();
            uses.extend(here.into_iter().map(|stream| (place, stream)));
        }
        self.count.store(streams.len(), Ordering::Release);
        uses
    }
}
