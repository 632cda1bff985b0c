//! Calls of allocators that must not unwind into their callers.
//!
//! Rank 2. Part of `allocator`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::device::Device;
use crate::error::{Error, ErrorKind, Operation, Result};

/// Makes one call of an allocator. If it panics, that is the error.
///
/// With `panic = "abort"` there is nothing to catch. Where nothing panics, this
/// costs nothing.
#[inline]
pub(crate) fn guarded<T>(
    device: Device,
    operation: Operation,
    call: impl FnOnce() -> Result<T>,
) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result,
        Err(payload) => {
            // Dropping the payload could panic again.
            std::mem::forget(payload);
            Err(panicked(device, operation))
        }
    }
}

#[cold]
fn panicked(device: Device, operation: Operation) -> Error {
    Error::from(ErrorKind::AllocatorPanicked { device, operation })
}
