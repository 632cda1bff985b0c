//! Where memory comes from: one module per kind of device.
//!
//! Rank 4. A back end imports `allocator` and the words, never another back end.

#[cfg(feature = "cuda")]
pub mod cuda;
pub mod host;
