//! Blocks whose alignment the driver does not give.
//!
//! Rank 4. Part of `backend::cuda`. Imports the words.
//!
//! The driver aligns to 256 bytes. For more, a larger block is allocated and an
//! aligned address in it handed out; where the block starts is kept here until
//! it is freed. Nothing is kept, and no lock taken, for other blocks.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::layout::DeviceLayout;

/// Where the blocks start that aligned addresses lie in.
#[derive(Debug, Default)]
pub(super) struct Overaligned {
    starts: Mutex<HashMap<u64, u64>>,
}

impl Overaligned {
    /// The alignment that the driver gives to every block.
    pub(super) const NATURAL_ALIGN: usize = 256;

    /// Whether anything is kept of blocks with this layout.
    #[inline]
    pub(super) fn keeps(layout: DeviceLayout) -> bool {
        layout.align_log2() > Self::NATURAL_ALIGN.trailing_zeros()
    }

    /// The bytes to ask the driver for.
    #[inline]
    pub(super) fn size_to_allocate(layout: DeviceLayout) -> Option<usize> {
        if !Self::keeps(layout) {
            return Some(layout.size());
        }
        layout
            .size()
            .checked_add(layout.align().saturating_sub(Self::NATURAL_ALIGN))
    }

    /// The address to hand out for a block that starts at `start`.
    #[inline]
    pub(super) fn hand_out(&self, start: u64, layout: DeviceLayout) -> u64 {
        if !Self::keeps(layout) {
            return start;
        }
        let aligned = u64::try_from(layout.align())
            .ok()
            .and_then(|align| start.checked_next_multiple_of(align))
            .unwrap_or(start);
        self.starts.lock().insert(aligned, start);
        aligned
    }

    /// Where the block starts that `ptr` was handed out for, which is forgotten:
    /// once it is freed, the address may be another's.
    #[inline]
    pub(super) fn take_back(&self, ptr: u64, layout: DeviceLayout) -> u64 {
        if !Self::keeps(layout) {
            return ptr;
        }
        self.starts.lock().remove(&ptr).unwrap_or(ptr)
    }

    /// Keeps again where a block starts, after it could not be freed.
    #[cold]
    pub(super) fn put_back(&self, ptr: u64, start: u64, layout: DeviceLayout) {
        if Self::keeps(layout) {
            self.starts.lock().insert(ptr, start);
        }
    }
}
