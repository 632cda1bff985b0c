//! What programs ask of layers themselves, asked of the layer below.
//!
//! Rank 2. Part of `allocator`.

use crate::allocator::{DeviceAllocator, MemoryInfo, guarded};
use crate::device::{Device, DeviceIndex};
use crate::error::{Operation, Result};

/// [`memory_info`](DeviceAllocator::memory_info), guarded.
#[inline]
pub(crate) fn memory_info<A: DeviceAllocator + ?Sized>(
    below: &A,
    index: DeviceIndex,
) -> Result<Option<MemoryInfo>> {
    let device = Device::new(below.device_type(), index);
    guarded(device, Operation::MemoryInfo, || below.memory_info(index))
}

/// [`synchronize`](DeviceAllocator::synchronize), guarded.
#[inline]
pub(crate) fn synchronize<A: DeviceAllocator + ?Sized>(
    below: &A,
    index: DeviceIndex,
) -> Result<()> {
    let device = Device::new(below.device_type(), index);
    guarded(device, Operation::Synchronize, || below.synchronize(index))
}

/// [`trim`](DeviceAllocator::trim), guarded.
#[inline]
pub(crate) fn trim<A: DeviceAllocator + ?Sized>(below: &A, index: DeviceIndex) -> Result<usize> {
    let device = Device::new(below.device_type(), index);
    guarded(device, Operation::Trim, || below.trim(index))
}
