//! `vulkano`: its `FreeListAllocator`, a list of free blocks by size for the best
//! fit.

use vulkano::memory::DeviceAlignment;
use vulkano::memory::allocator::suballocator::{
    FreeListAllocator, Region, Suballocation, Suballocator,
};
use vulkano::memory::allocator::{AllocationType, DeviceLayout};

use crate::peer::Placer;

impl Placer for FreeListAllocator {
    type Block = Suballocation;
    const NAME: &'static str = "vulkano, free list";

    fn over(units: usize, _: usize) -> Self {
        <Self as Suballocator>::new(Region::new(0, units as u64).expect("in range"))
    }

    #[inline]
    fn place(&mut self, units: usize) -> Option<Suballocation> {
        let layout = DeviceLayout::from_size_alignment(units as u64, 1)?;
        let granularity = DeviceAlignment::MIN;
        self.allocate(layout, AllocationType::Linear, granularity)
            .ok()
    }

    fn first(block: &Suballocation) -> usize {
        block.offset as usize
    }

    #[inline]
    #[expect(unsafe_code, reason = "gives a block back")]
    fn free(&mut self, block: Suballocation) {
        // SAFETY: the block is one of this allocator's, and is given back once.
        unsafe { self.deallocate(block) }
    }
}
