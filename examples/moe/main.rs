//! A small mixture of experts that decodes on the device.
//!
//! Token, position, keys and values, and everything else that a layer remembers
//! stay on the device from step to step. Per step, nothing is copied to the
//! device, and 8 bytes to the host: the token that was chosen.
//!
//! The device is fake, and its kernels are plain Rust: what is shown is where
//! memory is and what crosses, not speed.

mod config;
mod device;
mod kernel;
mod kernels;
mod model;
mod sequence;
mod setup;

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    Ok(())
}
