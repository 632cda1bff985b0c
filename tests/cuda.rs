//! The CUDA back end on the fake driver, a simulation.

#![cfg(all(feature = "cuda", feature = "testing", target_os = "linux"))]

#[path = "cuda/conforms.rs"]
mod conforms;
#[path = "cuda/contexts.rs"]
mod contexts;
#[path = "cuda/contract.rs"]
mod contract;
#[path = "cuda/streams.rs"]
mod streams;
#[path = "cuda/support.rs"]
mod support;
#[path = "cuda/uses.rs"]
mod uses;
