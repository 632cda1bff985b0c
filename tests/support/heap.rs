//! The system's heap, and what each thread has of it.

#![allow(dead_code, reason = "each test asks for one of the figures")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's heap, counting.
struct Counting;

#[global_allocator]
static HEAP: Counting = Counting;

thread_local! {
    /// How often the thread took from it.
    static TAKEN: Cell<usize> = const { Cell::new(0) };
    /// The bytes that the thread has in use, and had at most.
    static LIVE: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is the system allocator's.
#[expect(unsafe_code, reason = "implements an unsafe trait")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        TAKEN.set(TAKEN.get() + 1);
        let live = LIVE.get().wrapping_add(layout.size());
        LIVE.set(live);
        PEAK.set(PEAK.get().max(live));
        // SAFETY: the caller's promises are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // What another thread took may be given back here.
        LIVE.set(LIVE.get().saturating_sub(layout.size()));
        // SAFETY: the caller's promises are the same.
        unsafe { System.dealloc(ptr, layout) }
    }
}

/// How often `action` takes from the heap.
pub(crate) fn taken_by(action: impl FnOnce()) -> usize {
    let before = TAKEN.get();
    action();
    TAKEN.get() - before
}

/// The most bytes in use while `action` runs, beyond those before.
pub(crate) fn peak_of(action: impl FnOnce()) -> usize {
    let before = LIVE.get();
    PEAK.set(before);
    action();
    PEAK.get() - before
}
