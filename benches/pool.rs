//! The pool, timed: a hit beside the heap of the system, threads, and the cost
//! against live blocks. `cargo bench --features testing --bench pool`
//!
//! With `pool OPERATION SIZE COUNT` it does one operation so often, for counting
//! instructions from outside: `pool` and `malloc` with blocks of so many bytes,
//! `crowd` with so many live blocks.

#![expect(
    unsafe_code,
    clippy::print_stdout,
    reason = "a program that calls allocators"
)]

use std::alloc::{Layout, alloc, dealloc};
use std::hint::black_box;
use std::thread;
use std::time::Instant;

use device_memory::adaptor::{Pool, PoolBuilder};
use device_memory::testing::FakeDevice;
use device_memory::{DeviceAllocator, DeviceLayout, DevicePtr, DeviceType};

const PAIRS: u32 = 1_000_000;

fn layout(size: usize) -> DeviceLayout {
    DeviceLayout::new(size, 16).expect("a layout")
}

fn pool() -> Pool<FakeDevice> {
    let fake = FakeDevice::new(DeviceType::Cuda, 1);
    PoolBuilder::new().initial(64 << 30).build(fake)
}

/// Allocates and frees once.
#[inline]
fn pool_pair(pool: &Pool<FakeDevice>, layout: DeviceLayout) {
    let ptr = pool.allocate(black_box(layout), 0).expect("room");
    // SAFETY: the block was just allocated, and nothing uses it.
    unsafe { pool.deallocate(black_box(ptr), layout, 0) }.expect("a block");
}

/// The same by the heap of the system.
#[inline]
fn heap_pair(layout: Layout) {
    // SAFETY: the size is not zero.
    let ptr = unsafe { alloc(black_box(layout)) };
    // SAFETY: the block was just allocated with the layout.
    unsafe { dealloc(black_box(ptr), layout) };
}

/// Nanoseconds for one of `count`, the least of three runs.
fn best(count: u32, mut run: impl FnMut()) -> f64 {
    let times = (0..3).map(|_| {
        let begun = Instant::now();
        run();
        begun.elapsed().as_secs_f64() * 1e9 / f64::from(count)
    });
    times.fold(f64::INFINITY, f64::min)
}

fn hits() {
    println!("allocate and free a size that was freed before, ns a pair");
    println!(
        "{:>9} {:>8} {:>8} {:>14}",
        "bytes", "pool", "malloc", "malloc, 256 al."
    );
    for size in [64, 1 << 10, 4 << 10, 64 << 10, 1 << 20] {
        let pool = pool();
        let [plain, aligned] = [16, 256].map(|align| {
            let layout = Layout::from_size_align(size, align).expect("a layout");
            best(PAIRS, || (0..PAIRS).for_each(|_| heap_pair(layout)))
        });
        let layout = layout(size);
        let own = best(PAIRS, || (0..PAIRS).for_each(|_| pool_pair(&pool, layout)));
        println!("{size:>9} {own:>8.1} {plain:>8.1} {aligned:>14.1}");
    }
}

fn threads() {
    println!("\npairs of one pool by threads, millions a second in all");
    println!("{:>9} {:>8} {:>8}", "threads", "1 KiB", "1 MiB");
    for count in 1..=8_u32 {
        let rates = [1 << 10, 1 << 20].map(|size| {
            let pool = pool();
            let each = PAIRS / 20;
            let ns = best(count * each, || {
                thread::scope(|scope| {
                    for _ in 0..count {
                        scope.spawn(|| (0..each).for_each(|_| pool_pair(&pool, layout(size))));
                    }
                });
            });
            1e3 / ns
        });
        println!("{count:>9} {:>8.1} {:>8.1}", rates[0], rates[1]);
    }
}

/// A next number that looks random.
fn next(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    usize::try_from(*state >> 16).expect("64 bits")
}

/// A pool with so many live blocks of 64 KiB to 1 MiB.
struct Crowd {
    pool: Pool<FakeDevice>,
    blocks: Vec<(DevicePtr, DeviceLayout)>,
    random: u64,
}

impl Crowd {
    fn new(count: usize) -> Self {
        let fake = FakeDevice::new(DeviceType::Cuda, 1);
        let mut crowd = Self {
            pool: PoolBuilder::new().initial(4 << 40).build(fake),
            blocks: Vec::with_capacity(count),
            random: 1,
        };
        for _ in 0..count {
            let block = crowd.allocate();
            crowd.blocks.push(block);
        }
        crowd
    }

    fn allocate(&mut self) -> (DevicePtr, DeviceLayout) {
        let layout = layout((64 << 10) + 1 + next(&mut self.random) % (960 << 10));
        (self.pool.allocate(layout, 0).expect("room"), layout)
    }

    /// Frees a block and allocates another.
    fn replace(&mut self) {
        let at = next(&mut self.random) % self.blocks.len();
        let (ptr, layout) = self.blocks[at];
        // SAFETY: the block is live, and nothing uses it.
        unsafe { self.pool.deallocate(ptr, layout, 0) }.expect("a block");
        self.blocks[at] = self.allocate();
    }
}

fn live_blocks() {
    println!("\na free and an allocation among live blocks of 64 KiB to 1 MiB, ns a pair");
    for count in [100, 1_000, 10_000, 100_000, 1_000_000] {
        let mut crowd = Crowd::new(count);
        let ns = best(200_000, || (0..200_000).for_each(|_| crowd.replace()));
        println!("{count:>9} {ns:>8.0}");
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [operation, size, count] = arguments.as_slice()
        && let (Ok(size), Ok(count)) = (size.parse(), count.parse::<u32>())
    {
        let pool = pool();
        let heap = Layout::from_size_align(size, 16).expect("a layout");
        let layout = layout(size);
        match operation.as_str() {
            "pool" => (0..count).for_each(|_| pool_pair(&pool, layout)),
            "malloc" => (0..count).for_each(|_| heap_pair(heap)),
            "crowd" => {
                let mut crowd = Crowd::new(size);
                (0..count).for_each(|_| crowd.replace());
            }
            _ => (0..count).for_each(|_| black_box(())),
        }
        return;
    }
    if arguments.iter().any(|argument| argument == "--test") {
        pool_pair(&pool(), layout(64));
        return;
    }
    hits();
    threads();
    live_blocks();
}
