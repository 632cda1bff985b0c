//! Calls of allocators that must not unwind into their callers.
//!
//! Rank 2. Part of `allocator`.
//!
//! The rule: a panic of an allocator leaves the books of every layer right, and no
//! program meets it that uses memory through its owner. Who owns memory makes each call
//! guarded. A layer does so where it has work to do after the call, and where programs
//! ask the layer itself: for its memory, to synchronize, to trim ([`below`]). Through
//! its other calls a panic passes to the owner.

use crate::allocator::{DeviceAllocator, below};
use crate::device::{Device, DeviceType};
use crate::error::{Error, ErrorKind, Operation, OutOfMemory, Result};
use crate::layout::DeviceLayout;
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

/// The report of a layer that has no room for `layout` itself, with what the layer
/// below it says of the device.
#[cold]
pub(crate) fn no_room(
    device: Device,
    layout: DeviceLayout,
    upstream: &dyn DeviceAllocator,
) -> OutOfMemory {
    let mut report = OutOfMemory::new(device, layout);
    add_memory_info(&mut report, upstream);
    report
}

/// Adds to a report what `upstream` says of the device, if no layer has said it yet. A
/// report without that says the rest all the same.
#[cold]
pub(crate) fn add_memory_info(report: &mut OutOfMemory, upstream: &dyn DeviceAllocator) {
    if report.device_free.is_some() || report.device_total.is_some() {
        return;
    }
    let info = below::memory_info(upstream, report.device.index());
    let info = info.ok().flatten();
    report.device_free = info.map(|info| info.free);
    report.device_total = info.map(|info| info.total);
}

#[cold]
fn panicked(device: Device, operation: Operation) -> Error {
    Error::from(ErrorKind::AllocatorPanicked { device, operation })
}
