//! The mixture of experts of `examples/moe` gives the numbers of its reference, and
//! keeps to the device.

#![cfg(all(feature = "testing", feature = "safetensors"))]
#![expect(dead_code, reason = "the example uses more of its modules")]

#[path = "../examples/moe/config.rs"]
mod config;
#[path = "../examples/moe/constants.rs"]
mod constants;
#[path = "../examples/moe/device.rs"]
mod device;
#[path = "../examples/moe/kernel.rs"]
mod kernel;
#[path = "../examples/moe/kernels.rs"]
mod kernels;
#[path = "../examples/moe/model.rs"]
mod model;
#[path = "../examples/moe/reference.rs"]
mod reference;
#[path = "../examples/moe/sequence.rs"]
mod sequence;
#[path = "../examples/moe/setup.rs"]
mod setup;

#[path = "moe/crossing.rs"]
mod crossing;
#[path = "moe/cuda_c.rs"]
mod cuda_c;
#[path = "moe/fork.rs"]
mod fork;
#[path = "moe/numbers.rs"]
mod numbers;
#[path = "moe/rig.rs"]
mod rig;
