//! What can be wrong with a plan.
//!
//! Rank 2. Part of `plan::check`.

use crate::device::Device;

/// What is wrong with a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanFault {
    /// It does not place every value once.
    #[error("{found} placements for {expected} values")]
    Count {
        /// How many values there are.
        expected: usize,
        /// How many placements.
        found: usize,
    },
    /// A placement is in no buffer, or on another device than the value.
    #[error("value {value} of {device} is in memory id {memory_id}, which is not of that device")]
    WrongBuffer {
        /// The value.
        value: usize,
        /// Its device.
        device: Device,
        /// The buffer, counted from 0.
        memory_id: u32,
    },
    /// Values of two pools are in one buffer, or values of one pool in two.
    #[error("values {first} and {second}: their pools and their buffers disagree")]
    WrongPool {
        /// A value.
        first: usize,
        /// Another.
        second: usize,
    },
    /// A placement has another size than its value.
    #[error("value {value} has {expected} bytes, its placement {found}")]
    WrongSize {
        /// The value.
        value: usize,
        /// Its size.
        expected: usize,
        /// The size of the placement.
        found: usize,
    },
    /// A value passes the end of its buffer.
    #[error("value {value} ends at {end}, its buffer at {len}")]
    OutOfBounds {
        /// The value.
        value: usize,
        /// Where it ends.
        end: usize,
        /// Where the buffer ends.
        len: usize,
    },
    /// A value is not aligned, or its buffer is less aligned than it.
    #[error("value {value} at offset {offset} is not aligned to {align}")]
    Misaligned {
        /// The value.
        value: usize,
        /// Its offset.
        offset: usize,
        /// Its alignment, or that of its device if larger.
        align: usize,
    },
    /// A value is not where it must be.
    #[error("value {value} is at {found}, it must be at {expected}")]
    WrongOffset {
        /// The value.
        value: usize,
        /// Where it must be.
        expected: usize,
        /// Where it is.
        found: usize,
    },
    /// A value uses the storage of one that there is not, that is smaller, that uses its
    /// own in the end, or of which one has gaps.
    #[error("value {value} can not use the storage of value {of}")]
    WrongAlias {
        /// The value.
        value: usize,
        /// The other.
        of: usize,
    },
    /// A value needs bytes that are reserved.
    #[error("value {value} is at {offset}, in {reserved} reserved bytes")]
    Reserved {
        /// The value.
        value: usize,
        /// Its offset.
        offset: usize,
        /// How many bytes are reserved.
        reserved: usize,
    },
    /// Two values are alive in one step and share bytes, and none of them uses the
    /// storage of the other.
    #[error("values {first} and {second} overlap in step {step}")]
    Overlap {
        /// A value.
        first: usize,
        /// Another.
        second: usize,
        /// A step in which both are alive.
        step: usize,
    },
    /// The buffers of a device are larger than its capacity.
    #[error("buffers of {device} have {needed} bytes, capacity {capacity}")]
    OverCapacity {
        /// The device.
        device: Device,
        /// The sum of its buffers.
        needed: usize,
        /// Its capacity.
        capacity: usize,
    },
}
