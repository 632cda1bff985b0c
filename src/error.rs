//! Everything that can go wrong.
//!
//! Rank 1. Imports the nouns: `device`, `layout`, `address`.
//!
//! One [`Error`] for the whole crate. Its fields hold what a message needs: what
//! was asked, where, how much, and the limit. Callers branch on predicates such
//! as [`Error::is_out_of_memory`], a C++ runtime on [`Error::code`].

mod out_of_memory;
mod program;

use std::error::Error as StdError;
use std::fmt;

use crate::device::{Device, DeviceType, ParseDeviceError};
use crate::layout::{DeviceLayout, LayoutError};

pub use out_of_memory::OutOfMemory;
pub use program::InvalidProgram;

/// The result of an operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong.
///
/// No variant is returned for a fault other than the one it names: an
/// allocation that fails for a reason that is not known to be a lack of memory
/// is a [`Backend`](Self::Backend) error that keeps the driver's own error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No allocator serves this type of device.
    #[error("no allocator is registered for device type {device_type}")]
    NotRegistered {
        /// The type asked for.
        device_type: DeviceType,
    },
    /// Another allocator serves this type of device already, and goes on doing so.
    #[error("an allocator is already registered for device type {device_type}")]
    AlreadyRegistered {
        /// The type of both.
        device_type: DeviceType,
    },
    /// The allocator serves the type of device, but not this index.
    #[error("invalid device {device}: {count} device(s) of type {} present", device.device_type())]
    InvalidDevice {
        /// The device asked for.
        device: Device,
        /// How many devices of its type there are.
        count: usize,
    },
    /// A text names no device.
    #[error(transparent)]
    ParseDevice(Box<ParseDeviceError>),
    /// A size or an alignment that no allocation can have.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The device had no room. Freeing memory and trying again may succeed.
    #[error("{0}")]
    OutOfMemory(Box<OutOfMemory>),
    /// An allocator returned memory that breaks its promises. It was given back.
    #[error("allocator of {device} returned memory that {fault}")]
    BadAllocator {
        /// The device allocated on.
        device: Device,
        /// What is wrong with the memory.
        fault: AllocatorFault,
    },
    /// The device's allocator failed for a reason of its own.
    #[error("{operation} on {device} failed: {source}")]
    Backend {
        /// The device used.
        device: Device,
        /// What was attempted.
        operation: Operation,
        /// The allocator's own error.
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The allocator panicked. What it was asked to do may or may not be done.
    #[error("allocator panicked during {operation} on {device}")]
    AllocatorPanicked {
        /// The device used.
        device: Device,
        /// What was attempted.
        operation: Operation,
    },
    /// The device's allocator does not offer the operation.
    #[error("{operation} is not supported on {device}")]
    NotSupported {
        /// The device asked.
        device: Device,
        /// What was asked of it.
        operation: Operation,
    },
    /// The host can not read the memory.
    #[error("memory of {device} is not accessible from the host")]
    NotHostAccessible {
        /// Where the memory is.
        device: Device,
    },
    /// Memory of one device was given where another's is due.
    #[error("device mismatch: expected {expected}, found {found}")]
    DeviceMismatch {
        /// The device that is due.
        expected: Device,
        /// The device given.
        found: Device,
    },
    /// A range passes the end of a view or buffer.
    #[error("out of bounds on {device}: {size} bytes at offset {offset} of {len}")]
    OutOfBounds {
        /// Where the memory is.
        device: Device,
        /// The start of the range, in bytes.
        offset: usize,
        /// The length of the range, in bytes.
        size: usize,
        /// The length of the memory, in bytes.
        len: usize,
    },
    /// The two sides of a copy differ in length.
    #[error("length mismatch on {device}: expected {expected} bytes, found {found}")]
    LengthMismatch {
        /// Where the memory is.
        device: Device,
        /// The length that is due, in bytes.
        expected: usize,
        /// The length given, in bytes.
        found: usize,
    },
    /// As many things of one kind are due as of another, and are not there.
    #[error("count mismatch: expected {expected} {what}, found {found}")]
    CountMismatch {
        /// What was counted.
        what: &'static str,
        /// The number that is due.
        expected: u32,
        /// The number given.
        found: u32,
    },
    /// The end of a planned range does not fit an address.
    #[error("placement overflows: {size} bytes at offset {offset} of memory id {memory_id}")]
    PlacementOverflow {
        /// The buffer, counted from 0.
        memory_id: u32,
        /// The start of the range, in bytes.
        offset: usize,
        /// The length of the range, in bytes.
        size: usize,
    },
    /// A planned range names a buffer that does not exist.
    #[error("unknown memory id {memory_id}: {count} buffer(s) planned")]
    UnknownMemoryId {
        /// The buffer named, counted from 0.
        memory_id: u32,
        /// How many there are.
        count: usize,
    },
    /// A planned range passes the end of its buffer.
    #[error(
        "placement passes the end of memory id {memory_id}: {size} bytes at offset {offset} of {len}"
    )]
    PlacementOutOfBounds {
        /// The buffer, counted from 0.
        memory_id: u32,
        /// The start of the range, in bytes.
        offset: usize,
        /// The length of the range, in bytes.
        size: usize,
        /// The length of the buffer, in bytes.
        len: usize,
    },
    /// Two ranges that are to be used exclusively overlap.
    #[error("ranges {first} and {second} overlap")]
    Overlap {
        /// The position of one in the request.
        first: usize,
        /// The position of the other.
        second: usize,
    },
    /// One of several things done together failed, and none of them is left.
    #[error("{what} {index}: {source}")]
    AtIndex {
        /// What is counted.
        what: &'static str,
        /// The position of the one that failed, counted from 0.
        index: u32,
        /// Why it failed.
        source: Box<Error>,
    },
    /// The owner was made in a parent process and is inert in this one.
    #[error("memory of {device} belongs to the parent of this forked process")]
    ForkedProcess {
        /// Where the memory is.
        device: Device,
    },
    /// The driver is shut down, as at the exit of a process. Its memory is gone.
    #[error("driver of {device} is shut down")]
    ShutDown {
        /// The device used.
        device: Device,
    },
    /// A tensor's description contradicts itself.
    #[error("invalid tensor: {reason}")]
    InvalidTensor {
        /// What contradicts what.
        reason: &'static str,
    },
    /// An ExecuTorch program is malformed.
    #[error(transparent)]
    InvalidProgram(Box<InvalidProgram>),
}

impl Error {
    /// Whether the device had no room.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        self.out_of_memory().is_some()
    }

    /// Whether no allocator serves the type of device.
    #[must_use]
    pub fn is_not_registered(&self) -> bool {
        matches!(self.root(), Self::NotRegistered { .. })
    }

    /// Whether the operation is one that the device does not offer.
    #[must_use]
    pub fn is_not_supported(&self) -> bool {
        matches!(
            self.root(),
            Self::NotSupported { .. } | Self::NotHostAccessible { .. }
        )
    }

    /// The report of an out-of-memory error, also where it befell one of several
    /// allocations.
    #[must_use]
    pub fn out_of_memory(&self) -> Option<&OutOfMemory> {
        match self.root() {
            Self::OutOfMemory(report) => Some(report),
            _ => None,
        }
    }

    /// The error itself, without the position that [`AtIndex`](Self::AtIndex) adds.
    #[must_use]
    pub fn root(&self) -> &Self {
        let mut error = self;
        while let Self::AtIndex { source, .. } = error {
            error = source;
        }
        error
    }

    /// The class of this error in ExecuTorch's numbering, for a C++ runtime.
    ///
    /// | class | code |
    /// | --- | --- |
    /// | `Internal` | `0x01` |
    /// | `InvalidState` | `0x02` |
    /// | `NotSupported` | `0x10` |
    /// | `InvalidArgument` | `0x12` |
    /// | `RegistrationAlreadyRegistered` | `0x16` |
    /// | `NotFound` | `0x20` |
    /// | `MemoryAllocationFailed` | `0x21` |
    /// | `InvalidProgram` | `0x23` |
    #[must_use]
    pub fn code(&self) -> u32 {
        match self.root() {
            Self::BadAllocator { .. }
            | Self::Backend { .. }
            | Self::AllocatorPanicked { .. }
            | Self::AtIndex { .. } => 0x01,
            Self::ForkedProcess { .. } | Self::ShutDown { .. } => 0x02,
            Self::NotSupported { .. } | Self::NotHostAccessible { .. } => 0x10,
            Self::InvalidDevice { .. }
            | Self::ParseDevice(_)
            | Self::Layout(_)
            | Self::DeviceMismatch { .. }
            | Self::OutOfBounds { .. }
            | Self::LengthMismatch { .. }
            | Self::CountMismatch { .. }
            | Self::PlacementOverflow { .. }
            | Self::UnknownMemoryId { .. }
            | Self::Overlap { .. }
            | Self::InvalidTensor { .. } => 0x12,
            Self::AlreadyRegistered { .. } => 0x16,
            Self::NotRegistered { .. } => 0x20,
            Self::OutOfMemory(_) | Self::PlacementOutOfBounds { .. } => 0x21,
            Self::InvalidProgram(_) => 0x23,
        }
    }

    /// An error of an allocator's own, kept as the source.
    #[cold]
    pub fn backend(
        device: Device,
        operation: Operation,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self::Backend {
            device,
            operation,
            source: source.into(),
        }
    }

    /// The host had no room for `size` bytes.
    #[cold]
    pub(crate) fn host_out_of_memory(size: usize) -> Self {
        match DeviceLayout::new(size, 1) {
            Ok(layout) => OutOfMemory::new(Device::CPU, layout).into(),
            Err(error) => error.into(),
        }
    }

    /// The same error, said of the `index`-th of several `what`s.
    #[cold]
    pub(crate) fn at(self, what: &'static str, index: usize) -> Self {
        Self::AtIndex {
            what,
            index: u32::try_from(index).unwrap_or(u32::MAX),
            source: Box::new(self),
        }
    }

    /// A [`CountMismatch`](Self::CountMismatch).
    #[cold]
    pub(crate) fn count_mismatch(what: &'static str, expected: usize, found: usize) -> Self {
        Self::CountMismatch {
            what,
            expected: u32::try_from(expected).unwrap_or(u32::MAX),
            found: u32::try_from(found).unwrap_or(u32::MAX),
        }
    }
}

impl From<ParseDeviceError> for Error {
    fn from(error: ParseDeviceError) -> Self {
        Self::ParseDevice(Box::new(error))
    }
}

impl From<OutOfMemory> for Error {
    fn from(report: OutOfMemory) -> Self {
        Self::OutOfMemory(Box::new(report))
    }
}

impl From<InvalidProgram> for Error {
    fn from(fault: InvalidProgram) -> Self {
        Self::InvalidProgram(Box::new(fault))
    }
}

/// Something an allocator is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Making memory available.
    Allocate,
    /// Giving memory back.
    Deallocate,
    /// Copying from the host to the device.
    CopyHostToDevice,
    /// Copying from the device to the host.
    CopyDeviceToHost,
    /// Copying from a device to a device.
    CopyDeviceToDevice,
    /// Setting every byte of a range to one value.
    Fill,
    /// Asking for free and total memory.
    MemoryInfo,
    /// Waiting for all work of the device.
    Synchronize,
    /// Giving unused memory back to the system.
    Trim,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allocate => "allocate",
            Self::Deallocate => "deallocate",
            Self::CopyHostToDevice => "copy from host to device",
            Self::CopyDeviceToHost => "copy from device to host",
            Self::CopyDeviceToDevice => "copy from device to device",
            Self::Fill => "fill",
            Self::MemoryInfo => "memory info",
            Self::Synchronize => "synchronize",
            Self::Trim => "trim",
        })
    }
}

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

// Errors are returned by value on paths that are counted in instructions.
const _: () = assert!(size_of::<Error>() <= 32);
const _: fn() = || {
    fn is_send_sync<T: Send + Sync>() {}
    is_send_sync::<Error>();
};
