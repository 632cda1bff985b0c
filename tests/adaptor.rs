//! Allocators over allocators.
#![cfg(feature = "testing")]

#[macro_use]
#[path = "support/forward.rs"]
mod forward;

#[path = "adaptor/block_pool.rs"]
mod block_pool;
#[path = "adaptor/observed.rs"]
mod observed;
#[path = "adaptor/pool.rs"]
mod pool;
#[path = "adaptor/pool_streams.rs"]
mod pool_streams;
