//! What bytes should be, and where they are not.
//!
//! Rank 4. Part of `adaptor::poison`. Imports the words.

use std::fmt;

use crate::error::Result;
use crate::observe::Block;

/// What new memory reads as.
pub(super) const FRESH: u8 = 0xCA;
/// What red zones read as.
pub(super) const ZONE: u8 = 0xF5;
/// What freed memory reads as.
pub(super) const FREED: u8 = 0xDE;

/// How many bytes are read at a time.
const PIECE: usize = 1 << 16;

/// A byte that someone wrote who should not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage {
    /// The block that it is in or next to.
    pub block: Block,
    /// On which side of the block.
    pub region: Region,
    /// How far into the region the first such byte is.
    pub offset: usize,
    /// What it is.
    pub found: u8,
}

/// Where a byte is in relation to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Region {
    /// In the red zone before it, which ends where it begins.
    Before,
    /// In the red zone after it.
    After,
    /// In it, after it was freed.
    Freed,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let region = match self.region {
            Region::Before => "the red zone before",
            Region::After => "the red zone after",
            Region::Freed => "freed",
        };
        write!(
            f,
            "byte {} of {region} a block of {} bytes at {} on {} was overwritten with {:#04x}",
            self.offset,
            self.block.layout.size(),
            self.block.ptr,
            self.block.device,
            self.found
        )
    }
}

/// The parts of `size` bytes that are at most `depth` from an end, as offset and
/// length.
pub(super) fn ends(size: usize, depth: usize) -> impl Iterator<Item = (usize, usize)> {
    let head = size.min(depth);
    let tail = size.saturating_sub(head).min(depth);
    let parts = [(0, head), (size.saturating_sub(tail), tail)];
    parts.into_iter().filter(|(_, len)| *len > 0)
}

/// The first of `size` bytes that is not `byte`, and what it is.
pub(super) fn first_other(
    size: usize,
    byte: u8,
    mut read: impl FnMut(usize, &mut [u8]) -> Result<()>,
) -> Result<Option<(usize, u8)>> {
    let mut bytes = vec![0; size.min(PIECE)];
    let mut offset: usize = 0;
    while offset < size {
        let len = size.saturating_sub(offset).min(PIECE);
        let Some(piece) = bytes.get_mut(..len) else {
            break;
        };
        read(offset, piece)?;
        if let Some(at) = piece.iter().position(|found| *found != byte) {
            let found = piece.get(at).copied().unwrap_or(0);
            return Ok(Some((offset.saturating_add(at), found)));
        }
        offset = offset.saturating_add(len);
    }
    Ok(None)
}
