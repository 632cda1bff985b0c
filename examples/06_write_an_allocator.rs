//! Write an allocator, and let the conformance suite judge it.
//!
//! `cargo run --example 06_write_an_allocator --features testing`

#![expect(
    clippy::print_stdout,
    unsafe_code,
    reason = "an example talks to a person, and the trait is unsafe to implement"
)]

use device_memory::testing::conformance;
use device_memory::{
    DeviceAllocator, DeviceIndex, DeviceLayout, DevicePtr, DeviceType, HostAllocator, Result,
};

/// Host memory under a type of device of its own.
#[derive(Debug)]
struct Borrowed(HostAllocator);

// SAFETY: every call is the host allocator's, which keeps the promises; only the
// type of device is another, and constant.
unsafe impl DeviceAllocator for Borrowed {
    fn device_type(&self) -> DeviceType {
        DeviceType::Custom(1)
    }

    fn device_count(&self) -> usize {
        1
    }

    fn allocate(&self, layout: DeviceLayout, index: DeviceIndex) -> Result<DevicePtr> {
        self.check_index(index)?;
        self.0.allocate(layout, index)
    }

    unsafe fn deallocate(
        &self,
        ptr: DevicePtr,
        layout: DeviceLayout,
        index: DeviceIndex,
    ) -> Result<()> {
        // SAFETY: the caller's promises are the same.
        unsafe { self.0.deallocate(ptr, layout, index) }
    }

    unsafe fn copy_host_to_device(
        &self,
        dst: DevicePtr,
        src: *const u8,
        size: usize,
        index: DeviceIndex,
    ) -> Result<()> {
        // SAFETY: the caller's promises are the same.
        unsafe { self.0.copy_host_to_device(dst, src, size, index) }
    }

    unsafe fn copy_device_to_host(
        &self,
        dst: *mut u8,
        src: DevicePtr,
        size: usize,
        index: DeviceIndex,
    ) -> Result<()> {
        // SAFETY: the caller's promises are the same.
        unsafe { self.0.copy_device_to_host(dst, src, size, index) }
    }
}

fn main() -> Result<(), conformance::Failure> {
    let report = conformance::run(&Borrowed(HostAllocator))?;
    println!("{report:#?}");
    Ok(())
}
