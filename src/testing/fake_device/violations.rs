//! What a caller of a fake device did wrong.
//!
//! Rank 8. Part of `testing::fake_device`. Imports the words.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::address::DevicePtr;
use crate::device::{Device, DeviceIndex};
use crate::error::Operation;
use crate::layout::DeviceLayout;

/// A call that breaks a promise of the caller, and was therefore not done.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Violation {
    /// The position of the call among all calls of the fake, counted from 1.
    pub call: u64,
    /// What was asked.
    pub operation: Operation,
    /// The device named by the caller.
    pub device: Device,
    /// What is wrong with the call.
    pub misuse: Misuse,
    /// Where the call was made, if backtraces are enabled (`RUST_BACKTRACE`).
    pub backtrace: Arc<Backtrace>,
}

/// How a call breaks a promise of the caller.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Misuse {
    /// A block is given back a second time.
    #[error("double free of {ptr}: allocated by call {allocated}, freed by call {freed}")]
    DoubleFree {
        /// The block.
        ptr: DevicePtr,
        /// The call that allocated it.
        allocated: u64,
        /// The call that freed it.
        freed: u64,
        /// Where that call was made, if backtraces are enabled.
        freed_at: Arc<Backtrace>,
    },
    /// Memory is used after it was given back.
    #[error("use of {ptr} after free: allocated by call {allocated}, freed by call {freed}")]
    UseAfterFree {
        /// The address used.
        ptr: DevicePtr,
        /// The call that allocated the block.
        allocated: u64,
        /// The call that freed it.
        freed: u64,
        /// Where that call was made, if backtraces are enabled.
        freed_at: Arc<Backtrace>,
    },
    /// The address is in no block of this fake, though it could be one of a fake.
    #[error("foreign pointer {ptr}: in no block of this device")]
    Foreign {
        /// The address.
        ptr: DevicePtr,
    },
    /// An address inside a block is given back.
    #[error("free of {ptr}: inside the block at {block}, not its start")]
    NotTheStart {
        /// The address.
        ptr: DevicePtr,
        /// The block it is in.
        block: DevicePtr,
    },
    /// The memory is on another device than the one named.
    #[error("wrong device index {index}: {ptr} is on {expected}")]
    WrongDevice {
        /// The address.
        ptr: DevicePtr,
        /// The device it is on.
        expected: Device,
        /// The index named.
        index: DeviceIndex,
    },
    /// A block is given back with another layout than it was allocated with.
    #[error(
        "wrong layout of {ptr}: allocated {} bytes (align {}), freed as {} bytes (align {})",
        expected.size(), expected.align(), found.size(), found.align()
    )]
    WrongLayout {
        /// The block.
        ptr: DevicePtr,
        /// The layout it was allocated with.
        expected: DeviceLayout,
        /// The layout named.
        found: DeviceLayout,
    },
    /// A range passes the end of its block.
    #[error("{size} bytes at {ptr} pass the end of the block at {block} of {len} bytes")]
    OutOfBounds {
        /// The start of the range.
        ptr: DevicePtr,
        /// The bytes of the range.
        size: usize,
        /// The block it starts in.
        block: DevicePtr,
        /// The bytes of the block.
        len: usize,
    },
    /// A range reaches from one block into another.
    #[error("{size} bytes at {ptr} reach from the block at {first} into the block at {second}")]
    SpansBlocks {
        /// The start of the range.
        ptr: DevicePtr,
        /// The bytes of the range.
        size: usize,
        /// The block it starts in.
        first: DevicePtr,
        /// The next one.
        second: DevicePtr,
    },
    /// An address that is none of a fake device is given for device memory.
    #[error("host address {addr:#x} where a device address is due")]
    HostAddress {
        /// The address.
        addr: usize,
    },
    /// An address of a fake device is given for host memory. It was not read.
    #[error("device address {addr:#x} where a host address is due")]
    DeviceAddress {
        /// The address.
        addr: usize,
    },
    /// A null pointer is given for host memory.
    #[error("null pointer where a host address is due")]
    NullHostPointer,
    /// The two ranges of a copy between devices overlap.
    #[error("copy of {size} bytes from {src} to {dst} overlaps itself")]
    Overlap {
        /// The start of one range.
        dst: DevicePtr,
        /// The start of the other.
        src: DevicePtr,
        /// The bytes of each.
        size: usize,
    },
    /// There is no device of this index.
    #[error("device index {index} of {count}")]
    InvalidIndex {
        /// The index named.
        index: DeviceIndex,
        /// How many devices there are.
        count: usize,
    },
    /// A layout or a range of no bytes, which callers keep to themselves.
    #[error("a call with no bytes")]
    Empty,
}

impl Violation {
    /// The backtraces that were captured, each with what happened there.
    pub(super) fn backtraces(&self) -> impl Iterator<Item = (&'static str, &Backtrace)> {
        let first = match &self.misuse {
            Misuse::DoubleFree { freed_at, .. } | Misuse::UseAfterFree { freed_at, .. } => {
                Some(("first freed", &**freed_at))
            }
            _ => None,
        };
        std::iter::once(("called", &*self.backtrace))
            .chain(first)
            .filter(|(_, backtrace)| backtrace.status() == BacktraceStatus::Captured)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "call {}, {} on {}: {}",
            self.call, self.operation, self.device, self.misuse
        )
    }
}

impl StdError for Violation {}
