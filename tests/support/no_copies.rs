//! What an allocator without bytes has in place of copies.

/// The copies of a [`DeviceAllocator`](device_memory::DeviceAllocator) whose memory
/// is never read or written: each succeeds and does nothing. Needs `DeviceIndex`,
/// `DevicePtr` and `Result` in scope.
macro_rules! no_copies {
    () => {
        unsafe fn copy_host_to_device(
            &self,
            _: DevicePtr,
            _: *const u8,
            _: usize,
            _: DeviceIndex,
        ) -> Result<()> {
            Ok(())
        }

        unsafe fn copy_device_to_host(
            &self,
            _: *mut u8,
            _: DevicePtr,
            _: usize,
            _: DeviceIndex,
        ) -> Result<()> {
            Ok(())
        }
    };
}
