//! How an allocator can be wrong.
//!
//! Rank 1. Part of `error`.

use std::fmt;

/// How memory that an allocator returned breaks the allocator's promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AllocatorFault {
    /// Its address is no multiple of the alignment.
    Misaligned {
        /// The address returned.
        addr: usize,
        /// The alignment asked for, in bytes.
        align: usize,
    },
    /// Its end lies beyond the last address.
    Wraps {
        /// The address returned.
        addr: usize,
        /// The size asked for, in bytes.
        size: usize,
    },
}

impl fmt::Display for AllocatorFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Misaligned { addr, align } => {
                write!(f, "is not aligned to {align} bytes: {addr:#x}")
            }
            Self::Wraps { addr, size } => {
                write!(f, "wraps the address space: {size} bytes from {addr:#x}")
            }
        }
    }
}
