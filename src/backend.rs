//! Where memory comes from: one module per kind of device.
//!
//! Rank 3. A back end imports `allocator` and the words, never another back end.

pub mod host;
