//! The way out of memory, and the way back of memory.
//!
//! Rank 4. Part of `adaptor::pool`. Imports `allocator`, `free_failure` and the
//! words.
//!
//! The one place that calls the layer below for blocks.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::Core;
use super::device::PoolDevice;
use super::heap::{Base, Heap, UNIT_LOG2};
use super::on_stream::StreamState;
use crate::address::DevicePtr;
use crate::allocator::{DeviceAllocator, MemoryInfo, add_memory_info, below, guarded};
use crate::device::DeviceIndex;
use crate::error::{AllocatorFault, Attempt, Error, ErrorKind, Operation, OutOfMemory, Result};
use crate::free_failure;
use crate::layout::DeviceLayout;
use crate::make_room;
use crate::stream::Fence;

/// How often a request goes up the ladder at most, unless the program makes room.
const TURNS: usize = 2;

/// A request that is on the ladder.
struct Climb<'a, A: DeviceAllocator> {
    core: &'a Core<A>,
    device: &'a PoolDevice,
    layout: DeviceLayout,
    size: usize,
    order: Option<&'a Arc<StreamState>>,
    /// What was tried, in this order.
    tried: Vec<Attempt>,
    /// What the layer below said last.
    refusal: Option<Error>,
}

impl<A: DeviceAllocator> Core<A> {
    /// Finds memory for a request that a search found none for.
    #[cold]
    pub(super) fn climb(
        &self,
        device: &PoolDevice,
        layout: DeviceLayout,
        size: usize,
        order: Option<&Arc<StreamState>>,
    ) -> Result<DevicePtr> {
        let mut climb = Climb {
            core: self,
            device,
            layout,
            size,
            order,
            tried: vec![Attempt::Search],
            refusal: None,
        };
        let mut hook = self.options.make_room.as_deref();
        hook = hook.filter(|_| !make_room::is_making_room());
        let mut calls = 0..make_room::CALLS;
        loop {
            if let Some(ptr) = climb.in_turn()? {
                return Ok(ptr);
            }
            let mut report = climb.report();
            let made = hook.filter(|_| calls.next().is_some()).is_some_and(|hook| {
                device.tally.hooks.add();
                climb.tried.push(Attempt::Hook);
                report.tried.push(Attempt::Hook);
                make_room::make_room(hook, &report)
            });
            if !made {
                device.tally.failures.add();
                return Err(make_room::given_up(report.into()));
            }
        }
    }

    /// Completes frees that wait: those whose work is done, or all.
    fn drain(&self, device: &PoolDevice, wait: bool) {
        device.tally.drains.add();
        let kept = device.slots.drain();
        let mut heap = device.transient.lock();
        for ptr in kept {
            heap.give(ptr.addr(), None);
        }
        drop(heap);
        let let_go = |part: &Mutex<Heap>| {
            let held = part.lock().held();
            for held in held {
                let done = |fence: &Arc<dyn Fence>| is_done(device, fence.as_ref(), wait);
                if held.fences.iter().all(done) {
                    part.lock().let_go(&held);
                }
            }
        };
        for part in device.parts() {
            // Blocks that other streams used become their own stream's first.
            let_go(part);
            let unfenced = part.lock().close_lots();
            for (stream, lot) in unfenced {
                // Without a fence the lot is as it was, and is tried again.
                if let Ok(fence) = stream.fence() {
                    part.lock().set_fence(lot, &fence);
                }
            }
            let_go(part);
        }
        self.forget_streams();
    }

    /// Forgets the streams of which nothing is left.
    fn forget_streams(&self) {
        let parts = || {
            let devices = self.devices.iter().filter_map(OnceLock::get);
            devices.flat_map(|device| device.parts())
        };
        let mut streams = self.streams.lock();
        let idle = streams.extract_if(.., |stream| {
            !stream.has_handles() && parts().all(|part| part.lock().is_idle(stream))
        });
        let idle: Vec<_> = idle.collect();
        let lots = idle.iter().flat_map(|stream| {
            let lots = parts().map(|part| part.lock().forget(stream));
            lots.collect::<Vec<_>>()
        });
        let lots: Vec<_> = lots.collect();
        drop(streams);
        // What calls the program when it is dropped is dropped under no lock.
        drop((lots, idle));
    }

    /// Gives unused segments back until `keep` bytes of unused memory are left.
    /// Returns how many bytes were given back.
    fn release(&self, device: &PoolDevice, keep: usize) -> usize {
        let mut released = 0_usize;
        for part in device.parts() {
            let excess = device.unused().saturating_sub(keep);
            let removed = {
                let mut heap = part.lock();
                let removed = heap.remove_unused(|bytes| bytes >= excess);
                device.set_limit(&heap);
                removed
            };
            for base in removed {
                match self.give_back(device, base) {
                    Err(error) if !error.is_shut_down() => {
                        // Still allocated, so still ours.
                        if part.lock().take_back(base).is_none() {
                            lost(device, base, Err(error));
                        }
                    }
                    _ => {
                        part.lock().gave_back(base);
                        device.tally.released.add();
                        released = released.saturating_add(base.layout.size());
                    }
                }
            }
        }
        released
    }

    /// Gives unused segments back beyond what is to be kept.
    #[cold]
    pub(super) fn release_excess(&self, device: &PoolDevice) {
        let keep = self.options.release_threshold;
        if device.unused() > keep {
            let _moving = device.turn.take();
            self.release(device, keep);
        }
    }

    #[expect(unsafe_code, reason = "see SAFETY")]
    fn give_back(&self, device: &PoolDevice, base: Base) -> Result<()> {
        let Base { ptr, layout } = base;
        let index = device.device.index();
        guarded(device.device, Operation::Deallocate, || {
            // SAFETY: the layer below gave the segment with this layout and index,
            // and has not got it back. No block in it is in use or waits for work,
            // and it was taken out of the heap, so none can be.
            unsafe { self.upstream.deallocate(ptr, layout, index) }
        })
    }

    /// Waits for frees and gives all unused segments back.
    pub(super) fn trim(&self, index: DeviceIndex) -> Result<usize> {
        let device = self.device(index)?;
        let moving = device.turn.take();
        self.drain(device, true);
        device.forget_use();
        let released = self.release(device, 0);
        drop(moving);
        let below = below::trim(&self.upstream, index)?;
        Ok(below.max(released))
    }

    /// What the layer below says, with unused memory counted as free.
    pub(super) fn memory_info(&self, index: DeviceIndex) -> Result<Option<MemoryInfo>> {
        let device = self.device(index)?;
        let Some(below) = below::memory_info(&self.upstream, index)? else {
            return Ok(None);
        };
        let status = device.status();
        let unused = status.reserved.saturating_sub(status.in_use);
        let room = self.options.limit.saturating_sub(status.in_use);
        Ok(Some(MemoryInfo {
            free: below.free.saturating_add(unused).min(room),
            total: below.total,
        }))
    }
}

impl<A: DeviceAllocator> Climb<'_, A> {
    /// All that the pool can do by itself, after others that do so. What another thread
    /// had on its way meanwhile may be there the next time.
    fn in_turn(&mut self) -> Result<Option<DevicePtr>> {
        for _ in 0..TURNS {
            let moving = self.device.turn.wait();
            let found = self.rungs()?;
            if found.is_some() || !moving.is_crossed() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Each step once. `None` if that gives no room.
    fn rungs(&mut self) -> Result<Option<DevicePtr>> {
        let again = self.tried.len() > 1;
        // Another thread may have made room before it was this one's turn.
        if let Some(ptr) = self.search(again) {
            return Ok(Some(ptr));
        }
        self.drain(false);
        if let Some(ptr) = self.search(true) {
            return Ok(Some(ptr));
        }
        self.exchange();
        if let Some(ptr) = self.grow()? {
            return Ok(Some(ptr));
        }
        self.drain(true);
        if let Some(ptr) = self.search(true) {
            return Ok(Some(ptr));
        }
        self.tried.push(Attempt::Trim);
        self.device.tally.trims.add();
        if self.core.release(self.device, 0) == 0 {
            return Ok(None);
        }
        self.grow()
    }

    fn search(&mut self, told: bool) -> Option<DevicePtr> {
        if told {
            self.tried.push(Attempt::Search);
        }
        self.device.search(self.layout, self.size, self.order)
    }

    fn drain(&mut self, wait: bool) {
        self.tried.push(Attempt::Drain);
        self.core.drain(self.device, wait);
    }

    /// Gives unused segments back until that is as much as is asked for, so that no
    /// more is held for want of one that is large enough.
    fn exchange(&mut self) {
        let keep = self.device.unused().saturating_sub(self.size);
        if self.core.release(self.device, keep) > 0 {
            self.tried.push(Attempt::Trim);
            self.device.tally.trims.add();
        }
    }

    /// Takes a segment from the layer below and the block from that: as large as
    /// the options say, else as large as the block. `None` if there is no room, or
    /// if the limit leaves none.
    fn grow(&mut self) -> Result<Option<DevicePtr>> {
        let options = &self.core.options;
        let reserved = self.device.reserved();
        let room = options.limit.saturating_sub(reserved);
        let wanted = match reserved {
            0 if options.initial > 0 => options.initial,
            _ => options.growth,
        };
        let unit = 1_usize.wrapping_shl(UNIT_LOG2);
        let wanted = wanted.wrapping_shr(UNIT_LOG2).wrapping_shl(UNIT_LOG2);
        let mut sizes = vec![wanted.max(self.size), self.size];
        sizes.dedup();
        sizes.retain(|size| *size <= room);
        for size in sizes {
            let align = self.layout.align().max(unit);
            let Ok(layout) = DeviceLayout::new(size, align) else {
                continue;
            };
            match self.take_segment(layout.with_tag(self.layout.tag())) {
                Ok(found) => return Ok(Some(found)),
                Err(error) if error.is_out_of_memory() => self.refusal = Some(error),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Takes a segment from the layer below and the block from it.
    fn take_segment(&mut self, layout: DeviceLayout) -> Result<DevicePtr> {
        let Self { core, device, .. } = *self;
        if self.tried.last() != Some(&Attempt::Upstream) {
            self.tried.push(Attempt::Upstream);
        }
        device.tally.upstream.add();
        let at = device.device;
        let ptr = guarded(at, Operation::Allocate, || {
            make_room::attempt(|| core.upstream.allocate(layout, at.index()))
        })?;
        device.tally.grown.add();
        let base = Base { ptr, layout };
        let part = device.part(self.layout);
        let found = fault_of(base).map_or_else(
            || self.add(part, base),
            |fault| Err(ErrorKind::BadAllocator { device: at, fault }.into()),
        );
        if found.is_err() {
            lost(device, base, core.give_back(device, base));
        }
        found
    }

    /// Adds a segment and takes the block, before anybody else can.
    fn add(&self, part: &Mutex<Heap>, base: Base) -> Result<DevicePtr> {
        let mut heap = part.lock();
        let too_many = || Core::<A>::too_many(self.device.device, Operation::Allocate);
        heap.add(base).ok_or_else(too_many)?;
        let align = base.layout.align();
        let found = heap.take(self.order, self.size, align);
        self.device.set_limit(&heap);
        drop(heap);
        found.ok_or_else(too_many)
    }

    /// The report of what was tried.
    fn report(&mut self) -> OutOfMemory {
        let refusal = self.refusal.take().map(Error::into_kind);
        let mut report = match refusal {
            Some(ErrorKind::OutOfMemory(report)) => report,
            _ => OutOfMemory::new(self.device.device, self.layout),
        };
        let status = self.device.status();
        let limit = self.core.options.limit;
        report.device = self.device.device;
        report.requested = self.layout.size();
        report.align = self.layout.align();
        report.tag = self.layout.tag();
        report.in_use = Some(status.in_use);
        report.reserved = Some(status.reserved);
        report.largest_free = report.largest_free.max(Some(status.largest_free));
        if limit < usize::MAX {
            report.limit.get_or_insert(limit);
        }
        add_memory_info(&mut report, &self.core.upstream);
        if report.tried.len() < self.tried.len() {
            report.tried.clone_from(&self.tried);
        }
        report
    }
}

/// Whether the work before a fence is done. A driver that is gone does none.
fn is_done(device: &PoolDevice, fence: &dyn Fence, wait: bool) -> bool {
    let done = guarded(device.device, Operation::Synchronize, || match wait {
        true => fence.wait().map(|()| true),
        false => fence.is_done(),
    });
    match done {
        Ok(done) => done,
        Err(error) => error.is_shut_down(),
    }
}

/// Tells of a segment that is in no pool, if it was not given back.
fn lost(device: &PoolDevice, base: Base, freed: Result<()>) {
    free_failure::report_lost(device.device, base.ptr, base.layout, freed);
}

/// What is wrong with a segment.
fn fault_of(base: Base) -> Option<AllocatorFault> {
    let (size, align) = (base.layout.size(), base.layout.align());
    let addr = base.ptr.addr();
    if !base.ptr.is_aligned_to(align) {
        return Some(AllocatorFault::Misaligned { addr, align });
    }
    match base.ptr.checked_add(size) {
        Some(_) => None,
        None => Some(AllocatorFault::Wraps { addr, size }),
    }
}

/// Gives all segments back in which nothing is in use. Others are leaked: somebody
/// may still use them.
impl<A: DeviceAllocator> Drop for Core<A> {
    fn drop(&mut self) {
        if !self.made_in.is_current() {
            return;
        }
        for device in self.devices.iter().filter_map(OnceLock::get) {
            self.drain(device, true);
            for part in device.parts() {
                let removed = part.lock().remove_unused(|_| false);
                for base in removed {
                    lost(device, base, self.give_back(device, base));
                }
            }
        }
    }
}
