//! What a recorder keeps of one call.
//!
//! Rank 4. Part of `adaptor::recorder`. Imports the words.

use std::time::Duration;

use crate::device::Device;
use crate::layout::Tag;

/// Where in a stack of allocators something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layer {
    /// On top: blocks that the program uses.
    Blocks,
    /// Below a pool: segments that the pool divides.
    Segments,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Action {
    /// Memory was given.
    Allocate,
    /// There was no room.
    OutOfMemory {
        /// The bytes free on the device, where known.
        device_free: Option<usize>,
    },
    /// Memory was not given for another reason.
    AllocateFailed,
    /// Memory was about to be given back.
    Free,
    /// Memory was not given back after all: it is live again.
    FreeFailed,
    /// Cached memory went back to the layer below.
    Trim,
}

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Event {
    /// When, since the recorder was started. Times do not go back.
    pub time: Duration,
    /// What.
    pub action: Action,
    /// Where in the stack.
    pub layer: Layer,
    /// On which device.
    pub device: Device,
    /// The address of the block, or 0 if there is none.
    pub address: usize,
    /// The bytes of the block, asked for, or trimmed.
    pub size: usize,
    /// What the memory is for.
    pub tag: Tag,
    /// The thread; threads are numbered from 1 as they first record something.
    pub thread: u32,
}

/// A block, or a segment, that is live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RecordedBlock {
    /// On which device.
    pub device: Device,
    /// Its address.
    pub address: usize,
    /// Its bytes.
    pub size: usize,
    /// What it is for.
    pub tag: Tag,
    /// The thread that allocated it.
    pub thread: u32,
    /// When it was allocated, since the recorder was started.
    pub allocated: Duration,
}

impl RecordedBlock {
    /// The block that an event is about.
    pub(super) fn of(event: &Event) -> Self {
        Self {
            device: event.device,
            address: event.address,
            size: event.size,
            tag: event.tag,
            thread: event.thread,
            allocated: event.time,
        }
    }

    /// Whether it is where another is.
    pub(super) fn is_at(&self, other: &Self) -> bool {
        (self.device, self.address, self.size) == (other.device, other.address, other.size)
    }

    /// The address after its last byte.
    pub(super) fn end(&self) -> usize {
        self.address.saturating_add(self.size)
    }
}
