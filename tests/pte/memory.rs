//! What reading takes is bounded by a small multiple of the file.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use device_memory::pte::Program;

use crate::patched::one_method_many_times;
use crate::support::{bytes, json, programs};

thread_local! {
    static LIVE: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, with the bytes that this thread has in use.
struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: every call is passed on to the system's allocator as it is.
#[expect(unsafe_code, reason = "implements an unsafe trait")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.get().wrapping_add(layout.size());
        LIVE.set(live);
        PEAK.set(PEAK.get().max(live));
        // SAFETY: the caller keeps the promises of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.set(LIVE.get().saturating_sub(layout.size()));
        // SAFETY: the caller keeps the promises of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// The most bytes in use while `bytes` are read, beyond those before.
fn peak(bytes: &[u8]) -> usize {
    let before = LIVE.get();
    PEAK.set(before);
    let program = Program::parse(bytes);
    let peak = PEAK.get() - before;
    drop(program);
    peak
}

#[test]
fn reading_a_real_program_takes_less_than_the_program() {
    for name in programs() {
        let bytes = bytes(&format!("{name}.pte"));

        let peak = peak(&bytes);

        assert!(peak < bytes.len(), "{name}: {peak} for {}", bytes.len());
    }
}

#[test]
fn reading_a_malformed_program_takes_a_small_multiple_of_it() {
    let bad = json("bad/INDEX.json");
    let names = bad
        .as_array()
        .unwrap()
        .iter()
        .map(|case| case["name"].as_str().unwrap());
    let bad = names.map(|name| bytes(&format!("bad/{name}.pte")));
    let many = [1, 2, 10, 100, 10_000].map(one_method_many_times);
    for bytes in bad.chain(many) {
        let peak = peak(&bytes);

        assert!(peak < 1024 + 16 * bytes.len(), "{peak} for {}", bytes.len());
    }
}
