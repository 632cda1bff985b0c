//! A block of a size that was freed before, beside the heap of the system.

use std::alloc::{Layout, alloc, dealloc};
use std::hint::black_box;

use crate::instructions;
use crate::lap::{Lap, lap};
use crate::peer::{Peer, Room, UNIT};
use crate::shared::{Caller, Own};

pub(crate) const SIZES: [usize; 4] = [256, 1 << 10, 64 << 10, 1 << 20];
const PAIRS: usize = 100_000;

/// What is compared, by name.
pub(crate) const NAMES: [&str; 3] = ["pool", "malloc", "malloc, aligned"];

/// Does so many pairs of what is named with blocks of `size` bytes.
fn pairs(name: &str, size: usize) -> Box<dyn FnMut(usize)> {
    let heap = |align| -> Box<dyn FnMut(usize)> {
        let layout = Layout::from_size_align(size, align).expect("a layout");
        Box::new(move |count| counted(count, || heap_pair(layout)))
    };
    match name {
        "malloc" => heap(16),
        "malloc, aligned" => heap(UNIT),
        _ => {
            let mut pool = Caller::<Own<true>>::over(&Room::new(1 << 30, 16));
            Box::new(move |count| {
                counted(count, || {
                    let block = pool.allocate(black_box(size)).expect("room");
                    pool.free(black_box(block));
                });
            })
        }
    }
}

#[inline]
#[expect(unsafe_code, reason = "calls the system's allocator")]
fn heap_pair(layout: Layout) {
    // SAFETY: the size is not zero.
    let ptr = unsafe { alloc(black_box(layout)) };
    // SAFETY: the block was just allocated with the layout.
    unsafe { dealloc(black_box(ptr), layout) };
}

/// The part that is looked at from outside: see `instructions`.
#[inline(never)]
fn counted(count: usize, mut pair: impl FnMut()) {
    (0..count).for_each(|_| pair());
}

/// Laps of pairs; what is timed is a pair.
pub(crate) fn laps(name: &str, size: usize) -> Lap {
    let mut pairs = pairs(name, size);
    lap(move || {
        pairs(PAIRS);
        PAIRS
    })
}

/// So many pairs, in `counted` alone.
pub(crate) fn some(name: &str, size: usize, count: usize) {
    pairs(name, size)(count);
}

/// The instructions of a pair, past the first of a size.
pub(crate) fn instructions(name: &str, size: usize) -> Option<f64> {
    let of = |count: usize| {
        let (size, count) = (size.to_string(), count.to_string());
        instructions::of(&["hit", name, &size, &count])
    };
    let (once, twice) = (of(1_000)?, of(2_000)?);
    Some((twice - once) as f64 / 1e3)
}
