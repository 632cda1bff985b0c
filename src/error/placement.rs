//! Why a planned range has no address.
//!
//! Rank 1. Part of `error`.
//!
//! Apart from the other errors because a refusal must cost no allocation: a
//! runtime may probe.

/// A planned range that does not lie within its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// The end of the range does not fit an address.
    #[error("placement overflows: {size} bytes at offset {offset} of memory id {memory_id}")]
    Overflow {
        /// The buffer, counted from 0.
        memory_id: u32,
        /// The start of the range, in bytes.
        offset: usize,
        /// The length of the range, in bytes.
        size: usize,
    },
    /// There is no such buffer.
    #[error("unknown memory id {memory_id}: {count} buffer(s) planned")]
    UnknownMemoryId {
        /// The buffer named, counted from 0.
        memory_id: u32,
        /// How many there are.
        count: usize,
    },
    /// The range passes the end of the buffer.
    #[error(
        "placement passes the end of memory id {memory_id}: {size} bytes at offset {offset} of {len}"
    )]
    OutOfBounds {
        /// The buffer, counted from 0.
        memory_id: u32,
        /// The start of the range, in bytes.
        offset: usize,
        /// The length of the range, in bytes.
        size: usize,
        /// The length of the buffer, in bytes.
        len: usize,
    },
}

impl PlacementError {
    /// The class of this error in ExecuTorch's numbering; see
    /// [`Error::code`](crate::Error::code).
    #[must_use]
    pub fn code(&self) -> u32 {
        match self {
            Self::Overflow { .. } | Self::UnknownMemoryId { .. } => 0x12,
            Self::OutOfBounds { .. } => 0x21,
        }
    }
}
