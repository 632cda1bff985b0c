//! What the driver keeps for each thread.
//!
//! None of it has a destructor, so that it can be used while a thread ends: a
//! buffer in a `thread_local!` is freed after other locals are gone.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many contexts fit on the stack of a thread.
const DEPTH: usize = 32;

/// All of it, in one place: to find the place of a thread is what costs.
struct Thread {
    /// The context on top of the stack, or `0`.
    top: Cell<u64>,
    in_callback: Cell<bool>,
    /// The last stream that was found to be usable and not to be capturing.
    idle: Cell<Idle>,
    /// The contexts below the top.
    below: [Cell<u64>; DEPTH],
    height: Cell<usize>,
    number: Cell<u64>,
    capture_mode: Cell<u32>,
}

/// What was found of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Idle {
    /// The word that [`quick`](super::quick) had then, and not `0`.
    word: u64,
    context: u64,
    stream: u64,
}

impl Idle {
    const NONE: Self = Self {
        word: 0,
        context: 0,
        stream: 0,
    };
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            top: Cell::new(0),
            in_callback: Cell::new(false),
            idle: Cell::new(Idle::NONE),
            below: [const { Cell::new(0) }; DEPTH],
            height: Cell::new(0),
            number: Cell::new(0),
            capture_mode: Cell::new(0),
        }
    };
}

/// The context on top of the stack of this thread, if there is one. It may be
/// destroyed.
#[inline]
pub(super) fn current() -> Option<u64> {
    THREAD.with(Thread::current)
}

/// Whether [`found_idle`] was told so of this stream, with the context current
/// that is current now, and with the same `word`, which is not `0`.
#[inline]
pub(super) fn is_known_idle(stream: u64, word: u64) -> bool {
    THREAD.with(|thread| {
        let idle = thread.idle.get();
        idle.word == word && idle.stream == stream && idle.context == thread.top.get()
    })
}

/// Keeps that a stream can be used and is not capturing.
pub(super) fn found_idle(stream: u64, word: u64) {
    THREAD.with(|thread| {
        let context = thread.top.get();
        thread.idle.set(Idle {
            word,
            context,
            stream,
        });
    });
}

/// Replaces the top of the stack; `0` removes it.
pub(super) fn set_current(handle: u64) {
    THREAD.with(|thread| match (handle, thread.height.get()) {
        (0, _) => {
            thread.pop();
        }
        (_, 0) => {
            thread.push(handle);
        }
        (_, _) => thread.top.set(handle),
    });
}

/// Puts a context on top, and says whether there was room.
pub(super) fn push(handle: u64) -> bool {
    THREAD.with(|thread| thread.push(handle))
}

/// Takes the top off.
pub(super) fn pop() -> Option<u64> {
    THREAD.with(Thread::pop)
}

/// How many contexts are on the stack.
pub(super) fn height() -> usize {
    THREAD.with(|thread| thread.height.get())
}

/// A number of this thread, counted from 1.
pub(super) fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    THREAD.with(|thread| {
        if thread.number.get() == 0 {
            thread.number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        thread.number.get()
    })
}

/// Whether this thread runs a host function for a stream.
#[inline]
pub(super) fn in_callback() -> bool {
    THREAD.with(|thread| thread.in_callback.get())
}

/// Says that this thread begins or ends a host function.
pub(super) fn set_in_callback(value: bool) {
    THREAD.with(|thread| thread.in_callback.set(value));
}

/// Exchanges the capture mode of this thread.
pub(super) fn exchange_capture_mode(mode: u32) -> u32 {
    THREAD.with(|thread| thread.capture_mode.replace(mode))
}

/// The capture mode of this thread.
pub(super) fn capture_mode() -> u32 {
    THREAD.with(|thread| thread.capture_mode.get())
}

impl Thread {
    #[inline]
    fn current(&self) -> Option<u64> {
        let top = self.top.get();
        (top != 0).then_some(top)
    }

    fn push(&self, handle: u64) -> bool {
        let height = self.height.get();
        let Some(slot) = self.below.get(height) else {
            return false;
        };
        slot.set(self.top.replace(handle));
        self.height.set(height + 1);
        true
    }

    fn pop(&self) -> Option<u64> {
        let top = self.current()?;
        let height = self.height.get() - 1;
        let below = self.below.get(height).map_or(0, Cell::get);
        self.top.set(below);
        self.height.set(height);
        Some(top)
    }
}
