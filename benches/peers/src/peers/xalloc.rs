//! `xalloc`: two-level segregated fit, in sixteenths of a doubling.

use xalloc::{SysTlsf, SysTlsfRegion};

use crate::peer::Placer;

/// A [`SysTlsf`], whose nodes are reached through pointers into its own arena.
pub(crate) struct Tlsf(SysTlsf<u64>);

// SAFETY: the nodes that the pointers lead to are the allocator's own, and move
// with it; those of a block are followed by its methods only.
#[expect(unsafe_code, reason = "the crate does not say it")]
unsafe impl Send for Tlsf {}

/// A block of a [`Tlsf`].
pub(crate) struct Block(SysTlsfRegion, u64);

// SAFETY: it is a handle, which only the allocator's methods follow.
#[expect(unsafe_code, reason = "the crate does not say it")]
unsafe impl Send for Block {}

impl Placer for Tlsf {
    type Block = Block;
    const NAME: &'static str = "xalloc, TLSF";

    fn over(units: usize, blocks: usize) -> Self {
        Self(SysTlsf::with_capacity(units as u64, 2 * blocks + 2))
    }

    #[inline]
    fn place(&mut self, units: usize) -> Option<Block> {
        let (region, first) = self.0.alloc(units as u64)?;
        Some(Block(region, first))
    }

    fn first(block: &Block) -> usize {
        block.1 as usize
    }

    #[inline]
    #[expect(unsafe_code, reason = "the crate's fast way to free")]
    fn free(&mut self, block: Block) {
        // SAFETY: the block is one of this allocator's, and is given back once.
        unsafe { self.0.dealloc_unchecked(block.0) }
    }
}
