//! Calls of allocators that must not unwind into their callers.
//!
//! Rank 2. Part of `allocator`.

use crate::allocator::DeviceAllocator;
use crate::device::{Device, DeviceType};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::unwind::caught;

/// Makes one call of an allocator. If it panics, that is the error.
#[inline]
pub(crate) fn guarded<T>(
    device: Device,
    operation: Operation,
    call: impl FnOnce() -> Result<T>,
) -> Result<T> {
    match caught(call) {
        Some(result) => result,
        None => Err(panicked(device, operation)),
    }
}

/// The type of device that an allocator serves.
#[inline]
pub(crate) fn device_type_of(allocator: &dyn DeviceAllocator) -> Result<DeviceType> {
    match caught(|| allocator.device_type()) {
        Some(device_type) => Ok(device_type),
        None => Err(ErrorKind::NoDeviceType.into()),
    }
}

#[cold]
fn panicked(device: Device, operation: Operation) -> Error {
    Error::from(ErrorKind::AllocatorPanicked { device, operation })
}
