//! What tests use: loading the driver, and talking to it.

mod api;
mod error;
#[cfg(target_os = "linux")]
mod hide;
mod library;
mod types;

pub use api::{Exclusive, FakeCuda};
pub use error::InstallError;
pub use types::{CallRecord, DeviceLive, Live, Run, Schedule};
