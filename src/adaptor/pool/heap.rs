//! The blocks of one device and one kind of memory, as they are kept under a lock.
//!
//! Rank 4. Part of `adaptor::pool`. Imports `free_space`, `stream` and the words.
//!
//! Nothing here calls the layer below or a stream: that is done between two uses
//! of the lock.

use std::sync::Arc;

use super::keeping::{Keeping, Memory, Seen};
use super::on_stream::StreamState;
use super::slots::Slots;
use super::status::PoolStatus;
use crate::address::DevicePtr;
use crate::free_space::{End, FreeSpace, Lot};
use crate::layout::DeviceLayout;
use crate::stream::Fence;

/// All sizes are multiples of so many bytes, as an exponent of two.
pub(super) const UNIT_LOG2: u32 = 8;

/// Blocks of so many bytes or more are taken from the high ends of what is free, and
/// others from the low ends, so that they are less in each other's way.
const LARGE: usize = 8 << 20;

/// A segment: where it is, and as what it was allocated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Base {
    pub(super) ptr: DevicePtr,
    pub(super) layout: DeviceLayout,
}

/// A fence, and what of the heap becomes free when it is done.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) fences: Vec<Arc<dyn Fence>>,
    pub(super) what: Holding,
}

/// What of the heap waits for fences.
#[derive(Clone, Copy, Debug)]
pub(super) enum Holding {
    /// All blocks of a lot.
    Lot(Lot),
    /// A block in use, which starts there.
    Block(usize),
}

/// The blocks that were freed in the order of one stream.
#[derive(Debug)]
pub(super) struct StreamLots {
    stream: Arc<StreamState>,
    lots: Vec<StreamLot>,
}

/// Blocks of a stream. Its own work may use them at once; other work may when the
/// fence is done. Blocks are added only while there is no fence.
#[derive(Debug)]
struct StreamLot {
    lot: Lot,
    fence: Option<Arc<dyn Fence>>,
    /// Whether no blocks are added any more.
    closed: bool,
}

/// A block that was freed while work of other streams used it.
#[derive(Debug)]
struct Pending {
    start: usize,
    fences: Vec<Arc<dyn Fence>>,
    /// In whose order it was freed.
    order: Option<Arc<StreamState>>,
}

/// The blocks.
#[derive(Debug)]
pub(super) struct Heap {
    pub(super) space: FreeSpace<Base>,
    streams: Vec<StreamLots>,
    pending: Vec<Pending>,
    /// The bytes of all segments.
    reserved: usize,
    /// The bytes of those that are on their way back to the layer below.
    leaving: usize,
    /// Hits of the slots of streams that were forgotten.
    past_hits: u64,
    /// Searches for a free block, and those that found one.
    pub(super) searches: u64,
    pub(super) found: u64,
    /// What decides on the blocks that are kept, if any of this heap are.
    keeping: Option<Keeping>,
}

impl Heap {
    pub(super) fn new(keeping: Option<Keeping>) -> Self {
        Self {
            keeping,
            space: FreeSpace::new(),
            streams: Vec::new(),
            pending: Vec::new(),
            reserved: 0,
            leaving: 0,
            past_hits: 0,
            searches: 0,
            found: 0,
        }
    }

    /// Counts a search for so many bytes. Says whether what is kept is to be given back
    /// before it.
    pub(super) fn is_sweep_due(&mut self, size: usize) -> bool {
        self.searches = self.searches.wrapping_add(1);
        let memory = self.memory();
        let keeping = self.keeping.as_mut();
        keeping.is_some_and(|keeping| keeping.is_sweep_due(size, memory))
    }

    /// Gives back what is kept in these slots and by streams, before a search for so many
    /// bytes.
    pub(super) fn sweep(&mut self, slots: &Slots, size: usize) {
        slots.sweep(|ptr| {
            self.give(ptr.addr(), None);
        });
        for stream in self.streams_that_keep().cloned().collect::<Vec<_>>() {
            stream.slots.sweep(|ptr| {
                self.give(ptr.addr(), Some(&stream));
            });
        }
        let seen = Seen {
            used: self.used().saturating_add(size),
            hits: slots.hits().wrapping_add(self.stream_hits()),
            groups: slots.made(),
        };
        self.decide(|keeping| keeping.swept(seen));
    }

    /// Tells what decides on the blocks that are kept of what happened.
    pub(super) fn decide(&mut self, tell: impl FnOnce(&mut Keeping)) {
        if let Some(keeping) = &mut self.keeping {
            tell(keeping);
        }
    }

    /// Up to which size blocks are kept now, if any of this heap are.
    pub(super) fn limit(&self) -> Option<usize> {
        let keeping = self.keeping.as_ref()?;
        Some(keeping.limit(self.memory()))
    }

    fn memory(&self) -> Memory {
        Memory {
            reserved: self.reserved,
            used: self.used(),
            free: self.free(),
        }
    }

    /// The streams, if the blocks that they keep are of this heap.
    fn streams_that_keep(&self) -> impl Iterator<Item = &Arc<StreamState>> {
        let streams = self.keeping.iter().flat_map(|_| &self.streams);
        streams.map(|own| &own.stream)
    }

    /// The bytes that anybody may have.
    pub(super) fn free(&self) -> usize {
        self.space.bytes_of(FreeSpace::<Base>::COMMON)
    }

    /// Takes a block for work in an order: one that was freed in that order, else
    /// one that anybody may have.
    pub(super) fn take(
        &mut self,
        order: Option<&Arc<StreamState>>,
        size: usize,
        align: usize,
    ) -> Option<DevicePtr> {
        let end = if size < LARGE { End::Low } else { End::High };
        let own = order.and_then(|order| {
            let at = self.position(order)?;
            let lots = &self.streams.get(at)?.lots;
            let mut found = lots.iter().rev();
            found.find_map(|own| self.space.take(own.lot, (size, align), end))
        });
        let taken = match own {
            Some(taken) => taken,
            None => self
                .space
                .take(FreeSpace::<Base>::COMMON, (size, align), end)?,
        };
        taken.base.ptr.checked_add(taken.offset)
    }

    /// Gives a block back in an order. Says whether nothing else of its segment is
    /// in use, or `None` if no block starts there.
    pub(super) fn give(&mut self, start: usize, order: Option<&Arc<StreamState>>) -> Option<bool> {
        let lot = match order {
            Some(order) => self.open_lot(order)?,
            None => FreeSpace::<Base>::COMMON,
        };
        self.space.give(start, lot)
    }

    /// Gives a block back that others may have only when all fences are done. If no
    /// block starts there, the fences are the caller's to drop, once the lock is not
    /// held.
    pub(super) fn give_later(
        &mut self,
        start: usize,
        fences: Vec<Arc<dyn Fence>>,
        order: Option<Arc<StreamState>>,
    ) -> Result<(), Vec<Arc<dyn Fence>>> {
        if self.space.size_of(start).is_none() {
            return Err(fences);
        }
        self.pending.push(Pending {
            start,
            fences,
            order,
        });
        Ok(())
    }

    /// Adds a segment. `None` if there are too many.
    pub(super) fn add(&mut self, base: Base) -> Option<()> {
        let size = base.layout.size();
        self.space.add(base.ptr.addr(), size, base)?;
        self.reserved = self.reserved.saturating_add(size);
        Some(())
    }

    /// Takes unused segments away, until there are no more or `enough` says so of
    /// the bytes taken. Each is held until [`gave_back`](Self::gave_back).
    pub(super) fn remove_unused(&mut self, enough: impl Fn(usize) -> bool) -> Vec<Base> {
        let mut removed = Vec::new();
        let mut bytes = 0_usize;
        for segment in self.space.whole() {
            if enough(bytes) {
                break;
            }
            if let Some(base) = self.space.remove(segment) {
                let size = base.layout.size();
                bytes = bytes.saturating_add(size);
                self.reserved = self.reserved.saturating_sub(size);
                self.leaving = self.leaving.saturating_add(size);
                removed.push(base);
            }
        }
        removed
    }

    /// The layer below has a segment back that was taken away.
    pub(super) fn gave_back(&mut self, base: Base) {
        self.leaving = self.leaving.saturating_sub(base.layout.size());
    }

    /// The layer below did not take a segment back. `None` if there are too many.
    pub(super) fn take_back(&mut self, base: Base) -> Option<()> {
        self.gave_back(base);
        self.add(base)
    }

    /// Closes the lots of streams that hold anything, so that a fence made after
    /// this covers all of them, and returns those that lack one.
    pub(super) fn close_lots(&mut self) -> Vec<(Arc<StreamState>, Lot)> {
        for stream in self.streams_that_keep().cloned().collect::<Vec<_>>() {
            for kept in stream.slots.drain() {
                self.give(kept.addr(), Some(&stream));
            }
        }
        let mut unfenced = Vec::new();
        for own in &mut self.streams {
            for lot in &mut own.lots {
                if lot.fence.is_none() && self.space.bytes_of(lot.lot) > 0 {
                    lot.closed = true;
                    unfenced.push((Arc::clone(&own.stream), lot.lot));
                }
            }
        }
        unfenced
    }

    /// Notes the fence of a closed lot, if another thread has not.
    pub(super) fn set_fence(&mut self, lot: Lot, fence: &Arc<dyn Fence>) {
        let mut lots = self.streams.iter_mut().flat_map(|own| &mut own.lots);
        let lot = lots.find(|own| own.lot == lot);
        if let Some(own) = lot.filter(|own| own.closed && own.fence.is_none()) {
            own.fence = Some(Arc::clone(fence));
        }
    }

    /// All that waits for fences.
    pub(super) fn held(&self) -> Vec<Held> {
        let lots = self.streams.iter().flat_map(|own| &own.lots);
        let lots = lots.filter_map(|own| {
            let fences = vec![Arc::clone(own.fence.as_ref()?)];
            let what = Holding::Lot(own.lot);
            Some(Held { fences, what })
        });
        let blocks = self.pending.iter().map(|pending| Held {
            fences: pending.fences.clone(),
            what: Holding::Block(pending.start),
        });
        lots.chain(blocks).collect()
    }

    /// Frees what [`held`](Self::held) named, now that its fences are done.
    pub(super) fn let_go(&mut self, held: &Held) {
        match held.what {
            Holding::Lot(lot) => self.let_lot_go(lot, held),
            Holding::Block(start) => {
                let found = self.pending.iter().position(|pending| {
                    pending.start == start && same(&pending.fences, &held.fences)
                });
                if let Some(at) = found {
                    let pending = self.pending.swap_remove(at);
                    self.give(start, pending.order.as_ref());
                }
            }
        }
    }

    fn let_lot_go(&mut self, lot: Lot, held: &Held) {
        for own in &mut self.streams {
            let found = own.lots.iter().position(|own| {
                let fence = own.fence.as_slice();
                own.lot == lot && same(fence, &held.fences)
            });
            if let Some(at) = found {
                own.lots.swap_remove(at);
                self.space.open(lot);
                break;
            }
        }
    }

    /// Whether nothing of a stream is left here: no block that it keeps, that waits
    /// for it, or that is going to.
    pub(super) fn is_idle(&self, stream: &Arc<StreamState>) -> bool {
        let of_stream = |order: &Arc<StreamState>| Arc::ptr_eq(order, stream);
        let pending = self.pending.iter();
        let mut orders = pending.filter_map(|pending| pending.order.as_ref());
        let own = self.streams.iter().filter(|own| of_stream(&own.stream));
        let mut lots = own.flat_map(|own| &own.lots);
        (self.keeping.is_none() || stream.slots.bytes() == 0)
            && !orders.any(of_stream)
            && lots.all(|own| self.space.bytes_of(own.lot) == 0)
    }

    /// Forgets a stream of which nothing is left. What was known of it is the caller's
    /// to drop, once the lock is not held.
    pub(super) fn forget(&mut self, stream: &Arc<StreamState>) -> Option<StreamLots> {
        let at = self.position(stream)?;
        let known = self.streams.swap_remove(at);
        for own in &known.lots {
            self.space.open(own.lot);
        }
        if self.keeping.is_some() {
            self.past_hits = self.past_hits.wrapping_add(stream.slots.hits());
        }
        Some(known)
    }

    /// Gets ready for blocks that are freed in the order of a stream.
    pub(super) fn expect(&mut self, stream: &Arc<StreamState>) -> Option<()> {
        self.open_lot(stream).map(drop)
    }

    /// The bytes held from the layer below.
    pub(super) fn reserved(&self) -> usize {
        self.reserved.saturating_add(self.leaving)
    }

    /// The bytes of segments that are in no block which was not given back.
    pub(super) fn unused(&self) -> usize {
        self.reserved.saturating_sub(self.used())
    }

    /// How many blocks streams had that they kept.
    pub(super) fn stream_hits(&self) -> u64 {
        let streams = self.streams_that_keep();
        let hits = streams.map(|stream| stream.slots.hits());
        hits.fold(self.past_hits, u64::wrapping_add)
    }

    /// The bytes in blocks that were not given back.
    pub(super) fn used(&self) -> usize {
        self.space.used_bytes()
    }

    /// What is held, if so many bytes of it are kept as they are.
    pub(super) fn status(&self, cached: usize) -> PoolStatus {
        let size = |start: usize| self.space.size_of(start).unwrap_or(0);
        let sum = |bytes: &mut dyn Iterator<Item = usize>| bytes.fold(0, usize::saturating_add);
        let cached_by_streams = sum(&mut self.streams_that_keep().map(|own| own.slots.bytes()));
        let lots = self.streams.iter().flat_map(|own| &own.lots);
        let in_lots = sum(&mut lots.map(|own| self.space.bytes_of(own.lot)));
        let pending = sum(&mut self.pending.iter().map(|pending| size(pending.start)));
        let aside = pending.saturating_add(cached_by_streams);
        let not_in_use = cached.saturating_add(aside);
        PoolStatus {
            reserved: self.reserved(),
            persistent: 0,
            in_use: self.used().saturating_sub(not_in_use),
            cached,
            waiting: in_lots.saturating_add(aside),
            free: self.free(),
            largest_free: self.space.largest_of(FreeSpace::<Base>::COMMON),
            segments: self.space.segments(),
        }
    }

    fn position(&self, order: &Arc<StreamState>) -> Option<usize> {
        let is_own = |own: &StreamLots| Arc::ptr_eq(&own.stream, order);
        self.streams.iter().position(is_own)
    }

    /// The lot that blocks of a stream are added to. `None` if there are too many.
    fn open_lot(&mut self, order: &Arc<StreamState>) -> Option<Lot> {
        let at = match self.position(order) {
            Some(at) => at,
            None => {
                self.streams.push(StreamLots {
                    stream: Arc::clone(order),
                    lots: Vec::new(),
                });
                self.streams.len().checked_sub(1)?
            }
        };
        let own = self.streams.get_mut(at)?;
        if let Some(open) = own.lots.iter().find(|lot| !lot.closed) {
            return Some(open.lot);
        }
        let lot = self.space.new_lot()?;
        own.lots.push(StreamLot {
            lot,
            fence: None,
            closed: false,
        });
        Some(lot)
    }
}

/// Whether these are the same fences.
fn same(some: &[Arc<dyn Fence>], others: &[Arc<dyn Fence>]) -> bool {
    let pairs = some.iter().zip(others);
    some.len() == others.len()
        && pairs
            .into_iter()
            .all(|(one, other)| Arc::ptr_eq(one, other))
}
