//! `device-memory` under the released ExecuTorch runtime, and the two side by side.
//!
//! - [`forward`]: what the runtime asks of a device is asked of Rust instead.
//! - [`Bridge`]: answers it with a registry of `device-memory`.
//! - [`program`]: loads programs in the runtime, on memory of its own or on
//!   [`PlannedMemory`](device_memory::PlannedMemory), and runs them.
//! - [`value`]: inputs that are the same in every run, and outputs as bytes.
//! - [`original`]: the runtime's own owner of device memory, for comparison.
//!
//! It has no content without the feature `runtime`. What it proves, and how to
//! run it, is in its README.

#![cfg(feature = "runtime")]
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::as_conversions,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::missing_errors_doc,
        clippy::missing_panics_doc,
        clippy::panic,
        clippy::unwrap_used
    )
)]

pub mod forward;
pub mod original;
pub mod program;
pub mod value;

mod bridge;

pub use crate::bridge::Bridge;

/// What went wrong, for a person.
pub type Failure = Box<dyn std::error::Error>;
