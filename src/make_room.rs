//! Asking the program to make room.
//!
//! Rank 3. Imports `unwind` and the words.
//!
//! For all adaptors that do: what a hook asks for itself, on its own thread, calls no
//! hook again, so one that finds no room either ends.

use std::cell::Cell;

use crate::error::{Error, OutOfMemory};
use crate::unwind::caught;

thread_local! {
    /// Whether this thread is making room.
    static MAKING_ROOM: Cell<bool> = const { Cell::new(false) };

    /// Whether a layer above has another way, should there be no room below it.
    #[cfg(feature = "tracing")]
    static ATTEMPT: Cell<bool> = const { Cell::new(false) };
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
    // What the program asks for itself is no attempt of the layers above.
    let made = caught(|| with_another_way(false, || hook(report)));
    MAKING_ROOM.set(false);
    made == Some(true)
}

/// Calls the layer below from one that has another way if there is no room.
#[inline]
pub(crate) fn attempt<T>(call: impl FnOnce() -> T) -> T {
    with_another_way(true, call)
}

/// The error of a layer that knows no other way to room: it is an event, and a warning
/// unless a layer above has one.
#[cold]
pub(crate) fn given_up(error: Error) -> Error {
    #[cfg(feature = "tracing")]
    let _ = caught(|| match ATTEMPT.get() {
        true => tracing::debug!(error = %error, "device memory was refused"),
        false => tracing::warn!(error = %error, "device memory is out"),
    });
    error
}

/// Makes a call while there is another way or not, and sets back what was after it, also
/// if it panics.
#[cfg(feature = "tracing")]
#[inline]
fn with_another_way<T>(there_is: bool, call: impl FnOnce() -> T) -> T {
    struct Before(bool);

    impl Drop for Before {
        fn drop(&mut self) {
            ATTEMPT.set(self.0);
        }
    }

    let _before = Before(ATTEMPT.replace(there_is));
    call()
}

/// Makes a call: who would be told of it is not there.
#[cfg(not(feature = "tracing"))]
#[inline]
fn with_another_way<T>(_: bool, call: impl FnOnce() -> T) -> T {
    call()
}
