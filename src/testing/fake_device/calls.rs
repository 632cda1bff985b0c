//! What was asked of a fake device.
//!
//! Rank 8. Part of `testing::fake_device`. Imports the words.

use std::fmt;
use std::thread::{self, ThreadId};

use crate::address::DevicePtr;
use crate::device::DeviceIndex;
use crate::error::Operation;

/// One call that a [`FakeDevice`](super::FakeDevice) got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Call {
    /// The position among all calls of this fake, counted from 1.
    pub sequence: u64,
    /// What was asked.
    pub operation: Operation,
    /// The device asked; for a copy between devices, the one copied to.
    pub index: DeviceIndex,
    /// The device memory named by the caller, or what an allocation returned;
    /// for a copy between devices, where it copies to.
    pub ptr: Option<DevicePtr>,
    /// Where a copy between devices copies from.
    pub source: Option<(DevicePtr, DeviceIndex)>,
    /// The bytes asked for, given back, copied or filled.
    pub size: usize,
    /// The alignment of the layout that was passed, if one was.
    pub align: Option<usize>,
    /// Whether it was done.
    pub succeeded: bool,
    /// The thread that called.
    pub thread: ThreadId,
}

impl Call {
    /// A call of which nothing more is known yet.
    pub(super) fn new(operation: Operation, index: DeviceIndex) -> Self {
        Self {
            sequence: 0,
            operation,
            index,
            ptr: None,
            source: None,
            size: 0,
            align: None,
            succeeded: false,
            thread: thread::current().id(),
        }
    }

    /// The same call on `size` bytes from `ptr`.
    pub(super) fn on(mut self, ptr: DevicePtr, size: usize) -> Self {
        self.ptr = Some(ptr);
        self.size = size;
        self
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call {}: {}", self.sequence, self.operation)?;
        if self.size != 0 {
            write!(f, " of {} bytes", self.size)?;
        }
        if let Some(align) = self.align {
            write!(f, " (align {align})")?;
        }
        if let Some(ptr) = self.ptr {
            write!(f, " at {ptr}")?;
        }
        write!(f, " on index {}", self.index)?;
        if let Some((ptr, index)) = self.source {
            write!(f, " from {ptr} on index {index}")?;
        }
        f.write_str(if self.succeeded { "" } else { ", failed" })
    }
}
