//! The pool beside other allocators: the same requests, no memory behind any of
//! them. `cargo run --release -p peers`
//!
//! For each trace it prints nanoseconds a request and the least memory that the
//! trace can be served from, as a multiple of the most that is live.

use std::hint::black_box;
use std::ops::Range;
use std::time::Instant;

use device_memory::adaptor::{Pool, PoolBuilder};
use device_memory::testing::FakeDevice;
use device_memory::{DeviceAllocator, DeviceLayout, DevicePtr, DeviceType};

const UNIT: usize = 256;
const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Something that places requests in so many bytes.
trait Peer {
    type Block;
    const NAME: &'static str;
    fn new(capacity: usize) -> Self;
    fn allocate(&mut self, size: usize) -> Option<Self::Block>;
    fn free(&mut self, block: Self::Block);
}

struct Ours<const SMALL: usize>(Pool<FakeDevice>);

impl<const SMALL: usize> Peer for Ours<SMALL> {
    type Block = (DevicePtr, DeviceLayout);
    const NAME: &'static str = match SMALL {
        0 => "pool, nothing kept",
        _ => "pool",
    };

    fn new(capacity: usize) -> Self {
        let fake = FakeDevice::new(DeviceType::Cuda, 1);
        let options = PoolBuilder::new().initial(capacity).limit(capacity);
        Self(options.cache_limit(SMALL).build(fake))
    }

    fn allocate(&mut self, size: usize) -> Option<Self::Block> {
        let layout = DeviceLayout::new(size, UNIT).ok()?;
        Some((self.0.allocate(layout, 0).ok()?, layout))
    }

    fn free(&mut self, (ptr, layout): Self::Block) {
        // SAFETY: the block is live, and nothing uses it.
        unsafe { self.0.deallocate(ptr, layout, 0) }.expect("a block");
    }
}

impl Peer for offset_allocator::Allocator {
    type Block = offset_allocator::Allocation;
    const NAME: &'static str = "offset-allocator";

    fn new(capacity: usize) -> Self {
        Self::new(u32::try_from(capacity / UNIT).expect("32 bits"))
    }

    fn allocate(&mut self, size: usize) -> Option<Self::Block> {
        self.allocate(u32::try_from(size.div_ceil(UNIT)).ok()?)
    }

    fn free(&mut self, block: Self::Block) {
        self.free(block);
    }
}

impl Peer for range_alloc::RangeAllocator<usize> {
    type Block = Range<usize>;
    const NAME: &'static str = "range-alloc";

    fn new(capacity: usize) -> Self {
        Self::new(0..capacity / UNIT)
    }

    fn allocate(&mut self, size: usize) -> Option<Self::Block> {
        self.allocate_range(size.div_ceil(UNIT)).ok()
    }

    fn free(&mut self, block: Self::Block) {
        self.free_range(block);
    }
}

struct Buddy(buddy_system_allocator::FrameAllocator<40>);

impl Peer for Buddy {
    type Block = (usize, usize);
    const NAME: &'static str = "buddy_system_allocator";

    fn new(capacity: usize) -> Self {
        let mut frames = buddy_system_allocator::FrameAllocator::new();
        frames.add_frame(0, capacity / UNIT);
        Self(frames)
    }

    fn allocate(&mut self, size: usize) -> Option<Self::Block> {
        let count = size.div_ceil(UNIT);
        Some((self.0.alloc(count)?, count))
    }

    fn free(&mut self, (start, count): Self::Block) {
        self.0.dealloc(start, count);
    }
}

/// A request: a block of a size, or the end of the block of an earlier one.
enum Event {
    Allocate(usize),
    Free(usize),
}

/// Requests, of which each allocation has the number of those before it.
#[derive(Default)]
struct Trace {
    events: Vec<Event>,
    allocations: usize,
    sizes: Vec<usize>,
    random: u64,
}

impl Trace {
    fn next(&mut self, below: usize) -> usize {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.random >> 33) as usize % below
    }

    fn allocate(&mut self, size: usize) -> usize {
        self.events.push(Event::Allocate(size));
        self.sizes.push(size);
        self.allocations += 1;
        self.allocations - 1
    }

    fn free(&mut self, block: usize) {
        self.events.push(Event::Free(block));
    }

    /// The most bytes that are live.
    fn peak(&self) -> usize {
        let (mut live, mut peak) = (0, 0);
        let mut sizes = self.sizes.iter();
        for event in &self.events {
            match event {
                Event::Allocate(_) => {
                    live += sizes.next().map_or(0, |size| size.next_multiple_of(UNIT))
                }
                Event::Free(block) => live -= self.sizes[*block].next_multiple_of(UNIT),
            }
            peak = peak.max(live);
        }
        peak
    }
}

/// Weights, sequences whose caches grow by copying into larger ones, and short
/// activations.
fn llm() -> Trace {
    let mut trace = Trace {
        random: 1,
        ..Trace::default()
    };
    for _ in 0..64 {
        trace.allocate(4 * MIB);
    }
    let mut sequences: Vec<(usize, usize)> = Vec::new();
    for _ in 0..20_000 {
        if sequences.len() < 24 {
            let size = 64 * KIB * (1 + trace.next(16));
            sequences.push((trace.allocate(size), size));
        }
        let at = trace.next(sequences.len());
        let (old, size) = sequences[at];
        if size > 4 * MIB {
            trace.free(old);
            sequences.swap_remove(at);
        } else {
            let size = size + size / 2;
            sequences[at] = (trace.allocate(size), size);
            trace.free(old);
        }
        let short: Vec<_> = (0..6).map(|_| 2 * KIB << trace.next(8)).collect();
        let short: Vec<_> = short.into_iter().map(|size| trace.allocate(size)).collect();
        short.into_iter().rev().for_each(|block| trace.free(block));
    }
    trace
}

/// Layers of a network, each with an output that the next reads and a workspace.
fn cnn() -> Trace {
    let mut trace = Trace {
        random: 2,
        ..Trace::default()
    };
    let outputs: Vec<_> = (0..50)
        .map(|layer| (8 * MIB >> (layer / 10)) + 999)
        .collect();
    for _ in 0..1_000 {
        let mut input = trace.allocate(600 * KIB);
        for output in &outputs {
            let output_block = trace.allocate(*output);
            let workspace = 100 * KIB + trace.next(2 * MIB);
            let workspace = trace.allocate(workspace);
            trace.free(workspace);
            trace.free(input);
            input = output_block;
        }
        trace.free(input);
    }
    trace
}

/// Blocks of all sizes, of which any may be freed next; every third stays for long.
fn adversarial() -> Trace {
    let mut trace = Trace {
        random: 3,
        ..Trace::default()
    };
    let mut live = Vec::new();
    for _ in 0..100_000 {
        let below = 256 << trace.next(14);
        let size = 1 + trace.next(below);
        live.push(trace.allocate(size));
        while live.len() > 1_000 {
            let among = if live.len() % 3 == 0 {
                live.len()
            } else {
                live.len() / 2
            };
            let at = live.len() - 1 - trace.next(among);
            trace.free(live.swap_remove(at));
        }
    }
    trace
}

/// Serves a trace, or says that there was no room.
fn serve<P: Peer>(peer: &mut P, trace: &Trace, blocks: &mut Vec<Option<P::Block>>) -> bool {
    blocks.clear();
    for event in &trace.events {
        match event {
            Event::Allocate(size) => match peer.allocate(*size) {
                Some(block) => blocks.push(Some(black_box(block))),
                None => return false,
            },
            Event::Free(block) => peer.free(blocks[*block].take().expect("live")),
        }
    }
    true
}

fn measure<P: Peer>(trace: &Trace) {
    let peak = trace.peak();
    let mut blocks = Vec::with_capacity(trace.allocations);
    let mut ns = f64::INFINITY;
    for _ in 0..3 {
        let mut peer = P::new((peak * 4).next_power_of_two());
        let begun = Instant::now();
        assert!(serve(&mut peer, trace, &mut blocks), "no room");
        ns = ns.min(begun.elapsed().as_secs_f64() * 1e9 / trace.events.len() as f64);
    }
    let (mut low, mut high) = (peak - UNIT, peak * 4);
    while high - low > peak / 500 {
        let middle = (low + (high - low) / 2).next_multiple_of(UNIT);
        match serve(&mut P::new(middle), trace, &mut blocks) {
            true => high = middle,
            false => low = middle,
        }
    }
    println!(
        "  {:<24} {ns:>8.1} {:>8.3}",
        P::NAME,
        high as f64 / peak as f64
    );
}

fn main() {
    for (name, trace) in [
        ("LLM serving", llm()),
        ("CNN inference", cnn()),
        ("adversarial", adversarial()),
    ] {
        let (events, peak) = (trace.events.len(), trace.peak() / MIB);
        println!("{name}: {events} requests, at most {peak} MiB live");
        println!("  {:<24} {:>8} {:>8}", "", "ns", "memory");
        measure::<Ours<65_536>>(&trace);
        measure::<Ours<0>>(&trace);
        measure::<offset_allocator::Allocator>(&trace);
        measure::<range_alloc::RangeAllocator<usize>>(&trace);
        measure::<Buddy>(&trace);
    }
}
