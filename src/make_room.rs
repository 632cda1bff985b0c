//! Asking the program to make room.
//!
//! Rank 3. Imports `unwind` and the words.
//!
//! For all adaptors that do: what a hook asks for itself calls no hook again, so one
//! that finds no room either ends.

use std::cell::Cell;

use crate::error::{Error, OutOfMemory};
use crate::unwind::caught;

thread_local! {
    /// Whether this thread is making room.
    static MAKING_ROOM: Cell<bool> = const { Cell::new(false) };
}

/// How often a hook is called for one allocation unless said otherwise.
pub(crate) const CALLS: usize = 8;

/// Whether this thread is in a hook.
pub(crate) fn is_making_room() -> bool {
    MAKING_ROOM.get()
}

/// Calls `hook`, and returns whether it made room. One that panics made none.
pub(crate) fn make_room(hook: &dyn Fn(&OutOfMemory) -> bool, report: &OutOfMemory) -> bool {
    MAKING_ROOM.set(true);
    let made = caught(|| hook(report));
    MAKING_ROOM.set(false);
    made == Some(true)
}

/// The error of a layer that knows no other way to room: it is an event.
#[cold]
pub(crate) fn given_up(error: Error) -> Error {
    #[cfg(feature = "tracing")]
    let _ = caught(|| tracing::warn!(error = %error, "device memory is out"));
    error
}
