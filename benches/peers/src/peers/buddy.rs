//! `buddy_system_allocator`: its `FrameAllocator`, which keeps its books outside
//! of the memory.

use buddy_system_allocator::FrameAllocator;

use crate::peer::Placer;

/// With orders for 2 to the power of 39 units.
pub(crate) type Frames = FrameAllocator<40>;

impl Placer for Frames {
    type Block = (usize, usize);
    const NAME: &'static str = "buddy_system_allocator";

    fn over(units: usize, _: usize) -> Self {
        let mut frames = Self::new();
        frames.add_frame(0, units);
        frames
    }

    #[inline]
    fn place(&mut self, units: usize) -> Option<(usize, usize)> {
        Some((self.alloc(units)?, units))
    }

    fn first(&(first, _): &(usize, usize)) -> usize {
        first
    }

    #[inline]
    fn free(&mut self, (first, units): (usize, usize)) {
        self.dealloc(first, units);
    }
}
