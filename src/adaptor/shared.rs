//! An allocator that others have as well.
//!
//! Rank 4. Imports `allocator`.

use std::any::Any;

use crate::allocator::{AllocatorHandle, DeviceAllocator, forward};

/// The allocator of a handle, to put adaptors over.
///
/// `Arc<A>` is an allocator by itself; this is for what a registry serves.
///
/// Costs a virtual call for each call, and no lock.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use device_memory::adaptor::{Shared, Statistics};
/// use device_memory::{DeviceAllocatorRegistry, DeviceLayout, DeviceMemoryBuffer, DeviceType};
///
/// let registry = DeviceAllocatorRegistry::new();
/// let host = registry.get(DeviceType::Cpu).ok_or("no allocator")?;
/// let statistics = Arc::new(Statistics::over(Shared::from(host)));
/// registry.replace(statistics.clone())?;
///
/// let layout = DeviceLayout::from_size(64)?;
/// let buffer = DeviceMemoryBuffer::create_in(&registry, layout, "cpu:0".parse()?)?;
/// assert_eq!(statistics.usage(0).current, 64);
/// # drop(buffer);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Shared(AllocatorHandle);

impl Shared {
    /// The handle.
    #[must_use]
    pub fn handle(&self) -> &AllocatorHandle {
        &self.0
    }
}

impl<H: Into<AllocatorHandle>> From<H> for Shared {
    fn from(handle: H) -> Self {
        Self(handle.into())
    }
}

// SAFETY: it is the allocator of the handle by another name; every call is passed on.
#[expect(unsafe_code, reason = "implements an unsafe trait")]
unsafe impl DeviceAllocator for Shared {
    forward!(self => (*self.0); identity, blocks, copies, memory_info, synchronize, trim);

    fn as_any(&self) -> Option<&dyn Any> {
        (*self.0).as_any()
    }

    fn upstream(&self) -> Option<&dyn DeviceAllocator> {
        (*self.0).upstream()
    }
}
