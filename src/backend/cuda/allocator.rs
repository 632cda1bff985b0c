//! Memory of NVIDIA GPUs.
//!
//! Rank 4. Part of `backend::cuda`. Imports `allocator` and the words.

use std::any::Any;
use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::CudaStream;

use super::builder::CudaAllocatorBuilder;
use super::device::{CudaDevice, Entered};
use super::devices::Devices;
use super::driver;
use super::lane::Lane;
use super::order::Order;
use super::overaligned::Overaligned;
use super::status::{Outcome, Status};
use super::uses::Uses;
use crate::address::DevicePtr;
use crate::allocator::{DeviceAllocator, MemoryInfo};
use crate::device::{Device, DeviceIndex, DeviceType};
use crate::error::{ErrorKind, Operation, Result};
use crate::layout::DeviceLayout;

/// The allocator of the devices of type `Cuda`.
///
/// It keeps the primary context of each device that is used. A call makes that
/// context current and the caller's current again; nothing depends on which one
/// that was. Memory is allocated in stream order where the device has memory
/// pools, else synchronously; which of the two is fixed for a device.
///
/// Each call is complete for all streams of the device when it returns, and a
/// free waits for all work of the device. To have less waiting, let calls be in
/// the order of a stream: [`on_stream`](Self::on_stream).
///
/// Clones share the devices. The global registry opens one on first use.
#[derive(Clone, Debug)]
pub struct CudaAllocator {
    // Before what it may be the last to use.
    pub(super) order: Order,
    pub(super) shared: Arc<Shared>,
}

/// What an allocator and its handles on streams have in common.
#[derive(Debug)]
pub(super) struct Shared {
    // Before what its streams may be the last to use.
    pub(super) uses: Uses,
    pub(super) overaligned: Overaligned,
    pub(super) devices: Devices,
}

impl CudaAllocator {
    /// Finds the driver and counts its devices; a device is made ready when it is
    /// first used.
    ///
    /// # Errors
    ///
    /// - [`DriverNotFound`](ErrorKind::DriverNotFound): no library could be loaded.
    /// - [`MissingSymbol`](ErrorKind::MissingSymbol): it lacks a function.
    /// - [`DriverTooOld`](ErrorKind::DriverTooOld): its version is below 11.4.
    /// - [`NoDevice`](ErrorKind::NoDevice): it has no device.
    /// - [`Driver`](ErrorKind::Driver): it failed otherwise.
    pub fn open() -> Result<Self> {
        Self::builder().open()
    }

    /// How to open one, with options.
    #[must_use]
    pub fn builder() -> CudaAllocatorBuilder {
        CudaAllocatorBuilder::default()
    }

    /// A handle whose allocations, frees and copies are in the order of `stream`.
    ///
    /// Memory that it allocates may be used by work given to the stream after
    /// that, and freeing it does not wait: work given to the stream before is done
    /// first. Work on other streams must be told of with
    /// [`record_use`](Self::record_use). A copy to or from the host is waited for
    /// before it returns. It serves the device of the stream only.
    ///
    /// # Errors
    ///
    /// - [`ContextMismatch`](ErrorKind::ContextMismatch): the stream is not of the
    ///   primary context of its device, which is what memory is allocated in.
    /// - [`NotSupported`](ErrorKind::NotSupported): it is the per-thread stream,
    ///   which is another one on another thread.
    /// - [`ForkedProcess`](ErrorKind::ForkedProcess): the driver is a parent
    ///   process's.
    /// - as for the first use of the device.
    pub fn on_stream(&self, stream: &Arc<CudaStream>) -> Result<Self> {
        let lane = Lane::of_any_thread(stream)?;
        self.check_context(&lane, Operation::Open)?;
        Ok(Self {
            shared: Arc::clone(&self.shared),
            order: Order::Stream(lane),
        })
    }

    /// The device `index`, with its context current until the second part is
    /// dropped, unless the stream is of another or `operation` would spoil a graph
    /// that it is recording.
    // Always: what it returns would go through memory.
    #[inline(always)]
    pub(super) fn enter(
        &self,
        index: DeviceIndex,
        operation: Operation,
    ) -> Result<(&CudaDevice, Entered)> {
        let at = cuda(index);
        let devices = &self.shared.devices;
        let device = devices.get(at.device_type(), index, operation)?;
        let failed = |status: Status| status.into_error(at, operation);
        if let Order::Stream(lane) = &self.order {
            lane.check_device(at)?;
        }
        let entered = device.enter().map_err(failed)?;
        if let Order::Stream(lane) = &self.order
            && lane.is_capturing().map_err(failed)?
        {
            let device = at;
            return Err(ErrorKind::Capturing { device, operation }.into());
        }
        Ok((device, entered))
    }

    /// Runs `call` with the context of the device current.
    #[inline]
    fn with_device<T>(
        &self,
        index: DeviceIndex,
        operation: Operation,
        call: impl FnOnce(&CudaDevice) -> Outcome<T>,
    ) -> Result<T> {
        let (device, _entered) = self.enter(index, operation)?;
        call(device).map_err(|status| status.into_error(cuda(index), operation))
    }

    /// Allocates `size` bytes at whatever address the driver gives.
    #[inline]
    #[expect(unsafe_code, reason = "calls the driver")]
    pub(super) fn allocate_block(&self, device: &CudaDevice, size: usize) -> Outcome<u64> {
        if !device.has_pools() {
            // SAFETY: the context is current.
            return unsafe { driver::alloc(size) };
        }
        let stream = self.order.stream(device);
        let start = match device.pool() {
            // SAFETY: the pool and the stream are of this device and alive.
            Some(pool) => unsafe { driver::alloc_from_pool(size, pool, stream) },
            // SAFETY: the stream is of this device and alive.
            None => unsafe { driver::alloc_async(size, stream) },
        }?;
        match self.order.after_allocate(device) {
            Ok(()) => Ok(start),
            Err(status) => {
                // SAFETY: the block was just allocated on this stream.
                let _ = unsafe { driver::free_async(start, stream) };
                Err(status)
            }
        }
    }

    /// Frees a block that [`allocate_block`](Self::allocate_block) gave. Work that
    /// uses it is waited for as far as the driver or the stream has been told.
    #[inline]
    #[expect(unsafe_code, reason = "calls the driver")]
    pub(super) fn free_block(&self, device: &CudaDevice, start: u64) -> Outcome<()> {
        if !device.has_pools() {
            // SAFETY: the block was allocated synchronously on this device. The
            // driver waits for all work of the device, and the caller has for that
            // of others.
            return unsafe { driver::free(start) };
        }
        self.order.before_free()?;
        let stream = self.order.stream(device);
        // SAFETY: the block was allocated in stream order on this device, and all
        // work that uses it is before this on the stream.
        unsafe { driver::free_async(start, stream) }
    }
}

// SAFETY: by number of the promises,
// 1. The type is a constant; devices are counted once.
// 2. to 4. Blocks are the driver's, which stay valid and apart until they are
//    freed; `Overaligned` hands out an aligned address within a larger block.
// 5. The host can not read the memory.
// 6. Copies and fills are waited for before they return, also when they fail: a
//    failure of the driver's call gives the stream nothing.
// 7. A block is freed again if anything after its allocation fails. What was
//    taken back for a free is put back if it fails.
// 8. The driver refuses to allocate no bytes, and copies of none do nothing.
#[expect(unsafe_code, reason = "implements an unsafe trait")]
unsafe impl DeviceAllocator for CudaAllocator {
    fn device_type(&self) -> DeviceType {
        DeviceType::Cuda
    }

    fn device_count(&self) -> usize {
        self.shared.devices.len()
    }

    fn allocate(&self, layout: DeviceLayout, index: DeviceIndex) -> Result<DevicePtr> {
        if Overaligned::keeps(layout) {
            return self.allocate_overaligned(layout, index);
        }
        let (device, _entered) = self.enter(index, Operation::Allocate)?;
        let start = self
            .allocate_block(device, layout.size())
            .or_else(|status| self.allocate_again(device, layout.size(), status))
            .map_err(|status| Self::not_allocated(status, layout, cuda(index)))?;
        pointer(start).ok_or_else(|| Self::null_address(cuda(index)))
    }

    unsafe fn deallocate(
        &self,
        ptr: DevicePtr,
        layout: DeviceLayout,
        index: DeviceIndex,
    ) -> Result<()> {
        let ptr = address(ptr);
        if Overaligned::keeps(layout) || !self.shared.uses.is_empty() {
            return self.free_noted(ptr, layout, index);
        }
        let operation = Operation::Deallocate;
        let (device, _entered) = self.enter(index, operation)?;
        self.free_block(device, ptr)
            .map_err(|status| status.into_error(cuda(index), operation))
    }

    unsafe fn copy_host_to_device(
        &self,
        dst: DevicePtr,
        src: *const u8,
        size: usize,
        index: DeviceIndex,
    ) -> Result<()> {
        let operation = Operation::CopyHostToDevice;
        let (dst, src) = (address(dst), src.cast::<c_void>());
        self.with_device(index, operation, |_| {
            let stream = self.order.copy_stream();
            // SAFETY: the caller promises that both ranges are valid until this
            // returns, which is after the copy is waited for.
            unsafe { driver::copy_to_device_async(dst, src, size, stream) }?;
            self.order.after_copy()
        })
    }

    unsafe fn copy_device_to_host(
        &self,
        dst: *mut u8,
        src: DevicePtr,
        size: usize,
        index: DeviceIndex,
    ) -> Result<()> {
        let operation = Operation::CopyDeviceToHost;
        let (dst, src) = (dst.cast::<c_void>(), address(src));
        self.with_device(index, operation, |_| {
            let stream = self.order.copy_stream();
            // SAFETY: as for the other direction.
            unsafe { driver::copy_to_host_async(dst, src, size, stream) }?;
            self.order.after_copy()
        })
    }

    unsafe fn copy_device_to_device(
        &self,
        dst: DevicePtr,
        dst_index: DeviceIndex,
        src: DevicePtr,
        src_index: DeviceIndex,
        size: usize,
    ) -> Result<()> {
        let operation = Operation::CopyDeviceToDevice;
        let (dst, src) = (address(dst), address(src));
        let devices = &self.shared.devices;
        let from = devices.get(DeviceType::Cuda, src_index, operation)?;
        self.with_device(dst_index, operation, |device| {
            let stream = self.order.copy_stream();
            if dst_index == src_index {
                // SAFETY: the caller promises that both ranges are valid and apart
                // until this returns, which is after the copy is waited for.
                unsafe { driver::copy_on_device_async(dst, src, size, stream) }?;
            } else {
                let (to, from) = (device.context(), from.context());
                // SAFETY: as above; each address is of the context beside it. The
                // driver goes through the host where the devices are not peers.
                unsafe { driver::copy_peer_async(dst, to, src, from, size, stream) }?;
            }
            self.order.after_copy()
        })
    }

    unsafe fn fill(&self, dst: DevicePtr, byte: u8, size: usize, index: DeviceIndex) -> Result<()> {
        let operation = Operation::Fill;
        let dst = address(dst);
        self.with_device(index, operation, |_| {
            let stream = self.order.copy_stream();
            // SAFETY: the caller promises that the range is valid until this
            // returns, which is after the fill is waited for.
            unsafe { driver::fill_async(dst, byte, size, stream) }?;
            self.order.after_copy()
        })
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn memory_info(&self, index: DeviceIndex) -> Result<Option<MemoryInfo>> {
        self.with_device(index, Operation::MemoryInfo, |_| {
            // SAFETY: the context is current.
            let (free, total) = unsafe { driver::memory_info() }?;
            Ok(Some(MemoryInfo { free, total }))
        })
    }

    fn synchronize(&self, index: DeviceIndex) -> Result<()> {
        self.with_device(index, Operation::Synchronize, |_| self.order.synchronize())
    }

    fn trim(&self, index: DeviceIndex) -> Result<usize> {
        self.with_device(index, Operation::Trim, |device| {
            if device.has_pools() {
                super::pool::trim(device.current_pool()?)
            } else {
                Ok(0)
            }
        })
    }
}

/// The device `index` of type `Cuda`.
pub(super) fn cuda(index: DeviceIndex) -> Device {
    Device::new(DeviceType::Cuda, index)
}

/// The device that a stream is of.
pub(super) fn device_of(stream: &CudaStream) -> Result<Device> {
    let ordinal = stream.context().ordinal();
    match DeviceIndex::try_from(ordinal) {
        Ok(index) => Ok(cuda(index)),
        Err(_) => Err(ErrorKind::InvalidDevice {
            device: cuda(DeviceIndex::MAX),
            count: ordinal,
        }
        .into()),
    }
}

/// The driver's form of an address.
#[inline]
#[expect(clippy::as_conversions, reason = "an address has at most 64 bits")]
pub(super) fn address(ptr: DevicePtr) -> u64 {
    ptr.addr() as u64
}

/// The address that the driver means, unless it is null.
#[inline]
pub(super) fn pointer(address: u64) -> Option<DevicePtr> {
    usize::try_from(address).ok().and_then(DevicePtr::from_addr)
}
