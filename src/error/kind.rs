//! The kinds of error.
//!
//! Rank 1. Part of `error`.

use std::error::Error as StdError;

use crate::device::{Device, DeviceType, ParseDeviceError};
use crate::error::{
    AllocatorFault, Error, GraphFault, InvalidProgram, InvalidWeights, Operation, OutOfMemory,
    PlacementError, PlanError,
};
use crate::layout::{LayoutError, TagError};

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
    /// A tag that can not be made.
    #[error(transparent)]
    Tag(#[from] TagError),
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
    /// A stream is not of the context that memory of its device is allocated in.
    #[error("context mismatch: the stream is not of the primary context of {device}")]
    ContextMismatch {
        /// The device of the stream.
        device: Device,
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
    /// A request has no plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
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
    /// A tensor of another library is of a version that is not understood.
    #[error("tensor of version {major}.{minor}, only {understood}.x is understood")]
    ForeignVersion {
        /// The major version of the tensor.
        major: u32,
        /// The minor version of the tensor.
        minor: u32,
        /// The major version that is understood.
        understood: u32,
    },
    /// Memory that must not be written was to be.
    #[error("memory of {device} is read-only")]
    ReadOnly {
        /// Where the memory is.
        device: Device,
    },
    /// A program has no method of this name.
    #[error("no method {name:?}: the program has {}", known.join(", "))]
    NoSuchMethod {
        /// The name asked for.
        name: String,
        /// The names of the methods that there are.
        known: Vec<String>,
    },
    /// The memory of a program can not be planned again, for it can not be told
    /// when its tensors are needed.
    #[error("method {method:?} can not be planned again: {reason}")]
    CanNotReplan {
        /// The method.
        method: String,
        /// What leaves it open.
        reason: String,
    },
    /// A graph contradicts itself, or what is asked of it does.
    #[error(transparent)]
    InvalidGraph(#[from] GraphFault),
    /// An ExecuTorch program is malformed.
    #[error(transparent)]
    InvalidProgram(#[from] InvalidProgram),
    /// A file of weights is malformed, or lacks a tensor.
    #[error(transparent)]
    InvalidWeights(#[from] InvalidWeights),
}

impl From<OutOfMemory> for ErrorKind {
    fn from(report: OutOfMemory) -> Self {
        Self::OutOfMemory(report)
    }
}
