//! Free blocks that are kept as they are, to be had again without a lock.
//!
//! Rank 4. Part of `adaptor::pool`. Imports `sync` and the words.
//!
//! A block is kept by its exact size, in one of a row of [slots](super::slot). Threads
//! are spread over groups of rows, so that few share a cache line; a thread that finds
//! no block in its own group, or no room, looks at those of others, for who frees a
//! block need not be who will ask for another.

use std::array;
use std::cell::Cell;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;

use super::heap::UNIT_LOG2;
use super::slot::Slot;
use super::status::Count;
use crate::address::DevicePtr;
use crate::sync::{AtomicU64, Ordering};

/// How many blocks a row keeps. In a model of all interleavings, as few as can be.
const DEPTH: usize = if cfg!(all(loom, test)) { 1 } else { 8 };

/// How many rows a group has, as an exponent of two: so many that few sizes share one,
/// and no more, for what is kept is in the way of what needs to be joined.
const ROWS_LOG2: u32 = if cfg!(all(loom, test)) { 0 } else { 6 };

const ROWS: usize = 1 << ROWS_LOG2;

/// The most groups.
const MAX_GROUPS: usize = 16;

/// Free blocks by size, for all threads.
#[derive(Debug)]
pub(super) struct Slots {
    /// As many as a power of two.
    groups: Box<[OnceLock<Box<Group>>]>,
    /// How many groups were made.
    made: AtomicUsize,
}

/// The slots of some threads.
#[derive(Debug)]
struct Group {
    rows: [Row; ROWS],
    /// Bits of the rows that blocks were put into since the last sweep.
    touched: Apart<AtomicU64>,
    own: Apart<Own>,
}

/// What the threads of a group write, and others seldom read.
#[derive(Debug, Default)]
struct Own {
    hits: Count,
    /// Counts blocks that gave way, to have another slot give way each time.
    displaced: Count,
}

/// The slots of some sizes.
#[derive(Debug)]
#[repr(align(128))]
struct Row([Slot; DEPTH]);

/// What shares no cache line with anything else.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Apart<T>(T);

impl Slots {
    /// Slots for `groups` groups of threads at most.
    pub(super) fn new(groups: usize) -> Self {
        let groups = groups.clamp(1, MAX_GROUPS).next_power_of_two();
        Self {
            groups: (0..groups).map(|_| OnceLock::new()).collect(),
            made: AtomicUsize::new(0),
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
    #[inline(always)]
    pub(super) fn take(&self, units: usize) -> Option<DevicePtr> {
        let group = self.group()?;
        let block = match group.take(units) {
            None => self.elsewhere(group, |other| other.take_if_touched(units))?,
            found => found?,
        };
        group.own.0.hits.add_alone();
        Some(block)
    }

    /// Keeps a block of so many units. Returns a block for which there is no room: one
    /// that gave way to it, or this one.
    #[inline(always)]
    pub(super) fn keep(&self, units: usize, block: DevicePtr) -> Option<DevicePtr> {
        let Some(group) = self.group() else {
            return Some(block);
        };
        if group.keep(units, block) {
            return None;
        }
        match self.elsewhere(group, |other| other.keep(units, block).then_some(())) {
            Some(()) => None,
            None => group.displace(units, block),
        }
    }

    /// What is found first in the groups of other threads.
    #[inline(never)]
    fn elsewhere<T>(&self, own: &Group, find: impl Fn(&Group) -> Option<T>) -> Option<T> {
        if self.made.load(Ordering::Relaxed) < 2 {
            return None;
        }
        let mut others = self.groups().filter(|group| !ptr::eq(*group, own));
        others.find_map(find)
    }

    /// Takes the blocks out of all rows that were put into since the last time, but for
    /// one now and then of which the slot is just being changed. That stays until its
    /// size is asked for, or others are put beside it, or all are taken out.
    #[inline]
    pub(super) fn sweep(&self, mut each: impl FnMut(DevicePtr)) {
        for group in self.groups() {
            let mut touched = group.take_touched();
            while let Some(row) = lowest_bit(touched) {
                let slots = group.rows.get(row).into_iter().flat_map(|row| &row.0);
                slots.filter_map(Slot::take_any).for_each(&mut each);
                touched &= touched.wrapping_sub(1);
            }
        }
    }

    /// Takes all blocks out.
    pub(super) fn drain(&self) -> Vec<DevicePtr> {
        self.slots().filter_map(Slot::take_any).collect()
    }

    /// The bytes of the blocks that are kept.
    pub(super) fn bytes(&self) -> usize {
        let units = self.slots().filter_map(Slot::units);
        let units = units.fold(0_usize, usize::saturating_add);
        units.saturating_mul(1 << UNIT_LOG2)
    }

    /// How many groups were made.
    pub(super) fn made(&self) -> u64 {
        u64::try_from(self.made.load(Ordering::Relaxed)).unwrap_or(u64::MAX)
    }

    /// How many blocks were taken out by [`take`](Self::take).
    pub(super) fn hits(&self) -> u64 {
        self.groups().map(|group| group.own.0.hits.get()).sum()
    }

    fn slots(&self) -> impl Iterator<Item = &Slot> {
        let rows = self.groups().flat_map(|group| &group.rows);
        rows.flat_map(|row| &row.0)
    }

    /// The groups that were made.
    fn groups(&self) -> impl Iterator<Item = &Group> {
        let made = self.groups.iter().filter_map(OnceLock::get);
        made.map(|group| &**group)
    }

    /// The group of this thread.
    #[inline]
    fn group(&self) -> Option<&Group> {
        let mask = self.groups.len().wrapping_sub(1);
        let group = self.groups.get(thread_number() & mask)?;
        Some(group.get_or_init(|| self.make_group()))
    }

    #[cold]
    fn make_group(&self) -> Box<Group> {
        self.made.fetch_add(1, Ordering::Relaxed);
        Box::new(Group {
            rows: array::from_fn(|_| Row(array::from_fn(|_| Slot::default()))),
            touched: Apart::default(),
            own: Apart::default(),
        })
    }
}

impl Group {
    /// The row of a size. Rows are chosen by the high bits of a product, so that sizes
    /// which are alike in their low bits differ.
    #[inline]
    fn row(&self, units: usize) -> Option<(usize, &[Slot; DEPTH])> {
        const MULTIPLIER: usize = 0x9E37_79B9;
        let product = units.wrapping_mul(MULTIPLIER);
        let number = product.wrapping_shr(32 - ROWS_LOG2) & (ROWS - 1);
        Some((number, &self.rows.get(number)?.0))
    }

    /// Takes a block of so many units out.
    #[inline]
    fn take(&self, units: usize) -> Option<DevicePtr> {
        let (_, row) = self.row(units)?;
        row.iter().find_map(|slot| slot.take(units))
    }

    /// Takes a block out, and looks for it only where one may be.
    fn take_if_touched(&self, units: usize) -> Option<DevicePtr> {
        let (number, row) = self.row(units)?;
        let slots = self.is_touched(number).then_some(row)?;
        slots.iter().find_map(|slot| slot.take(units))
    }

    /// Keeps a block, if there is room.
    #[inline]
    fn keep(&self, units: usize, block: DevicePtr) -> bool {
        let Some((number, row)) = self.row(units) else {
            return false;
        };
        let is_kept = row.iter().any(|slot| slot.keep(units, block));
        if is_kept && !self.is_touched(number) {
            self.touch(number);
        }
        is_kept
    }

    /// Keeps a block in the place of another, and returns that, or the block if that
    /// can not be.
    #[cold]
    fn displace(&self, units: usize, block: DevicePtr) -> Option<DevicePtr> {
        self.own.0.displaced.add_alone();
        let turn = usize::try_from(self.own.0.displaced.get()).unwrap_or(0);
        let Some((number, row)) = self.row(units) else {
            return Some(block);
        };
        let slot = row.get(turn.wrapping_rem(DEPTH));
        let gone = slot.map_or(Some(block), |slot| slot.exchange(units, block));
        // Not before: a sweep in between would leave the block in a row that no other
        // sweep looks at.
        self.touch(number);
        gone
    }

    #[cold]
    fn touch(&self, row: usize) {
        self.touched.0.fetch_or(bit_of(row), Ordering::Relaxed);
    }

    /// Whether blocks were put into a row since the last sweep.
    #[inline]
    fn is_touched(&self, row: usize) -> bool {
        self.touched.0.load(Ordering::Relaxed) & bit_of(row) != 0
    }

    /// The bits of all rows that blocks were put into, which are none then.
    #[inline]
    fn take_touched(&self) -> u64 {
        match self.touched.0.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.touched.0.swap(0, Ordering::Relaxed),
        }
    }
}

/// The bit of a row.
#[inline]
fn bit_of(row: usize) -> u64 {
    1_u64.wrapping_shl(u32::try_from(row).unwrap_or(0))
}

/// The number of the lowest bit of a word.
#[inline]
fn lowest_bit(word: u64) -> Option<usize> {
    let bit = (word != 0).then(|| word.trailing_zeros());
    usize::try_from(bit?).ok()
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

#[cfg(test)]
fn block(number: usize) -> DevicePtr {
    let addr = number.wrapping_add(1).wrapping_shl(UNIT_LOG2);
    DevicePtr::from_addr(addr).expect("not null")
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashSet;
    use std::thread;

    use super::*;

    #[test]
    fn sizes_that_are_powers_of_two_are_spread_over_rows() {
        let slots = Slots::new(1);
        let group = slots.group().expect("a group");
        let rows = (0..=20).map(|log2| group.row(1 << log2).expect("a row").0);

        let rows: HashSet<_> = rows.collect();

        assert!(rows.len() >= 16, "{rows:?}");
    }

    #[test]
    fn a_block_is_had_again_by_its_size_alone() {
        let slots = Slots::new(1);
        assert_eq!(slots.keep(3, block(7)), None);
        assert_eq!(slots.bytes(), 3 << UNIT_LOG2);

        assert_eq!(slots.take(2), None);
        assert_eq!(slots.take(4), None);
        assert_eq!(slots.take(3), Some(block(7)));
        assert_eq!(slots.take(3), None);
        assert_eq!((slots.bytes(), slots.hits()), (0, 1));
    }

    #[test]
    fn a_sweep_takes_what_was_kept_since_the_last() {
        let slots = Slots::new(1);
        for _ in 0..2 {
            let sizes = (1..100).chain([1 << 20, 3 << 30]);
            let each: HashSet<_> = sizes.map(|units| (units, block(units))).collect();
            for (units, block) in &each {
                assert_eq!(slots.keep(*units, *block), None);
            }

            let mut swept = HashSet::new();
            slots.sweep(|block| assert!(swept.insert(block)));

            assert_eq!(swept, each.into_iter().map(|(_, block)| block).collect());
            assert_eq!((slots.bytes(), slots.hits()), (0, 0));
        }
        slots.sweep(|block| panic!("{block}"));
    }

    #[test]
    fn what_one_thread_keeps_another_has() {
        let slots = Slots::new(4);
        let kept = |number: usize| {
            let slots = &slots;
            move || assert_eq!(slots.keep(3, block(number)), None)
        };
        thread::scope(|scope| {
            for number in 0..4 {
                scope.spawn(kept(number)).join().expect("no panic");
            }
        });

        let had: HashSet<_> = std::iter::from_fn(|| slots.take(3)).collect();

        assert_eq!(had, (0..4).map(block).collect());
        assert_eq!((slots.take(3), slots.hits()), (None, 4));
    }

    #[test]
    fn what_a_full_row_has_no_room_for_is_kept_where_other_threads_are() {
        let slots = Slots::new(4);
        assert_eq!(slots.take(3), None);
        // A thread may be of the same group as this one.
        while slots.made() < 2 {
            thread::scope(|scope| {
                scope.spawn(|| assert_eq!(slots.take(3), None));
            });
        }

        let blocks = 0..2 * DEPTH;
        for number in blocks.clone() {
            assert_eq!(slots.keep(3, block(number)), None);
        }
        let gone = slots.keep(3, block(blocks.end)).expect("one gives way");

        let mut had: HashSet<_> = std::iter::from_fn(|| slots.take(3)).collect();
        assert!(had.insert(gone));
        assert_eq!(had, (0..=blocks.end).map(block).collect());
    }

    #[test]
    fn in_a_full_row_each_new_block_has_another_give_way() {
        let slots = Slots::new(1);
        for number in 0..DEPTH {
            assert_eq!(slots.keep(5, block(number)), None);
        }

        let more = DEPTH..2 * DEPTH;
        let gone = more.clone().filter_map(|more| slots.keep(5, block(more)));
        let gone: HashSet<_> = gone.collect();

        assert_eq!(gone, (0..DEPTH).map(block).collect());
        let left: HashSet<_> = slots.drain().into_iter().collect();
        assert_eq!(left, more.map(block).collect());
        assert_eq!(slots.bytes(), 0);
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// Two threads share a row of one slot. Each has a block of a size of its own,
    /// keeps it and takes one of that size; what comes back is all there was, once.
    #[test]
    fn a_block_is_one_threads_and_of_the_size_that_was_asked_for() {
        loom::model(|| {
            let slots = Arc::new(Slots::new(1));
            // Makes the group, of which making it is not modelled.
            assert_eq!(slots.take(1), None);
            let each = |slots: &Slots, number: usize| {
                let units = number.wrapping_add(1);
                let gone = slots.keep(units, block(number));
                let taken = slots.take(units);
                assert!(taken.is_none_or(|taken| taken == block(number)));
                [gone, taken]
            };
            let other = {
                let slots = slots.clone();
                thread::spawn(move || each(&slots, 1))
            };

            let mut seen: Vec<_> = each(&slots, 0).into_iter().flatten().collect();
            seen.extend(other.join().expect("no panic").into_iter().flatten());
            seen.extend(slots.drain());

            seen.sort();
            assert_eq!(seen, [block(0), block(1)]);
        });
    }

    /// Two threads want the one block that is kept.
    #[test]
    fn one_of_two_threads_has_a_block() {
        loom::model(|| {
            let slots = Arc::new(Slots::new(1));
            assert_eq!(slots.keep(1, block(0)), None);
            let other = {
                let slots = slots.clone();
                thread::spawn(move || slots.take(1))
            };

            let taken = [slots.take(1), other.join().expect("no panic")];

            assert_eq!(taken.into_iter().flatten().count(), 1);
        });
    }
}
