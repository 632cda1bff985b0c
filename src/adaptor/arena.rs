//! Blocks cut one after another from large ones.
//!
//! Rank 4. Imports `allocator`, `free_failure` and the words.
//!
//! The layer below is called under no lock. A block is never handed out again while
//! it is live: going back to a checkpoint is refused until all since it is freed.

mod chunks;

use crate::address::DevicePtr;
use crate::allocator::{DeviceAllocator, below, forward, guarded, no_room};
use crate::device::{Device, DeviceIndex};
use crate::error::{Attempt, Error, ErrorKind, Operation, OutOfMemory, Result};
use crate::free_failure;
use crate::layout::{DeviceLayout, LayoutError};
use crate::process::ProcessGeneration;
use crate::sync::Mutex;
use crate::table::Table;

use chunks::{Chunk, Chunks};

/// A bump allocator: blocks are cut from chunks of the layer below, in order.
///
/// Memory comes back when the block cut last is freed, and when all blocks of a
/// chunk are, or all since a [`checkpoint`](Self::checkpoint). In between, holes are
/// not filled: an arena is for memory that is freed together. Chunks that are empty
/// are kept for the next blocks until [`trim`](DeviceAllocator::trim) or until the
/// arena is dropped.
///
/// A chunk has the [tag](crate::Tag) of the request that it is asked for, and blocks of
/// any tag are cut from it. So a [`Limit`](super::Limit) by tag belongs above an arena, or
/// below one that only one tag uses.
///
/// Costs a lock of the device and a few comparisons for each call, and a search
/// among the chunks for a free. The layer below is called once a chunk; each chunk
/// is as large as all before it together, or as the request.
///
/// Memory that is handed out again keeps the bytes that it had. If the arena is
/// dropped while blocks live that nobody can free any more, their chunks are leaked.
/// In a forked child nothing is given or taken back.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use device_memory::adaptor::Arena;
/// use device_memory::{DeviceLayout, DeviceMemoryBuffer, HostAllocator};
///
/// let arena = Arc::new(Arena::over(HostAllocator, 1 << 20));
/// let layout = DeviceLayout::from_size(1000)?;
/// let weights = DeviceMemoryBuffer::create_with(arena.clone(), layout, 0)?;
///
/// let step = arena.checkpoint(0)?;
/// let scratch = DeviceMemoryBuffer::create_with(arena.clone(), layout, 0)?;
/// assert_eq!(step.rollback().unwrap_err().blocks, 1);
/// drop(scratch);
/// step.rollback()?;
///
/// assert_eq!(arena.status(0).in_use, 1000);
/// assert_eq!(arena.status(0).chunks, 1);
/// # drop(weights);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Arena<A: DeviceAllocator> {
    upstream: A,
    /// The size of the first chunk.
    chunk: usize,
    /// Whether there is no other.
    fixed: bool,
    devices: Table<Mutex<Chunks>>,
    generation: ProcessGeneration,
}

/// How an arena stands on one device. Sizes are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArenaStatus {
    /// What is handed out.
    pub in_use: usize,
    /// What is held from the layer below.
    pub reserved: usize,
    /// The largest block that there is room for without another chunk.
    pub largest_free: usize,
    /// How many chunks there are.
    pub chunks: usize,
}

/// A point in the life of an [`Arena`] on one device, to go back to.
///
/// Dropping it forgets the point and changes nothing else.
#[derive(Debug)]
pub struct Checkpoint<'a> {
    chunks: &'a Mutex<Chunks>,
    id: u64,
    device: Device,
    generation: ProcessGeneration,
}

/// Blocks made since a checkpoint are still in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{blocks} block(s) on {device} are live since the checkpoint")]
#[non_exhaustive]
pub struct StillLive {
    /// The device.
    pub device: Device,
    /// How many.
    pub blocks: usize,
}

/// The alignment of chunks, unless a request needs more, in bytes.
const CHUNK_ALIGN: usize = 256;

impl<A: DeviceAllocator> Arena<A> {
    /// Cuts from chunks of `upstream`, of which the first on each device has `chunk`
    /// bytes, or as many as the first request if that is more.
    #[must_use]
    pub fn over(upstream: A, chunk: usize) -> Self {
        Self::new(upstream, chunk, false)
    }

    /// Cuts from one chunk of `bytes` bytes on each device, allocated with the first
    /// block there, and is out of memory when that is full.
    #[must_use]
    pub fn fixed(upstream: A, bytes: usize) -> Self {
        Self::new(upstream, bytes, true)
    }

    fn new(upstream: A, chunk: usize, fixed: bool) -> Self {
        Self {
            upstream,
            chunk,
            fixed,
            devices: Table::default(),
            generation: ProcessGeneration::current(),
        }
    }

    /// The allocator inside.
    #[must_use]
    pub fn inner(&self) -> &A {
        &self.upstream
    }

    /// How the arena stands on the device `index`. In a forked child it has nothing.
    #[must_use]
    pub fn status(&self, index: DeviceIndex) -> ArenaStatus {
        let chunks = self.devices.find(index);
        let Some(chunks) = chunks.filter(|_| self.generation.is_current()) else {
            return ArenaStatus::default();
        };
        let chunks = chunks.lock();
        ArenaStatus {
            in_use: chunks.in_use(),
            reserved: chunks.reserved(),
            largest_free: chunks.largest_free(),
            chunks: chunks.len(),
        }
    }

    /// Marks the point that the device `index` is at.
    ///
    /// # Errors
    ///
    /// - [`InvalidDevice`](ErrorKind::InvalidDevice): no such index.
    /// - [`ForkedProcess`](ErrorKind::ForkedProcess): the arena is a parent process's.
    pub fn checkpoint(&self, index: DeviceIndex) -> Result<Checkpoint<'_>> {
        let chunks = self.chunks(index)?;
        let id = chunks.lock().checkpoint();
        Ok(Checkpoint {
            chunks,
            id,
            device: self.device(index),
            generation: self.generation,
        })
    }

    fn device(&self, index: DeviceIndex) -> Device {
        Device::new(self.upstream.device_type(), index)
    }

    /// The chunks of a device that is there, in the process that made the arena: in
    /// another, their lock may be held by a thread that is not there.
    fn chunks(&self, index: DeviceIndex) -> Result<&Mutex<Chunks>> {
        self.upstream.check_index(index)?;
        if !self.generation.is_current() {
            let device = self.device(index);
            return Err(ErrorKind::ForkedProcess { device }.into());
        }
        Ok(self.devices.get(index))
    }

    /// Gets a chunk that holds `layout` from the layer below.
    fn grow(&self, layout: DeviceLayout, index: DeviceIndex, reserved: usize) -> Result<Chunk> {
        let align = layout.align().max(CHUNK_ALIGN);
        let size = match self.fixed {
            true => self.chunk,
            false => self.chunk.max(reserved).max(layout.size()),
        };
        let device = self.device(index);
        let ask = |wanted: DeviceLayout| {
            let wanted = wanted.with_tag(layout.tag());
            let ptr = guarded(device, Operation::Allocate, || {
                self.upstream.allocate(wanted, index)
            })?;
            Ok::<_, Error>(Chunk::new(ptr, wanted))
        };
        let generous = DeviceLayout::new(size, align).ok();
        match generous.map(ask) {
            Some(Err(error)) if !self.fixed && error.is_out_of_memory() => ask(layout),
            Some(asked) => asked,
            None => ask(layout),
        }
    }

    /// Adds what is known here to the report of a request for `layout`.
    #[cold]
    fn explain(
        &self,
        report: &mut OutOfMemory,
        layout: DeviceLayout,
        chunks: &Mutex<Chunks>,
        tried: &[Attempt],
    ) {
        report.asked_for(layout);
        let chunks = chunks.lock();
        // To the layer below, all that is held here is in use.
        report.in_use = Some(chunks.in_use());
        report.reserved = Some(chunks.reserved());
        let free = Some(chunks.largest_free());
        report.largest_free = match self.fixed {
            true => free,
            // What the layer below has could have been a chunk.
            false => report.largest_free.max(free),
        };
        if report.tried.is_empty() {
            report.tried = tried.to_vec();
        }
    }

    #[cold]
    fn allocate_from_new_chunk(
        &self,
        layout: DeviceLayout,
        index: DeviceIndex,
        chunks: &Mutex<Chunks>,
    ) -> Result<DevicePtr> {
        let full = |tried: &[Attempt]| -> Error {
            let mut report = no_room(self.device(index), layout, &self.upstream);
            report.limit = self.fixed.then_some(self.chunk);
            self.explain(&mut report, layout, chunks, tried);
            report.into()
        };
        let (reserved, len) = {
            let chunks = chunks.lock();
            (chunks.reserved(), chunks.len())
        };
        if self.fixed && (len > 0 || layout.size() > self.chunk) {
            return Err(full(&[Attempt::Search]));
        }
        let chunk = match self.grow(layout, index, reserved) {
            Err(error) if error.is_out_of_memory() => {
                // Chunks that are empty and too small are no use here.
                match self.give_idle_back(chunks, index) {
                    (0, _) => Err(error),
                    _ => self.grow(layout, index, 0),
                }
            }
            other => other,
        };
        let tried = [Attempt::Search, Attempt::Upstream, Attempt::Trim];
        let explain = |report: &mut OutOfMemory| self.explain(report, layout, chunks, &tried);
        let chunk = chunk.map_err(|error| error.explained(explain))?;
        let mut locked = chunks.lock();
        let spare = match self.fixed && locked.len() > 0 {
            // Another thread was first.
            true => Some(chunk),
            false => {
                locked.put_next(chunk);
                None
            }
        };
        let ptr = locked.place(layout);
        drop(locked);
        if let Some(chunk) = spare {
            self.give_back_or_tell(&chunk, index);
        }
        ptr.ok_or_else(|| full(&[Attempt::Search, Attempt::Upstream]))
    }

    #[expect(unsafe_code, reason = "see SAFETY")]
    fn give_back(&self, chunk: &Chunk, index: DeviceIndex) -> Result<()> {
        guarded(self.device(index), Operation::Deallocate, || {
            // SAFETY: the allocator inside gave the chunk with this layout and index. It
            // was taken out of the device's chunks, so that it is given back once and
            // nothing more is cut from it, and no block in it is live.
            unsafe { self.upstream.deallocate(chunk.ptr, chunk.layout, index) }
        })
    }

    /// Gives empty chunks back, and returns how many bytes that were and the last error.
    fn give_idle_back(&self, chunks: &Mutex<Chunks>, index: DeviceIndex) -> (usize, Option<Error>) {
        let idle = chunks.lock().take_idle();
        let mut released: usize = 0;
        let mut failed = None;
        for chunk in idle {
            match self.give_back(&chunk, index) {
                Err(error) if !error.is_shut_down() => {
                    chunks.lock().put_last(chunk);
                    failed = Some(error);
                }
                _ => released = released.saturating_add(chunk.layout.size()),
            }
        }
        (released, failed)
    }

    /// Gives a chunk back. If that fails, nobody is there to be told but the hook.
    fn give_back_or_tell(&self, chunk: &Chunk, index: DeviceIndex) {
        let freed = self.give_back(chunk, index);
        free_failure::report_lost(self.device(index), chunk.ptr, chunk.layout, freed);
    }
}

// SAFETY: by number of the promises,
// 1, 6. Those of the allocator inside.
// 2. A block lies in a chunk that is given back when no block in it is live, and not
//    otherwise, nor when the arena is dropped.
// 3. Blocks are cut one after another; the end of what is used falls only to where a
//    block begins that is freed last, or over parts without live blocks.
// 4. The address is rounded up.
// 5. Its bytes are those of the chunk, which were initialized when it was given.
// 7. A failed request adds at most an empty chunk. What is freed here can not fail,
//    but for what is not of this arena or process, which is left alone.
// 8. A request of no bytes is refused.
// 9. Dropped in a child, it leaks its chunks.
// 10. The default of `as_any` does not tell; addresses are of the upstream's blocks.
#[expect(unsafe_code, reason = "implements an unsafe trait")]
unsafe impl<A: DeviceAllocator> DeviceAllocator for Arena<A> {
    forward!(self => self.upstream; identity, upstream, copies, memory_info, synchronize);

    fn allocate(&self, layout: DeviceLayout, index: DeviceIndex) -> Result<DevicePtr> {
        let chunks = self.chunks(index)?;
        if layout.is_empty() {
            return Err(LayoutError::ZeroSize.into());
        }
        let placed = chunks.lock().place(layout);
        match placed {
            Some(ptr) => Ok(ptr),
            None => self.allocate_from_new_chunk(layout, index, chunks),
        }
    }

    unsafe fn deallocate(
        &self,
        ptr: DevicePtr,
        layout: DeviceLayout,
        index: DeviceIndex,
    ) -> Result<()> {
        let given = self.chunks(index)?.lock().give(ptr, layout);
        if given {
            return Ok(());
        }
        let stray = format!("no live block at {ptr}");
        Err(Error::backend(
            self.device(index),
            Operation::Deallocate,
            stray,
        ))
    }

    fn trim(&self, index: DeviceIndex) -> Result<usize> {
        let chunks = self.chunks(index)?;
        match self.give_idle_back(chunks, index) {
            (_, Some(error)) => Err(error),
            // What the layer below gives back includes these, if it keeps any.
            (released, None) => Ok(released.max(below::trim(&self.upstream, index)?)),
        }
    }
}

impl<A: DeviceAllocator> Drop for Arena<A> {
    fn drop(&mut self) {
        if !self.generation.is_current() {
            return;
        }
        for (index, chunks) in self.devices.iter() {
            let all = chunks.lock().take_all();
            for chunk in all.iter().filter(|chunk| chunk.live() == 0) {
                self.give_back_or_tell(chunk, index);
            }
        }
    }
}

impl Checkpoint<'_> {
    /// Checks that all blocks made since are freed, so that the arena is back where
    /// it was.
    ///
    /// It may be called again, after more was freed or made.
    ///
    /// # Errors
    ///
    /// - [`StillLive`]: some blocks are live. They stay valid, and nothing is changed.
    pub fn rollback(&self) -> Result<(), StillLive> {
        match self.live_blocks() {
            0 => Ok(()),
            blocks => Err(StillLive {
                device: self.device,
                blocks,
            }),
        }
    }

    /// How many blocks made since are live; none in a forked child, which has none.
    #[must_use]
    pub fn live_blocks(&self) -> usize {
        match self.generation.is_current() {
            true => self.chunks.lock().live_since(self.id),
            false => 0,
        }
    }
}

impl Drop for Checkpoint<'_> {
    fn drop(&mut self) {
        if self.generation.is_current() {
            self.chunks.lock().forget(self.id);
        }
    }
}
