//! Allocators over allocators.
#![cfg(feature = "testing")]

#[expect(unsafe_code, reason = "a test double of an unsafe trait")]
#[path = "support/constant_address.rs"]
mod constant_address;
#[macro_use]
#[path = "support/forward.rs"]
mod forward;

#[path = "adaptor/aligned.rs"]
mod aligned;
#[path = "adaptor/arena.rs"]
mod arena;
#[path = "adaptor/binning.rs"]
mod binning;
#[path = "adaptor/block_pool.rs"]
mod block_pool;
#[path = "adaptor/callbacks.rs"]
mod callbacks;
#[path = "adaptor/figures.rs"]
mod figures;
#[path = "adaptor/limit.rs"]
mod limit;
#[path = "adaptor/log.rs"]
mod log;
#[path = "adaptor/observed.rs"]
mod observed;
#[path = "adaptor/poison.rs"]
mod poison;
#[path = "adaptor/pool.rs"]
mod pool;
#[path = "adaptor/pool_kept.rs"]
mod pool_kept;
#[path = "adaptor/pool_model.rs"]
mod pool_model;
#[path = "adaptor/pool_streams.rs"]
mod pool_streams;
#[path = "adaptor/pool_threads.rs"]
mod pool_threads;
#[path = "adaptor/pool_upstream.rs"]
mod pool_upstream;
#[path = "adaptor/recorder.rs"]
mod recorder;
#[path = "adaptor/recorder_forms.rs"]
mod recorder_forms;
#[path = "adaptor/report.rs"]
mod report;
#[path = "adaptor/retry.rs"]
mod retry;
#[path = "adaptor/stacks.rs"]
mod stacks;
#[path = "adaptor/statistics.rs"]
mod statistics;
#[path = "adaptor/tracking.rs"]
mod tracking;
