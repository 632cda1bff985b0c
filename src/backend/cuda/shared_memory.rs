//! Memory that the host and the devices both reach: page-locked and managed.
//!
//! Rank 4. Part of `backend::cuda`. Imports `allocator` and the words.
//!
//! Both are handed out as slices, so both are zeroed when they are allocated.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use super::allocator::address;
use super::device::wait_for_context;
use super::devices::Devices;
use super::driver;
use super::overaligned::Overaligned;
use super::status::{OUT_OF_MEMORY, Outcome, Status};
use crate::address::DevicePtr;
use crate::allocator::DeviceAllocator;
use crate::device::{Device, DeviceIndex, DeviceType};
use crate::error::{Error, ErrorKind, Operation, OutOfMemory, Result};
use crate::layout::DeviceLayout;

/// The allocator of page-locked host memory, type `CudaHost`.
///
/// Copies between it and a device need no staging and can overlap with other
/// work. It is a scarce resource: the system can not page it out. The index is
/// that of the device through whose context it is allocated; every device can
/// reach it.
#[derive(Clone, Debug)]
pub struct CudaHostAllocator {
    shared: Arc<Shared>,
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
            shared: Shared::of(Devices::open(DeviceType::CudaHost, None)?),
            flags: PORTABLE,
        })
    }

    /// The same allocator for write-combined memory: faster for a device to read
    /// over the bus, and tens of times slower for the host to read.
    #[must_use]
    pub fn write_combined(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
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
    shared: Arc<Shared>,
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
            shared: Shared::of(devices),
        })
    }
}

/// The devices, and the blocks that start before what was handed out.
#[derive(Debug)]
struct Shared {
    devices: Devices,
    overaligned: Overaligned,
}

impl Shared {
    fn of(devices: Devices) -> Arc<Self> {
        Arc::new(Self {
            devices,
            overaligned: Overaligned::default(),
        })
    }

    /// Allocates through `call`, which gives the start of a block of the size it is
    /// told, with the context of the device current. The block is zeroed.
    #[expect(unsafe_code, reason = "see SAFETY")]
    fn allocate(
        &self,
        device: Device,
        layout: DeviceLayout,
        call: impl FnOnce(usize) -> Outcome<*mut u8>,
    ) -> Result<DevicePtr> {
        let operation = Operation::Allocate;
        let ready = self
            .devices
            .get(device.device_type(), device.index(), operation)?;
        let failed = |status: Status| -> Error {
            if status.code == OUT_OF_MEMORY {
                OutOfMemory::new(device, layout).into()
            } else {
                status.into_error(device, operation)
            }
        };
        let Some(size) = Overaligned::size_to_allocate(layout) else {
            return Err(OutOfMemory::new(device, layout).into());
        };
        let _entered = ready.enter().map_err(failed)?;
        let start = call(size).map_err(failed)?;
        let Some(whole) = DevicePtr::from_raw(start) else {
            let reason = "the driver returned a null address";
            return Err(Error::backend(device, operation, reason));
        };
        let aligned = self.overaligned.hand_out(address(whole), layout);
        let offset = aligned.saturating_sub(address(whole));
        let raw = start.wrapping_add(usize::try_from(offset).unwrap_or(0));
        // SAFETY: the layout's bytes from `raw` on lie in the block, which was just
        // allocated and is the host's to write.
        unsafe { ptr::write_bytes(raw, 0, layout.size()) };
        Ok(DevicePtr::from_raw(raw).unwrap_or(whole))
    }

    /// Frees through `call`, which is told where the block starts, with the context
    /// of the device current, after all work of the device.
    fn deallocate(
        &self,
        ptr: DevicePtr,
        device: Device,
        layout: DeviceLayout,
        call: impl FnOnce(*mut u8) -> Outcome<()>,
    ) -> Result<()> {
        let operation = Operation::Deallocate;
        let ready = self
            .devices
            .get(device.device_type(), device.index(), operation)?;
        let failed = |status: Status| status.into_error(device, operation);
        let _entered = ready.enter().map_err(failed)?;
        wait_for_context().map_err(failed)?;
        let start = self.overaligned.take_back(address(ptr), layout);
        let offset = address(ptr).saturating_sub(start);
        let whole = ptr
            .as_raw()
            .wrapping_sub(usize::try_from(offset).unwrap_or(0));
        call(whole).map_err(|status| {
            self.overaligned.put_back(address(ptr), start, layout);
            failed(status)
        })
    }
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
        self.shared.devices.len()
    }

    fn allocate(&self, layout: DeviceLayout, index: DeviceIndex) -> Result<DevicePtr> {
        let device = Device::new(DeviceType::CudaHost, index);
        self.shared.allocate(device, layout, |size| {
            // SAFETY: the context is current.
            let start = unsafe { driver::host_alloc(size, self.flags) }?;
            Ok(start.cast::<u8>())
        })
    }

    unsafe fn deallocate(
        &self,
        ptr: DevicePtr,
        layout: DeviceLayout,
        index: DeviceIndex,
    ) -> Result<()> {
        let device = Device::new(DeviceType::CudaHost, index);
        self.shared.deallocate(ptr, device, layout, |start| {
            // SAFETY: the caller promises that the block came from `allocate` and
            // is not used any more.
            unsafe { driver::host_free(start.cast::<c_void>()) }
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
        self.shared.devices.len()
    }

    fn allocate(&self, layout: DeviceLayout, index: DeviceIndex) -> Result<DevicePtr> {
        let device = Device::new(DeviceType::CudaManaged, index);
        self.shared.allocate(device, layout, |size| {
            // SAFETY: the context is current.
            let start = unsafe { driver::alloc_managed(size) }?;
            let start = usize::try_from(start).unwrap_or(0);
            Ok(ptr::with_exposed_provenance_mut::<u8>(start))
        })
    }

    unsafe fn deallocate(
        &self,
        ptr: DevicePtr,
        layout: DeviceLayout,
        index: DeviceIndex,
    ) -> Result<()> {
        let device = Device::new(DeviceType::CudaManaged, index);
        self.shared.deallocate(ptr, device, layout, |start| {
            // SAFETY: the caller promises that the block came from `allocate` and
            // is not used any more.
            unsafe { driver::free(managed_address(start)) }
        })
    }

    host_copies!();
}

/// The driver's form of an address of managed memory.
#[expect(clippy::as_conversions, reason = "an address has at most 64 bits")]
fn managed_address(start: *mut u8) -> u64 {
    start.addr() as u64
}
