//! `offset-allocator`: sets of free blocks by size, in floating-point steps of an
//! eighth; the first of a set that is large enough.

use offset_allocator::{Allocation, Allocator};

use crate::peer::Placer;

impl Placer for Allocator {
    type Block = Allocation;
    const NAME: &'static str = "offset-allocator";

    fn over(units: usize, blocks: usize) -> Self {
        let units = u32::try_from(units).expect("32 bits of units");
        // Free blocks are nodes too, at most one more than blocks.
        let nodes = u32::try_from(2 * blocks + 2).expect("32 bits of nodes");
        Self::with_max_allocs(units, nodes)
    }

    #[inline]
    fn place(&mut self, units: usize) -> Option<Allocation> {
        self.allocate(u32::try_from(units).ok()?)
    }

    fn first(block: &Allocation) -> usize {
        block.offset as usize
    }

    #[inline]
    fn free(&mut self, block: Allocation) {
        self.free(block);
    }
}
