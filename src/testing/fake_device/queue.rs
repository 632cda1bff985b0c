//! Work that a fake device has taken on and not done yet.
//!
//! Rank 8. Part of `testing::fake_device`. Imports nothing from this crate.
//!
//! Work is done in the order in which it was given, and never before something
//! has to see it.

use std::collections::{BTreeMap, VecDeque};

use super::memory::{Block, Spot};

/// How much work may wait; then the oldest is done.
const DEPTH: usize = 1024;

/// The work of one device, the oldest first.
#[derive(Default)]
pub(super) struct Queue(VecDeque<Work>);

/// A change of one block.
pub(super) struct Work {
    pub(super) dst: Spot,
    pub(super) source: Source,
}

/// Where the new bytes of a block come from.
pub(super) enum Source {
    /// The host, whose bytes were read when the work was given.
    Host(Vec<u8>),
    /// One byte, over and over.
    Byte { byte: u8, len: usize },
    /// A block of the same device.
    Block { src: Spot, len: usize },
}

impl Queue {
    /// Takes on work, for later.
    pub(super) fn push(&mut self, work: Work, blocks: &mut BTreeMap<usize, Block>) {
        self.0.push_back(work);
        self.run(self.0.len().saturating_sub(DEPTH), blocks);
    }

    /// Does all work up to the last that reads or writes `block`.
    pub(super) fn settle(&mut self, block: usize, blocks: &mut BTreeMap<usize, Block>) {
        let last = self.0.iter().rposition(|work| work.touches(block));
        self.run(last.map_or(0, |last| last.saturating_add(1)), blocks);
    }

    /// Does all work.
    pub(super) fn finish(&mut self, blocks: &mut BTreeMap<usize, Block>) {
        self.run(self.0.len(), blocks);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    fn run(&mut self, count: usize, blocks: &mut BTreeMap<usize, Block>) {
        for work in self.0.drain(..count.min(self.0.len())) {
            work.run(blocks);
        }
    }
}

impl Work {
    /// Does the work now.
    pub(super) fn run(&self, blocks: &mut BTreeMap<usize, Block>) {
        let pieces = match &self.source {
            Source::Block { src, len } => blocks
                .get(&src.block)
                .map(|from| from.contents.pieces(src.offset, *len)),
            _ => None,
        };
        let Some(block) = blocks.get_mut(&self.dst.block) else {
            return;
        };
        match &self.source {
            Source::Host(bytes) => block.contents.write(self.dst.offset, bytes),
            Source::Byte { byte, len } => block.contents.fill(self.dst.offset, *len, *byte),
            Source::Block { .. } => {
                for piece in pieces.iter().flatten() {
                    block.contents.put(self.dst.offset, piece);
                }
            }
        }
    }

    fn touches(&self, block: usize) -> bool {
        let reads = matches!(&self.source, Source::Block { src, .. } if src.block == block);
        reads || self.dst.block == block
    }
}
