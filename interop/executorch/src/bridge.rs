//! A registry of `device-memory` as the runtime's source of device memory.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use device_memory::{
    AllocatorHandle, Device, DeviceAllocatorRegistry, DeviceIndex, DeviceLayout,
    DeviceMemoryBuffer, DevicePtr, DeviceType, Result,
};

use crate::forward::{Code, INVALID_ARGUMENT, Source};

/// Gives the runtime memory of CUDA devices from a registry.
///
/// Each block that the runtime asks for is a [`DeviceMemoryBuffer`], kept here
/// until the runtime gives the address back: it says neither size nor alignment
/// then. Copies go straight to the allocator that is registered, as the runtime
/// may copy to memory that was handed to it and is owned elsewhere.
pub struct Bridge {
    registry: Arc<DeviceAllocatorRegistry>,
    lent: Mutex<Lent>,
}

/// What the runtime has.
#[derive(Default)]
struct Lent {
    blocks: BTreeMap<(DeviceIndex, usize), DeviceMemoryBuffer>,
    /// Blocks of no bytes, whose addresses are not their own.
    empty: usize,
    /// Frees of what was not lent.
    strays: usize,
}

impl Bridge {
    /// Lends what `registry` gives.
    #[must_use]
    pub fn new(registry: Arc<DeviceAllocatorRegistry>) -> Self {
        Self {
            registry,
            lent: Mutex::default(),
        }
    }

    /// The device and the bytes of each block that the runtime has, by device.
    #[must_use]
    pub fn lent(&self) -> Vec<(Device, usize)> {
        let lent = self.lock();
        let blocks = lent.blocks.values();
        blocks.map(|block| (block.device(), block.size())).collect()
    }

    /// How often the runtime gave an address back that it did not have.
    #[must_use]
    pub fn strays(&self) -> usize {
        self.lock().strays
    }

    fn lock(&self) -> MutexGuard<'_, Lent> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer as the runtime asks for it.
    fn create(&self, size: usize, index: DeviceIndex, align: usize) -> Result<DeviceMemoryBuffer> {
        let layout = DeviceLayout::new(size, align)?;
        let device = Device::new(DeviceType::Cuda, index);
        DeviceMemoryBuffer::create_in(&self.registry, layout, device)
    }

    /// What a copy needs, or the code to refuse it with.
    fn target(&self, device_side: *const u8, index: i8) -> Result<Target, Code> {
        let ptr = DevicePtr::from_raw(device_side.cast_mut()).ok_or(INVALID_ARGUMENT)?;
        let index = to_index(index)?;
        let allocator = self.registry.try_get(DeviceType::Cuda);
        let allocator = allocator.map_err(|error| error.code())?;
        Ok(Target {
            allocator,
            ptr,
            index,
        })
    }
}

/// One end of a copy.
struct Target {
    allocator: AllocatorHandle,
    ptr: DevicePtr,
    index: DeviceIndex,
}

/// The runtime's index -1 stands for the current device, which there is not here.
fn to_index(index: i8) -> Result<DeviceIndex, Code> {
    DeviceIndex::try_from(index).map_err(|_| INVALID_ARGUMENT)
}

// SAFETY: a copy is made by an allocator, which promises to touch the host's side
// within the bytes that it is told of.
#[expect(unsafe_code, reason = "implements an unsafe trait")]
unsafe impl Source for Bridge {
    fn allocate(&self, size: usize, index: i8, align: usize) -> Result<*mut u8, Code> {
        let index = to_index(index)?;
        let buffer = self.create(size, index, align);
        let buffer = buffer.map_err(|error| error.code())?;
        let ptr = buffer.ptr();
        let mut lent = self.lock();
        if buffer.is_empty() {
            lent.empty = lent.empty.saturating_add(1);
        } else {
            lent.blocks.insert((index, ptr.addr()), buffer);
        }
        Ok(ptr.as_raw())
    }

    fn deallocate(&self, ptr: *mut u8, index: i8) {
        let key = to_index(index).map(|index| (index, ptr.addr()));
        let mut lent = self.lock();
        let block = key.ok().and_then(|key| lent.blocks.remove(&key));
        if block.is_none() {
            match lent.empty.checked_sub(1) {
                Some(fewer) => lent.empty = fewer,
                None => lent.strays = lent.strays.saturating_add(1),
            }
        }
    }

    unsafe fn copy_host_to_device(
        &self,
        dst: *mut u8,
        src: *const u8,
        size: usize,
        index: i8,
    ) -> Result<(), Code> {
        if size == 0 {
            return Ok(());
        }
        let dst = self.target(dst, index)?;
        // SAFETY: `src` is valid for reads of `size` bytes, as the caller says. That
        // the device's side is in a live block is the runtime's business; the
        // allocator of these tests checks it.
        let copied = unsafe {
            dst.allocator
                .copy_host_to_device(dst.ptr, src, size, dst.index)
        };
        copied.map_err(|error| error.code())
    }

    unsafe fn copy_device_to_host(
        &self,
        dst: *mut u8,
        src: *const u8,
        size: usize,
        index: i8,
    ) -> Result<(), Code> {
        if size == 0 {
            return Ok(());
        }
        let src = self.target(src, index)?;
        // SAFETY: `dst` is valid for writes of `size` bytes, as the caller says; for
        // the device's side see above.
        let copied = unsafe {
            src.allocator
                .copy_device_to_host(dst, src.ptr, size, src.index)
        };
        copied.map_err(|error| error.code())
    }
}

impl fmt::Debug for Bridge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bridge")
            .field("registry", &self.registry)
            .field("lent", &self.lent())
            .finish_non_exhaustive()
    }
}
