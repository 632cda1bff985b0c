//! Allocators over allocators: one policy each, in any order.
//!
//! Rank 4. An adaptor imports `allocator`, `observe` and the words, never another
//! adaptor.
//!
//! An adaptor owns the allocator inside it and is an allocator itself, so a stack
//! of them is one value: `Statistics<Limit<HostAllocator>>`. What a layer does is
//! said, with its cost, on its type.
//!
//! `Name::over(upstream)` makes one, and takes what the policy can not do without.
//! `Arc<A>` is an allocator too, so a program keeps one handle of a layer to read it
//! and gives another away, and stacks can share what is below them.
//!
//! The [`guide`] says which stack suits which runtime.

pub mod guide;
pub mod recorder;

mod aligned;
mod arena;
mod binning;
mod limit;
mod log;
mod poison;
mod pool;
mod retry;
mod shared;
mod statistics;
mod tracking;

pub use aligned::Aligned;
pub use arena::{Arena, ArenaStatus, Checkpoint, StillLive};
pub use binning::Binning;
pub use limit::{Budget, Budgets, Limit, Reservation};
pub use log::{Action, Event, Log, Logger};
pub use poison::{Damage, Poison, Region};
pub use pool::{MakeRoom, Pool, PoolBuilder, PoolCounters, PoolOnStream, PoolStatus};
pub use recorder::{Recorded, RecordedSegments, Recorder, Recording, SegmentRecorder};
pub use retry::Retry;
pub use shared::Shared;
pub use statistics::{Counters, Scope, Statistics, Usage};
pub use tracking::{Allocation, LiveReport, Tracking, Untracked};

pub use crate::observe::{Block, Observed, Observer};
pub use crate::stream::{Fence, StreamAllocator, StreamId, StreamOrdered};
