//! An allocator that counts the bytes that live in another.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use device_memory::{
    DeviceAllocator, DeviceIndex, DeviceLayout, DevicePtr, DeviceType, MemoryInfo, Result,
};

/// Counts what is live in `inner`.
#[derive(Debug)]
pub(crate) struct Counting<A> {
    inner: A,
    live: Arc<AtomicUsize>,
}

impl<A> Counting<A> {
    /// Adds what lives in `inner` to `live`.
    pub(crate) fn new(inner: A, live: Arc<AtomicUsize>) -> Self {
        Self { inner, live }
    }
}

// SAFETY: every call is that of `inner`, which keeps the promises.
unsafe impl<A: DeviceAllocator> DeviceAllocator for Counting<A> {
    fn device_type(&self) -> DeviceType {
        self.inner.device_type()
    }

    fn device_count(&self) -> usize {
        self.inner.device_count()
    }

    fn allocate(&self, layout: DeviceLayout, index: DeviceIndex) -> Result<DevicePtr> {
        let ptr = self.inner.allocate(layout, index)?;
        self.live.fetch_add(layout.size(), Ordering::Relaxed);
        Ok(ptr)
    }

    unsafe fn deallocate(
        &self,
        ptr: DevicePtr,
        layout: DeviceLayout,
        index: DeviceIndex,
    ) -> Result<()> {
        // SAFETY: the caller's promises are the same.
        unsafe { self.inner.deallocate(ptr, layout, index) }?;
        self.live.fetch_sub(layout.size(), Ordering::Relaxed);
        Ok(())
    }

    unsafe fn copy_host_to_device(
        &self,
        dst: DevicePtr,
        src: *const u8,
        size: usize,
        index: DeviceIndex,
    ) -> Result<()> {
        // SAFETY: the caller's promises are the same.
        unsafe { self.inner.copy_host_to_device(dst, src, size, index) }
    }

    unsafe fn copy_device_to_host(
        &self,
        dst: *mut u8,
        src: DevicePtr,
        size: usize,
        index: DeviceIndex,
    ) -> Result<()> {
        // SAFETY: the caller's promises are the same.
        unsafe { self.inner.copy_device_to_host(dst, src, size, index) }
    }

    fn is_host_accessible(&self) -> bool {
        self.inner.is_host_accessible()
    }

    fn memory_info(&self, index: DeviceIndex) -> Result<Option<MemoryInfo>> {
        self.inner.memory_info(index)
    }
}
