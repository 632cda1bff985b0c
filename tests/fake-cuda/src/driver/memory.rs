//! The memory of one device: which addresses are allocated, and what they hold.

use std::collections::{BTreeMap, VecDeque};

use super::address::Range;
use super::block::{Block, Retired};
use super::code::{Code, Done};

/// What the documentation promises for the addresses of allocations.
const ALIGN: u64 = 256;

/// Addresses between two blocks that belong to none.
const RED_ZONE: u64 = 512;

/// How many freed blocks are remembered, to name them in reports.
const REMEMBERED: usize = 4096;

/// The fewest addresses of a device, for one that a test makes larger later.
const MIN_RANGE: usize = 64 << 30;

/// The most addresses of a device.
const MAX_RANGE: usize = 4 << 40;

/// The memory of one device.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) range: Range,
    /// By address.
    pub(super) blocks: BTreeMap<u64, Block>,
    /// The bytes of blocks that are in no pool.
    pub(super) unpooled: usize,
    /// The most bytes allocated at one time, in pools or not.
    pub(super) peak: usize,
    /// The bytes of all blocks.
    pub(super) live: usize,
    retired: VecDeque<Retired>,
    /// Addresses of freed blocks by rounded size, the last freed last.
    spots: BTreeMap<u64, Vec<u64>>,
    bump: u64,
}

/// What an address leads to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) base: u64,
    pub(super) id: u64,
    pub(super) offset: usize,
    pub(super) size: usize,
}

impl Memory {
    pub(super) fn new(total: usize) -> Done<Self> {
        let len = total.saturating_mul(2).clamp(MIN_RANGE, MAX_RANGE);
        Ok(Self {
            range: Range::reserve(len.next_power_of_two())?,
            blocks: BTreeMap::new(),
            unpooled: 0,
            peak: 0,
            live: 0,
            retired: VecDeque::new(),
            spots: BTreeMap::new(),
            bump: 0,
        })
    }

    /// Puts a block at a free address, which it returns.
    pub(super) fn insert(&mut self, block: Block, reuse: bool) -> Done<u64> {
        let rounded = round(block.size);
        let recycled = if reuse {
            self.spots.get_mut(&rounded).and_then(Vec::pop)
        } else {
            None
        };
        let base = match recycled {
            Some(base) => base,
            None => self.fresh(rounded)?,
        };
        self.live += block.size;
        self.peak = self.peak.max(self.live);
        self.blocks.insert(base, block);
        Ok(base)
    }

    /// Takes a block out.
    pub(super) fn remove(&mut self, base: u64, reuse: bool) -> Option<Block> {
        let block = self.blocks.remove(&base)?;
        self.live -= block.size;
        if self.retired.len() == REMEMBERED {
            self.retired.pop_front();
        }
        self.retired.push_back(Retired {
            base,
            size: block.size,
            id: block.id,
        });
        if reuse {
            let rounded = round(block.size);
            self.spots.entry(rounded).or_default().push(base);
        }
        Some(block)
    }

    /// The block around an address.
    pub(super) fn find(&self, addr: u64) -> Option<Found> {
        let (base, block) = self.blocks.range(..=addr).next_back()?;
        let offset = usize::try_from(addr - base).ok()?;
        (offset < block.size).then_some(Found {
            base: *base,
            id: block.id,
            offset,
            size: block.size,
        })
    }

    /// The block of `id`, if it is there still.
    pub(super) fn block(&self, base: u64, id: u64) -> Option<&Block> {
        self.blocks.get(&base).filter(|block| block.id == id)
    }

    /// The same, to change it.
    pub(super) fn block_mut(&mut self, base: u64, id: u64) -> Option<&mut Block> {
        self.blocks.get_mut(&base).filter(|block| block.id == id)
    }

    /// The block that was around an address last.
    pub(super) fn find_retired(&self, addr: u64) -> Option<Retired> {
        let mut newest_first = self.retired.iter().rev();
        newest_first.find(|block| block.contains(addr)).copied()
    }

    /// An address that was not used before, or not for as long as possible.
    fn fresh(&mut self, rounded: u64) -> Done<u64> {
        // Odd multiples of the promised alignment, so that nothing comes to
        // rely on a better one.
        let step = |at: u64| at + RED_ZONE + rounded;
        let end = self.range.len();
        if step(self.bump) > end {
            self.bump = self.first_gap(rounded).ok_or(Code::OUT_OF_MEMORY)?;
        }
        let base = self.range.base() + self.bump + ALIGN;
        let taken = self.blocks.range(..base + rounded).next_back();
        if taken.is_some_and(|(at, block)| at + block.size as u64 > base) {
            self.bump = self.first_gap(rounded).ok_or(Code::OUT_OF_MEMORY)?;
            return self.fresh(rounded);
        }
        self.bump = step(self.bump);
        Ok(base)
    }

    /// The offset of the first gap between blocks with room for one of `rounded`
    /// bytes and its red zone.
    fn first_gap(&self, rounded: u64) -> Option<u64> {
        let mut at = 0;
        for (base, block) in &self.blocks {
            let start = base - self.range.base() - ALIGN;
            if start.saturating_sub(at) >= rounded + RED_ZONE {
                return Some(at);
            }
            at = start + round(block.size) + RED_ZONE;
        }
        (at + rounded + RED_ZONE <= self.range.len()).then_some(at)
    }
}

/// The addresses that a block of `size` bytes takes.
fn round(size: usize) -> u64 {
    (size as u64).max(1).next_multiple_of(2 * ALIGN)
}
