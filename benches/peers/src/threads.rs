//! Threads that share an allocator and free each other's blocks.
//!
//! Each has sixteen sizes of its own, from 512 bytes to 16 MiB, and 64 slots. It
//! allocates a block, puts it into one of its slots or, every second time, one of
//! anybody's, and frees the block that was there.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use device_memory::{DeviceAllocator, DeviceLayout, DevicePtr};

use crate::lap::{Lap, lap};
use crate::peer::{Room, UNIT};
use crate::random::Random;
use crate::shared::Recipe;

const SIZES: usize = 16;
const SLOTS: usize = 64;
const PAIRS: usize = 20_000;

/// The size of a class: which of the sizes, and of which thread.
fn layout(class: usize) -> DeviceLayout {
    let size = (512 << (class % SIZES)) + UNIT * (class / SIZES);
    DeviceLayout::new(size, UNIT).expect("a layout")
}

/// Addresses with the class of their blocks in the bits that are zero.
struct Slots(Vec<AtomicUsize>);

impl Slots {
    /// Frees what was put into a slot before.
    #[expect(unsafe_code, reason = "gives a block back")]
    fn put(&self, slot: usize, content: usize, allocator: &impl DeviceAllocator) {
        let before = self.0[slot].swap(content, Ordering::AcqRel);
        let layout = layout(before % UNIT);
        if let Some(ptr) = DevicePtr::from_addr(before - before % UNIT) {
            // SAFETY: it was put here with its class, and taken out once.
            unsafe { allocator.deallocate(ptr, layout, 0) }.expect("a block");
        }
    }
}

fn work(thread: usize, slots: &Slots, allocator: &impl DeviceAllocator) {
    let mut random = Random::new(thread as u64 + 1);
    for pair in 0..PAIRS {
        let class = thread * SIZES + random.below(SIZES);
        let ptr = allocator.allocate(layout(class), 0).expect("room");
        let slot = match pair % 2 {
            0 => thread * SLOTS + random.below(SLOTS),
            _ => random.below(slots.0.len()),
        };
        slots.put(slot, ptr.addr() + class, allocator);
    }
}

/// Laps of `count` threads over one allocator.
pub(crate) fn laps<R: Recipe>(count: usize) -> Lap {
    let allocator = Arc::new(R::over(&Room::new(64 << 30, count * SLOTS * 2)));
    let slots = Slots((0..count * SLOTS).map(|_| AtomicUsize::new(0)).collect());
    lap(move || {
        thread::scope(|scope| {
            for thread in 0..count {
                let (slots, allocator) = (&slots, &*allocator);
                scope.spawn(move || work(thread, slots, allocator));
            }
        });
        count * PAIRS * 2
    })
}
