//! The options of a pool.
//!
//! Rank 4. Part of `adaptor::pool`. Imports the words.

use std::fmt;
use std::sync::Arc;

use super::keeping::Policy;
use super::{Core, Pool};
use crate::allocator::DeviceAllocator;
use crate::error::OutOfMemory;

/// Asked to make room when a pool has found none; `true` has it try again.
pub type MakeRoom = Arc<dyn Fn(&OutOfMemory) -> bool + Send + Sync>;

/// How to make a [`Pool`]; all sizes are in bytes, and those of one device.
///
/// # Examples
///
/// ```
/// use device_memory::HostAllocator;
/// use device_memory::adaptor::PoolBuilder;
///
/// let pool = PoolBuilder::new()
///     .growth(64 << 20)
///     .limit(1 << 30)
///     .cache_limit(256 << 10)
///     .build(HostAllocator);
///
/// assert_eq!(pool.status(0)?.reserved, 0);
/// # Ok::<(), device_memory::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "this makes no pool until `build` is called"]
pub struct PoolBuilder {
    pub(super) initial: usize,
    pub(super) growth: usize,
    pub(super) limit: usize,
    cache_limit: Option<usize>,
    pub(super) release_threshold: usize,
    pub(super) make_room: Option<MakeRoom>,
}

impl Default for PoolBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl PoolBuilder {
    /// The options that suit most programs, each as its method says.
    pub fn new() -> Self {
        Self {
            initial: 0,
            growth: 32 << 20,
            limit: usize::MAX,
            cache_limit: None,
            release_threshold: usize::MAX,
            make_room: None,
        }
    }

    /// How much a request takes from the layer below, if it is not more itself, while
    /// nothing is held: the first one, and one after all was given back. 0 unless said
    /// otherwise, which leaves it to [`growth`](Self::growth).
    pub fn initial(mut self, bytes: usize) -> Self {
        self.initial = bytes;
        self
    }

    /// The least that is taken from the layer below at a time: 32 MiB unless said
    /// otherwise. A request that is larger gets what it needs. If the layer below
    /// has not that much, no more is taken than the request needs.
    pub fn growth(mut self, bytes: usize) -> Self {
        self.growth = bytes;
        self
    }

    /// The most that is held from the layer below: no limit unless said otherwise.
    pub fn limit(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }

    /// Up to which size a few free blocks of each size are kept as they are, for each
    /// of some groups of threads, to be had without a lock; 0 keeps none.
    ///
    /// Unless said otherwise it is a sixteenth of [`growth`](Self::growth), at most 8 MiB,
    /// and what is kept follows what it is good for. While three times as much is held for
    /// transient blocks as was seen in use since the last [`trim`](DeviceAllocator::trim),
    /// larger blocks are kept too, each of no more than a 64th of what is free, unless there
    /// is a [`release_threshold`](Self::release_threshold). A pool that takes all that it
    /// may at once, with [`initial`](Self::initial) no less than [`limit`](Self::limit),
    /// keeps none for a while once it has seen them had again more seldom than others were
    /// searched for: there, what is kept is in the way of what needs to be joined.
    ///
    /// What is kept is not joined with its neighbours, and keeps its segment from
    /// being unused, before memory is short, a large request takes much of what is
    /// free, or many searches have passed it by.
    pub fn cache_limit(mut self, bytes: usize) -> Self {
        self.cache_limit = Some(bytes);
        self
    }

    /// Which blocks are kept as they are.
    pub(super) fn keeping(&self) -> Policy {
        let is_told = self.cache_limit.is_some();
        Policy {
            limit: self.cache_limit.unwrap_or((self.growth / 16).min(8 << 20)),
            may_pause: !is_told && self.initial >= self.limit,
            // A segment with a block that is kept is not given back.
            may_keep_larger: !is_told && self.release_threshold == usize::MAX,
        }
    }

    /// How much unused memory is kept: all unless said otherwise. With more, a
    /// free that leaves a whole segment unused gives unused segments back to the
    /// layer below, until no more than this is left.
    pub fn release_threshold(mut self, bytes: usize) -> Self {
        self.release_threshold = bytes;
        self
    }

    /// Asks `hook` to make room when there is none, and tries again for as long as
    /// it returns `true`, up to eight times for one allocation.
    ///
    /// It is called under no lock, on the thread that allocates, with the report
    /// that would be the error. It may allocate and free, of this pool too: what it
    /// asks for on that thread calls no hook again. One that panics counts as `false`.
    pub fn on_out_of_memory(
        mut self,
        hook: impl Fn(&OutOfMemory) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.make_room = Some(Arc::new(hook));
        self
    }

    /// Makes the pool. Nothing is taken from `upstream` before the first request.
    pub fn build<A: DeviceAllocator>(self, upstream: A) -> Pool<A> {
        Pool {
            core: Arc::new(Core::new(upstream, self)),
        }
    }
}

impl fmt::Debug for PoolBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolBuilder")
            .field("initial", &self.initial)
            .field("growth", &self.growth)
            .field("limit", &self.limit)
            .field("cache_limit", &self.cache_limit)
            .field("release_threshold", &self.release_threshold)
            .field("make_room", &self.make_room.is_some())
            .finish()
    }
}
