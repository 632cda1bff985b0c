//! Running out of memory, and leaving none behind.

use std::sync::Arc;

use device_memory::backend::cuda::cudarc::driver::CudaStream;
use device_memory::backend::cuda::cudarc::driver::sys::CUdevice_attribute;
use device_memory::backend::cuda::{
    CudaAllocator, CudaHostAllocator, CudaManagedAllocator, upload,
};
use device_memory::{DeviceAllocator, DeviceLayout, DeviceMemoryBuffer, Error, free_failure_count};

use crate::support::{
    CUDA_0, Gpu, KIB, MIB, SLACK, aligned, assert_same, bytes, empty, filled, layout, note, skip,
    stream,
};

fn create(gpu: &Gpu, size: usize) -> Result<DeviceMemoryBuffer, Error> {
    DeviceMemoryBuffer::create_with(Arc::new(gpu.allocator.clone()), layout(size), 0)
}

/// Checks what a refused allocation says.
#[track_caller]
fn assert_tells(error: &Error, requested: usize, total: usize) {
    assert!(error.is_out_of_memory(), "{error}");
    let report = error.out_of_memory().unwrap();
    assert_eq!((report.device, report.requested), (CUDA_0, requested));
    assert_eq!(report.device_total, Some(total));
    assert!(report.device_free.is_some_and(|free| free <= total));
    let text = format!("out of memory on cuda:0: {requested} bytes requested");
    assert!(error.to_string().starts_with(&text), "{error}");
}

/// Checks that the device works as if nothing had happened.
#[track_caller]
fn assert_works(gpu: &Gpu) {
    let sent = bytes(16 * MIB, 5);
    let buffer = filled(&gpu.allocator, &sent, 0);
    let on_stream = gpu.allocator.on_stream(&stream(0)).unwrap();
    let mut clone = empty(&on_stream, sent.len(), 0);
    clone.copy_from(buffer.as_span()).unwrap();
    assert_same(&clone.to_vec().unwrap(), &sent, "afterwards");
}

#[test]
fn more_than_the_device_has_is_out_of_memory_with_numbers_and_all_goes_on() {
    let Some(gpu) = Gpu::open() else { return };
    let total = gpu.allocator.memory_info(0).unwrap().unwrap().total;
    for requested in [2 * total, (1_usize << 40).max(4 * total), 1 << 50] {
        let error = create(&gpu, requested).unwrap_err();

        assert_tells(&error, requested, total);
        assert_works(&gpu);
    }
}

#[test]
fn a_full_device_is_out_of_memory_and_gives_all_back() {
    let Some(gpu) = Gpu::open() else { return };
    if gpu.has(0, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED) {
        return skip("device 0 has the memory of the host, which is not to be filled");
    }
    let total = gpu.allocator.memory_info(0).unwrap().unwrap().total;
    let before = gpu.settled_free_memory();
    let piece = (total / 16).max(1);
    let mut kept = Vec::new();

    let error = loop {
        assert!(kept.len() <= 16, "more than the device has was given");
        match create(&gpu, piece) {
            Ok(buffer) => kept.push(buffer),
            Err(error) => break error,
        }
    };

    assert_tells(&error, piece, total);
    let mut last = kept.pop().expect("room for one sixteenth of the device");
    last.fill(7).unwrap();
    drop(last);
    assert_works(&gpu);
    drop(kept);
    let after = gpu.settled_free_memory();
    assert!(after + SLACK >= before, "{before} bytes free, then {after}");
    assert_works(&gpu);
}

/// Everything once, of which nothing is to be left.
fn round(gpu: &Gpu, at: usize, streams: &[Arc<CudaStream>; 2], shared: &Shared) {
    let size = 256 * KIB + at % 61 * 4099;
    let whole = empty(&gpu.allocator, size, 0);
    drop(whole.try_clone().unwrap());
    let align = 1 << (8 + at % 13);
    drop(aligned(
        &gpu.allocator,
        DeviceLayout::new(size, align).unwrap(),
        0,
    ));
    let on_stream = gpu.allocator.on_stream(&streams[0]).unwrap();
    let ordered = empty(&on_stream, size, 0);
    streams[1].join(&streams[0]).unwrap();
    CudaAllocator::record_use(ordered.as_span(), &streams[1]).unwrap();
    drop(ordered);
    let host = empty(&shared.host, size, 0);
    let transfer = upload(&streams[1], host, whole).unwrap();
    if at.is_multiple_of(2) {
        drop(transfer);
    } else {
        drop(transfer.wait().unwrap());
    }
    if let Some(managed) = &shared.managed {
        drop(empty(managed, 64 * KIB, 0));
    }
}

struct Shared {
    host: CudaHostAllocator,
    managed: Option<CudaManagedAllocator>,
}

/// The memory of this process that is in use, where that can be known.
fn resident() -> Option<usize> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: usize = statm.split(' ').nth(1)?.parse().ok()?;
    Some(pages * 4096)
}

#[test]
fn a_thousand_rounds_leave_no_memory_behind() {
    let Some(gpu) = Gpu::open() else { return };
    let failures = free_failure_count();
    let streams = [stream(0), stream(0)];
    let shared = Shared {
        host: CudaHostAllocator::open().unwrap(),
        managed: CudaManagedAllocator::open().ok(),
    };
    for at in 0..50 {
        round(&gpu, at, &streams, &shared);
    }
    let before = (gpu.settled_free_memory(), resident());

    for at in 0..1000 {
        round(&gpu, at, &streams, &shared);
    }

    let after = (gpu.settled_free_memory(), resident());
    note(&format!("free before and after: {} {}", before.0, after.0));
    assert_eq!(free_failure_count(), failures);
    let lost = before.0.saturating_sub(after.0);
    assert!(
        lost <= SLACK,
        "{lost} bytes of the device, by this or others"
    );
    if let (Some(before), Some(after)) = (before.1, after.1) {
        let lost = after.saturating_sub(before);
        assert!(lost <= 128 * MIB, "{lost} bytes of the host");
    }
}

#[test]
fn a_pool_of_its_own_keeps_memory_until_it_is_trimmed() {
    let Some(gpu) = Gpu::open() else { return };
    if !gpu.has_pools(0) {
        return skip("device 0 has no memory pools");
    }
    let builder = CudaAllocator::builder();
    let allocator = builder.release_threshold(u64::MAX).open().unwrap();

    drop(empty(&allocator, 64 * MIB, 0));
    allocator.synchronize(0).unwrap();

    assert!(allocator.trim(0).unwrap() >= 64 * MIB);
    assert_eq!(allocator.trim(0).unwrap(), 0);
}
