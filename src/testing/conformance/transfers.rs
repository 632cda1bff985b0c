//! Copies, fills and host access: promises 5 and 6.
//!
//! Rank 8. Part of `testing::conformance`.

use std::hint::black_box;

use super::report::{Failure, Promise};
use super::suite::{Suite, pattern};
use crate::device::DeviceIndex;

/// The size of the blocks that are copied within: more than a page, and odd.
const SIZE: usize = 4099;

/// Offsets and lengths within a block of `SIZE` bytes.
const RANGES: [(usize, usize); 7] = [
    (0, 1),
    (1, 3),
    (17, 1000),
    (64, 64),
    (4095, 4),
    (4098, 1),
    (0, SIZE),
];

/// When a copy returns, the host's side is no longer touched and all is done.
pub(super) fn completion(suite: &Suite<'_>, index: DeviceIndex) -> Result<(), Failure> {
    let block = suite.block(SIZE, 64, index)?;
    let bytes = pattern(SIZE, 11);

    let mut source = bytes.clone();
    let written = block.write(0, &source);
    source.fill(0xEE);
    let mut found: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
    let read = written.and_then(|()| block.read(0, &mut found));
    let arrived = found.clone();
    found.fill(0x11);
    // Whatever was put off happens here, while both sides are still there.
    let waited = suite.synchronize(index);
    black_box(&source);
    read.and(waited)?;

    let when = "after it was written and the source was used again";
    block.compare(0, &arrived, &bytes, Promise::Completion, when)?;
    let when = "in host memory that a copy had returned to";
    block.compare(0, &found, &[0x11; SIZE], Promise::Completion, when)?;
    block.expect(0, &bytes, Promise::Completion, "after synchronize")?;
    block.free()
}

/// Copies at offsets change what they name and nothing else.
pub(super) fn offsets(suite: &Suite<'_>, index: DeviceIndex) -> Result<(), Failure> {
    let block = suite.block(SIZE, 64, index)?;
    let mut model = pattern(SIZE, 21);
    block.write(0, &model)?;
    for (seed, (offset, len)) in (22..).zip(RANGES) {
        let bytes = pattern(len, seed);
        block.write(offset, &bytes)?;
        set(&mut model, offset, &bytes);
        block.expect(0, &model, Promise::Completion, "after a copy to a part")?;
        block.expect(offset, &bytes, Promise::Completion, "read as a part")?;
    }
    block.free()
}

/// Fills change what they name and nothing else.
pub(super) fn fills(suite: &Suite<'_>, index: DeviceIndex) -> Result<(), Failure> {
    let block = suite.block(SIZE, 64, index)?;
    let mut model = pattern(SIZE, 31);
    block.write(0, &model)?;
    for (byte, (offset, len)) in (0x80..).zip(RANGES) {
        block.fill(offset, len, byte)?;
        set(&mut model, offset, &vec![byte; len]);
        block.expect(0, &model, Promise::Completion, "after a fill")?;
    }
    block.free()?;

    let max = suite.options.max_size;
    let block = suite.block(max, 64, index)?;
    block.fill(0, max, 0x5A)?;
    block.expect(0, &vec![0x5A; max], Promise::Completion, "after a fill")?;
    block.free()
}

/// Copies between blocks, of one device or of two, change what they name and
/// nothing else.
pub(super) fn between(
    suite: &Suite<'_>,
    from: DeviceIndex,
    to: DeviceIndex,
) -> Result<(), Failure> {
    let source = suite.block(SIZE, 64, from)?;
    let target = suite.block(SIZE, 64, to)?;
    let bytes = pattern(SIZE, 41);
    let mut model = pattern(SIZE, 42);
    source.write(0, &bytes)?;
    target.write(0, &model)?;
    for (offset, len) in RANGES {
        // The parts lie at different places of their blocks.
        let other = SIZE.saturating_sub(offset).saturating_sub(len);
        target.copy(offset, &source, other, len)?;
        let part = bytes.iter().skip(other).take(len).copied();
        set(&mut model, offset, &part.collect::<Vec<_>>());
        let when = "after a copy between blocks";
        target.expect(0, &model, Promise::Completion, when)?;
        source.expect(0, &bytes, Promise::Validity, when)?;
    }

    // Within one block, from its end to its start.
    let half = SIZE.saturating_sub(100);
    target.copy(0, &target, half, 100)?;
    let part: Vec<u8> = model.iter().skip(half).copied().collect();
    set(&mut model, 0, &part);
    target.expect(0, &model, Promise::Completion, "after a copy within")?;
    target.free()?;
    source.free()?;
    large(suite, from, to)
}

/// The same for the largest blocks, which copies may do in pieces.
fn large(suite: &Suite<'_>, from: DeviceIndex, to: DeviceIndex) -> Result<(), Failure> {
    let max = suite.options.max_size;
    let source = suite.block(max, 64, from)?;
    let target = suite.block(max, 64, to)?;
    let bytes = pattern(max, 43);
    source.write(0, &bytes)?;
    target.fill(0, max, 0)?;
    target.copy(0, &source, 0, max)?;
    target.expect(
        0,
        &bytes,
        Promise::Completion,
        "after a copy between blocks",
    )?;
    target.free()?;
    source.free()
}

/// Where the host can use the memory itself, it sees what copies do and the
/// other way round.
#[expect(unsafe_code, reason = "see SAFETY")]
pub(super) fn host_access(suite: &Suite<'_>, index: DeviceIndex) -> Result<(), Failure> {
    if !suite.host_accessible {
        return Ok(());
    }
    let mut block = suite.block(SIZE, 64, index)?;
    // SAFETY: the memory is host accessible.
    let fresh = unsafe { block.as_mut_slice() };
    // Under a memory checker this finds bytes that are not initialized.
    black_box(fresh.iter().fold(0_u8, |all, byte| all ^ byte) == 0);

    let bytes = pattern(SIZE, 51);
    block.write(0, &bytes)?;
    // SAFETY: as above.
    let seen = unsafe { block.as_mut_slice() }.to_vec();
    let when = "as the host sees it after it was written";
    block.compare(0, &seen, &bytes, Promise::HostAccess, when)?;

    let bytes = pattern(SIZE, 52);
    // SAFETY: as above.
    let slice = unsafe { block.as_mut_slice() };
    slice.copy_from_slice(&bytes);
    let when = "after the host wrote it";
    block.expect(0, &bytes, Promise::HostAccess, when)?;
    block.free()
}

/// Sets the bytes of a model from `offset`.
fn set(model: &mut [u8], offset: usize, bytes: &[u8]) {
    for (at, byte) in model.iter_mut().skip(offset).zip(bytes) {
        *at = *byte;
    }
}
