//! The conformance suite on each allocator.

use device_memory::DeviceAllocator;
use device_memory::backend::cuda::{CudaAllocator, CudaHostAllocator, CudaManagedAllocator};
use device_memory::testing::conformance::Conformance;

use crate::support::{Gpu, note, skip, stream};

/// Other programs may use the devices, and the driver keeps memory.
#[track_caller]
fn conforms(allocator: &dyn DeviceAllocator, gpu: &Gpu, what: &str) {
    let run = Conformance::new(allocator).shared_devices(true);
    match run.devices(gpu.indices()).run() {
        Ok(report) => note(&format!("{what}: {} blocks", report.blocks)),
        Err(failure) => panic!("{what}: {failure}"),
    }
}

#[test]
fn device_memory_conforms() {
    let Some(gpu) = Gpu::open() else { return };

    conforms(&gpu.allocator, &gpu, "device memory");
}

#[test]
fn device_memory_of_a_pool_of_its_own_conforms() {
    let Some(gpu) = Gpu::open() else { return };
    let builder = CudaAllocator::builder().release_threshold(64 << 20);

    conforms(&builder.open().unwrap(), &gpu, "own pool");
}

#[test]
fn a_handle_on_a_stream_conforms() {
    let Some(gpu) = Gpu::open() else { return };
    let handle = gpu.allocator.on_stream(&stream(0)).unwrap();

    let run = Conformance::new(&handle).shared_devices(true).devices([0]);
    if let Err(failure) = run.run() {
        panic!("on a stream: {failure}");
    }
}

#[test]
fn page_locked_memory_conforms_plain_and_write_combined() {
    let Some(gpu) = Gpu::open() else { return };
    let plain = CudaHostAllocator::open().unwrap();

    conforms(&plain, &gpu, "page-locked");
    let combined = plain.write_combined();
    // The host reads this memory very slowly, so there is less of it.
    let run = Conformance::new(&combined).shared_devices(true);
    let run = run.devices([0]).max_size(1 << 14).max_align(1 << 12);
    if let Err(failure) = run.run() {
        panic!("write-combined: {failure}");
    }
}

#[test]
fn managed_memory_conforms() {
    let Some(gpu) = Gpu::open() else { return };

    match CudaManagedAllocator::open() {
        Ok(managed) => conforms(&managed, &gpu, "managed"),
        Err(error) if error.is_not_supported() => skip(&format!("managed memory: {error}")),
        Err(error) => panic!("{error}"),
    }
}
