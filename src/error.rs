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
mod graph;
mod kind;
mod operation;
mod out_of_memory;
mod placement;
mod planning;
mod program;
mod weights;

use std::error::Error as StdError;
use std::fmt;

use crate::device::Device;
use crate::layout::DeviceLayout;

pub use fault::AllocatorFault;
pub use graph::GraphFault;
pub use kind::ErrorKind;
pub use operation::Operation;
pub use out_of_memory::{Attempt, OutOfMemory};
pub use placement::PlacementError;
pub use planning::{OverCapacity, PlanError};
pub use program::InvalidProgram;
pub use weights::InvalidWeights;

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

    /// The report of an out-of-memory error, for layers that know more than the one
    /// that made it.
    #[must_use]
    pub fn out_of_memory_mut(&mut self) -> Option<&mut OutOfMemory> {
        let mut kind = &mut *self.0;
        loop {
            match kind {
                ErrorKind::OutOfMemory(report) => return Some(report),
                ErrorKind::AtIndex { source, .. } => kind = &mut source.0,
                _ => return None,
            }
        }
    }

    /// The same error, whose report `explain` adds to if memory is out.
    #[cold]
    pub(crate) fn explained(mut self, explain: impl FnOnce(&mut OutOfMemory)) -> Self {
        if let Some(report) = self.out_of_memory_mut() {
            explain(report);
        }
        self
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
    /// | `InvalidExternalData` | `0x24` |
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
            | ErrorKind::ForeignVersion { .. }
            | ErrorKind::ReadOnly { .. }
            | ErrorKind::MissingSymbol { .. }
            | ErrorKind::DriverTooOld { .. }
            | ErrorKind::CanNotReplan { .. }
            | ErrorKind::Capturing { .. } => 0x10,
            ErrorKind::InvalidDevice { .. }
            | ErrorKind::ParseDevice(_)
            | ErrorKind::Layout(_)
            | ErrorKind::Tag(_)
            | ErrorKind::DeviceMismatch { .. }
            | ErrorKind::ContextMismatch { .. }
            | ErrorKind::OutOfBounds { .. }
            | ErrorKind::LengthMismatch { .. }
            | ErrorKind::CountMismatch { .. }
            | ErrorKind::PlanTooLarge { .. }
            | ErrorKind::Overlap { .. }
            | ErrorKind::NoSuchMethod { .. }
            | ErrorKind::InvalidTensor { .. }
            | ErrorKind::InvalidGraph(_) => 0x12,
            ErrorKind::AlreadyRegistered { .. } => 0x16,
            ErrorKind::NotRegistered { .. }
            | ErrorKind::DriverNotFound { .. }
            | ErrorKind::NoDevice { .. } => 0x20,
            ErrorKind::Placement(error) => error.code(),
            ErrorKind::Plan(PlanError::OverCapacity(_)) | ErrorKind::OutOfMemory(_) => 0x21,
            ErrorKind::Plan(_) => 0x12,
            ErrorKind::InvalidProgram(_) => 0x23,
            ErrorKind::InvalidWeights(_) => 0x24,
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
