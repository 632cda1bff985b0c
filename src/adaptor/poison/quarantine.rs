//! Freed blocks that are kept from reuse.
//!
//! Rank 4. Part of `adaptor::poison`. Imports the words.

use std::collections::VecDeque;

use crate::address::DevicePtr;
use crate::layout::DeviceLayout;
use crate::observe::Block;

/// A block that was freed, and the block below that it lies in.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) block: Block,
    pub(super) below: DevicePtr,
    pub(super) layout_below: DeviceLayout,
}

/// The freed blocks of one device, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Quarantine {
    kept: VecDeque<Kept>,
    bytes: usize,
}

impl Quarantine {
    pub(super) fn push(&mut self, kept: Kept) {
        self.bytes = self.bytes.saturating_add(kept.layout_below.size());
        self.kept.push_back(kept);
    }

    /// The oldest block, if more than `bytes` are kept.
    pub(super) fn pop_above(&mut self, bytes: usize) -> Option<Kept> {
        if self.bytes <= bytes {
            return None;
        }
        let kept = self.kept.pop_front()?;
        self.bytes = self.bytes.saturating_sub(kept.layout_below.size());
        Some(kept)
    }
}
