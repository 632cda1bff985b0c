//! Which addresses of some segments are free, and where a block fits best.
//!
//! Rank 0. Imports nothing from this crate.
//!
//! It knows numbers only and touches no memory. Free neighbours are one block at
//! once, unless they are of different [`Lot`]s: memory that not everybody may use
//! yet. Taking the best fit and giving back cost the logarithm of the number of
//! free blocks of about one size; the tables grow by doubling.

mod bins;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use bins::Bins;

/// Who may use free memory. Blocks of one lot are found and joined together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lot(u32);

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
    nodes: Vec<Node>,
    vacant: Vec<u32>,
    used: HashMap<usize, u32, BuildHasherDefault<AddressHasher>>,
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
    /// The node at its start. Splitting and joining keep the lower node, so this
    /// never changes.
    first: u32,
}

/// A block, in the order of addresses.
#[derive(Clone, Copy, Debug)]
struct Node {
    start: usize,
    size: usize,
    before: u32,
    after: u32,
    segment: Segment,
    /// Of whom it is, if it is free.
    free: Option<Lot>,
}

/// No node.
const NONE: u32 = u32::MAX;

/// What lies beyond the ends of a segment: never free, so never joined.
const EDGE: Node = Node {
    start: 0,
    size: 0,
    before: NONE,
    after: NONE,
    segment: Segment(u32::MAX),
    free: None,
};

impl<B: Copy> FreeSpace<B> {
    /// The lot that everybody may use.
    pub(crate) const COMMON: Lot = Lot(0);

    /// No segments. All sizes, and all alignments below it, are multiples of
    /// `1 << unit_log2`.
    pub(crate) fn new(unit_log2: u32) -> Self {
        Self {
            unit_log2,
            nodes: Vec::new(),
            vacant: Vec::new(),
            used: HashMap::default(),
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
        let first = self.new_node(Node {
            start,
            size,
            segment,
            free: Some(Self::COMMON),
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
        self.enter(first);
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
        self.vacant.push(extent.first);
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
        let bins = self.lots.get(index(lot.0))?;
        let unit = 1_usize.wrapping_shl(self.unit_log2);
        let (free, padding) = if align <= unit {
            let (_, _, free) = bins.best(self.unit_log2, size)?;
            (free, 0)
        } else {
            let mut candidates = bins.from(self.unit_log2, size);
            candidates.find_map(|&(available, start, free)| {
                let padding = start.checked_next_multiple_of(align)?.checked_sub(start)?;
                (padding.checked_add(size)? <= available).then_some((free, padding))
            })?
        };
        self.carve(free, padding, size)
    }

    /// Makes a free node one of `size` bytes in use after `padding` free ones.
    fn carve(&mut self, free: u32, padding: usize, size: usize) -> Option<Taken<B>> {
        // What can fail comes before what changes anything.
        self.reserve_nodes(2)?;
        self.leave(free);
        let block = if padding > 0 {
            let block = self.split(free, padding)?;
            self.enter(free);
            block
        } else {
            free
        };
        if self.node(block).size > size {
            let rest = self.split(block, size)?;
            self.enter(rest);
        }
        self.update(block, |node| node.free = None);
        let Node { start, segment, .. } = self.node(block);
        self.used.insert(start, block);
        self.used_bytes = self.used_bytes.saturating_add(size);
        let extent = self.extent(segment)?;
        Some(Taken {
            base: extent.base,
            offset: start.checked_sub(extent.start)?,
        })
    }

    /// Gives a block back, for those of a lot. Returns whether nothing of its
    /// segment is in use any more, or `None` if no block starts there.
    pub(crate) fn give(&mut self, start: usize, lot: Lot) -> Option<bool> {
        let node = self.used.remove(&start)?;
        self.used_bytes = self.used_bytes.saturating_sub(self.node(node).size);
        let joined = self.release(node, lot);
        let joined = self.node(joined);
        Some(joined.before == NONE && joined.after == NONE)
    }

    /// Frees a node that is in no bins, and joins it with its neighbours. Returns
    /// the node that it is part of then.
    fn release(&mut self, node: u32, lot: Lot) -> u32 {
        let mut node = node;
        let Node { before, after, .. } = self.node(node);
        self.update(node, |node| node.free = Some(lot));
        if self.node(after).free == Some(lot) {
            self.leave(after);
            self.join(node, after);
        }
        if self.node(before).free == Some(lot) {
            self.leave(before);
            self.join(before, node);
            node = before;
        }
        self.enter(node);
        node
    }

    /// A new lot, empty. `None` if there are too many.
    pub(crate) fn new_lot(&mut self) -> Option<Lot> {
        if let Some(lot) = self.vacant_lots.pop() {
            return Some(lot);
        }
        let lot = Lot(u32::try_from(self.lots.len()).ok()?);
        self.lots.push(Bins::default());
        Some(lot)
    }

    /// Gives all of a lot to everybody; it is no more.
    pub(crate) fn open(&mut self, lot: Lot) {
        let Some(bins) = self.lots.get_mut(index(lot.0)) else {
            return;
        };
        for (_, _, node) in bins.drain() {
            self.release(node, Self::COMMON);
        }
        self.vacant_lots.push(lot);
    }

    /// The free bytes of a lot.
    pub(crate) fn bytes_of(&self, lot: Lot) -> usize {
        self.lots.get(index(lot.0)).map_or(0, Bins::bytes)
    }

    /// The size of the largest free block of a lot.
    pub(crate) fn largest_of(&self, lot: Lot) -> usize {
        let bins = self.lots.get(index(lot.0));
        bins.and_then(Bins::largest).map_or(0, |(size, _, _)| size)
    }

    /// The size of the block in use that starts there, or `None` if none does.
    pub(crate) fn size_of(&self, start: usize) -> Option<usize> {
        let node = self.used.get(&start)?;
        Some(self.node(*node).size)
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
        let first = self.node(extent.first);
        first.free == Some(Self::COMMON) && first.size == extent.size
    }

    fn node(&self, node: u32) -> Node {
        self.nodes.get(index(node)).copied().unwrap_or(EDGE)
    }

    fn update(&mut self, node: u32, change: impl FnOnce(&mut Node)) {
        if let Some(node) = self.nodes.get_mut(index(node)) {
            change(node);
        }
    }

    fn new_node(&mut self, node: Node) -> Option<u32> {
        self.reserve_nodes(1)?;
        let id = self.vacant.pop()?;
        self.update(id, |place| *place = node);
        Some(id)
    }

    /// Makes sure that so many nodes are vacant.
    fn reserve_nodes(&mut self, count: usize) -> Option<()> {
        while self.vacant.len() < count {
            let id = u32::try_from(self.nodes.len()).ok()?;
            if id == NONE {
                return None;
            }
            self.nodes.push(EDGE);
            self.vacant.push(id);
        }
        Some(())
    }

    /// Puts a free node into the bins of its lot.
    fn enter(&mut self, id: u32) {
        let node = self.node(id);
        let bins = node.free.and_then(|lot| self.lots.get_mut(index(lot.0)));
        if let Some(bins) = bins {
            bins.insert(self.unit_log2, (node.size, node.start, id));
        }
    }

    /// Takes a free node out of the bins of its lot.
    fn leave(&mut self, id: u32) {
        let node = self.node(id);
        let bins = node.free.and_then(|lot| self.lots.get_mut(index(lot.0)));
        if let Some(bins) = bins {
            bins.remove(self.unit_log2, (node.size, node.start, id));
        }
    }

    /// Divides a node after `size` bytes, and returns the upper part.
    fn split(&mut self, lower: u32, size: usize) -> Option<u32> {
        let whole = self.node(lower);
        let upper = self.new_node(Node {
            start: whole.start.checked_add(size)?,
            size: whole.size.checked_sub(size)?,
            before: lower,
            ..whole
        })?;
        self.update(lower, |node| {
            node.size = size;
            node.after = upper;
        });
        self.update(whole.after, |node| node.before = upper);
        Some(upper)
    }

    /// Makes two neighbours one, which is the lower.
    fn join(&mut self, lower: u32, upper: u32) {
        let Node { size, after, .. } = self.node(upper);
        self.update(lower, |node| {
            node.size = node.size.saturating_add(size);
            node.after = after;
        });
        self.update(after, |node| node.before = lower);
        self.vacant.push(upper);
    }
}

/// A number as an index.
fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Hashes one address by multiplication. Addresses are chosen by allocators, not
/// by anybody who would want them to collide.
#[derive(Debug, Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_usize(&mut self, address: usize) {
        self.write_u64(u64::try_from(address).unwrap_or(0));
    }

    fn write_u64(&mut self, word: u64) {
        const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;
        let product = (self.0 ^ word).wrapping_mul(MULTIPLIER);
        self.0 = product ^ product.wrapping_shr(32);
    }
}

#[cfg(test)]
mod tests;
