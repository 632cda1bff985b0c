//! Everything that can go wrong.
//!
//! Rank 1. Imports the nouns: `device`, `layout`, `address`.
//!
//! One [`Error`] for the whole crate. Its fields hold what a message needs: what
//! was asked, where, how much, and the limit. Callers branch on predicates such
//! as [`Error::is_out_of_memory`] or on [`Error::kind`], a C++ runtime on
//! [`Error::code`]. An error is one word wide, so that results that carry one
//! stay in registers.

mod fault;
mod operation;
mod out_of_memory;
mod placement;
mod program;

use std::error::Error as StdError;
use std::fmt;

use crate::device::{Device, DeviceType, ParseDeviceError};
use crate::layout::{DeviceLayout, LayoutError};

pub use fault::AllocatorFault;
pub use operation::Operation;
pub use out_of_memory::OutOfMemory;
pub use placement::PlacementError;
pub use program::InvalidProgram;

/// The result of an operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of this crate, one word wide.
///
/// Its text is one line that includes what caused it; [`source`](StdError::source)
/// gives the cause too, for those who want to take it apart.
///
/// # Examples
///
/// ```
/// use device_memory::{DeviceMemoryBuffer, DeviceType, ErrorKind};
///
/// let error = DeviceMemoryBuffer::create(64, DeviceType::Custom(5), 0).unwrap_err();
///
/// assert!(error.is_not_registered());
/// assert!(matches!(error.kind(), ErrorKind::NotRegistered { .. }));
/// assert_eq!(error.to_string(), "no allocator is registered for device type custom5");
/// assert_eq!(error.code(), 0x20);
/// ```
#[derive(thiserror::Error)]
#[error(transparent)]
pub struct Error(Box<ErrorKind>);

/// What went wrong.
///
/// No variant is returned for a fault other than the one it names: an
/// allocation that fails for a reason that is not known to be a lack of memory
/// is a [`Backend`](Self::Backend) error that keeps the driver's own error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No allocator serves this type of device.
    #[error("no allocator is registered for device type {device_type}")]
    NotRegistered {
        /// The type asked for.
        device_type: DeviceType,
    },
    /// An allocator serves this type of device already, perhaps the same one, and
    /// goes on doing so.
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
    ParseDevice(#[from] ParseDeviceError),
    /// A size or an alignment that no allocation can have.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The device had no room. Freeing memory and trying again may succeed.
    #[error("{0}")]
    OutOfMemory(OutOfMemory),
    /// An allocator returned memory that breaks its promises, and was given it back.
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
    /// No driver for the type of device could be loaded.
    #[error("no driver found for {device_type}: tried {}", tried.join(", "))]
    DriverNotFound {
        /// The type asked for.
        device_type: DeviceType,
        /// The names of the libraries tried.
        tried: Vec<String>,
    },
    /// The driver lacks a function that is needed.
    #[error("driver of {device_type} lacks {symbol}")]
    MissingSymbol {
        /// The type asked for.
        device_type: DeviceType,
        /// The function.
        symbol: &'static str,
    },
    /// The driver is older than what is needed.
    #[error(
        "driver of {device_type} is too old: found {}.{}, needed {}.{}",
        found / 1000, found % 1000 / 10, needed / 1000, needed % 1000 / 10
    )]
    DriverTooOld {
        /// The type asked for.
        device_type: DeviceType,
        /// The version found, as the driver gives it: 12040 for 12.4.
        found: u32,
        /// The least version that will do.
        needed: u32,
    },
    /// The driver is there, and no device of the type is.
    #[error("no device of type {device_type} present")]
    NoDevice {
        /// The type asked for.
        device_type: DeviceType,
    },
    /// The driver failed, with a code of its own.
    #[error("{operation} on {device} failed: {call} returned {code} ({name})")]
    Driver {
        /// The device used.
        device: Device,
        /// What was attempted.
        operation: Operation,
        /// The driver's function.
        call: &'static str,
        /// The driver's code.
        code: u32,
        /// The driver's name for the code.
        name: &'static str,
    },
    /// The stream is recording a graph, which a call would spoil.
    #[error("{operation} on {device} refused: its stream is capturing")]
    Capturing {
        /// The device used.
        device: Device,
        /// What was attempted.
        operation: Operation,
    },
    /// The allocator panicked. A block that it was to free is still allocated; what
    /// else it was asked to do may or may not be done.
    #[error("allocator panicked during {operation} on {device}")]
    AllocatorPanicked {
        /// The device used.
        device: Device,
        /// What was attempted.
        operation: Operation,
    },
    /// An allocator panicked when it was asked for its type of device.
    #[error("allocator panicked when asked for its type of device")]
    NoDeviceType,
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
    /// Two counts that must be equal differ.
    #[error("count mismatch: expected {expected} {what}, found {found}")]
    CountMismatch {
        /// What was counted.
        what: &'static str,
        /// The number that is due.
        expected: usize,
        /// The number given.
        found: usize,
    },
    /// A planned range does not lie within its buffer.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// A plan needs more bytes on a device than can be addressed.
    #[error("plan needs more bytes on {device} than can be addressed")]
    PlanTooLarge {
        /// The device.
        device: Device,
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
        index: usize,
        /// Why it failed.
        source: Error,
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
        reason: String,
    },
    /// A program has no method of this name.
    #[error("no method {name:?}: the program has {}", known.join(", "))]
    NoSuchMethod {
        /// The name asked for.
        name: String,
        /// The names of the methods that there are.
        known: Vec<String>,
    },
    /// An ExecuTorch program is malformed.
    #[error(transparent)]
    InvalidProgram(#[from] InvalidProgram),
}

impl Error {
    /// What went wrong.
    #[inline]
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.0
    }

    /// What went wrong, to take apart.
    #[must_use]
    pub fn into_kind(self) -> ErrorKind {
        *self.0
    }

    /// What went wrong, without the position that
    /// [`AtIndex`](ErrorKind::AtIndex) adds.
    #[must_use]
    pub fn root(&self) -> &ErrorKind {
        let mut kind = self.kind();
        while let ErrorKind::AtIndex { source, .. } = kind {
            kind = source.kind();
        }
        kind
    }

    /// Whether the device had no room.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        self.out_of_memory().is_some()
    }

    /// Whether no allocator serves the type of device.
    #[must_use]
    pub fn is_not_registered(&self) -> bool {
        matches!(self.root(), ErrorKind::NotRegistered { .. })
    }

    /// Whether the operation is one that the device does not offer.
    #[must_use]
    pub fn is_not_supported(&self) -> bool {
        matches!(
            self.root(),
            ErrorKind::NotSupported { .. } | ErrorKind::NotHostAccessible { .. }
        )
    }

    /// Whether the memory or the allocator is that of a parent process.
    #[must_use]
    pub fn is_forked_process(&self) -> bool {
        matches!(self.root(), ErrorKind::ForkedProcess { .. })
    }

    /// Whether memory of one device was given where another's is due.
    #[must_use]
    pub fn is_device_mismatch(&self) -> bool {
        matches!(self.root(), ErrorKind::DeviceMismatch { .. })
    }

    /// Whether the driver is shut down, and its memory gone with it.
    #[must_use]
    pub fn is_shut_down(&self) -> bool {
        matches!(self.root(), ErrorKind::ShutDown { .. })
    }

    /// The report of an out-of-memory error, also where it befell one of several
    /// allocations.
    #[must_use]
    pub fn out_of_memory(&self) -> Option<&OutOfMemory> {
        match self.root() {
            ErrorKind::OutOfMemory(report) => Some(report),
            _ => None,
        }
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
            ErrorKind::BadAllocator { .. }
            | ErrorKind::Backend { .. }
            | ErrorKind::Driver { .. }
            | ErrorKind::AllocatorPanicked { .. }
            | ErrorKind::NoDeviceType
            | ErrorKind::AtIndex { .. } => 0x01,
            ErrorKind::ForkedProcess { .. } | ErrorKind::ShutDown { .. } => 0x02,
            ErrorKind::NotSupported { .. }
            | ErrorKind::NotHostAccessible { .. }
            | ErrorKind::MissingSymbol { .. }
            | ErrorKind::DriverTooOld { .. }
            | ErrorKind::Capturing { .. } => 0x10,
            ErrorKind::InvalidDevice { .. }
            | ErrorKind::ParseDevice(_)
            | ErrorKind::Layout(_)
            | ErrorKind::DeviceMismatch { .. }
            | ErrorKind::OutOfBounds { .. }
            | ErrorKind::LengthMismatch { .. }
            | ErrorKind::CountMismatch { .. }
            | ErrorKind::PlanTooLarge { .. }
            | ErrorKind::Overlap { .. }
            | ErrorKind::NoSuchMethod { .. }
            | ErrorKind::InvalidTensor { .. } => 0x12,
            ErrorKind::AlreadyRegistered { .. } => 0x16,
            ErrorKind::NotRegistered { .. }
            | ErrorKind::DriverNotFound { .. }
            | ErrorKind::NoDevice { .. } => 0x20,
            ErrorKind::Placement(error) => error.code(),
            ErrorKind::OutOfMemory(_) => 0x21,
            ErrorKind::InvalidProgram(_) => 0x23,
        }
    }

    /// An error of an allocator's own, kept as the source.
    #[cold]
    pub fn backend(
        device: Device,
        operation: Operation,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self::from(ErrorKind::Backend {
            device,
            operation,
            source: source.into(),
        })
    }

    /// The host had no room for `layout`.
    #[cold]
    pub(crate) fn host_out_of_memory(layout: DeviceLayout) -> Self {
        OutOfMemory::new(Device::CPU, layout).into()
    }

    /// The same error, said of the `index`-th of several `what`s.
    #[cold]
    pub(crate) fn at(self, what: &'static str, index: usize) -> Self {
        Self::from(ErrorKind::AtIndex {
            what,
            index,
            source: self,
        })
    }
}

/// Anything that is a kind of error is an error.
impl<E: Into<ErrorKind>> From<E> for Error {
    #[cold]
    fn from(kind: E) -> Self {
        Self(Box::new(kind.into()))
    }
}

impl From<OutOfMemory> for ErrorKind {
    fn from(report: OutOfMemory) -> Self {
        Self::OutOfMemory(report)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

const _: () = assert!(size_of::<Error>() == size_of::<usize>());
const _: fn() = || {
    fn is_send_sync<T: Send + Sync>() {}
    is_send_sync::<Error>();
};
