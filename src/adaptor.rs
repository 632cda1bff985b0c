//! Allocators over allocators: one policy each, in any order.
//!
//! Rank 4. An adaptor imports `allocator`, `observe` and the words, never another
//! adaptor.
//!
//! An adaptor owns the allocator inside it and is an allocator itself, so a stack
//! of them is one value: `Statistics<Limit<HostAllocator>>`. What a layer does is
//! said, with its cost, on its type.

mod pool;

pub use crate::observe::{Block, Observed, Observer};
pub use crate::stream::{Fence, StreamAllocator, StreamId, StreamOrdered};
pub use pool::{MakeRoom, Pool, PoolBuilder, PoolCounters, PoolOnStream, PoolStatus};
