//! Tensors that pass to and from other libraries.

#![cfg(all(feature = "dlpack", feature = "testing"))]

#[path = "dlpack/export.rs"]
mod export;
#[path = "dlpack/faults.rs"]
mod faults;
#[cfg(unix)]
#[path = "dlpack/forked.rs"]
mod forked;
#[path = "dlpack/import.rs"]
mod import;
#[path = "dlpack/model.rs"]
mod model;
#[path = "dlpack/support.rs"]
mod support;
