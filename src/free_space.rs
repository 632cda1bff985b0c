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
use nodes::{EDGE, NONE, Node, Nodes, index};

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
/// 0. The nodes of a segment, from `first` on by `after`, cover it without gaps.
/// 1. No two neighbours are free and of one lot.
/// 2. A free node is in the bins of its lot, and no other is; a used node is in
///    `used`, and no other is.
#[derive(Debug)]
pub(crate) struct FreeSpace<B> {
    unit_log2: u32,
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
    /// The node at its start.
    first: u32,
}

/// An end of a block.
#[derive(Clone, Copy, Debug)]
enum End {
    Low,
    High,
}

impl<B: Copy> FreeSpace<B> {
    /// The lot that everybody may use.
    pub(crate) const COMMON: Lot = Lot(NonZeroU32::MIN);

    /// No segments. All sizes, and all alignments below it, are multiples of
    /// `1 << unit_log2`.
    pub(crate) fn new(unit_log2: u32) -> Self {
        Self {
            unit_log2,
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
        let first = self.nodes.add(Node {
            start,
            size,
            segment,
            ..EDGE
        })?;
        let extent = Some(Extent {
            start,
            size,
            base,
            first,
        });
        match self.segments.get_mut(number) {
            Some(place) => *place = extent,
            None => self.segments.push(extent),
        }
        self.enter(first, Self::COMMON);
        Some(segment)
    }

    /// Takes a segment away again if all of it is free for everybody, and returns
    /// what was kept of it.
    pub(crate) fn remove(&mut self, segment: Segment) -> Option<B> {
        let extent = self.extent(segment)?;
        if !self.is_whole(extent) {
            return None;
        }
        self.leave(extent.first);
        self.nodes.remove(extent.first);
        *self.segments.get_mut(index(segment.0))? = None;
        Some(extent.base)
    }

    /// The segments that are free for everybody as a whole.
    pub(crate) fn whole(&self) -> Vec<Segment> {
        let segments = (0..).map(Segment).zip(&self.segments);
        segments
            .filter(|(_, extent)| extent.is_some_and(|extent| self.is_whole(extent)))
            .map(|(segment, _)| segment)
            .collect()
    }

    /// Takes the smallest free block of a lot that holds `size` bytes from a
    /// multiple of `align` on, the rest of it staying free.
    ///
    /// For an alignment above the unit, all that are large enough may be looked
    /// at.
    pub(crate) fn take(&mut self, lot: Lot, size: usize, align: usize) -> Option<Taken<B>> {
        let bins = self.lots.get(lot.index())?;
        let unit = 1_usize.wrapping_shl(self.unit_log2);
        let (free, padding) = if align <= unit {
            (bins.best(self.unit_log2, &self.nodes, size)?, 0)
        } else {
            let mut candidates = bins.from(self.unit_log2, &self.nodes, size);
            candidates.find_map(|free| {
                let node = self.nodes.at(free);
                let aligned = node.start.checked_next_multiple_of(align)?;
                let padding = aligned.checked_sub(node.start)?;
                (padding.checked_add(size)? <= node.size).then_some((free, padding))
            })?
        };
        self.carve(free, padding, size)
    }

    /// Makes a free node one of `size` bytes in use after `padding` free ones.
    fn carve(&mut self, free: u32, padding: usize, size: usize) -> Option<Taken<B>> {
        // What can fail comes before what changes anything.
        self.nodes.reserve(2)?;
        let whole = *self.nodes.at(free);
        let lot = whole.free?;
        let extent = self.extent(whole.segment)?;
        let rest = whole.size.checked_sub(padding.checked_add(size)?)?;
        if padding > 0 && rest > 0 {
            let above = self.cut(free, End::High, rest)?;
            self.enter(above, lot);
        }
        let block = if padding > 0 {
            self.cut(free, End::High, size)?
        } else if rest > 0 {
            self.cut(free, End::Low, size)?
        } else {
            self.leave(free);
            free
        };
        let start = whole.start.checked_add(padding)?;
        let nodes = &self.nodes;
        let start_of = |node: &u32| hash(nodes.at(*node).start);
        self.used.insert_unique(hash(start), block, start_of);
        self.used_bytes = self.used_bytes.saturating_add(size);
        Some(Taken {
            base: extent.base,
            offset: start.checked_sub(extent.start)?,
        })
    }

    /// Gives a block back, for those of a lot. Returns whether nothing of its
    /// segment is in use any more, or `None` if no block starts there.
    pub(crate) fn give(&mut self, start: usize, lot: Lot) -> Option<bool> {
        let is_at = |node: &u32| self.nodes.at(*node).start == start;
        let found = self.used.find_entry(hash(start), is_at);
        let (node, _) = found.ok()?.remove();
        self.used_bytes = self.used_bytes.saturating_sub(self.nodes.at(node).size);
        let joined = self.release(node, lot);
        let joined = self.nodes.at(joined);
        Some(joined.before == NONE && joined.after == NONE)
    }

    /// Frees a node that is in no bins, and joins it with its neighbours. Returns
    /// the node that it is part of then.
    fn release(&mut self, node: u32, lot: Lot) -> u32 {
        let &Node { before, after, .. } = self.nodes.at(node);
        let is_free = |node: u32| self.nodes.at(node).free == Some(lot);
        match (is_free(before), is_free(after)) {
            (false, false) => {
                self.enter(node, lot);
                node
            }
            (true, false) => self.join(before, node),
            (false, true) => self.join(after, node),
            (true, true) => {
                self.leave(after);
                self.join(node, after);
                self.join(before, node)
            }
        }
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

    fn extent(&self, segment: Segment) -> Option<Extent<B>> {
        self.segments.get(index(segment.0)).copied().flatten()
    }

    fn is_whole(&self, extent: Extent<B>) -> bool {
        let first = self.nodes.at(extent.first);
        first.free == Some(Self::COMMON) && first.size == extent.size
    }

    /// Notes the node at the start of a segment.
    #[cold]
    fn set_first(&mut self, segment: Segment, first: u32) {
        if let Some(Some(extent)) = self.segments.get_mut(index(segment.0)) {
            extent.first = first;
        }
    }

    /// Makes a node that is in no bins a free one of a lot.
    fn enter(&mut self, id: u32, lot: Lot) {
        self.nodes.update(id, |node| node.free = Some(lot));
        if let Some(bins) = self.lots.get_mut(lot.index()) {
            bins.insert(self.unit_log2, &mut self.nodes, id);
        }
    }

    /// Takes a free node out of the bins of its lot.
    fn leave(&mut self, id: u32) {
        let lot = self.nodes.at(id).free;
        if let Some(bins) = lot.and_then(|lot| self.lots.get_mut(lot.index())) {
            bins.remove(self.unit_log2, &mut self.nodes, id);
        }
        self.nodes.update(id, |node| node.free = None);
    }

    /// Gives a node another start and size, in its bins too if it is free.
    fn change(&mut self, id: u32, start: usize, size: usize) {
        let lot = self.nodes.at(id).free;
        match lot.and_then(|lot| self.lots.get_mut(lot.index())) {
            Some(bins) => bins.change(self.unit_log2, &mut self.nodes, id, (start, size)),
            None => self
                .nodes
                .update(id, |node| (node.start, node.size) = (start, size)),
        }
    }

    /// Cuts `size` bytes off an end of a node, and returns what is there then: a
    /// node that is in no bins.
    fn cut(&mut self, from: u32, end: End, size: usize) -> Option<u32> {
        let whole = *self.nodes.at(from);
        let left = whole.size.checked_sub(size)?;
        let (before, after) = match end {
            End::Low => (whole.before, from),
            End::High => (from, whole.after),
        };
        let (start, left_start) = match end {
            End::Low => (whole.start, whole.start.checked_add(size)?),
            End::High => (whole.start.checked_add(left)?, whole.start),
        };
        let segment = whole.segment;
        let cut = self.nodes.add(Node {
            start,
            size,
            before,
            after,
            segment,
            ..EDGE
        })?;
        if before == NONE {
            self.set_first(segment, cut);
        }
        self.change(from, left_start, left);
        Some(cut)
    }

    /// Adds a node that is in no bins to a neighbour, which is returned.
    fn join(&mut self, into: u32, node: u32) -> u32 {
        let (one, other) = (*self.nodes.at(into), *self.nodes.at(node));
        self.nodes.remove(node);
        if other.before == NONE {
            self.set_first(other.segment, into);
        }
        let size = one.size.saturating_add(other.size);
        self.change(into, one.start.min(other.start), size);
        into
    }
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
