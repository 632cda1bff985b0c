//! Allocators over allocators.
#![cfg(feature = "testing")]

#[path = "adaptor/observed.rs"]
mod observed;
