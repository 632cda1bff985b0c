//! The blocks of one fake device.
//!
//! Rank 8. Part of `testing::fake_device`. Imports the words.
//!
//! Blocks lie as awkwardly as the contract allows: aligned to what was asked
//! and to no more, with a gap around each.

use std::backtrace::Backtrace;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::addresses::SLOT_SIZE;
use super::contents::Contents;
use super::queue::Queue;
use super::violations::Misuse;
use crate::address::DevicePtr;
use crate::layout::DeviceLayout;

/// The least number of bytes between two blocks.
const GAP: usize = 128;

/// How many blocks that were given back are remembered, and for reuse, tried.
const FREED_KEPT: usize = 1 << 16;
const REUSE_TRIED: usize = 64;

/// One device: its blocks by address, live and gone.
pub(super) struct Memory {
    base: usize,
    /// The first address after all blocks there ever were.
    unused: usize,
    pub(super) blocks: BTreeMap<usize, Block>,
    freed: BTreeMap<usize, Freed>,
    /// Addresses that were given back and may be reused, the latest last.
    reusable: Vec<usize>,
    pub(super) in_use: usize,
    pub(super) queue: Queue,
}

/// A live block.
pub(super) struct Block {
    pub(super) layout: DeviceLayout,
    /// The number of the call that allocated it.
    pub(super) allocated: u64,
    pub(super) contents: Contents,
}

/// A block that was given back.
struct Freed {
    size: usize,
    allocated: u64,
    freed: u64,
    freed_at: Arc<Backtrace>,
}

/// A place in a live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    /// The address of the block.
    pub(super) block: usize,
    pub(super) offset: usize,
}

impl Memory {
    pub(super) fn new(base: usize) -> Self {
        Self {
            base,
            unused: base,
            blocks: BTreeMap::new(),
            freed: BTreeMap::new(),
            reusable: Vec::new(),
            in_use: 0,
            queue: Queue::default(),
        }
    }

    /// Makes a block, or `None` if no address is left for it.
    pub(super) fn insert(
        &mut self,
        layout: DeviceLayout,
        reuse: bool,
        allocated: u64,
    ) -> Option<DevicePtr> {
        let addr = self.place(layout, reuse)?;
        let ptr = DevicePtr::from_addr(addr)?;
        let end = addr.checked_add(layout.size())?;
        self.forget_freed(addr, end);
        self.unused = self.unused.max(end);
        self.in_use = self.in_use.saturating_add(layout.size());
        let contents = Contents::fresh(layout.size());
        let block = Block {
            layout,
            allocated,
            contents,
        };
        self.blocks.insert(addr, block);
        Some(ptr)
    }

    /// Gives the block at `ptr` back, after all work that was queued on it.
    pub(super) fn remove(&mut self, ptr: DevicePtr, freed: u64, freed_at: &Arc<Backtrace>) {
        let addr = ptr.addr();
        self.queue.settle(addr, &mut self.blocks);
        let Some(block) = self.blocks.remove(&addr) else {
            return;
        };
        let size = block.layout.size();
        self.in_use = self.in_use.saturating_sub(size);
        let freed = Freed {
            size,
            allocated: block.allocated,
            freed,
            freed_at: Arc::clone(freed_at),
        };
        self.freed.insert(addr, freed);
        if self.freed.len() > FREED_KEPT {
            self.freed.pop_first();
        }
        if self.reusable.len() >= REUSE_TRIED {
            self.reusable.remove(0);
        }
        self.reusable.push(addr);
    }

    /// The block that `ptr` is the start of.
    pub(super) fn block(&self, ptr: DevicePtr) -> Result<&Block, Misuse> {
        if let Some(block) = self.blocks.get(&ptr.addr()) {
            return Ok(block);
        }
        if let Some((block, _)) = self.block_around(ptr) {
            return Err(Misuse::NotTheStart { ptr, block });
        }
        Err(match self.freed.get(&ptr.addr()) {
            Some(freed) => Misuse::DoubleFree {
                ptr,
                allocated: freed.allocated,
                freed: freed.freed,
                freed_at: Arc::clone(&freed.freed_at),
            },
            None => self.gone(ptr),
        })
    }

    /// Where `size` bytes from `ptr` are, which must be in one block.
    pub(super) fn spot(&self, ptr: DevicePtr, size: usize) -> Result<Spot, Misuse> {
        let Some((start, block)) = self.block_around(ptr) else {
            return Err(self.gone(ptr));
        };
        let offset = ptr.addr().saturating_sub(start.addr());
        let len = block.layout.size();
        if offset.checked_add(size).is_some_and(|end| end <= len) {
            return Ok(Spot {
                block: start.addr(),
                offset,
            });
        }
        let end = ptr.addr().saturating_add(size);
        let next = self.blocks.range(start.addr().saturating_add(1)..).next();
        let next = next.and_then(|(addr, _)| DevicePtr::from_addr(*addr));
        Err(match next {
            Some(second) if second.addr() < end => Misuse::SpansBlocks {
                ptr,
                size,
                first: start,
                second,
            },
            _ => Misuse::OutOfBounds {
                ptr,
                size,
                block: start,
                len,
            },
        })
    }

    /// The live block that `ptr` is in.
    fn block_around(&self, ptr: DevicePtr) -> Option<(DevicePtr, &Block)> {
        let (addr, block) = self.blocks.range(..=ptr.addr()).next_back()?;
        let inside = ptr.addr().saturating_sub(*addr) < block.layout.size();
        inside.then_some((DevicePtr::from_addr(*addr)?, block))
    }

    /// What using `ptr` is, which is in no live block.
    fn gone(&self, ptr: DevicePtr) -> Misuse {
        match self.freed.range(..=ptr.addr()).next_back() {
            Some((addr, freed)) if ptr.addr().saturating_sub(*addr) < freed.size => {
                Misuse::UseAfterFree {
                    ptr,
                    allocated: freed.allocated,
                    freed: freed.freed,
                    freed_at: Arc::clone(&freed.freed_at),
                }
            }
            _ => Misuse::Foreign { ptr },
        }
    }

    /// An address for a block. Fresh ones are used up before old ones come again,
    /// unless the latest are to be reused first.
    fn place(&mut self, layout: DeviceLayout, reuse: bool) -> Option<usize> {
        if reuse {
            for position in (0..self.reusable.len()).rev() {
                let addr = self.reusable.get(position).copied()?;
                if addr & layout.align().wrapping_sub(1) == 0 && self.fits(addr, layout.size()) {
                    self.reusable.remove(position);
                    return Some(addr);
                }
            }
        }
        let fresh = self.awkward(self.unused, layout.align());
        if let Some(addr) = fresh.filter(|addr| self.fits(*addr, layout.size())) {
            return Some(addr);
        }
        let ends = self
            .blocks
            .iter()
            .map(|(addr, block)| addr.saturating_add(block.layout.size()));
        std::iter::once(self.base)
            .chain(ends)
            .filter_map(|from| self.awkward(from, layout.align()))
            .find(|addr| self.fits(*addr, layout.size()))
    }

    /// The next address after `from` and a gap that is a multiple of `align` and,
    /// where possible, not of more.
    fn awkward(&self, from: usize, align: usize) -> Option<usize> {
        let addr = from.checked_add(GAP)?.checked_next_multiple_of(align)?;
        let odd = addr & align != 0;
        let addr = if odd { addr } else { addr.checked_add(align)? };
        (addr >= self.base).then_some(addr)
    }

    /// Whether `size` bytes at `addr` are this device's and in no live block, nor
    /// too near to one.
    fn fits(&self, addr: usize, size: usize) -> bool {
        let limit = self.base.saturating_add(SLOT_SIZE);
        let Some(end) = addr.checked_add(size).and_then(|end| end.checked_add(GAP)) else {
            return false;
        };
        if addr < self.base || end > limit {
            return false;
        }
        match self.blocks.range(..end).next_back() {
            Some((before, block)) => {
                let taken = before
                    .saturating_add(block.layout.size())
                    .saturating_add(GAP);
                taken <= addr
            }
            None => true,
        }
    }

    /// Forgets the blocks that were given back and lie in `addr..end`.
    fn forget_freed(&mut self, addr: usize, end: usize) {
        while let Some((start, _)) = self
            .freed
            .range(..end)
            .next_back()
            .filter(|(start, freed)| start.saturating_add(freed.size) > addr)
        {
            let start = *start;
            self.freed.remove(&start);
        }
    }
}
