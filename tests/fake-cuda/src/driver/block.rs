//! One allocation of device memory.

use super::bytes::Bytes;

/// The pair of calls that a block belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// `cuMemAlloc` and `cuMemFree`.
    Sync,
    /// `cuMemAllocAsync` and `cuMemFreeAsync`, from this pool.
    Async { pool: u64 },
}

/// An allocation, from the call that asks for it until its memory is given back.
#[derive(Debug)]
pub(super) struct Block {
    /// Tells blocks at one address apart.
    pub(super) id: u64,
    pub(super) size: usize,
    pub(super) family: Family,
    /// The context it was allocated in.
    pub(super) context: u64,
    /// Whether the stream has come to the allocation.
    pub(super) made: bool,
    /// Whether a stream will come to its free.
    pub(super) free_requested: bool,
    pub(super) bytes: Bytes,
}

/// What is known of a block that is gone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retired {
    pub(super) base: u64,
    pub(super) size: usize,
    pub(super) id: u64,
}

impl Retired {
    pub(super) fn contains(&self, addr: u64) -> bool {
        addr.wrapping_sub(self.base) < self.size.max(1) as u64
    }
}
