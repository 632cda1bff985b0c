//! Blocks of one size, shared by count.
//!
//! Rank 7. Imports `backend`, `buffer`, `span` and the words.
//!
//! For caches of keys and values that grow by blocks: a sequence is a table of
//! blocks, and two sequences with a common beginning share its blocks until one
//! of them writes.

use std::fmt;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::address::DevicePtr;
use crate::backend::host::HostAllocator;
use crate::buffer::DeviceMemoryBuffer;
use crate::device::Device;
use crate::error::{Error, ErrorKind, OutOfMemory, Result};
use crate::layout::{DeviceLayout, LayoutError};
use crate::process::ProcessGeneration;
use crate::span::{DeviceSpan, DeviceSpanMut};

/// Blocks of one size in one buffer.
///
/// Having a block, sharing it and giving it back take constant time and nothing
/// from the heap. Clones are handles of one pool, and blocks keep it alive; all of
/// it may be used from any thread, under a lock that is held for a few
/// instructions. In a forked child no block is had, shared, written or given back.
///
/// # Examples
///
/// ```
/// use device_memory::{BlockPool, DeviceMemoryBuffer, DeviceType};
///
/// let buffer = DeviceMemoryBuffer::create(4096, DeviceType::Cpu, 0)?;
/// let pool = BlockPool::new(buffer, 1024)?;
///
/// let mut prompt = pool.block()?;
/// prompt.make_mut()?.fill(1)?;
/// let mut answer = prompt.fork();
/// assert_eq!(answer.index(), prompt.index());
///
/// // The first write takes a block of its own, with the same bytes.
/// answer.make_mut()?.fill(2)?;
/// assert_ne!(answer.index(), prompt.index());
/// let mut bytes = [0; 1024];
/// prompt.span().copy_to_host(&mut bytes)?;
/// assert_eq!(bytes, [1; 1024]);
/// assert_eq!(pool.free_blocks(), 2);
/// # Ok::<(), device_memory::Error>(())
/// ```
#[derive(Clone)]
pub struct BlockPool {
    shared: Arc<Shared>,
}

struct Shared {
    buffer: DeviceMemoryBuffer,
    block_size: usize,
    made_in: ProcessGeneration,
    state: Mutex<State>,
}

/// # Invariants
///
/// 0. A block is in `free` if its count is 0, and no other is; there once.
/// 1. Its count is the number of [`Block`]s of it.
struct State {
    free: Vec<u32>,
    counts: Vec<u64>,
}

/// A share of a block of a [`BlockPool`]; dropped with the last share, the block
/// is free.
pub struct Block {
    shared: Arc<Shared>,
    index: u32,
}

impl BlockPool {
    /// Divides a buffer into blocks of `block_size` bytes. A rest that makes no
    /// block is not used.
    ///
    /// # Errors
    ///
    /// - [`Layout`](ErrorKind::Layout): the size is zero.
    /// - [`CountMismatch`](ErrorKind::CountMismatch): there would be more blocks than
    ///   a `u32` can count.
    pub fn new(buffer: DeviceMemoryBuffer, block_size: usize) -> Result<Self> {
        let Some(count) = buffer.size().checked_div(block_size) else {
            return Err(LayoutError::ZeroSize.into());
        };
        let Ok(last) = u32::try_from(count) else {
            return Err(ErrorKind::CountMismatch {
                what: "blocks at most",
                expected: usize::try_from(u32::MAX).unwrap_or(usize::MAX),
                found: count,
            }
            .into());
        };
        let state = Mutex::new(State {
            // The lowest is had first.
            free: (0..last).rev().collect(),
            counts: vec![0; count],
        });
        let shared = Arc::new(Shared {
            buffer,
            block_size,
            made_in: ProcessGeneration::current(),
            state,
        });
        Ok(Self { shared })
    }

    /// A free block, with whatever bytes it has.
    ///
    /// # Errors
    ///
    /// - [`OutOfMemory`](ErrorKind::OutOfMemory): all blocks are in use. The limit
    ///   that the report gives is the size of all blocks.
    /// - [`ForkedProcess`](ErrorKind::ForkedProcess): the pool is a parent process's.
    pub fn block(&self) -> Result<Block> {
        Block::take(&self.shared)
    }

    /// The bytes of a block.
    #[must_use]
    pub fn block_size(&self) -> usize {
        self.shared.block_size
    }

    /// How many blocks there are.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.shared.blocks()
    }

    /// How many of them are free; none in a forked child.
    #[must_use]
    pub fn free_blocks(&self) -> usize {
        self.shared.state().map_or(0, |state| state.free.len())
    }

    /// Where they are.
    #[must_use]
    pub fn device(&self) -> Device {
        self.shared.buffer.device()
    }

    /// The address of the block 0; the block `i` is `i` times the block size further.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.shared.buffer.ptr()
    }
}

impl Block {
    /// The number of the block, for page tables of kernels.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// How many shares of the block there are; none in a forked child. Others may
    /// change that at any time, unless this is the only one.
    #[must_use]
    pub fn shares(&self) -> u64 {
        let state = self.shared.state();
        let count = state.and_then(|state| state.counts.get(at(self.index)).copied());
        count.unwrap_or(0)
    }

    /// Another share of the same block. Neither writes to it any more but by
    /// [`make_mut`](Self::make_mut).
    #[must_use]
    pub fn fork(&self) -> Self {
        if let Some(mut state) = self.shared.state()
            && let Some(count) = state.counts.get_mut(at(self.index))
        {
            *count = count.saturating_add(1);
        }
        Self {
            shared: Arc::clone(&self.shared),
            index: self.index,
        }
    }

    /// The bytes, to read.
    #[must_use]
    pub fn span(&self) -> DeviceSpan<'_> {
        let whole = self.shared.buffer.as_span();
        let size = self.shared.block_size;
        let offset = at(self.index).saturating_mul(size);
        // The block lies in the buffer, so this is never the empty one.
        whole
            .subspan(offset, size)
            .unwrap_or(HostAllocator::span(&[]))
    }

    /// The bytes, to write. If the block is shared, this takes a block of its own
    /// first and copies the bytes; the others keep theirs.
    ///
    /// # Errors
    ///
    /// - [`OutOfMemory`](ErrorKind::OutOfMemory): it is shared, and all blocks are in
    ///   use.
    /// - [`ForkedProcess`](ErrorKind::ForkedProcess): the pool is a parent process's.
    /// - those of a copy. Nothing has changed then.
    pub fn make_mut(&mut self) -> Result<DeviceSpanMut<'_>> {
        if !self.shared.made_in.is_current() {
            return Err(self.shared.forked());
        }
        if self.shares() > 1 {
            let mut own = Self::take(&self.shared)?;
            own.exclusive().copy_from(self.span())?;
            *self = own;
        }
        Ok(self.exclusive())
    }

    /// The bytes of the only share.
    #[expect(unsafe_code, reason = "see SAFETY")]
    fn exclusive(&mut self) -> DeviceSpanMut<'_> {
        // SAFETY: this is the only share of the block (callers check, and only
        // shares make shares, which needs a borrow of this one), and it is borrowed
        // exclusively; other blocks do not overlap it, and nothing else lends bytes
        // of the buffer.
        unsafe { DeviceSpanMut::from_shared(self.span()) }
    }

    /// The first share of a free block.
    fn take(shared: &Arc<Shared>) -> Result<Self> {
        let Some(mut state) = shared.state() else {
            return Err(shared.forked());
        };
        let Some(index) = state.free.pop() else {
            drop(state);
            return Err(shared.exhausted());
        };
        if let Some(count) = state.counts.get_mut(at(index)) {
            *count = 1;
        }
        drop(state);
        let shared = Arc::clone(shared);
        Ok(Self { shared, index })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // The memory of a child's parent is not the child's to give back.
        let Some(mut state) = self.shared.state() else {
            return;
        };
        if let Some(count) = state.counts.get_mut(at(self.index)) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                state.free.push(self.index);
            }
        }
    }
}

impl Shared {
    /// What is free and shared, or `None` in a forked child, where a thread that is
    /// not there may hold the lock.
    fn state(&self) -> Option<MutexGuard<'_, State>> {
        let here = self.made_in.is_current();
        here.then(|| self.state.lock())
    }

    /// How many blocks there are.
    fn blocks(&self) -> usize {
        let count = self.buffer.size().checked_div(self.block_size);
        count.unwrap_or(0)
    }

    #[cold]
    fn forked(&self) -> Error {
        let device = self.buffer.device();
        ErrorKind::ForkedProcess { device }.into()
    }

    /// The error for a block that is not to be had.
    #[cold]
    fn exhausted(&self) -> Error {
        let whole = self.buffer.layout();
        let layout = DeviceLayout::new(self.block_size, 1).unwrap_or(whole);
        let bytes = self.blocks().saturating_mul(self.block_size);
        let mut report = OutOfMemory::new(self.buffer.device(), layout.with_tag(whole.tag()));
        report.in_use = Some(bytes);
        report.reserved = Some(self.buffer.size());
        report.limit = Some(bytes);
        report.largest_free = Some(0);
        report.into()
    }
}

/// A number as an index.
fn at(index: u32) -> usize {
    usize::try_from(index).unwrap_or(usize::MAX)
}

impl fmt::Debug for BlockPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockPool")
            .field("block_size", &self.block_size())
            .field("blocks", &self.blocks())
            .field("free_blocks", &self.free_blocks())
            .field("device", &format_args!("{}", self.device()))
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block")
            .field("index", &self.index)
            .field("shares", &self.shares())
            .finish_non_exhaustive()
    }
}
