//! What most wrappers of allocators have in common.

/// The copies of a [`DeviceAllocator`](device_memory::DeviceAllocator) that are
/// those of the allocator in a field.
macro_rules! forward_copies {
    ($field:tt) => {
        unsafe fn copy_host_to_device(
            &self,
            dst: device_memory::DevicePtr,
            src: *const u8,
            size: usize,
            index: device_memory::DeviceIndex,
        ) -> device_memory::Result<()> {
            // SAFETY: the caller's promises are the same.
            unsafe { self.$field.copy_host_to_device(dst, src, size, index) }
        }

        unsafe fn copy_device_to_host(
            &self,
            dst: *mut u8,
            src: device_memory::DevicePtr,
            size: usize,
            index: device_memory::DeviceIndex,
        ) -> device_memory::Result<()> {
            // SAFETY: the caller's promises are the same.
            unsafe { self.$field.copy_device_to_host(dst, src, size, index) }
        }
    };
}
