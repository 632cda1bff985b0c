//! `range-alloc`: a list of free ranges by address, searched for the best fit.

use std::ops::Range;

use range_alloc::RangeAllocator;

use crate::peer::Placer;

impl Placer for RangeAllocator<usize> {
    type Block = Range<usize>;
    const NAME: &'static str = "range-alloc";

    fn over(units: usize, _: usize) -> Self {
        Self::new(0..units)
    }

    #[inline]
    fn place(&mut self, units: usize) -> Option<Range<usize>> {
        self.allocate_range(units).ok()
    }

    fn first(block: &Range<usize>) -> usize {
        block.start
    }

    #[inline]
    fn free(&mut self, block: Range<usize>) {
        self.free_range(block);
    }
}
