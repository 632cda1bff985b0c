//! The memory of one device.
//!
//! Rank 4. Part of `adaptor::pool`. Imports the words.

use std::sync::Arc;

use parking_lot::Mutex;

use super::heap::{Heap, UNIT_LOG2};
use super::on_stream::StreamState;
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
    pub(super) tally: Tally,
    /// Keeps threads on the ladder from taking what another makes free, and more
    /// segments than are needed.
    pub(super) turn: Turn,
}

impl PoolDevice {
    pub(super) fn new(device: Device, largest_cached: usize) -> Self {
        Self {
            device,
            transient: Mutex::new(Heap::new(true)),
            persistent: Mutex::new(Heap::new(false)),
            slots: Slots::new(largest_cached, Slots::groups_here()),
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
    pub(super) fn slots_for<'a>(&'a self, order: Option<&'a Arc<StreamState>>) -> &'a Slots {
        order.map_or(&self.slots, |order| &order.slots)
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
        heap.searches = heap.searches.wrapping_add(1);
        if !layout.tag().is_persistent() && heap.is_sweep_due(size) {
            self.sweep(&mut heap, order);
        }
        let found = heap.take(order, size, align);
        if found.is_some() {
            heap.found = heap.found.wrapping_add(1);
        }
        found
    }

    /// Gives back what is kept, so that it is joined with its neighbours.
    fn sweep(&self, heap: &mut Heap, order: Option<&Arc<StreamState>>) {
        let common = (&self.slots, None);
        let own = order.map(|state| (&state.slots, order));
        for (slots, order) in [Some(common), own].into_iter().flatten() {
            slots.sweep(|ptr| {
                heap.give(ptr.addr(), order);
            });
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
