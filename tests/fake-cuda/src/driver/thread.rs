//! What the driver keeps for each thread.
//!
//! None of it has a destructor, so that it can be used while a thread ends: a
//! buffer in a `thread_local!` is freed after other locals are gone.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many contexts fit on the stack of a thread.
const DEPTH: usize = 32;

thread_local! {
    static STACK: [Cell<u64>; DEPTH] = const { [const { Cell::new(0) }; DEPTH] };
    static HEIGHT: Cell<usize> = const { Cell::new(0) };
    static NUMBER: Cell<u64> = const { Cell::new(0) };
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
    static CAPTURE_MODE: Cell<u32> = const { Cell::new(0) };
}

/// The context on top of the stack of this thread, if there is one. It may be
/// destroyed.
pub(super) fn current() -> Option<u64> {
    let top = HEIGHT.get().checked_sub(1)?;
    STACK.with(|stack| stack.get(top).map(Cell::get))
}

/// Replaces the top of the stack; `0` removes it.
pub(super) fn set_current(handle: u64) {
    let height = HEIGHT.get();
    match (handle, height) {
        (0, _) => HEIGHT.set(height.saturating_sub(1)),
        (_, 0) => {
            push(handle);
        }
        (_, _) => store(height - 1, handle),
    }
}

/// Puts a context on top, and says whether there was room.
pub(super) fn push(handle: u64) -> bool {
    let height = HEIGHT.get();
    if height == DEPTH {
        return false;
    }
    store(height, handle);
    HEIGHT.set(height + 1);
    true
}

/// Takes the top off.
pub(super) fn pop() -> Option<u64> {
    let top = current()?;
    HEIGHT.set(HEIGHT.get() - 1);
    Some(top)
}

/// How many contexts are on the stack.
pub(super) fn height() -> usize {
    HEIGHT.get()
}

/// A number of this thread, counted from 1.
pub(super) fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    if NUMBER.get() == 0 {
        NUMBER.set(NEXT.fetch_add(1, Ordering::Relaxed));
    }
    NUMBER.get()
}

/// Whether this thread runs a host function for a stream.
pub(super) fn in_callback() -> bool {
    IN_CALLBACK.get()
}

/// Says that this thread begins or ends a host function.
pub(super) fn set_in_callback(value: bool) {
    IN_CALLBACK.set(value);
}

/// Exchanges the capture mode of this thread.
pub(super) fn exchange_capture_mode(mode: u32) -> u32 {
    CAPTURE_MODE.replace(mode)
}

/// The capture mode of this thread.
pub(super) fn capture_mode() -> u32 {
    CAPTURE_MODE.get()
}

fn store(index: usize, handle: u64) {
    STACK.with(|stack| {
        if let Some(slot) = stack.get(index) {
            slot.set(handle);
        }
    });
}
