//! The CUDA back end on the fake driver, a simulation.

#![cfg(all(feature = "cuda", feature = "testing", target_os = "linux"))]

#[path = "cuda/capture.rs"]
mod capture;
#[path = "cuda/conforms.rs"]
mod conforms;
#[path = "cuda/contexts.rs"]
mod contexts;
#[path = "cuda/contract.rs"]
mod contract;
#[path = "cuda/defects.rs"]
mod defects;
#[path = "cuda/faults.rs"]
mod faults;
#[path = "cuda/opening.rs"]
mod opening;
#[path = "cuda/pooled.rs"]
mod pooled;
#[path = "cuda/pools.rs"]
mod pools;
#[path = "cuda/shared_memory.rs"]
mod shared_memory;
#[path = "cuda/streams.rs"]
mod streams;
#[path = "cuda/support.rs"]
mod support;
#[path = "cuda/threads.rs"]
mod threads;
#[path = "cuda/uses.rs"]
mod uses;
