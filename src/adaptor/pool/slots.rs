//! Free small blocks that are handed out again as they are.
//!
//! Rank 4. Part of `adaptor::pool`. Imports the words.
//!
//! A slot holds one block or none and is changed by one atomic exchange, so there
//! is no lock and no order to lose: whoever takes the address out has the block.
//! Threads are spread over groups of slots, so that few share a cache line.

use std::cell::Cell;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use super::status::Count;
use crate::address::DevicePtr;
use crate::free_space::bin_of;

/// How many blocks of a class a group keeps.
const DEPTH: usize = 4;

/// The most groups.
const MAX_GROUPS: usize = 16;

/// The slots of one class in one group.
type Class = [AtomicPtr<u8>; DEPTH];

/// Free blocks by class, for all threads.
#[derive(Debug)]
pub(super) struct Slots {
    /// As many as a power of two.
    groups: Box<[OnceLock<Group>]>,
    classes: usize,
}

/// The slots of some threads. Aligned so that two share no cache line.
#[derive(Debug)]
#[repr(align(128))]
struct Group {
    hits: Count,
    classes: Box<[Class]>,
}

impl Slots {
    /// Slots for blocks of up to `units` units, for `groups` groups of threads at
    /// most.
    pub(super) fn new(units: usize, groups: usize) -> Self {
        let groups = groups.clamp(1, MAX_GROUPS).next_power_of_two();
        Self {
            groups: (0..groups).map(|_| OnceLock::new()).collect(),
            classes: match units {
                0 => 0,
                units => bin_of(units).saturating_add(1),
            },
        }
    }

    /// How many groups suit this machine: several a core, so that threads that run at
    /// once seldom share one. A group takes memory when a thread comes to it first.
    pub(super) fn groups_here() -> usize {
        std::thread::available_parallelism()
            .map_or(1, |count| count.get().saturating_mul(4))
            .max(8)
    }

    /// Takes a block of a class out.
    #[inline]
    pub(super) fn take(&self, class: usize) -> Option<DevicePtr> {
        let group = self.group();
        for slot in group.classes.get(class)? {
            if slot.load(Ordering::Relaxed).is_null() {
                continue;
            }
            // Pairs with the release in `keep`: what was done with the block before
            // it was freed comes before what is done with it now.
            let block = slot.swap(ptr::null_mut(), Ordering::Acquire);
            if let Some(block) = DevicePtr::from_raw(block) {
                group.hits.add_alone();
                return Some(block);
            }
        }
        None
    }

    /// Keeps a block of a class, or says that there is no room.
    #[inline]
    pub(super) fn keep(&self, class: usize, block: DevicePtr) -> bool {
        let Some(slots) = self.group().classes.get(class) else {
            return false;
        };
        slots.iter().any(|slot| {
            slot.load(Ordering::Relaxed).is_null()
                && slot
                    .compare_exchange(
                        ptr::null_mut(),
                        block.as_raw(),
                        Ordering::Release,
                        Ordering::Relaxed,
                    )
                    .is_ok()
        })
    }

    /// Takes all blocks out.
    pub(super) fn drain(&self) -> Vec<DevicePtr> {
        let take = |slot: &AtomicPtr<u8>| {
            let occupied = !slot.load(Ordering::Relaxed).is_null();
            let block = occupied.then(|| slot.swap(ptr::null_mut(), Ordering::Acquire))?;
            DevicePtr::from_raw(block)
        };
        self.all().filter_map(take).collect()
    }

    /// The blocks that are kept, to look at.
    pub(super) fn kept(&self) -> Vec<usize> {
        self.all()
            .map(|slot| slot.load(Ordering::Relaxed).addr())
            .filter(|addr| *addr != 0)
            .collect()
    }

    /// How many blocks were taken out by [`take`](Self::take).
    pub(super) fn hits(&self) -> u64 {
        let groups = self.groups.iter().filter_map(OnceLock::get);
        groups.map(|group| group.hits.get()).sum()
    }

    fn all(&self) -> impl Iterator<Item = &AtomicPtr<u8>> {
        let groups = self.groups.iter().filter_map(OnceLock::get);
        groups.flat_map(|group| group.classes.iter().flatten())
    }

    /// The group of this thread.
    #[inline]
    fn group(&self) -> &Group {
        let mask = self.groups.len().wrapping_sub(1);
        let at = thread_number() & mask;
        match self.groups.get(at) {
            Some(group) => group.get_or_init(|| Group::new(self.classes)),
            None => Group::none(),
        }
    }
}

impl Group {
    fn new(classes: usize) -> Self {
        Self {
            hits: Count::default(),
            classes: (0..classes).map(|_| Class::default()).collect(),
        }
    }

    /// One without slots.
    #[cold]
    fn none() -> &'static Self {
        static NONE: OnceLock<Group> = OnceLock::new();
        NONE.get_or_init(|| Self::new(0))
    }
}

/// The number of this thread, counted from 0 as threads come here first.
#[inline]
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        /// One more than the number; 0 for none yet.
        static NUMBER: Cell<usize> = const { Cell::new(0) };
    }
    match NUMBER.get().checked_sub(1) {
        Some(number) => number,
        None => {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            NUMBER.set(number.wrapping_add(1));
            number
        }
    }
}
