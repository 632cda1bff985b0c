//! Why a request can not be planned.
//!
//! Rank 1. Part of `error`.

use crate::device::Device;

/// A request that has no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A value ends before it begins.
    #[error("life of value {value} is reversed: first use {first_use}, last use {last_use}")]
    ReversedLife {
        /// The value.
        value: usize,
        /// Its first step.
        first_use: usize,
        /// Its last step.
        last_use: usize,
    },
    /// The alignment of a value is no power of two.
    #[error("invalid alignment {align} of value {value}: not a power of two")]
    InvalidAlign {
        /// The value.
        value: usize,
        /// Its alignment.
        align: usize,
    },
    /// The alignment of a device is no power of two.
    #[error("invalid alignment {align} of {device}: not a power of two")]
    InvalidDeviceAlign {
        /// The device.
        device: Device,
        /// Its alignment.
        align: usize,
    },
    /// A value uses storage that it can not use.
    #[error("value {value} can not use the storage of value {of}: {reason}")]
    InvalidAlias {
        /// The value.
        value: usize,
        /// Whose storage it would use.
        of: usize,
        /// Why it can not.
        reason: &'static str,
    },
    /// A gap that its value can not have.
    #[error("invalid gap {gap} of value {value}: {reason}")]
    InvalidGap {
        /// The value.
        value: usize,
        /// The position of the gap among those of the value.
        gap: usize,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The number of a pool of which a part is reserved is higher than there can be
    /// pools.
    #[error("pool {pool} of {device} is too high to be reserved: {limit} pools a device")]
    ReservedPool {
        /// The device.
        device: Device,
        /// The pool.
        pool: u32,
        /// How many there can be.
        limit: u32,
    },
    /// The number of a pool is higher than there can be pools.
    #[error("pool {pool} of value {value} is too high: {limit} pools a device")]
    TooManyPools {
        /// The value.
        value: usize,
        /// Its pool.
        pool: u32,
        /// How many there can be.
        limit: u32,
    },
    /// A value must be where its alignment forbids it to be.
    #[error("fixed offset {offset} of value {value} is not aligned to {align}")]
    MisalignedOffset {
        /// The value.
        value: usize,
        /// Where it must be, in bytes.
        offset: usize,
        /// Its alignment, in bytes.
        align: usize,
    },
    /// Two values that must be where they are overlap, or one lies in what is
    /// reserved.
    #[error("fixed offset {offset} of value {value} overlaps {}", Other(*.other))]
    FixedOverlap {
        /// The value.
        value: usize,
        /// Where it must be, in bytes.
        offset: usize,
        /// The other value; none if it is what is reserved.
        other: Option<usize>,
    },
    /// A text is no table of values.
    #[error("line {line}: {reason}")]
    Table {
        /// The line, counted from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// No plan was found within the capacity of a device.
    #[error(transparent)]
    OverCapacity(Box<OverCapacity>),
}

/// The other side of an overlap, as a message names it.
struct Other(Option<usize>);

impl std::fmt::Display for Other {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(value) => write!(f, "value {value}"),
            None => f.write_str("reserved bytes"),
        }
    }
}

/// By how much the values of a device are too large for it, and which they are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "values of {device} do not fit: {needed} bytes needed, capacity {capacity}, {over} over{}",
    if *.proved { "" } else { " (not proved: a larger budget may find a plan)" }
)]
#[non_exhaustive]
pub struct OverCapacity {
    /// The device.
    pub device: Device,
    /// What the best plan found needs, in bytes.
    pub needed: usize,
    /// What the device has, in bytes.
    pub capacity: usize,
    /// The difference.
    pub over: usize,
    /// What any plan needs at least, in bytes.
    pub lower_bound: usize,
    /// Whether no plan fits.
    pub proved: bool,
    /// A step with the most live bytes.
    pub worst_step: usize,
    /// The values alive then, in the order of the request.
    pub live: Vec<usize>,
    /// Values that can not fit together, as few as the budget was enough to find; empty
    /// if not asked for, not proved, or spread over several pools.
    pub irreducible: Vec<usize>,
}

impl OverCapacity {
    /// A report without the values.
    pub(crate) fn new(device: Device, needed: usize, capacity: usize) -> Self {
        Self {
            device,
            needed,
            capacity,
            over: needed.saturating_sub(capacity),
            lower_bound: 0,
            proved: false,
            worst_step: 0,
            live: Vec::new(),
            irreducible: Vec::new(),
        }
    }
}
