//! Free blocks that are kept as they are, to be had again without a lock.
//!
//! Rank 4. Part of `adaptor::pool`. Imports `sync` and the words.
//!
//! A block is kept by its exact size, in one of a row of slots. A slot is a word: the
//! address of a block, and in its low bits, which are zero in every address of a
//! block, a tag that says with the number of the row which size it is. The word is
//! exchanged as a whole, so there is no lock and no order to lose: whoever takes it
//! out has the block, and it is of the size that was looked for. Threads are spread
//! over groups of rows, so that few share a cache line; a thread that finds nothing in
//! its own group looks at those of others, for who frees a block need not be who will
//! ask for another.

use std::array;
use std::cell::Cell;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;

use super::heap::UNIT_LOG2;
use super::status::Count;
use crate::address::DevicePtr;
use crate::sync::{AtomicPtr, AtomicU64, Ordering};

/// How many blocks a row keeps. In a model of all interleavings, as few as can be.
const DEPTH: usize = if cfg!(all(loom, test)) { 1 } else { 8 };

/// The bits of an address in which the tag is.
const TAG_BITS: usize = (1 << UNIT_LOG2) - 1;

/// The fewest rows of a group, so that few sizes share one.
const MIN_ROWS: usize = if cfg!(all(loom, test)) { 1 } else { 64 };

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
    /// How many groups were made.
    made: AtomicUsize,
}

/// The slots of some threads. Aligned so that two share no cache line.
#[derive(Debug)]
#[repr(align(128))]
struct Group {
    rows: Box<[Row]>,
    /// Bits of the rows that blocks were put into since the last sweep, by their numbers
    /// modulo 64.
    touched: AtomicU64,
    hits: Count,
    /// Counts blocks that gave way, to have another slot give way each time.
    displaced: Count,
}

/// The slots of some sizes: a cache line.
#[derive(Debug)]
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
        let place = self.place(units)?;
        let group = self.group();
        let block = match group.take(place) {
            None if self.made.load(Ordering::Relaxed) > 1 => self.take_of_others(place, group)?,
            found => found?,
        };
        group.hits.add_alone();
        Some(block)
    }

    /// Takes a block out that another group keeps.
    #[inline(never)]
    fn take_of_others(&self, place: Place, own: &Group) -> Option<DevicePtr> {
        let mut others = self.groups().filter(|group| !ptr::eq(*group, own));
        others.find_map(|group| match group.is_touched(place.row) {
            true => group.take(place),
            false => None,
        })
    }

    /// Keeps a block of so many units. Returns a block for which there is no room:
    /// this one, if it is too large, or one that gave way to it.
    #[inline(always)]
    pub(super) fn keep(&self, units: usize, block: DevicePtr) -> Option<DevicePtr> {
        match self.place(units) {
            Some(place) if block.addr() & TAG_BITS == 0 => self.group().keep(place, block),
            _ => Some(block),
        }
    }

    /// Takes the blocks out of all rows that were put into since the last time, but for
    /// one now and then that is just being put there.
    #[inline]
    pub(super) fn sweep(&self, mut each: impl FnMut(DevicePtr)) {
        for group in self.groups() {
            let mut touched = group.take_touched();
            while let Some(first) = lowest_bit(touched) {
                let rows = group.rows.iter().skip(first).step_by(64);
                let slots = rows.flat_map(|row| &row.0);
                slots.filter_map(take_any).for_each(&mut each);
                touched &= touched.wrapping_sub(1);
            }
        }
    }

    /// Takes all blocks out.
    pub(super) fn drain(&self) -> Vec<DevicePtr> {
        let slots = self.rows().flat_map(|(_, row)| &row.0);
        slots.filter_map(take_any).collect()
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
        self.groups().map(|group| group.hits.get()).sum()
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
        self.groups()
            .flat_map(|group| group.rows.iter().enumerate())
    }

    /// The groups that were made.
    fn groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter().filter_map(OnceLock::get)
    }

    /// The group of this thread.
    #[inline]
    fn group(&self) -> &Group {
        let mask = self.groups.len().wrapping_sub(1);
        let at = thread_number() & mask;
        match self.groups.get(at) {
            Some(group) => group.get_or_init(|| self.make_group()),
            None => Group::none(),
        }
    }

    #[cold]
    fn make_group(&self) -> Group {
        self.made.fetch_add(1, Ordering::Relaxed);
        Group::new(1_usize.wrapping_shl(self.rows_log2))
    }
}

impl Row {
    fn empty() -> Self {
        Self(array::from_fn(|_| AtomicPtr::new(ptr::null_mut())))
    }
}

impl Group {
    fn new(rows: usize) -> Self {
        Self {
            rows: (0..rows).map(|_| Row::empty()).collect(),
            touched: AtomicU64::new(0),
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

    /// Takes a block out that is kept at a place.
    #[inline]
    fn take(&self, Place { row, tag }: Place) -> Option<DevicePtr> {
        let row = self.rows.get(row)?;
        for slot in &row.0 {
            let word = slot.load(Ordering::Relaxed);
            let none = ptr::null_mut();
            // Pairs with the release in `keep`: what was done with the block before
            // it was freed comes before what is done with it now.
            if tag_of(word) == tag
                && slot
                    .compare_exchange(word, none, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return block_of(word);
            }
        }
        None
    }

    /// Keeps a block at a place. Returns the one that gave way to it, or the block if
    /// there is no such place.
    #[inline]
    fn keep(&self, place: Place, block: DevicePtr) -> Option<DevicePtr> {
        let Some(row) = self.rows.get(place.row) else {
            return Some(block);
        };
        let word = block.as_raw().map_addr(|addr| addr | place.tag);
        let kept = row.0.iter().any(|slot| {
            let none = ptr::null_mut();
            slot.load(Ordering::Relaxed).is_null()
                && slot
                    .compare_exchange(none, word, Ordering::Release, Ordering::Relaxed)
                    .is_ok()
        });
        let gone = match kept {
            true => None,
            false => self.displace(row, word),
        };
        if !self.is_touched(place.row) {
            self.touch(place.row);
        }
        gone
    }

    #[cold]
    fn touch(&self, row: usize) {
        self.touched.fetch_or(bit_of(row), Ordering::Relaxed);
    }

    /// Whether blocks were put into a row, or one that has a bit with it, since the last
    /// sweep.
    #[inline]
    fn is_touched(&self, row: usize) -> bool {
        self.touched.load(Ordering::Relaxed) & bit_of(row) != 0
    }

    /// The bits of all rows that blocks were put into, which are none then.
    #[inline]
    fn take_touched(&self) -> u64 {
        match self.touched.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.touched.swap(0, Ordering::Relaxed),
        }
    }

    /// Puts a word into a full row, and returns the block that was there.
    #[cold]
    fn displace(&self, row: &Row, word: *mut u8) -> Option<DevicePtr> {
        self.displaced.add_alone();
        let turn = usize::try_from(self.displaced.get()).unwrap_or(0);
        let slot = row.0.get(turn.wrapping_rem(DEPTH))?;
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

/// Takes whatever block is in a slot out.
#[inline]
fn take_any(slot: &AtomicPtr<u8>) -> Option<DevicePtr> {
    let occupied = !slot.load(Ordering::Relaxed).is_null();
    block_of(occupied.then(|| slot.swap(ptr::null_mut(), Ordering::Acquire))?)
}

/// The bit of a row.
#[inline]
fn bit_of(row: usize) -> u64 {
    1_u64.wrapping_shl(u32::try_from(row % 64).unwrap_or(0))
}

/// The number of the lowest bit of a word.
#[inline]
fn lowest_bit(word: u64) -> Option<usize> {
    let bit = (word != 0).then(|| word.trailing_zeros());
    usize::try_from(bit?).ok()
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
    fn no_two_sizes_are_in_one_place() {
        for largest in [1, 63, 64, 255, 4096, 20_000, 32_768] {
            let slots = Slots::new(largest, 1);
            let mut seen = HashSet::new();
            for units in 1..=largest {
                let place = slots.place(units).expect("a place");

                assert!(seen.insert((place.row, place.tag)), "{units} of {largest}");
                assert!(place.tag > 0 && place.tag <= TAG_BITS, "{units}");
                assert_eq!(slots.units_at(place.row, place.tag), Some(units));
            }
            assert_eq!(slots.place(0), None);
            assert_eq!(slots.place(largest + 1), None);
        }
    }

    #[test]
    fn sizes_that_are_powers_of_two_are_spread_over_rows() {
        let slots = Slots::new(4096, 1);
        let sizes = (0..=12).map(|log2| slots.place(1 << log2).expect("a place"));

        let rows: HashSet<_> = sizes.map(|place| place.row).collect();

        assert!(rows.len() >= 10, "{rows:?}");
    }

    #[test]
    fn a_block_is_had_again_by_its_size_alone() {
        let slots = Slots::new(64, 1);
        assert_eq!(slots.keep(3, block(7)), None);
        assert_eq!(slots.bytes(), 3 << UNIT_LOG2);

        assert_eq!(slots.take(2), None);
        assert_eq!(slots.take(4), None);
        assert_eq!(slots.take(3), Some(block(7)));
        assert_eq!(slots.take(3), None);
        assert_eq!((slots.bytes(), slots.hits()), (0, 1));
    }

    #[test]
    fn what_is_too_large_or_no_block_is_not_kept() {
        let slots = Slots::new(64, 1);
        let within = block(0).checked_add(16).expect("an address");

        assert_eq!(slots.keep(65, block(1)), Some(block(1)));
        assert_eq!(slots.keep(0, block(1)), Some(block(1)));
        assert_eq!(slots.keep(1, within), Some(within));
        assert_eq!(Slots::new(0, 1).keep(1, block(1)), Some(block(1)));
        assert_eq!(slots.drain(), []);
    }

    #[test]
    fn a_sweep_takes_what_was_kept_since_the_last() {
        for largest in [4096, 32_768] {
            let slots = Slots::new(largest, 1);
            for _ in 0..2 {
                let sizes = (1..100).chain((largest - 100)..=largest);
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
        Slots::new(0, 1).sweep(|block| panic!("{block}"));
    }

    #[test]
    fn what_one_thread_keeps_another_has() {
        let slots = Slots::new(64, 4);
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
    fn in_a_full_row_each_new_block_has_another_give_way() {
        let slots = Slots::new(64, 1);
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
            let slots = Arc::new(Slots::new(2, 1));
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
            let slots = Arc::new(Slots::new(1, 1));
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
