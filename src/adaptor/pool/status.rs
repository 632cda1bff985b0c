//! What is known of a pool.
//!
//! Rank 4. Part of `adaptor::pool`.

use std::sync::atomic::{AtomicU64, Ordering};

/// The memory that a pool holds of one device, in bytes where nothing else is
/// said.
///
/// `reserved` is the sum of `in_use`, `cached`, `waiting` and `free`, if nothing
/// was allocated or freed while it was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStatus {
    /// Held from the layer below.
    pub reserved: usize,
    /// Held for persistent memory, which is part of `reserved`.
    pub persistent: usize,
    /// In blocks that were handed out, as rounded up.
    pub in_use: usize,
    /// In free blocks that are kept as they are.
    pub cached: usize,
    /// In blocks that were freed in the order of a stream, or that work of other
    /// streams may use.
    pub waiting: usize,
    /// In free blocks that anybody may have.
    pub free: usize,
    /// In the largest of those.
    pub largest_free: usize,
    /// How many segments there are.
    pub segments: usize,
}

impl PoolStatus {
    /// How much of the free memory is not in the largest block: 0 for one block or
    /// none, towards 1 for many small ones.
    #[must_use]
    #[expect(
        clippy::as_conversions,
        reason = "a ratio needs no more digits than an f64 has"
    )]
    pub fn fragmentation(&self) -> f64 {
        match self.free {
            0 => 0.0,
            free => 1.0 - self.largest_free as f64 / free as f64,
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        let sums = [
            (&mut self.reserved, other.reserved),
            (&mut self.persistent, other.persistent),
            (&mut self.in_use, other.in_use),
            (&mut self.cached, other.cached),
            (&mut self.waiting, other.waiting),
            (&mut self.free, other.free),
            (&mut self.segments, other.segments),
        ];
        for (sum, more) in sums {
            *sum = sum.saturating_add(more);
        }
        self.largest_free = self.largest_free.max(other.largest_free);
    }
}

/// How often each way to memory was tried on one device, since the pool was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolCounters {
    /// Blocks that were had without a search. Counted without a lock, so a
    /// few may be missed where more threads allocate than there are groups.
    pub cache_hits: u64,
    /// Searches for a free block.
    pub searches: u64,
    /// Searches that found one.
    pub found: u64,
    /// Times that frees which waited were completed, as far as could be or all.
    pub drains: u64,
    /// Times that unused segments were given back for want of memory or of a larger
    /// one.
    pub trims: u64,
    /// Times that the layer below was asked for a segment.
    pub upstream: u64,
    /// Times that it gave one.
    pub grown: u64,
    /// Segments given back to it.
    pub released: u64,
    /// Times that the program was asked to make room.
    pub hooks: u64,
    /// Allocations that failed for want of memory.
    pub failures: u64,
}

/// The counters that are not those of a heap, as they are kept.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) drains: Count,
    pub(super) trims: Count,
    pub(super) upstream: Count,
    pub(super) grown: Count,
    pub(super) released: Count,
    pub(super) hooks: Count,
    pub(super) failures: Count,
}

impl Tally {
    pub(super) fn read(&self, cache_hits: u64) -> PoolCounters {
        PoolCounters {
            cache_hits,
            drains: self.drains.get(),
            trims: self.trims.get(),
            upstream: self.upstream.get(),
            grown: self.grown.get(),
            released: self.released.get(),
            hooks: self.hooks.get(),
            failures: self.failures.get(),
            ..PoolCounters::default()
        }
    }
}

/// A number that only grows.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    #[inline]
    pub(super) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds one where no two threads should; if they do, one may be lost.
    #[inline]
    pub(super) fn add_alone(&self) {
        let count = self.0.load(Ordering::Relaxed);
        self.0.store(count.wrapping_add(1), Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
