//! Free blocks in order of their size.
//!
//! Rank 0. Part of `free_space`.
//!
//! Sizes are sorted into bins as a number with four bits after its highest one,
//! and within a bin by size and address, so that the best fit is exact and the
//! sets stay short. A bitmap says which bins hold anything. A short set is a sorted
//! list, which takes nothing from the heap once it has grown, and a long one a tree.

use std::collections::BTreeSet;

/// A free block: its size, where it starts, and its node. Compared in this order.
pub(super) type Entry = (usize, usize, u32);

/// How many bins a doubling of sizes is divided into, as an exponent of two.
const STEPS_LOG2: u32 = 4;

/// The same as a number.
const STEPS: usize = 1 << STEPS_LOG2;

/// Words of the bitmap: enough for every size.
const WORDS: usize = 16;

/// The number of the bin for a size of `units`: as many as there are steps up to
/// 1, then so many a doubling. It never falls as sizes grow.
const fn bin_of(units: usize) -> usize {
    let Some(exponent) = units.checked_ilog2() else {
        return 0;
    };
    let Some(shift) = exponent.checked_sub(STEPS_LOG2) else {
        return units;
    };
    // The highest bit counts as one more step.
    let mantissa = units.wrapping_shr(shift);
    exponent_bins(shift).saturating_add(mantissa)
}

#[expect(
    clippy::as_conversions,
    reason = "an exponent is below 64, and const code has no From"
)]
const fn exponent_bins(shift: u32) -> usize {
    (shift as usize).saturating_mul(STEPS)
}

/// The most blocks that are kept as a list: few in tests, so that they see both.
const FEW: usize = if cfg!(test) { 2 } else { 32 };

/// Blocks in order: in the list or in the tree, the other being empty.
#[derive(Debug, Default)]
struct Set {
    few: Vec<Entry>,
    many: BTreeSet<Entry>,
}

impl Set {
    fn insert(&mut self, entry: Entry) {
        if self.few.len() >= FEW {
            self.many.extend(self.few.drain(..));
        }
        if !self.many.is_empty() {
            self.many.insert(entry);
        } else if let Err(at) = self.few.binary_search(&entry) {
            self.few.insert(at, entry);
        }
    }

    /// Takes a block out, and says whether it was there.
    fn remove(&mut self, entry: &Entry) -> bool {
        if !self.many.is_empty() {
            return self.many.remove(entry);
        }
        let found = self.few.binary_search(entry);
        found.map(|at| self.few.remove(at)).is_ok()
    }

    /// The blocks of at least `size` bytes.
    fn from(&self, size: usize) -> impl Iterator<Item = &Entry> {
        let at = self.few.partition_point(|entry| entry.0 < size);
        let few = self.few.get(at..).unwrap_or_default();
        few.iter().chain(self.many.range((size, 0, 0)..))
    }

    /// The smallest block of at least `size` bytes.
    fn best(&self, size: usize) -> Option<Entry> {
        if self.many.is_empty() {
            let at = self.few.partition_point(|entry| entry.0 < size);
            return self.few.get(at).copied();
        }
        self.many.range((size, 0, 0)..).next().copied()
    }

    fn first(&self) -> Option<Entry> {
        self.few.first().or_else(|| self.many.first()).copied()
    }

    fn last(&self) -> Option<Entry> {
        self.few.last().or_else(|| self.many.last()).copied()
    }

    fn is_empty(&self) -> bool {
        self.few.is_empty() && self.many.is_empty()
    }
}

/// The free blocks of one lot.
#[derive(Debug, Default)]
pub(super) struct Bins {
    sets: Vec<Set>,
    occupied: [u64; WORDS],
    /// The bytes of all of them.
    bytes: usize,
}

impl Bins {
    /// Adds a block.
    pub(super) fn insert(&mut self, unit_log2: u32, entry: Entry) {
        let bin = bin_of(entry.0.wrapping_shr(unit_log2));
        if bin >= self.sets.len() {
            self.sets.resize_with(bin.saturating_add(1), Set::default);
        }
        if let Some(set) = self.sets.get_mut(bin) {
            set.insert(entry);
            self.bytes = self.bytes.saturating_add(entry.0);
        }
        if let Some(word) = self.occupied.get_mut(bin / 64) {
            *word |= bit(bin);
        }
    }

    /// Takes a block out.
    pub(super) fn remove(&mut self, unit_log2: u32, entry: Entry) {
        let bin = bin_of(entry.0.wrapping_shr(unit_log2));
        let Some(set) = self.sets.get_mut(bin) else {
            return;
        };
        if set.remove(&entry) {
            self.bytes = self.bytes.saturating_sub(entry.0);
        }
        if set.is_empty()
            && let Some(word) = self.occupied.get_mut(bin / 64)
        {
            *word &= !bit(bin);
        }
    }

    /// The smallest block of at least `size` bytes, of several the first.
    pub(super) fn best(&self, unit_log2: u32, size: usize) -> Option<Entry> {
        let bin = bin_of(size.wrapping_shr(unit_log2));
        if self.is_occupied(bin)
            && let Some(entry) = self.sets.get(bin)?.best(size)
        {
            return Some(entry);
        }
        let above = self.next_occupied(bin.saturating_add(1))?;
        self.sets.get(above)?.first()
    }

    /// All blocks of at least `size` bytes, the smallest first.
    pub(super) fn from(&self, unit_log2: u32, size: usize) -> impl Iterator<Item = &Entry> {
        let bin = bin_of(size.wrapping_shr(unit_log2));
        let mut above = bin;
        let larger = std::iter::from_fn(move || {
            above = self.next_occupied(above.saturating_add(1))?;
            self.sets.get(above)
        });
        let own = self.sets.get(bin).into_iter();
        own.chain(larger).flat_map(move |set| set.from(size))
    }

    /// The largest block.
    pub(super) fn largest(&self) -> Option<Entry> {
        let word = self.occupied.iter().rposition(|word| *word != 0)?;
        let bits = *self.occupied.get(word)?;
        let bin = word
            .saturating_mul(64)
            .saturating_add(index(bits.checked_ilog2()?));
        self.sets.get(bin)?.last()
    }

    /// All blocks, which are forgotten.
    pub(super) fn drain(&mut self) -> Vec<Entry> {
        self.occupied = [0; WORDS];
        self.bytes = 0;
        let sets = std::mem::take(&mut self.sets);
        let blocks = |set: Set| set.few.into_iter().chain(set.many);
        sets.into_iter().flat_map(blocks).collect()
    }

    /// The bytes of all blocks.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn is_occupied(&self, bin: usize) -> bool {
        self.occupied
            .get(bin / 64)
            .is_some_and(|word| word & bit(bin) != 0)
    }

    /// The first bin from `bin` on that holds anything.
    fn next_occupied(&self, bin: usize) -> Option<usize> {
        let first = bin / 64;
        let mut mask = u64::MAX.wrapping_shl(low_bits(bin));
        for (at, word) in self.occupied.iter().enumerate().skip(first) {
            let found = word & mask;
            if found != 0 {
                let bit = index(found.trailing_zeros());
                return Some(at.saturating_mul(64).saturating_add(bit));
            }
            mask = u64::MAX;
        }
        None
    }
}

/// The bit for a bin in its word.
fn bit(bin: usize) -> u64 {
    1_u64.wrapping_shl(low_bits(bin))
}

/// The position of a bin in its word.
fn low_bits(bin: usize) -> u32 {
    u32::try_from(bin % 64).unwrap_or(0)
}

/// The number of a bit.
fn index(bit: u32) -> usize {
    usize::try_from(bit).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_are_in_the_order_of_sizes_and_at_most_a_sixteenth_wide() {
        let mut before = 0;
        let mut first = 0;
        for units in 0..200_000_usize {
            let bin = bin_of(units);

            assert!(bin == before || bin == before + 1, "{units}");
            if bin > before {
                first = units;
            }
            assert!(units - first <= units / 16, "{first} to {units}");
            before = bin;
        }
    }

    #[test]
    fn every_size_has_a_bin_that_the_bitmap_has_a_bit_for() {
        for exponent in 0..usize::BITS {
            let size = 1_usize << exponent;
            for size in [size - 1, size, size | (size >> 1), size | (size - 1)] {
                assert!(bin_of(size) < WORDS * 64, "{size}");
            }
        }
    }
}
