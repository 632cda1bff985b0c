//! Free blocks that are kept as they are, to be had again without a lock.
//!
//! Rank 4. Part of `adaptor::pool`. Imports the words.
//!
//! A block is kept by its exact size, in one of a row of slots. A slot is a word: the
//! address of a block, and in its low bits, which are zero in every address of a
//! block, a tag that says with the number of the row which size it is. The word is
//! exchanged as a whole, so there is no lock and no order to lose: whoever takes it
//! out has the block, and it is of the size that was looked for. Threads are spread
//! over groups of rows, so that few share a cache line.

use std::cell::Cell;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use super::heap::UNIT_LOG2;
use super::status::Count;
use crate::address::DevicePtr;

/// How many blocks a row keeps.
const DEPTH: usize = 8;

/// The bits of an address in which the tag is.
const TAG_BITS: usize = (1 << UNIT_LOG2) - 1;

/// The fewest rows of a group, so that few sizes share one.
const MIN_ROWS: usize = 64;

/// The most groups.
const MAX_GROUPS: usize = 16;

/// Free blocks by size, for all threads.
#[derive(Debug)]
pub(super) struct Slots {
    /// The size of the largest blocks, in units.
    largest: usize,
    rows_log2: u32,
    /// As many as a power of two.
    groups: Box<[OnceLock<Group>]>,
}

/// The slots of some threads. Aligned so that two share no cache line.
#[derive(Debug)]
#[repr(align(128))]
struct Group {
    rows: Box<[Row]>,
    hits: Count,
    /// Counts blocks that gave way, to have another slot give way each time.
    displaced: Count,
}

/// The slots of some sizes: a cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Row([AtomicPtr<u8>; DEPTH]);

/// Where blocks of one size are: no two sizes have both in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    row: usize,
    /// From 1 on, so that an empty slot has none.
    tag: usize,
}

impl Slots {
    /// Slots for blocks of up to `largest` units, for `groups` groups of threads at
    /// most.
    pub(super) fn new(largest: usize, groups: usize) -> Self {
        let groups = groups.clamp(1, MAX_GROUPS).next_power_of_two();
        let needed = largest.div_ceil(TAG_BITS).max(MIN_ROWS);
        Self {
            largest,
            rows_log2: needed.next_power_of_two().trailing_zeros(),
            groups: (0..groups).map(|_| OnceLock::new()).collect(),
        }
    }

    /// How many groups suit this machine: several a core, so that threads that run at
    /// once seldom share one. A group takes memory when a thread comes to it first.
    pub(super) fn groups_here() -> usize {
        std::thread::available_parallelism()
            .map_or(1, |count| count.get().saturating_mul(4))
            .max(8)
    }

    /// Takes a block of so many units out.
    #[inline]
    pub(super) fn take(&self, units: usize) -> Option<DevicePtr> {
        let Place { row, tag } = self.place(units)?;
        let group = self.group();
        let row = group.rows.get(row)?;
        row.0.iter().find_map(|slot| {
            let word = slot.load(Ordering::Relaxed);
            if tag_of(word) != tag {
                return None;
            }
            // Pairs with the release in `keep`: what was done with the block before
            // it was freed comes before what is done with it now.
            let none = ptr::null_mut();
            let taken = slot.compare_exchange(word, none, Ordering::Acquire, Ordering::Relaxed);
            let block = block_of(taken.ok()?);
            group.hits.add_alone();
            block
        })
    }

    /// Keeps a block of so many units. Returns a block for which there is no room:
    /// this one, if it is too large, or one that gave way to it.
    #[inline]
    pub(super) fn keep(&self, units: usize, block: DevicePtr) -> Option<DevicePtr> {
        let Some(Place { row, tag }) = self.place(units) else {
            return Some(block);
        };
        let group = self.group();
        let Some(row) = group.rows.get(row) else {
            return Some(block);
        };
        if block.addr() & TAG_BITS != 0 {
            return Some(block);
        }
        let word = block.as_raw().map_addr(|addr| addr | tag);
        let kept = row.0.iter().any(|slot| {
            let none = ptr::null_mut();
            slot.load(Ordering::Relaxed).is_null()
                && slot
                    .compare_exchange(none, word, Ordering::Release, Ordering::Relaxed)
                    .is_ok()
        });
        if kept {
            None
        } else {
            group.displace(row, word)
        }
    }

    /// Takes all blocks out.
    pub(super) fn drain(&self) -> Vec<DevicePtr> {
        let take = |slot: &AtomicPtr<u8>| {
            let occupied = !slot.load(Ordering::Relaxed).is_null();
            block_of(occupied.then(|| slot.swap(ptr::null_mut(), Ordering::Acquire))?)
        };
        let slots = self.rows().flat_map(|(_, row)| &row.0);
        slots.filter_map(take).collect()
    }

    /// The bytes of the blocks that are kept.
    pub(super) fn bytes(&self) -> usize {
        let units = self.rows().flat_map(|(row, slots)| {
            let words = slots.0.iter().map(|slot| slot.load(Ordering::Relaxed));
            words.filter_map(move |word| self.units_at(row, tag_of(word)))
        });
        let units = units.fold(0_usize, usize::saturating_add);
        units.saturating_mul(1 << UNIT_LOG2)
    }

    /// How many blocks were taken out by [`take`](Self::take).
    pub(super) fn hits(&self) -> u64 {
        let groups = self.groups.iter().filter_map(OnceLock::get);
        groups.map(|group| group.hits.get()).sum()
    }

    /// Where blocks of so many units are, if they are kept at all.
    #[inline]
    fn place(&self, units: usize) -> Option<Place> {
        let number = units.wrapping_sub(1);
        if number >= self.largest {
            return None;
        }
        let above = number.wrapping_shr(self.rows_log2);
        Some(Place {
            row: (number ^ spread(above)) & self.row_mask(),
            tag: above.wrapping_add(1),
        })
    }

    /// The size of the blocks at a place, in units.
    fn units_at(&self, row: usize, tag: usize) -> Option<usize> {
        let above = tag.checked_sub(1)?;
        let below = (row ^ spread(above)) & self.row_mask();
        let number = above.checked_shl(self.rows_log2)? | below;
        number.checked_add(1)
    }

    #[inline]
    fn row_mask(&self) -> usize {
        1_usize.wrapping_shl(self.rows_log2).wrapping_sub(1)
    }

    fn rows(&self) -> impl Iterator<Item = (usize, &Row)> {
        let groups = self.groups.iter().filter_map(OnceLock::get);
        groups.flat_map(|group| group.rows.iter().enumerate())
    }

    /// The group of this thread.
    #[inline]
    fn group(&self) -> &Group {
        let mask = self.groups.len().wrapping_sub(1);
        let at = thread_number() & mask;
        match self.groups.get(at) {
            Some(group) => group.get_or_init(|| Group::new(1_usize.wrapping_shl(self.rows_log2))),
            None => Group::none(),
        }
    }
}

impl Group {
    fn new(rows: usize) -> Self {
        Self {
            rows: (0..rows).map(|_| Row::default()).collect(),
            hits: Count::default(),
            displaced: Count::default(),
        }
    }

    /// One without slots.
    #[cold]
    fn none() -> &'static Self {
        static NONE: OnceLock<Group> = OnceLock::new();
        NONE.get_or_init(|| Self::new(0))
    }

    /// Puts a word into a full row, and returns the block that was there.
    #[cold]
    fn displace(&self, row: &Row, word: *mut u8) -> Option<DevicePtr> {
        self.displaced.add_alone();
        let turn = usize::try_from(self.displaced.get()).unwrap_or(0);
        let slot = row.0.get(turn % DEPTH)?;
        block_of(slot.swap(word, Ordering::AcqRel))
    }
}

/// The tag in a word, 0 if it is that of an empty slot.
#[inline]
fn tag_of(word: *mut u8) -> usize {
    word.addr() & TAG_BITS
}

/// The block in a word.
#[inline]
fn block_of(word: *mut u8) -> Option<DevicePtr> {
    DevicePtr::from_raw(word.map_addr(|addr| addr & !TAG_BITS))
}

/// Spreads sizes that are alike in their low bits over the rows.
#[inline]
fn spread(above: usize) -> usize {
    above.wrapping_mul(0x9D)
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
