//! What must fail, and that it changes nothing: promise 7.
//!
//! Rank 8. Part of `testing::conformance`.

use super::block::Block;
use super::report::{Failure, Promise};
use super::suite::{Suite, pattern};
use crate::device::DeviceIndex;
use crate::error::{ErrorKind, Operation, Result};

/// Indices that no device has are refused as such.
pub(super) fn indices(suite: &Suite<'_>) -> Result<(), Failure> {
    let count = suite.allocator.device_count();
    let first = DeviceIndex::try_from(count).ok();
    let last = (count <= usize::from(DeviceIndex::MAX)).then_some(DeviceIndex::MAX);
    for index in first.into_iter().chain(last) {
        let layout = suite.layout(64, 64, index)?;
        match Block::allocate(suite, layout, index) {
            Err(failure) if matches!(failure.kind(), Some(ErrorKind::InvalidDevice { .. })) => {}
            Err(failure) if failure.error.is_some() => return Err(failure),
            _ => {
                let what = format!("allocated on index {index} of {count}");
                return Err(suite.failure(Promise::Method(Operation::Allocate), index, what));
            }
        }
        let done = suite.allocator.synchronize(index);
        invalid(suite, Operation::Synchronize, index, done)?;
        let done = suite.allocator.trim(index);
        invalid(suite, Operation::Trim, index, done)?;
        let done = suite.allocator.check_index(index);
        invalid(suite, Operation::Allocate, index, done)?;
        let done = suite.allocator.memory_info(index);
        invalid(suite, Operation::MemoryInfo, index, done)?;
    }
    Ok(())
}

/// Checks that a call on an index that no device has was refused as such.
fn invalid<T>(
    suite: &Suite<'_>,
    operation: Operation,
    index: DeviceIndex,
    done: Result<T>,
) -> Result<(), Failure> {
    let what = "an index that no device has";
    match done {
        Err(error) if matches!(error.kind(), ErrorKind::InvalidDevice { .. }) => Ok(()),
        Err(error) => Err(suite.failed(operation, index, what, error)),
        Ok(_) => Err(suite.failure(Promise::Method(operation), index, what)),
    }
}

/// Blocks that no device has room for are refused, and nothing changes.
pub(super) fn impossible(suite: &Suite<'_>, index: DeviceIndex) -> Result<(), Failure> {
    let witness = suite.block(4097, 64, index)?;
    let bytes = pattern(4097, 61);
    witness.write(0, &bytes)?;
    let before = suite.memory_info(index)?;
    for align in [1, 64, 4096] {
        let size = isize::MAX
            .unsigned_abs()
            .saturating_sub(usize::saturating_sub(align, 1));
        let layout = suite.layout(size, align, index)?;
        match Block::allocate(suite, layout, index) {
            Err(failure)
                if matches!(
                    failure.kind(),
                    Some(ErrorKind::OutOfMemory(_) | ErrorKind::Backend { .. })
                ) => {}
            Err(failure) => return Err(failure),
            Ok(_) => {
                let what = format!("gave {size} bytes, which no device has");
                return Err(suite.failure(Promise::Validity, index, what));
            }
        }
        let after = suite.memory_info(index)?;
        if before != after && !suite.options.shared {
            let what = format!("{before:?} became {after:?} when {size} bytes were refused");
            return Err(suite.failure(Promise::Failure, index, what));
        }
    }
    let when = "after an allocation was refused";
    witness.expect(0, &bytes, Promise::Failure, when)?;
    let next = suite.block(4097, 64, index)?;
    next.write(0, &bytes)?;
    next.expect(0, &bytes, Promise::Failure, when)?;
    next.free()?;
    witness.free()
}
