//! What a run of the suite found.
//!
//! Rank 8. Part of `testing::conformance`. Imports the words.

use std::fmt;

use crate::device::Device;
use crate::error::{Error, ErrorKind, Operation};

/// What was done by a run in which every promise was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The devices that were used.
    pub devices: Vec<Device>,
    /// How many blocks were allocated.
    pub blocks: u64,
    /// Whether the host can read the memory.
    pub host_accessible: bool,
    /// Whether the devices tell how much memory is free.
    pub memory_info: bool,
    /// How many alignments were refused, as the options allow.
    pub refused_alignments: u64,
}

/// A promise of [`DeviceAllocator`](crate::DeviceAllocator) that was found broken.
#[derive(Debug, thiserror::Error)]
#[error("{promise} on {device}: {what}{}", error.as_ref().map(|error| format!(": {error}")).unwrap_or_default())]
#[non_exhaustive]
pub struct Failure {
    /// Which one.
    pub promise: Promise,
    /// The device it was found on.
    pub device: Device,
    /// How it shows.
    pub what: String,
    /// What the allocator returned, if it was an error.
    #[source]
    pub error: Option<Error>,
}

/// A promise of an allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Promise {
    /// Promise 1: type and count of the devices.
    Type,
    /// Promise 2: blocks stay valid until they are given back.
    Validity,
    /// Promise 3: live blocks do not overlap.
    Disjointness,
    /// Promise 4: addresses are aligned as asked.
    Alignment,
    /// Promise 5: host access.
    HostAccess,
    /// Promise 6: copies and fills are complete when they return.
    Completion,
    /// Promise 7: what fails changes nothing.
    Failure,
    /// What the documentation of a method says that it does.
    Method(Operation),
}

impl Failure {
    /// What the allocator returned, if it was an error.
    pub(super) fn kind(&self) -> Option<&ErrorKind> {
        self.error.as_ref().map(Error::kind)
    }
}

impl Promise {
    /// The number under which the trait lists it; `None` for what is said at a
    /// method.
    #[must_use]
    pub const fn number(self) -> Option<u8> {
        match self {
            Self::Type => Some(1),
            Self::Validity => Some(2),
            Self::Disjointness => Some(3),
            Self::Alignment => Some(4),
            Self::HostAccess => Some(5),
            Self::Completion => Some(6),
            Self::Failure => Some(7),
            Self::Method(_) => None,
        }
    }
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Type => "type",
            Self::Validity => "validity",
            Self::Disjointness => "disjointness",
            Self::Alignment => "alignment",
            Self::HostAccess => "host access",
            Self::Completion => "completion",
            Self::Failure => "failure",
            Self::Method(operation) => return write!(f, "documented behavior of {operation}"),
        };
        match self.number() {
            Some(number) => write!(f, "promise {number} ({name})"),
            None => f.write_str(name),
        }
    }
}
