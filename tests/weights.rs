//! Weights from safetensors files.

#![cfg(all(feature = "safetensors", feature = "testing"))]

#[path = "weights/faults.rs"]
mod faults;
#[path = "weights/load.rs"]
mod load;
#[path = "weights/malformed.rs"]
mod malformed;
#[path = "weights/model.rs"]
mod model;
#[path = "weights/plan.rs"]
mod plan;
#[cfg(all(feature = "cuda", target_os = "linux"))]
#[path = "weights/staged.rs"]
mod staged;
#[path = "weights/support.rs"]
mod support;
