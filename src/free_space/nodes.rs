//! The blocks of all segments, in the order of their addresses.
//!
//! Rank 0. Part of `free_space`.

use super::{Lot, Segment};

/// A block: where it is, and what is beside it. In one line of the cache, for blocks that
/// are looked at after each other are seldom beside each other in the table.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Node {
    pub(super) start: usize,
    pub(super) size: usize,
    /// The neighbours by address.
    pub(super) before: u32,
    pub(super) after: u32,
    /// Its neighbours by size, if it is the first of its size in a list.
    pub(super) smaller: u32,
    pub(super) larger: u32,
    /// Others of its size in the same set.
    pub(super) twin_before: u32,
    pub(super) twin_after: u32,
    pub(super) segment: Segment,
    /// Of whom it is, if it is free.
    pub(super) free: Option<Lot>,
}

/// No node.
pub(super) const NONE: u32 = u32::MAX;

/// What lies beyond the ends of a segment: never free, so never joined.
pub(super) static EDGE: Node = Node {
    start: 0,
    size: 0,
    before: NONE,
    after: NONE,
    smaller: NONE,
    larger: NONE,
    twin_before: NONE,
    twin_after: NONE,
    segment: Segment(u32::MAX),
    free: None,
};

/// A table of nodes, by number.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    table: Vec<Node>,
    vacant: Vec<u32>,
}

impl Nodes {
    #[inline]
    pub(super) fn at(&self, node: u32) -> &Node {
        self.table.get(index(node)).unwrap_or(&EDGE)
    }

    /// Changes a node, if there is one.
    #[inline]
    pub(super) fn update(&mut self, node: u32, change: impl FnOnce(&mut Node)) {
        if let Some(node) = self.table.get_mut(index(node)) {
            change(node);
        }
    }

    /// Makes sure that so many nodes are vacant. `None` if there can not be more.
    #[inline]
    pub(super) fn reserve(&mut self, count: usize) -> Option<()> {
        if self.vacant.len() >= count {
            return Some(());
        }
        self.grow(count)
    }

    #[cold]
    fn grow(&mut self, count: usize) -> Option<()> {
        while self.vacant.len() < count {
            let id = u32::try_from(self.table.len()).ok()?;
            if id == NONE {
                return None;
            }
            self.table.push(EDGE);
            self.vacant.push(id);
        }
        Some(())
    }

    /// A new node between the end and the start of a segment.
    pub(super) fn add_edge(&mut self, segment: Segment) -> Option<u32> {
        let id = self.vacant.pop()?;
        self.update(id, |place| {
            *place = Node {
                before: id,
                after: id,
                segment,
                ..EDGE
            };
        });
        Some(id)
    }

    /// A new node after another, in no bins. `None` if none is vacant.
    #[inline]
    pub(super) fn add_after(&mut self, before: u32, start: usize, size: usize) -> Option<u32> {
        let id = self.vacant.pop()?;
        let &Node { after, segment, .. } = self.at(before);
        self.update(id, |place| {
            (place.start, place.size) = (start, size);
            (place.before, place.after) = (before, after);
            place.segment = segment;
            place.free = None;
        });
        self.update(before, |before| before.after = id);
        self.update(after, |after| after.before = id);
        Some(id)
    }

    /// Takes a node away from between its neighbours.
    #[inline]
    pub(super) fn remove(&mut self, id: u32) {
        let &Node { before, after, .. } = self.at(id);
        self.update(before, |before| before.after = after);
        self.update(after, |after| after.before = before);
        self.vacant.push(id);
    }

    /// Whether a node is all of its segment.
    #[inline]
    pub(super) fn is_alone(&self, id: u32) -> bool {
        let node = self.at(id);
        node.before == node.after
    }

    /// How many nodes there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.table.len() - self.vacant.len()
    }
}

/// A number as an index.
#[inline]
pub(super) fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
