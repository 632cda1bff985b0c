//! The CUDA back end on a real driver and a real GPU.
//!
//! Nothing here loads the simulated driver. Where there is no driver or no
//! device, each test says so in one line and passes; with `DEVICE_MEMORY_GPU=1`
//! in the environment it fails instead. `ci/gpu.sh` builds this as a program that
//! runs on a machine without Rust.
//!
//! The tests take turns, but only within a process, and some of them look at the
//! free memory of the device; so run this with `--test-threads=1` and on a device
//! that nobody else uses.

#![cfg(all(feature = "cuda", feature = "testing"))]

#[path = "gpu/conforms.rs"]
mod conforms;
#[path = "gpu/contexts.rs"]
mod contexts;
#[path = "gpu/copies.rs"]
mod copies;
#[path = "gpu/devices.rs"]
mod devices;
#[path = "gpu/gate.rs"]
mod gate;
#[path = "gpu/interop.rs"]
mod interop;
#[path = "gpu/memory.rs"]
mod memory;
#[path = "gpu/processes.rs"]
mod processes;
#[path = "gpu/shared_memory.rs"]
mod shared_memory;
#[path = "gpu/streams.rs"]
mod streams;
#[path = "gpu/support.rs"]
mod support;
#[path = "gpu/threads.rs"]
mod threads;
#[path = "gpu/transfers.rs"]
mod transfers;
