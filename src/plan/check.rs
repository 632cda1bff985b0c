//! Whether a plan is right: an independent answer.
//!
//! Rank 2. Part of `plan`.
//!
//! Nothing here is shared with the planners: lives, sizes and storage are read from
//! the request anew.

use crate::device::Device;

use super::memory_plan::MemoryPlan;
use super::request::PlanRequest;

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
    /// A value lies in bytes that are reserved.
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

/// Checks that `plan` is a plan of `request`.
///
/// Takes time near-linear in the number of values.
///
/// # Errors
///
/// - [`PlanFault`]: the first thing that is wrong.
pub fn check(request: &PlanRequest, plan: &MemoryPlan) -> Result<(), PlanFault> {
    let (expected, found) = (request.values().len(), plan.placements().len());
    if expected != found {
        return Err(PlanFault::Count { expected, found });
    }
    Ok(())
}
