//! One device: its primary context, kept, and a stream of one's own.
//!
//! Rank 4. Part of `backend::cuda`. Imports the words.
//!
//! Every call of the driver that needs a context is made between
//! [`CudaDevice::enter`] and the drop of what it returns. The caller's context
//! is current again after that, whatever it was.

use std::ptr;

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUmemAllocationType, CUmemLocationType,
    CUmemPool_attribute, CUmemPoolProps, CUmemoryPool, CUstream,
};

use super::driver;
use super::status::{INVALID_DEVICE, Outcome, Status};
use crate::device::DeviceIndex;

/// A device that is ready for use.
///
/// # Invariants
///
/// 0. `context` is the primary context of `handle`, retained once, and alive
///    until `drop`.
/// 1. `stream` belongs to `context`, and lives until `drop`.
/// 2. `pool`, if any, belongs to `handle`, and lives until `drop`.
#[derive(Debug)]
pub(super) struct CudaDevice {
    handle: CUdevice,
    context: CUcontext,
    stream: CUstream,
    pool: Option<CUmemoryPool>,
    has_pools: bool,
    has_managed: bool,
    concurrent_managed: bool,
}

// SAFETY: the handles are names for things that the driver guards itself; the
// driver may be called from any thread with any of them.
#[expect(unsafe_code, reason = "raw handles are only Send by declaration")]
unsafe impl Send for CudaDevice {}

// SAFETY: as for `Send`.
#[expect(unsafe_code, reason = "raw handles are only Sync by declaration")]
unsafe impl Sync for CudaDevice {}

impl CudaDevice {
    /// Makes the device `index` ready. With `threshold`, it has a pool of its own
    /// that keeps so many bytes when they are unused.
    ///
    /// `probe` must have found the driver. On failure nothing is kept.
    #[expect(unsafe_code, reason = "calls the driver")]
    pub(super) fn open(index: DeviceIndex, threshold: Option<u64>) -> Outcome<Self> {
        // SAFETY: the driver is initialized; the call takes no handle.
        let handle = unsafe { driver::device(i32::from(index)) }?;
        // SAFETY: `handle` is a device.
        let context = unsafe { driver::primary_context_retain(handle) }?;
        // From here on `drop` gives back what there is.
        let mut device = Self {
            handle,
            context,
            stream: ptr::null_mut(),
            pool: None,
            has_pools: false,
            has_managed: false,
            concurrent_managed: false,
        };
        device.has_pools =
            device.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)?;
        device.has_managed =
            device.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY)?;
        device.concurrent_managed =
            device.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)?;
        let entered = device.enter()?;
        // SAFETY: a context is current.
        let stream = unsafe { driver::stream_create() }?;
        drop(entered);
        device.stream = stream;
        if let Some(threshold) = threshold.filter(|_| device.has_pools) {
            device.pool = Some(device.create_pool(threshold)?);
        }
        Ok(device)
    }

    /// Whether the device has a property.
    #[expect(unsafe_code, reason = "calls the driver")]
    fn attribute(&self, which: CUdevice_attribute) -> Outcome<bool> {
        // SAFETY: `handle` is a device.
        Ok(unsafe { driver::attribute(self.handle, which) }? != 0)
    }

    /// A pool of the device that keeps `threshold` bytes when they are unused.
    #[expect(unsafe_code, reason = "calls the driver")]
    fn create_pool(&self, threshold: u64) -> Outcome<CUmemoryPool> {
        // SAFETY: all fields are numbers, pointers and enums, and 0 is a value of
        // each of the enums.
        let mut properties: CUmemPoolProps = unsafe { std::mem::zeroed() };
        properties.allocType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        // The number of the device is a plain field in some versions of the
        // bindings and part of a union in others; it always follows the type.
        let location = (&raw mut properties.location).cast::<i32>();
        // SAFETY: the location is two 32-bit words.
        let id = unsafe { location.add(1) };
        // SAFETY: as above, and the variable is ours.
        unsafe { id.write(self.handle) };
        let _entered = self.enter()?;
        // SAFETY: the properties are those of a pool on this device.
        let pool = unsafe { driver::pool_create(&properties) }?;
        let which = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: the pool was just made, and the attribute has 64 bits.
        if let Err(status) = unsafe { driver::pool_set(pool, which, threshold) } {
            // SAFETY: the pool was just made and nothing uses it.
            let _ = unsafe { driver::pool_destroy(pool) };
            return Err(status);
        }
        Ok(pool)
    }

    /// Makes the context of the device current until the result is dropped.
    #[inline]
    #[expect(unsafe_code, reason = "calls the driver")]
    pub(super) fn enter(&self) -> Outcome<Entered> {
        // SAFETY: the context is alive (invariant 0).
        unsafe { enter(self.context) }
    }

    /// The primary context.
    pub(super) fn context(&self) -> CUcontext {
        self.context
    }

    /// The stream that is the device's own.
    pub(super) fn stream(&self) -> CUstream {
        self.stream
    }

    /// The pool that is the device's own, if it has one.
    pub(super) fn pool(&self) -> Option<CUmemoryPool> {
        self.pool
    }

    /// Whether memory can be allocated in stream order.
    pub(super) fn has_pools(&self) -> bool {
        self.has_pools
    }

    /// Whether there is memory that host and device share.
    pub(super) fn has_managed(&self) -> bool {
        self.has_managed
    }

    /// Whether the host may touch managed memory while the device works.
    pub(super) fn has_concurrent_managed(&self) -> bool {
        self.concurrent_managed
    }

    /// The pool that allocations come from: the device's own, or its current one.
    #[expect(unsafe_code, reason = "calls the driver")]
    pub(super) fn current_pool(&self) -> Outcome<CUmemoryPool> {
        match self.pool {
            Some(pool) => Ok(pool),
            // SAFETY: `handle` is a device.
            None => unsafe { driver::pool_of(self.handle) },
        }
    }
}

impl Drop for CudaDevice {
    #[expect(unsafe_code, reason = "calls the driver")]
    fn drop(&mut self) {
        // Failures have nobody to be told to: the driver is shut down or broken.
        if let Ok(_entered) = self.enter() {
            if let Some(pool) = self.pool {
                // SAFETY: the pool is ours (invariant 2); what is allocated from
                // it keeps it alive for the driver.
                let _ = unsafe { driver::pool_destroy(pool) };
            }
            if !self.stream.is_null() {
                // SAFETY: the stream is ours (invariant 1) and not used again.
                let _ = unsafe { driver::stream_destroy(self.stream) };
            }
        }
        // SAFETY: the context was retained once (invariant 0), and this is the
        // one time that it is given back.
        let _ = unsafe { driver::primary_context_release(self.handle) };
    }
}

/// Makes a context current until the result is dropped.
///
/// # Safety
///
/// The context is alive until then.
#[inline]
#[expect(unsafe_code, reason = "calls the driver")]
pub(super) unsafe fn enter(context: CUcontext) -> Outcome<Entered> {
    // SAFETY: the driver is initialized; the call takes no handle.
    let current = unsafe { driver::context_current() }?;
    let pushed = current != context;
    if pushed {
        // SAFETY: the caller promises that the context is alive.
        unsafe { driver::context_push(context) }?;
    }
    Ok(Entered { pushed })
}

/// A context that is current until this is dropped.
#[derive(Debug)]
#[must_use = "the context is current until this is dropped"]
pub(super) struct Entered {
    /// Whether there is another to go back to.
    pushed: bool,
}

impl Drop for Entered {
    #[inline]
    #[expect(unsafe_code, reason = "calls the driver")]
    fn drop(&mut self) {
        if self.pushed {
            // SAFETY: the context on top is the one that `enter` pushed: calls
            // between leave the stack as they found it.
            let _ = unsafe { driver::context_pop() };
        }
    }
}

/// Waits for all work of the context that is current.
#[inline]
#[expect(unsafe_code, reason = "calls the driver")]
pub(super) fn wait_for_context() -> Outcome<()> {
    // SAFETY: the driver is initialized; the call takes no handle.
    unsafe { driver::context_synchronize() }
}

/// Whether a device could not be opened because there is none of its index.
pub(super) fn is_missing(status: Status) -> bool {
    status.code == INVALID_DEVICE
}
