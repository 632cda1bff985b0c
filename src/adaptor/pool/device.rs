//! The memory of one device.
//!
//! Rank 4. Part of `adaptor::pool`. Imports the words.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::heap::{Heap, UNIT_LOG2};
use super::keeping::{Keeping, Memory};
use super::on_stream::StreamState;
use super::options::PoolBuilder;
use super::slots::Slots;
use super::status::{PoolCounters, PoolStatus, Tally};
use super::turn::Turn;
use crate::address::DevicePtr;
use crate::device::Device;
use crate::layout::DeviceLayout;

/// What a pool has of one device. Persistent memory is in segments of its own.
#[derive(Debug)]
pub(super) struct PoolDevice {
    pub(super) device: Device,
    pub(super) transient: Mutex<Heap>,
    pub(super) persistent: Mutex<Heap>,
    pub(super) slots: Slots,
    /// The size in units of the largest blocks that are kept now.
    kept: AtomicUsize,
    pub(super) tally: Tally,
    /// Keeps threads on the ladder from taking what another makes free, and more
    /// segments than are needed.
    pub(super) turn: Turn,
}

impl PoolDevice {
    pub(super) fn new(device: Device, options: &PoolBuilder) -> Self {
        let keeping = Keeping::new(options.keeping());
        let limit = keeping.limit(Memory::default());
        Self {
            device,
            transient: Mutex::new(Heap::new(Some(keeping))),
            persistent: Mutex::new(Heap::new(None)),
            slots: Slots::new(Slots::groups_here()),
            kept: AtomicUsize::new(limit.wrapping_shr(UNIT_LOG2)),
            tally: Tally::default(),
            turn: Turn::default(),
        }
    }

    /// The blocks that one of a layout is among.
    pub(super) fn part(&self, layout: DeviceLayout) -> &Mutex<Heap> {
        if layout.tag().is_persistent() {
            &self.persistent
        } else {
            &self.transient
        }
    }

    /// The blocks that are kept for an order.
    #[inline]
    fn slots_for<'a>(&'a self, order: Option<&'a Arc<StreamState>>) -> &'a Slots {
        order.map_or(&self.slots, |order| &order.slots)
    }

    /// Takes a block of so many units out that is kept for an order.
    #[inline(always)]
    pub(super) fn take_kept(
        &self,
        units: usize,
        order: Option<&Arc<StreamState>>,
    ) -> Option<DevicePtr> {
        match units <= self.kept.load(Ordering::Relaxed) {
            true => self.slots_for(order).take(units),
            false => None,
        }
    }

    /// Keeps a block of so many units in an order. Returns a block that is not kept: this
    /// one, or one that gave way to it.
    #[inline(always)]
    pub(super) fn keep(
        &self,
        units: usize,
        block: DevicePtr,
        order: Option<&Arc<StreamState>>,
    ) -> Option<DevicePtr> {
        let is_kept = units.wrapping_sub(1) < self.kept.load(Ordering::Relaxed);
        match is_kept && block.is_aligned_to(1 << UNIT_LOG2) {
            true => self.slots_for(order).keep(units, block),
            false => Some(block),
        }
    }

    pub(super) fn parts(&self) -> [&Mutex<Heap>; 2] {
        [&self.transient, &self.persistent]
    }

    /// Looks for a free block.
    pub(super) fn search(
        &self,
        layout: DeviceLayout,
        size: usize,
        order: Option<&Arc<StreamState>>,
    ) -> Option<DevicePtr> {
        let align = layout.align().max(1_usize.wrapping_shl(UNIT_LOG2));
        // Counted under the lock that is held anyway, so that counting is free.
        let mut heap = self.part(layout).lock();
        if heap.is_sweep_due(size) {
            heap.sweep(&self.slots, size);
            self.set_limit(&heap);
        }
        let found = heap.take(order, size, align);
        if found.is_some() {
            heap.found = heap.found.wrapping_add(1);
        }
        found
    }

    /// Gives a block back that is not kept, as [`Heap::give`] does.
    pub(super) fn give(
        &self,
        ptr: DevicePtr,
        layout: DeviceLayout,
        order: Option<&Arc<StreamState>>,
    ) -> Option<bool> {
        self.part(layout).lock().give(ptr.addr(), order)
    }

    /// Forgets how much was in use, now that all that is not is to be given back.
    pub(super) fn forget_use(&self) {
        let mut heap = self.transient.lock();
        let used = heap.used();
        heap.decide(|keeping| keeping.trimmed(used));
    }

    /// Sets how large blocks may be that are kept, now that memory was taken from the
    /// layer below or given back, or something was learnt of their use.
    pub(super) fn set_limit(&self, heap: &Heap) {
        if let Some(limit) = heap.limit() {
            let units = limit.wrapping_shr(UNIT_LOG2);
            self.kept.store(units, Ordering::Relaxed);
        }
    }

    /// Whether an address is in memory that is held.
    pub(super) fn holds(&self, ptr: DevicePtr) -> bool {
        let holds = |part: &Mutex<Heap>| part.lock().space.covers(ptr.addr());
        self.parts().into_iter().any(holds)
    }

    /// The bytes held from the layer below.
    pub(super) fn reserved(&self) -> usize {
        let reserved = self.parts().map(|part| part.lock().reserved());
        reserved.into_iter().fold(0, usize::saturating_add)
    }

    /// The bytes held and not in blocks that were handed out or kept.
    pub(super) fn unused(&self) -> usize {
        let unused = self.parts().map(|part| part.lock().unused());
        unused.into_iter().fold(0, usize::saturating_add)
    }

    pub(super) fn counters(&self) -> PoolCounters {
        let mut counters = self.tally.read(self.slots.hits());
        for part in self.parts() {
            let heap = part.lock();
            counters.searches = counters.searches.wrapping_add(heap.searches);
            counters.found = counters.found.wrapping_add(heap.found);
            counters.cache_hits = counters.cache_hits.wrapping_add(heap.stream_hits());
        }
        counters
    }

    pub(super) fn status(&self) -> PoolStatus {
        let mut status = {
            let heap = self.transient.lock();
            heap.status(self.slots.bytes())
        };
        let persistent = self.persistent.lock().status(0);
        status.add(&persistent);
        status.persistent = persistent.reserved;
        status
    }
}
