//! Running planned graphs, on the host, on fake devices and on the fake driver.

#![cfg(feature = "testing")]

#[path = "runner/access.rs"]
mod access;
#[path = "runner/control_flow.rs"]
mod control_flow;
#[path = "runner/copies.rs"]
mod copies;
#[cfg(all(feature = "cuda", target_os = "linux"))]
#[path = "runner/cuda.rs"]
mod cuda;
#[path = "runner/dynamic.rs"]
mod dynamic;
#[path = "runner/failures.rs"]
mod failures;
#[path = "runner/given.rs"]
mod given;
#[path = "support/graphs.rs"]
mod graphs;
#[path = "runner/interpreter.rs"]
mod interpreter;
#[path = "runner/model.rs"]
mod model;
#[path = "runner/resident.rs"]
mod resident;
#[path = "runner/support.rs"]
mod support;
