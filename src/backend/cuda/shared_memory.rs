//! Memory that the host and the devices both reach: page-locked and managed.
//!
//! Rank 4. Part of `backend::cuda`. Imports `allocator` and the words.
//!
//! Both are handed out as slices, so both are zeroed when they are allocated.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use super::device::CudaDevice;
use super::devices::Devices;
use super::driver;
use super::status::{OUT_OF_MEMORY, Outcome, Status};
use crate::address::DevicePtr;
use crate::allocator::DeviceAllocator;
use crate::device::{Device, DeviceIndex, DeviceType};
use crate::error::{Error, ErrorKind, Operation, OutOfMemory, Result};
use crate::layout::DeviceLayout;

/// The alignment of what the driver gives, host pages and managed memory alike.
const NATURAL_ALIGN: usize = 256;

/// The allocator of page-locked host memory, type `CudaHost`.
///
/// Copies between it and a device need no staging and can overlap with other
/// work. It is a scarce resource: the system can not page it out. The index is
/// that of the device through whose context it is allocated; every device can
/// reach it.
#[derive(Clone, Debug)]
pub struct CudaHostAllocator {
    devices: Arc<Devices>,
    flags: u32,
}

impl CudaHostAllocator {
    /// Finds the driver.
    ///
    /// # Errors
    ///
    /// As [`CudaAllocator::open`](super::CudaAllocator::open).
    pub fn open() -> Result<Self> {
        Ok(Self {
            devices: Arc::new(Devices::open(DeviceType::CudaHost, None)?),
            flags: PORTABLE,
        })
    }

    /// The same allocator for write-combined memory: faster for a device to read
    /// over the bus, and tens of times slower for the host to read.
    #[must_use]
    pub fn write_combined(&self) -> Self {
        Self {
            devices: Arc::clone(&self.devices),
            flags: PORTABLE | WRITE_COMBINED,
        }
    }
}

/// Page-locked for every context.
const PORTABLE: u32 = 1;
/// Not cached by the host.
const WRITE_COMBINED: u32 = 4;

/// The allocator of managed memory, type `CudaManaged`, which the driver moves
/// between the host and the devices as they touch it.
#[derive(Clone, Debug)]
pub struct CudaManagedAllocator {
    devices: Arc<Devices>,
}

impl CudaManagedAllocator {
    /// Finds the driver.
    ///
    /// # Errors
    ///
    /// As [`CudaAllocator::open`](super::CudaAllocator::open), and
    /// [`NotSupported`](ErrorKind::NotSupported) if the host may not touch managed
    /// memory of every device while the device works: slices of it could fault.
    pub fn open() -> Result<Self> {
        let device_type = DeviceType::CudaManaged;
        let devices = Devices::open(device_type, None)?;
        for index in (0..devices.len()).map_while(|index| DeviceIndex::try_from(index).ok()) {
            let ready = devices.get(device_type, index, Operation::Open)?;
            if !(ready.has_managed() && ready.has_concurrent_managed()) {
                return Err(ErrorKind::NotSupported {
                    device: Device::new(device_type, index),
                    operation: Operation::Allocate,
                }
                .into());
            }
        }
        Ok(Self {
            devices: Arc::new(devices),
        })
    }
}

/// Allocates through `call` with the context of the device current.
fn allocate(
    devices: &Devices,
    device: Device,
    layout: DeviceLayout,
    call: impl FnOnce(&CudaDevice) -> Outcome<DevicePtr>,
) -> Result<DevicePtr> {
    let operation = Operation::Allocate;
    let ready = devices.get(device.device_type(), device.index(), operation)?;
    if layout.align() > NATURAL_ALIGN {
        return Err(ErrorKind::NotSupported { device, operation }.into());
    }
    let failed = |status: Status| -> Error {
        if status.code == OUT_OF_MEMORY {
            OutOfMemory::new(device, layout).into()
        } else {
            status.into_error(device, operation)
        }
    };
    let _entered = ready.enter().map_err(failed)?;
    call(ready).map_err(failed)
}

/// Frees through `call` with the context of the device current, after all work of
/// the device.
#[expect(unsafe_code, reason = "calls the driver")]
fn deallocate(devices: &Devices, device: Device, call: impl FnOnce() -> Outcome<()>) -> Result<()> {
    let operation = Operation::Deallocate;
    let ready = devices.get(device.device_type(), device.index(), operation)?;
    let failed = |status: Status| status.into_error(device, operation);
    let _entered = ready.enter().map_err(failed)?;
    // SAFETY: the context is current.
    unsafe { driver::context_synchronize() }.map_err(failed)?;
    call().map_err(failed)
}

/// What a driver does that says success and gives nothing.
fn null_address(call: &'static str) -> Status {
    Status { call, code: 999 }
}

/// The parts of the trait that are plain memory copies by the host.
macro_rules! host_copies {
    () => {
        unsafe fn copy_host_to_device(
            &self,
            dst: DevicePtr,
            src: *const u8,
            size: usize,
            index: DeviceIndex,
        ) -> Result<()> {
            self.check_index(index)?;
            // SAFETY: the caller promises that both ranges are valid; the memory
            // is the host's too.
            unsafe { ptr::copy(src, dst.as_raw(), size) };
            Ok(())
        }

        unsafe fn copy_device_to_host(
            &self,
            dst: *mut u8,
            src: DevicePtr,
            size: usize,
            index: DeviceIndex,
        ) -> Result<()> {
            self.check_index(index)?;
            // SAFETY: as for the other direction.
            unsafe { ptr::copy(src.as_raw(), dst, size) };
            Ok(())
        }

        unsafe fn fill(
            &self,
            dst: DevicePtr,
            byte: u8,
            size: usize,
            index: DeviceIndex,
        ) -> Result<()> {
            self.check_index(index)?;
            // SAFETY: the caller promises that the range is valid for writes.
            unsafe { ptr::write_bytes(dst.as_raw(), byte, size) };
            Ok(())
        }

        fn is_host_accessible(&self) -> bool {
            true
        }
    };
}

// SAFETY: by number of the promises,
// 1. The type is a constant; devices are counted once.
// 2. to 4. Blocks are the driver's, aligned to pages.
// 5. They are zeroed, and are ordinary host memory.
// 6. Copies are done by the calling thread before it returns.
// 7. A failed call has no effect; a free is the last thing that can fail.
// 8. The driver refuses to allocate no bytes.
#[expect(unsafe_code, reason = "implements an unsafe trait")]
unsafe impl DeviceAllocator for CudaHostAllocator {
    fn device_type(&self) -> DeviceType {
        DeviceType::CudaHost
    }

    fn device_count(&self) -> usize {
        self.devices.len()
    }

    fn allocate(&self, layout: DeviceLayout, index: DeviceIndex) -> Result<DevicePtr> {
        let device = Device::new(DeviceType::CudaHost, index);
        allocate(&self.devices, device, layout, |_| {
            // SAFETY: the context is current.
            let raw = unsafe { driver::host_alloc(layout.size(), self.flags) }?;
            let raw = raw.cast::<u8>();
            let ptr = DevicePtr::from_raw(raw).ok_or_else(|| null_address("cuMemHostAlloc"))?;
            // SAFETY: the block was just allocated, of this size.
            unsafe { ptr::write_bytes(raw, 0, layout.size()) };
            Ok(ptr)
        })
    }

    unsafe fn deallocate(
        &self,
        ptr: DevicePtr,
        _layout: DeviceLayout,
        index: DeviceIndex,
    ) -> Result<()> {
        let device = Device::new(DeviceType::CudaHost, index);
        deallocate(&self.devices, device, || {
            // SAFETY: the caller promises that the block came from `allocate` and
            // is not used any more.
            unsafe { driver::host_free(ptr.as_raw().cast::<c_void>()) }
        })
    }

    host_copies!();
}

// SAFETY: by number of the promises, as for `CudaHostAllocator`; the host may
// touch the memory at any time, or `open` had failed.
#[expect(unsafe_code, reason = "implements an unsafe trait")]
unsafe impl DeviceAllocator for CudaManagedAllocator {
    fn device_type(&self) -> DeviceType {
        DeviceType::CudaManaged
    }

    fn device_count(&self) -> usize {
        self.devices.len()
    }

    fn allocate(&self, layout: DeviceLayout, index: DeviceIndex) -> Result<DevicePtr> {
        let device = Device::new(DeviceType::CudaManaged, index);
        allocate(&self.devices, device, layout, |_| {
            // SAFETY: the context is current.
            let start = unsafe { driver::alloc_managed(layout.size()) }?;
            let raw = usize::try_from(start)
                .map(ptr::with_exposed_provenance_mut::<u8>)
                .unwrap_or(ptr::null_mut());
            let ptr = DevicePtr::from_raw(raw).ok_or_else(|| null_address("cuMemAllocManaged"))?;
            // SAFETY: the block was just allocated, of this size, and is the
            // host's too.
            unsafe { ptr::write_bytes(raw, 0, layout.size()) };
            Ok(ptr)
        })
    }

    unsafe fn deallocate(
        &self,
        ptr: DevicePtr,
        _layout: DeviceLayout,
        index: DeviceIndex,
    ) -> Result<()> {
        let device = Device::new(DeviceType::CudaManaged, index);
        let start = super::allocator::address(ptr);
        deallocate(&self.devices, device, || {
            // SAFETY: the caller promises that the block came from `allocate` and
            // is not used any more.
            unsafe { driver::free(start) }
        })
    }

    host_copies!();
}
