//! Free blocks in order of their size.
//!
//! Rank 0. Part of `free_space`.
//!
//! Sizes are sorted into bins as a number with four bits after its highest one,
//! and within a bin by size, so that the best fit is exact and the sets stay short.
//! A bitmap says which bins hold anything. A short set is a list through the nodes
//! themselves, and a long one a tree; blocks of one size are a list in either.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::Lot;
use super::nodes::{NONE, Node, Nodes, index};

/// How many bins a doubling of sizes is divided into, as an exponent of two.
const STEPS_LOG2: u32 = 4;

/// The same as a number.
const STEPS: usize = 1 << STEPS_LOG2;

/// Words of the bitmap: enough for every size.
const WORDS: usize = 16;

/// The number of the bin for a size: as many as there are steps up to 1, then so many
/// a doubling. It never falls as sizes grow.
#[inline]
const fn bin_of(size: usize) -> usize {
    // Below that many steps, a size is its own number.
    let exponent = (size | STEPS).ilog2();
    let shift = exponent.wrapping_sub(STEPS_LOG2);
    // The highest bit counts as one more step.
    exponent_bins(shift).wrapping_add(size.wrapping_shr(shift))
}

#[expect(
    clippy::as_conversions,
    reason = "an exponent is below 64, and const code has no From"
)]
const fn exponent_bins(shift: u32) -> usize {
    (shift as usize).wrapping_mul(STEPS)
}

/// The most sizes that are kept as a list: few in tests, so that they see both.
const FEW: usize = if cfg!(test) { 2 } else { 16 };

/// The blocks of one bin, by size: in the list or in the tree is the first of each
/// size, the other being empty. Of a size, the block that came last is had first.
#[derive(Debug)]
struct Set {
    /// The smallest block of the list.
    first: u32,
    /// How many sizes are in the list.
    few: usize,
    many: BTreeMap<usize, u32>,
}

impl Default for Set {
    fn default() -> Self {
        Self {
            first: NONE,
            few: 0,
            many: BTreeMap::new(),
        }
    }
}

impl Set {
    #[inline]
    fn insert(&mut self, nodes: &mut Nodes, id: u32) {
        let size = nodes.at(id).size;
        if self.many.is_empty() {
            self.insert_in_list(nodes, id, size);
        } else {
            self.insert_in_tree(nodes, id, size);
        }
    }

    fn insert_in_tree(&mut self, nodes: &mut Nodes, id: u32, size: usize) {
        match self.many.entry(size) {
            Entry::Occupied(known) => add_twin(nodes, *known.get(), id),
            Entry::Vacant(place) => {
                place.insert(id);
                nodes.update(id, |node| {
                    (node.twin_before, node.twin_after) = (NONE, NONE)
                });
            }
        }
    }

    /// Puts a block into the list. One that is too long becomes a tree.
    #[inline]
    fn insert_in_list(&mut self, nodes: &mut Nodes, id: u32, size: usize) {
        let (mut smaller, mut larger) = (NONE, self.first);
        while larger != NONE {
            let node = nodes.at(larger);
            if node.size == size {
                return add_twin(nodes, larger, id);
            }
            if node.size > size {
                break;
            }
            (smaller, larger) = (larger, node.larger);
        }
        nodes.update(id, |node| {
            (node.smaller, node.larger) = (smaller, larger);
            (node.twin_before, node.twin_after) = (NONE, NONE);
        });
        self.link(nodes, smaller, id);
        nodes.update(larger, |node| node.smaller = id);
        self.few = self.few.saturating_add(1);
        if self.few > FEW {
            self.grow(nodes);
        }
    }

    /// Makes the list a tree.
    #[cold]
    fn grow(&mut self, nodes: &Nodes) {
        self.many = self.list(nodes).map(|id| (nodes.at(id).size, id)).collect();
        (self.first, self.few) = (NONE, 0);
    }

    fn remove(&mut self, nodes: &mut Nodes, id: u32) {
        let &Node {
            size,
            smaller,
            larger,
            twin_before,
            twin_after,
            ..
        } = nodes.at(id);
        nodes.update(twin_after, |node| node.twin_before = twin_before);
        if twin_before != NONE {
            nodes.update(twin_before, |node| node.twin_after = twin_after);
        } else if !self.many.is_empty() {
            match twin_after {
                NONE => self.many.remove(&size),
                twin => self.many.insert(size, twin),
            };
        } else if twin_after != NONE {
            nodes.update(twin_after, |node| {
                (node.smaller, node.larger) = (smaller, larger)
            });
            self.link(nodes, smaller, twin_after);
            nodes.update(larger, |node| node.smaller = twin_after);
        } else {
            self.few = self.few.saturating_sub(1);
            self.link(nodes, smaller, larger);
            nodes.update(larger, |node| node.smaller = smaller);
        }
    }

    /// Makes a block of the list the next after another, or the first.
    #[inline]
    fn link(&mut self, nodes: &mut Nodes, smaller: u32, next: u32) {
        match smaller {
            NONE => self.first = next,
            _ => nodes.update(smaller, |node| node.larger = next),
        }
    }

    /// Whether a block of another size would be at the same place of the list.
    #[inline]
    fn stays(&self, nodes: &Nodes, id: u32, size: usize) -> bool {
        let node = nodes.at(id);
        self.many.is_empty()
            && node.twin_before == NONE
            && node.twin_after == NONE
            && (node.smaller == NONE || nodes.at(node.smaller).size < size)
            && (node.larger == NONE || size < nodes.at(node.larger).size)
    }

    /// The smallest block of at least `size` bytes.
    #[inline]
    fn best(&self, nodes: &Nodes, size: usize) -> Option<u32> {
        let mut id = self.first;
        if id == NONE {
            id = *self.many.range(size..).next()?.1;
        }
        loop {
            let node = nodes.at(id);
            if id == NONE {
                return None;
            }
            if node.size >= size {
                let twin = node.twin_after;
                return Some(if twin == NONE { id } else { twin });
            }
            id = node.larger;
        }
    }

    /// The blocks of at least `size` bytes.
    fn from(&self, nodes: &Nodes, size: usize) -> impl Iterator<Item = u32> {
        let few = self.list(nodes);
        let few = few.skip_while(move |id| nodes.at(*id).size < size);
        let sizes = few.chain(self.many.range(size..).map(|(_, id)| *id));
        sizes.flat_map(|first| walk(first, |id| nodes.at(id).twin_after))
    }

    fn last(&self, nodes: &Nodes) -> Option<u32> {
        match self.many.last_key_value() {
            Some((_, id)) => Some(*id),
            None => self.list(nodes).last(),
        }
    }

    /// The first block of each size in the list.
    fn list(&self, nodes: &Nodes) -> impl Iterator<Item = u32> {
        walk(self.first, |id| nodes.at(id).larger)
    }

    fn is_empty(&self) -> bool {
        self.first == NONE && self.many.is_empty()
    }
}

/// Adds a block to those of its size, the first of which is `known`: as the second, for
/// the first is where it is looked for.
fn add_twin(nodes: &mut Nodes, known: u32, id: u32) {
    let next = nodes.at(known).twin_after;
    nodes.update(id, |node| {
        (node.twin_before, node.twin_after) = (known, next)
    });
    nodes.update(next, |next| next.twin_before = id);
    nodes.update(known, |known| known.twin_after = id);
}

/// The nodes from `first` on.
fn walk(first: u32, next: impl Fn(u32) -> u32) -> impl Iterator<Item = u32> {
    let some = |id: u32| (id != NONE).then_some(id);
    std::iter::successors(some(first), move |id| some(next(*id)))
}

/// The free blocks of one lot, by the numbers of their nodes.
#[derive(Debug, Default)]
pub(super) struct Bins {
    sets: Vec<Set>,
    /// Which sets hold anything.
    occupied: [u64; WORDS],
    /// Which words of that are not 0.
    words: u64,
    /// The bytes of all of them.
    bytes: usize,
}

impl Bins {
    /// Adds a block that is in no bins, as one of the lot that these are of.
    #[inline]
    pub(super) fn enter(&mut self, nodes: &mut Nodes, id: u32, lot: Lot) {
        nodes.update(id, |node| node.free = Some(lot));
        let size = nodes.at(id).size;
        self.bytes = self.bytes.wrapping_add(size);
        self.insert_in(bin_of(size), nodes, id);
    }

    /// Takes a block out, which is here, and is nobody's then.
    #[inline]
    pub(super) fn leave(&mut self, nodes: &mut Nodes, id: u32) {
        let size = nodes.at(id).size;
        self.bytes = self.bytes.wrapping_sub(size);
        self.remove_from(bin_of(size), nodes, id);
        nodes.update(id, |node| node.free = None);
    }

    /// Gives a block that is here another start and size.
    #[inline]
    pub(super) fn change(&mut self, nodes: &mut Nodes, id: u32, start: usize, size: usize) {
        let old = nodes.at(id).size;
        self.bytes = self.bytes.wrapping_sub(old).wrapping_add(size);
        let (from, to) = (bin_of(old), bin_of(size));
        let set = self.sets.get(to);
        let stays = from == to && set.is_some_and(|set| set.stays(nodes, id, size));
        if !stays {
            self.remove_from(from, nodes, id);
        }
        nodes.update(id, |node| (node.start, node.size) = (start, size));
        if !stays {
            self.insert_in(to, nodes, id);
        }
    }

    #[inline]
    fn insert_in(&mut self, bin: usize, nodes: &mut Nodes, id: u32) {
        if bin >= self.sets.len() {
            self.add_sets(bin);
        }
        let Some(set) = self.sets.get_mut(bin) else {
            return;
        };
        set.insert(nodes, id);
        if let Some(word) = self.occupied.get_mut(bin / 64) {
            *word |= bit(bin);
            self.words |= bit(bin / 64);
        }
    }

    #[cold]
    fn add_sets(&mut self, bin: usize) {
        self.sets.resize_with(bin.saturating_add(1), Set::default);
    }

    #[inline]
    fn remove_from(&mut self, bin: usize, nodes: &mut Nodes, id: u32) {
        let Some(set) = self.sets.get_mut(bin) else {
            return;
        };
        set.remove(nodes, id);
        if set.is_empty()
            && let Some(word) = self.occupied.get_mut(bin / 64)
        {
            *word &= !bit(bin);
            if *word == 0 {
                self.words &= !bit(bin / 64);
            }
        }
    }

    /// The smallest block of at least `size` bytes.
    #[inline]
    pub(super) fn best(&self, nodes: &Nodes, size: usize) -> Option<u32> {
        let bin = self.next_occupied(bin_of(size))?;
        match self.sets.get(bin)?.best(nodes, size) {
            Some(id) => Some(id),
            None => {
                let above = self.next_occupied(bin.wrapping_add(1))?;
                self.sets.get(above)?.best(nodes, size)
            }
        }
    }

    /// All blocks of at least `size` bytes, the smallest first.
    pub(super) fn from(&self, nodes: &Nodes, size: usize) -> impl Iterator<Item = u32> {
        let bin = bin_of(size);
        let mut above = bin;
        let larger = std::iter::from_fn(move || {
            above = self.next_occupied(above.saturating_add(1))?;
            self.sets.get(above)
        });
        let own = self.sets.get(bin).into_iter();
        own.chain(larger).flat_map(move |set| set.from(nodes, size))
    }

    /// The largest block.
    pub(super) fn largest(&self, nodes: &Nodes) -> Option<u32> {
        let word = index(self.words.checked_ilog2()?);
        let bits = *self.occupied.get(word)?;
        let bin = word
            .saturating_mul(64)
            .saturating_add(index(bits.checked_ilog2()?));
        self.sets.get(bin)?.last(nodes)
    }

    /// All blocks, which are free of nobody then.
    pub(super) fn drain(&mut self, nodes: &mut Nodes) -> Vec<u32> {
        let Self { sets, .. } = std::mem::take(self);
        let all: Vec<u32> = sets.iter().flat_map(|set| set.from(nodes, 0)).collect();
        for id in &all {
            nodes.update(*id, |node| node.free = None);
        }
        all
    }

    /// The bytes of all blocks.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The first bin from `bin` on that holds anything.
    #[inline]
    fn next_occupied(&self, bin: usize) -> Option<usize> {
        let at = bin / 64;
        let here = self.occupied.get(at)? & from_bit(bin);
        if here != 0 {
            return Some(first_bit(at, here));
        }
        let above = at.saturating_add(1);
        let words = self.words & from_bit(above);
        let at = first_bit(0, words);
        let word = *self.occupied.get(at)?;
        (above < WORDS && words != 0).then(|| first_bit(at, word))
    }
}

/// The number of the first bit of a word, which is the `at`-th.
#[inline]
fn first_bit(at: usize, word: u64) -> usize {
    let bit = index(word.trailing_zeros());
    at.saturating_mul(64).saturating_add(bit)
}

/// The bits of a word from that of a bin on.
#[inline]
fn from_bit(bin: usize) -> u64 {
    u64::MAX.wrapping_shl(low_bits(bin))
}

/// The bit for a bin in its word.
#[inline]
fn bit(bin: usize) -> u64 {
    1_u64.wrapping_shl(low_bits(bin))
}

/// The position of a bin in its word.
#[inline]
fn low_bits(bin: usize) -> u32 {
    u32::try_from(bin % 64).unwrap_or(0)
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
