//! Traces of allocations: what a runtime asks of an allocator, and in which order.
//!
//! Three are generated, each from a seed, by integer arithmetic alone, so that a
//! seed gives the same trace on every platform:
//!
//! - [`llm_serving`](llm_serving::generate): a language model that serves requests.
//!   Weights once; key and value caches that grow by moving; activations that live
//!   for a layer.
//! - [`cnn_inference`](cnn_inference::generate): a convolutional network on batches
//!   of changing size. Many small weights, feature maps that shrink, workspaces,
//!   skip connections.
//! - [`fragmentation`](fragmentation::generate): an adversary that frees every
//!   second block and then asks for a little more than the holes.
//!
//! Other programs include this file by path.

#![allow(
    dead_code,
    reason = "each program that includes this uses a part of it"
)]

#[path = "traces/cnn_inference.rs"]
pub(crate) mod cnn_inference;
#[path = "traces/fragmentation.rs"]
pub(crate) mod fragmentation;
#[path = "traces/llm_serving.rs"]
pub(crate) mod llm_serving;

use std::fmt;

use device_memory::Tag;

/// The seed of the figures that are written down.
pub(crate) const SEED: u64 = 2026;

/// The names of the generated traces.
pub(crate) const NAMES: [&str; 3] = ["llm_serving", "cnn_inference", "fragmentation"];

/// One call of an allocator. Blocks are numbered in the order they are allocated,
/// from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Allocate the next block.
    Allocate {
        /// Its bytes.
        size: usize,
        /// What it is for.
        tag: Tag,
    },
    /// Free a block that is live.
    Free {
        /// Its number.
        block: usize,
    },
}

/// A sequence of calls. Every block is freed once, after its allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trace {
    steps: Vec<Step>,
    sizes: Vec<usize>,
    live_bytes: usize,
    peak_bytes: usize,
}

impl Trace {
    /// The trace of this name, if it is one of [`NAMES`].
    pub(crate) fn named(name: &str, seed: u64) -> Option<Self> {
        match name {
            "llm_serving" => Some(llm_serving::generate(seed)),
            "cnn_inference" => Some(cnn_inference::generate(seed)),
            "fragmentation" => Some(fragmentation::generate(seed)),
            _ => None,
        }
    }

    /// The calls, in order.
    pub(crate) fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// How many blocks are allocated in all.
    pub(crate) fn blocks(&self) -> usize {
        self.sizes.len()
    }

    /// The most bytes that are asked for and not freed at one time.
    pub(crate) fn peak_bytes(&self) -> usize {
        self.peak_bytes
    }

    /// The bytes that are not freed at the end.
    pub(crate) fn live_bytes(&self) -> usize {
        self.live_bytes
    }

    /// Adds an allocation and says the number of its block.
    pub(crate) fn allocate(&mut self, size: usize, tag: Tag) -> usize {
        let block = self.sizes.len();
        self.steps.push(Step::Allocate { size, tag });
        self.sizes.push(size);
        self.live_bytes += size;
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
        block
    }

    /// Adds the free of a block that is live.
    pub(crate) fn free(&mut self, block: usize) {
        self.steps.push(Step::Free { block });
        self.live_bytes -= self.sizes[block];
    }

    /// Adds the frees of many blocks.
    pub(crate) fn free_all(&mut self, blocks: impl IntoIterator<Item = usize>) {
        for block in blocks {
            self.free(block);
        }
    }
}

/// The trace as a log with the columns that RAPIDS' replay tools read, and a
/// seventh, `Tag`. Addresses are made up: no two blocks have the same.
impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const FIRST: usize = 0x7f00_0000_0000;
        writeln!(f, "Thread,Time,Action,Pointer,Size,Stream,Tag")?;
        let mut blocks: Vec<(usize, usize, Tag)> = Vec::with_capacity(self.sizes.len());
        let mut next = FIRST;
        for (at, step) in self.steps.iter().enumerate() {
            let (action, (ptr, size, tag)) = match *step {
                Step::Allocate { size, tag } => {
                    blocks.push((next, size, tag));
                    next += size.next_multiple_of(256);
                    ("allocate", blocks[blocks.len() - 1])
                }
                Step::Free { block } => ("free", blocks[block]),
            };
            let (seconds, micros) = (at / 1_000_000, at % 1_000_000);
            let (hours, minutes) = (seconds / 3600 % 24, seconds / 60 % 60);
            writeln!(
                f,
                "0,{hours:02}:{minutes:02}:{:02}:{micros:06},{action},{ptr:#x},{size},0x0,{tag}",
                seconds % 60,
            )?;
        }
        Ok(())
    }
}

/// Random numbers: SplitMix64, by Steele, Lea and Flood.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub(crate) fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: usize, high: usize) -> usize {
        let width = (high - low) as u64 + 1;
        low + (self.any() % width) as usize
    }

    /// True once in `times`, on average.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.any().is_multiple_of(times)
    }

    /// An element taken out of a list that is not empty.
    pub(crate) fn take<T>(&mut self, list: &mut Vec<T>) -> T {
        let at = self.between(0, list.len() - 1);
        list.swap_remove(at)
    }
}
