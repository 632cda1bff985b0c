//! Where blocks are: promises 2 to 4.
//!
//! Rank 8. Part of `testing::conformance`.

use super::block::Block;
use super::report::{Failure, Promise};
use super::suite::{Random, Suite, pattern};
use crate::device::DeviceIndex;

/// Sizes at and around those at which allocators change their ways.
const SIZES: [usize; 16] = [
    1, 2, 3, 7, 63, 64, 65, 255, 256, 511, 4095, 4096, 4097, 65_537, 1_048_575, 1_048_577,
];

/// How many blocks are live at one time.
const MANY: usize = 64;

/// Blocks of every alignment have it, and can be used to their last byte.
pub(super) fn alignments(suite: &Suite<'_>, index: DeviceIndex) -> Result<(), Failure> {
    let aligns = (0..usize::BITS)
        .filter_map(|exponent| 1_usize.checked_shl(exponent))
        .take_while(|align| *align <= suite.options.max_align);
    for align in aligns {
        for size in [1, 3, 100] {
            let (Some(one), Some(two)) = (
                suite.block_if_aligned(size, align, index)?,
                suite.block_if_aligned(size, align, index)?,
            ) else {
                continue;
            };
            let (first, second) = (pattern(size, 1), pattern(size, 2));
            one.write(0, &first)?;
            two.write(0, &second)?;
            disjoint([&one, &two])?;
            one.expect(0, &first, Promise::Disjointness, "after a write to another")?;
            two.expect(0, &second, Promise::Completion, "after it was written")?;
            one.free()?;
            two.free()?;
        }
    }
    Ok(())
}

/// Blocks of many sizes hold what is written to all of them.
pub(super) fn sizes(suite: &Suite<'_>, index: DeviceIndex) -> Result<(), Failure> {
    let max = suite.options.max_size;
    let sizes = SIZES.into_iter().filter(|size| *size < max);
    for size in sizes.chain([max]) {
        let block = suite.block(size, 64, index)?;
        let bytes = pattern(size, 3);
        block.write(0, &bytes)?;
        block.expect(0, &bytes, Promise::Completion, "after it was written")?;
        block.free()?;
    }
    Ok(())
}

/// Many blocks do not overlap, and keep their bytes while others come and go.
pub(super) fn many(suite: &Suite<'_>, index: DeviceIndex) -> Result<(), Failure> {
    let mut random = Random::new(4);
    let mut blocks: Vec<(Block<'_>, u64)> = Vec::new();
    for round in 0..4_u64 {
        while blocks.len() < MANY {
            let size = random.below(4096).saturating_add(1);
            let exponent = u32::try_from(random.below(13)).unwrap_or(0);
            let align = 1_usize.checked_shl(exponent).unwrap_or(1);
            let align = align.min(suite.options.refusable_align.unwrap_or(align).max(1));
            let block = suite.block(size, align, index)?;
            let seed = random.next();
            block.write(0, &pattern(size, seed))?;
            blocks.push((block, seed));
        }
        disjoint(blocks.iter().map(|(block, _)| block))?;
        for (block, seed) in &blocks {
            let bytes = pattern(block.size(), *seed);
            let when = "after others were allocated, written and given back";
            block.expect(0, &bytes, Promise::Validity, when)?;
        }
        // Every other one goes, then the rest from the front.
        let mut position = 0_u64;
        let (gone, kept): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|_| {
            position = position.wrapping_add(1);
            round == 3 || position.wrapping_add(round) & 1 == 0
        });
        blocks = kept;
        for (block, _) in gone {
            block.free()?;
        }
    }
    Ok(())
}

/// Checks the addresses of live blocks of one device.
pub(super) fn disjoint<'a>(blocks: impl IntoIterator<Item = &'a Block<'a>>) -> Result<(), Failure> {
    let mut blocks: Vec<_> = blocks.into_iter().collect();
    blocks.sort_by_key(|block| block.ptr());
    for (low, high) in blocks.iter().zip(blocks.iter().skip(1)) {
        if low.ptr().addr().saturating_add(low.size()) > high.ptr().addr() {
            let what = format!(
                "{} bytes at {} and {} bytes at {}",
                low.size(),
                low.ptr(),
                high.size(),
                high.ptr()
            );
            return Err(low.failure(Promise::Disjointness, what));
        }
    }
    Ok(())
}
