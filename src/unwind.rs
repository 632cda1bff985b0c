//! Code of others that may panic.
//!
//! Rank 0. Imports nothing from this crate.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `call` and returns what it returns, or `None` if it panics.
///
/// With `panic = "abort"` there is nothing to catch. Where nothing panics, this
/// costs nothing.
#[inline]
pub(crate) fn caught<T>(call: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(value) => Some(value),
        Err(payload) => {
            discard(payload);
            None
        }
    }
}

/// Drops what a panic was thrown with. If that panics too, what that was thrown
/// with is leaked, or there would be no end.
#[cold]
fn discard(payload: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(again);
    }
}
