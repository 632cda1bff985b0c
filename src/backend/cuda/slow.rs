//! Allocations and frees that take more than the one call of the driver.
//!
//! Rank 4. Part of `backend::cuda`. Imports the words.
//!
//! Kept out of line, and apart from those that take one, so that those stay short.

use super::allocator::{CudaAllocator, cuda, pointer};
use super::device::CudaDevice;
use super::driver;
use super::lane::Lane;
use super::overaligned::Overaligned;
use super::status::{INVALID_VALUE, OUT_OF_MEMORY, Outcome, Status};
use super::uses;
use crate::address::DevicePtr;
use crate::device::{Device, DeviceIndex};
use crate::error::{Error, ErrorKind, Operation, OutOfMemory, Result};
use crate::layout::DeviceLayout;

impl CudaAllocator {
    /// Tries once more, if there was no room and the device may still be about to
    /// free some.
    #[cold]
    pub(super) fn allocate_again(
        &self,
        device: &CudaDevice,
        size: usize,
        first: Status,
    ) -> Outcome<u64> {
        let no_room = first.code == OUT_OF_MEMORY && device.has_pools();
        if no_room && self.order.drain().is_ok() {
            self.allocate_block(device, size)
        } else {
            Err(first)
        }
    }

    /// Frees a block whose address is not where it starts, or that work on other
    /// streams may use.
    #[cold]
    pub(super) fn free_noted(
        &self,
        ptr: u64,
        layout: DeviceLayout,
        index: DeviceIndex,
    ) -> Result<()> {
        let operation = Operation::Deallocate;
        let (device, _entered) = self.enter(index, operation)?;
        let failed = |status: Status| status.into_error(cuda(index), operation);
        let start = self.shared.overaligned.take_back(ptr, layout);
        let others = self.shared.uses.take(ptr, layout.size());
        let freed = match uses::any_is_capturing(&others) {
            Ok(true) => Err(ErrorKind::Capturing {
                device: cuda(index),
                operation,
            }
            .into()),
            Ok(false) => self
                .wait_for_others(device, index, &others)
                .and_then(|()| self.free_block(device, start))
                .map_err(failed),
            Err(status) => Err(failed(status)),
        };
        if freed.is_err() {
            self.shared.overaligned.put_back(ptr, start, layout);
            self.shared.uses.put_back(ptr, others);
        }
        freed
    }

    /// Makes a free come after the work of `others`, as far as it would not
    /// anyway.
    fn wait_for_others(
        &self,
        device: &CudaDevice,
        index: DeviceIndex,
        others: &[Lane],
    ) -> Outcome<()> {
        if device.has_pools() {
            return uses::wait_for(self.order.stream(device), cuda(index), others);
        }
        // The driver waits for all work of this device before it frees, but not
        // for that of others.
        let elsewhere = others.iter().filter(|lane| lane.device() != cuda(index));
        for lane in elsewhere {
            lane.settle(None).map_err(|unsettled| unsettled.status)?;
        }
        Ok(())
    }

    /// Allocates a block and hands out an aligned address in it.
    #[cold]
    pub(super) fn allocate_overaligned(
        &self,
        layout: DeviceLayout,
        index: DeviceIndex,
    ) -> Result<DevicePtr> {
        let (device, _entered) = self.enter(index, Operation::Allocate)?;
        let Some(size) = Overaligned::size_to_allocate(layout) else {
            return Err(Self::report(layout, cuda(index)).into());
        };
        let start = self
            .allocate_block(device, size)
            .or_else(|status| self.allocate_again(device, size, status))
            .map_err(|status| Self::not_allocated(status, layout, cuda(index)))?;
        let ptr = self.shared.overaligned.hand_out(start, layout);
        pointer(ptr).ok_or_else(|| Self::null_address(cuda(index)))
    }

    /// The error for an address that can not be.
    #[cold]
    pub(super) fn null_address(device: Device) -> Error {
        let text = "the driver returned a null address";
        Error::backend(device, Operation::Allocate, text)
    }

    /// The error for an allocation that failed. The context is current.
    #[cold]
    pub(super) fn not_allocated(status: Status, layout: DeviceLayout, device: Device) -> Error {
        let report = Self::report(layout, device);
        // A driver may call a size that is beyond it an invalid value.
        let beyond = |total: usize| status.code == INVALID_VALUE && layout.size() > total;
        if status.code == OUT_OF_MEMORY || report.device_total.is_some_and(beyond) {
            report.into()
        } else {
            status.into_error(device, Operation::Allocate)
        }
    }

    /// What there is to say of an allocation that found no room. The context is
    /// current.
    #[expect(unsafe_code, reason = "calls the driver")]
    fn report(layout: DeviceLayout, device: Device) -> OutOfMemory {
        let mut report = OutOfMemory::new(device, layout);
        // SAFETY: the context is current.
        if let Ok((free, total)) = unsafe { driver::memory_info() } {
            report.device_free = Some(free);
            report.device_total = Some(total);
        }
        report
    }
}
