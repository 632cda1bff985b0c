//! Which addresses of some segments are free, and where a block fits best.
//!
//! Rank 0. Imports nothing from this crate.
//!
//! It knows numbers only and touches no memory. Free neighbours are one block at
//! once, unless they are of different [`Lot`]s: memory that not everybody may use
//! yet. Taking the best fit and giving back cost the logarithm of the number of
//! free blocks of about one size; the tables grow by doubling.

mod bins;
mod nodes;

use std::num::NonZeroU32;

use hashbrown::HashTable;

use bins::Bins;
use nodes::{Node, Nodes, index};

/// Who may use free memory. Blocks of one lot are found and joined together.
///
/// Its number, counted from 1 on so that none takes no room beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lot(NonZeroU32);

impl Lot {
    #[inline]
    fn index(self) -> usize {
        index(self.0.get()).wrapping_sub(1)
    }
}

/// A stretch of addresses that blocks are taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment(u32);

/// A block that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken<B> {
    /// What the caller keeps of the segment that it lies in.
    pub(crate) base: B,
    /// Where it starts in the segment.
    pub(crate) offset: usize,
}

/// The free and the used blocks of some segments, of each of which the caller keeps
/// a `B` here.
///
/// # Invariants
///
/// 0. The nodes of a segment are a ring: its edge, and from there by `after` those that
///    cover it without gaps.
/// 1. No two neighbours are free and of one lot. An edge is never free.
/// 2. A free node is in the bins of its lot, and no other is; a used node is in
///    `used`, and no other is.
#[derive(Debug)]
pub(crate) struct FreeSpace<B> {
    nodes: Nodes,
    /// By the addresses at which they start.
    used: HashTable<u32>,
    used_bytes: usize,
    lots: Vec<Bins>,
    vacant_lots: Vec<Lot>,
    segments: Vec<Option<Extent<B>>>,
}

/// A segment.
#[derive(Clone, Copy, Debug)]
struct Extent<B> {
    start: usize,
    size: usize,
    base: B,
    /// The node between its end and its start.
    edge: u32,
}

/// An end of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Low,
    High,
}

impl<B: Copy> FreeSpace<B> {
    /// The lot that everybody may use.
    pub(crate) const COMMON: Lot = Lot(NonZeroU32::MIN);

    /// No segments.
    pub(crate) fn new() -> Self {
        Self {
            nodes: Nodes::default(),
            used: HashTable::new(),
            used_bytes: 0,
            lots: vec![Bins::default()],
            vacant_lots: Vec::new(),
            segments: Vec::new(),
        }
    }

    /// Adds a segment, free for everybody. It overlaps no other, and is not empty.
    /// `None` if there are too many.
    pub(crate) fn add(&mut self, start: usize, size: usize, base: B) -> Option<Segment> {
        let vacant = self.segments.iter().position(Option::is_none);
        let number = vacant.unwrap_or(self.segments.len());
        let segment = Segment(u32::try_from(number).ok()?);
        self.nodes.reserve(2)?;
        let edge = self.nodes.add_edge(segment)?;
        let first = self.nodes.add_after(edge, start, size)?;
        let extent = Some(Extent {
            start,
            size,
            base,
            edge,
        });
        match self.segments.get_mut(number) {
            Some(place) => *place = extent,
            None => self.segments.push(extent),
        }
        self.release(first, Self::COMMON);
        Some(segment)
    }

    /// Takes a segment away again if all of it is free for everybody, and returns
    /// what was kept of it.
    pub(crate) fn remove(&mut self, segment: Segment) -> Option<B> {
        let extent = *self.extent(segment)?;
        let first = self.whole_of(&extent)?;
        self.lots.first_mut()?.leave(&mut self.nodes, first);
        self.nodes.remove(first);
        self.nodes.remove(extent.edge);
        *self.segments.get_mut(index(segment.0))? = None;
        Some(extent.base)
    }

    /// The segments that are free for everybody as a whole.
    pub(crate) fn whole(&self) -> Vec<Segment> {
        let segments = (0..).map(Segment).zip(&self.segments);
        let is_whole = |extent: &Extent<B>| self.whole_of(extent).is_some();
        segments
            .filter(|(_, extent)| extent.as_ref().is_some_and(is_whole))
            .map(|(segment, _)| segment)
            .collect()
    }

    /// Takes `size` bytes from a multiple of `align` on, at an end of the smallest free
    /// block of a lot that holds them, the rest of it staying free.
    ///
    /// If that which is smallest holds them only elsewhere, all that are large enough
    /// may be looked at.
    pub(crate) fn take(
        &mut self,
        lot: Lot,
        (size, align): (usize, usize),
        end: End,
    ) -> Option<Taken<B>> {
        // What can fail comes before what changes anything.
        self.nodes.reserve(2)?;
        let bins = self.lots.get_mut(lot.index())?;
        let nodes = &mut self.nodes;
        let padding_of = |id: u32| padding(nodes.at(id), size, align, end);
        let best = bins.best(nodes, size)?;
        let (free, padding) = match padding_of(best) {
            Some(padding) => (best, padding),
            None => {
                let mut larger = bins.from(nodes, size);
                larger.find_map(|id| Some((id, padding_of(id)?)))?
            }
        };
        let &Node {
            start,
            size: whole,
            segment,
            ..
        } = nodes.at(free);
        let extent = self.segments.get(index(segment.0))?.as_ref()?;
        let rest = whole.checked_sub(padding.checked_add(size)?)?;
        let start = start.checked_add(padding)?;
        let taken = Taken {
            base: extent.base,
            offset: start.checked_sub(extent.start)?,
        };
        let block = match (padding, rest) {
            (0, 0) => {
                bins.leave(nodes, free);
                free
            }
            (0, _) => {
                bins.change(nodes, free, start.checked_add(size)?, rest);
                nodes.add_after(nodes.at(free).before, start, size)?
            }
            (_, 0) => {
                bins.change(nodes, free, start.wrapping_sub(padding), padding);
                nodes.add_after(free, start, size)?
            }
            (_, _) => {
                bins.change(nodes, free, start.wrapping_sub(padding), padding);
                let block = nodes.add_after(free, start, size)?;
                let above = nodes.add_after(block, start.checked_add(size)?, rest)?;
                bins.enter(nodes, above, lot);
                block
            }
        };
        let start_of = |node: &u32| hash(nodes.at(*node).start);
        self.used.insert_unique(hash(start), block, start_of);
        self.used_bytes = self.used_bytes.saturating_add(size);
        Some(taken)
    }

    /// Gives a block back, for those of a lot. Returns whether nothing of its
    /// segment is in use any more, or `None` if no block starts there.
    pub(crate) fn give(&mut self, start: usize, lot: Lot) -> Option<bool> {
        let is_at = |node: &u32| self.nodes.at(*node).start == start;
        let found = self.used.find_entry(hash(start), is_at);
        let (node, _) = found.ok()?.remove();
        self.used_bytes = self.used_bytes.saturating_sub(self.nodes.at(node).size);
        let joined = self.release(node, lot)?;
        Some(self.nodes.is_alone(joined))
    }

    /// Frees a node that is in no bins, and joins it with its neighbours. Returns
    /// the node that it is part of then.
    fn release(&mut self, id: u32, lot: Lot) -> Option<u32> {
        let Self { nodes, lots, .. } = self;
        let bins = lots.get_mut(lot.index())?;
        let &Node {
            start,
            size,
            before,
            after,
            ..
        } = nodes.at(id);
        let (low, high) = (nodes.at(before), nodes.at(after));
        let (low_start, low_size, high_size) = (low.start, low.size, high.size);
        let joined = match (low.free == Some(lot), high.free == Some(lot)) {
            (false, false) => {
                bins.enter(nodes, id, lot);
                return Some(id);
            }
            (true, false) => {
                bins.change(nodes, before, low_start, low_size.wrapping_add(size));
                before
            }
            (false, true) => {
                bins.change(nodes, after, start, size.wrapping_add(high_size));
                after
            }
            (true, true) => {
                bins.leave(nodes, after);
                nodes.remove(after);
                let size = low_size.wrapping_add(size).wrapping_add(high_size);
                bins.change(nodes, before, low_start, size);
                before
            }
        };
        nodes.remove(id);
        Some(joined)
    }

    /// A new lot, empty. `None` if there are too many.
    pub(crate) fn new_lot(&mut self) -> Option<Lot> {
        if let Some(lot) = self.vacant_lots.pop() {
            return Some(lot);
        }
        let number = u32::try_from(self.lots.len().checked_add(1)?).ok()?;
        let lot = NonZeroU32::new(number).map(Lot)?;
        self.lots.push(Bins::default());
        Some(lot)
    }

    /// Gives all of a lot to everybody; it is no more.
    pub(crate) fn open(&mut self, lot: Lot) {
        let Some(bins) = self.lots.get_mut(lot.index()) else {
            return;
        };
        for node in bins.drain(&mut self.nodes) {
            self.release(node, Self::COMMON);
        }
        self.vacant_lots.push(lot);
    }

    /// The free bytes of a lot.
    pub(crate) fn bytes_of(&self, lot: Lot) -> usize {
        self.lots.get(lot.index()).map_or(0, Bins::bytes)
    }

    /// The size of the largest free block of a lot.
    pub(crate) fn largest_of(&self, lot: Lot) -> usize {
        let bins = self.lots.get(lot.index());
        let largest = bins.and_then(|bins| bins.largest(&self.nodes));
        largest.map_or(0, |largest| self.nodes.at(largest).size)
    }

    /// The size of the block in use that starts there, or `None` if none does.
    pub(crate) fn size_of(&self, start: usize) -> Option<usize> {
        let is_at = |node: &u32| self.nodes.at(*node).start == start;
        let node = self.used.find(hash(start), is_at)?;
        Some(self.nodes.at(*node).size)
    }

    /// Whether an address is in one of the segments.
    pub(crate) fn covers(&self, address: usize) -> bool {
        let mut segments = self.segments.iter().flatten();
        segments.any(|extent| {
            let offset = address.checked_sub(extent.start);
            offset.is_some_and(|offset| offset < extent.size)
        })
    }

    /// The bytes in use.
    pub(crate) fn used_bytes(&self) -> usize {
        self.used_bytes
    }

    /// How many segments there are.
    pub(crate) fn segments(&self) -> usize {
        self.segments.iter().flatten().count()
    }

    fn extent(&self, segment: Segment) -> Option<&Extent<B>> {
        self.segments.get(index(segment.0))?.as_ref()
    }

    /// The node that is all of a segment, if it is free for everybody.
    fn whole_of(&self, extent: &Extent<B>) -> Option<u32> {
        let first = self.nodes.at(extent.edge).after;
        let is_free = self.nodes.at(first).free == Some(Self::COMMON);
        (is_free && self.nodes.is_alone(first)).then_some(first)
    }
}

/// How many bytes of a free block stay free below `size` bytes that start at a multiple
/// of `align`, as near to an end of it as can be. `None` if it does not hold them so.
#[inline]
fn padding(free: &Node, size: usize, align: usize, end: End) -> Option<usize> {
    let below = align.wrapping_sub(1);
    let room = free.size.checked_sub(size)?;
    let padding = match end {
        End::Low => free.start.wrapping_neg() & below,
        End::High => room.checked_sub(free.start.wrapping_add(room) & below)?,
    };
    (padding <= room).then_some(padding)
}

/// Hashes an address by multiplication. Addresses are chosen by allocators, not by
/// anybody who would want them to collide.
#[inline]
fn hash(address: usize) -> u64 {
    const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;
    let word = u64::try_from(address).unwrap_or(0);
    let product = word.wrapping_mul(MULTIPLIER);
    product ^ product.wrapping_shr(32)
}

#[cfg(test)]
mod tests;
