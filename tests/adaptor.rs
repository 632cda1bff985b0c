//! Allocators over allocators.
#![cfg(feature = "testing")]

#[path = "adaptor/limit.rs"]
mod limit;
#[path = "adaptor/observed.rs"]
mod observed;
#[path = "adaptor/stacks.rs"]
mod stacks;
#[path = "adaptor/statistics.rs"]
mod statistics;
#[path = "adaptor/tracking.rs"]
mod tracking;
