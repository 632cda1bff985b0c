//! Allocators over allocators.
#![cfg(feature = "testing")]

#[path = "adaptor/observed.rs"]
mod observed;
#[path = "adaptor/pool.rs"]
mod pool;
#[path = "adaptor/pool_streams.rs"]
mod pool_streams;
