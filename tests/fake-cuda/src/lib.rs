//! A simulation of the CUDA driver library, for tests on machines without a GPU.
//!
//! The package is two things built from one source: `libfakecuda.so`, which
//! exports the `cu*` functions, and this library, which loads it by path and
//! controls it. After [`FakeCuda::install`] a program that opens `libcuda.so`
//! gets the simulation; before it, and without it, nothing changes.
//!
//! Each of the two has its own statics. Only those of the loaded copy are the
//! driver, so everything here goes through the symbols named `fakecuda_*`.
//!
//! What is modelled, and what is not, is in the `README.md` of the package.

#[cfg(target_os = "linux")]
mod driver;

mod client;

pub use client::{CallRecord, DeviceLive, Exclusive, FakeCuda, InstallError, Live, Run, Schedule};
