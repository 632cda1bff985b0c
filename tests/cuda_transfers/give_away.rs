//! Buffers that cudarc frees, and frees in the order of a stream.

use std::sync::{Arc, Mutex};

use device_memory::backend::cuda::cudarc::driver::{CudaSlice, CudaStream};
use device_memory::backend::cuda::{BorrowedCudaSlice, CudaAllocator};
use device_memory::{DeviceLayout, DeviceMemoryBuffer, DeviceType, ErrorKind};
use fakecuda::Schedule;

use crate::support::{FAULT, Rig};

#[test]
fn cudarc_frees_what_was_given_away() {
    for schedule in Schedule::all(3) {
        let rig = Rig::new();
        let before = rig.alive();
        let handles = Arc::strong_count(&rig.cuda);
        rig.fake.set_schedule(schedule);
        let mut buffer = rig.device(8);
        buffer.copy_from_host(&[1, 0, 0, 0, 2, 0, 0, 0]).unwrap();

        let slice = CudaAllocator::into_cuda_slice::<u32>(buffer, &rig.stream).unwrap();

        assert_eq!(Arc::strong_count(&rig.cuda), handles);
        assert_eq!(rig.stream.clone_dtoh(&slice).unwrap(), [1, 2]);
        rig.fake.clear_calls();
        drop(slice);
        assert_eq!(rig.fake.count("cuMemFreeAsync"), 1);
        assert_eq!(rig.alive(), before, "{schedule:?}");
        rig.check();
    }
}

#[test]
fn what_cudarc_would_free_in_the_wrong_way_comes_back() {
    let rig = Rig::new();
    let before = rig.alive();
    let other = rig.other_stream();
    let aligned = DeviceLayout::new(64, 4096).unwrap();
    let refused = |buffer: DeviceMemoryBuffer, stream| {
        let size = buffer.size();
        let failure = CudaAllocator::into_cuda_slice::<u32>(buffer, stream).unwrap_err();
        assert_eq!(failure.buffer.size(), size);
        failure.error
    };

    let cuda = Arc::clone(&rig.cuda);
    let overaligned = DeviceMemoryBuffer::create_with(cuda, aligned, 0).unwrap();
    let adopted = rig
        .cuda
        .adopt(rig.stream.alloc_zeros::<u8>(4).unwrap())
        .unwrap();
    let no_pools = rig.device_at(8, 1);
    let elsewhere = rig.device(8);
    let cpu = DeviceMemoryBuffer::create(8, DeviceType::Cpu, 0).unwrap();

    assert!(refused(overaligned, &rig.stream).is_not_supported());
    assert!(refused(adopted, &rig.stream).is_not_supported());
    assert!(refused(no_pools, &other).is_not_supported());
    assert!(refused(rig.device(0), &rig.stream).is_not_supported());
    let mismatch = refused(elsewhere, &other);
    assert!(matches!(mismatch.kind(), ErrorKind::DeviceMismatch { .. }));
    assert!(matches!(
        refused(cpu, &rig.stream).kind(),
        ErrorKind::DeviceMismatch { .. }
    ));
    let length = refused(rig.device(9), &rig.stream);
    assert!(matches!(length.kind(), ErrorKind::LengthMismatch { .. }));
    drop(other);
    assert_eq!(rig.alive(), before);
    rig.check();
}

#[test]
fn every_call_may_fail_and_the_buffer_comes_back() {
    let rig = Rig::new();
    let other = rig.context.new_stream().unwrap();
    let kept = Mutex::new(Some(rig.device(8)));

    let calls = rig.fail_each_call(|| {
        let buffer = kept.lock().unwrap().take().unwrap();
        CudaAllocator::record_use(buffer.as_span(), &other).unwrap();
        let outcome = CudaAllocator::into_cuda_slice::<u8>(buffer, &rig.stream);
        rig.fake.disarm();
        *kept.lock().unwrap() = match outcome {
            Ok(_slice) => Some(rig.device(8)),
            Err(failure) => Some(failure.buffer),
        };
    });

    assert!(calls > 10, "{calls}");
}

#[test]
fn a_free_on_a_stream_waits_for_uses_that_were_told_of() {
    // NVlabs/cuda-oxide#619: the free was in the order of one stream only.
    for schedule in Schedule::all(4) {
        let rig = Rig::new();
        let before = rig.alive();
        rig.fake.set_schedule(schedule);
        let user = rig.context.new_stream().unwrap();
        let mut target = user.alloc_zeros::<u8>(64).unwrap();
        let mut buffer = rig.device(64);
        buffer.fill(1).unwrap();

        CudaAllocator::record_use(buffer.as_span(), &user).unwrap();
        copy_on(&user, &mut target, &buffer);
        rig.cuda.free_on(buffer, &rig.stream).unwrap();
        rig.stream.synchronize().unwrap();

        assert_eq!(user.clone_dtoh(&target).unwrap(), [1; 64], "{schedule:?}");
        drop(target);
        drop(user);
        assert_eq!(rig.alive(), before);
        rig.check();
    }
}

#[test]
fn uses_are_still_known_after_a_free_that_failed() {
    let rig = Rig::new();
    rig.fake.set_schedule(Schedule::Delayed);
    let user = rig.context.new_stream().unwrap();
    let mut target = user.alloc_zeros::<u8>(64).unwrap();
    let mut buffer = rig.device(64);
    buffer.fill(1).unwrap();
    CudaAllocator::record_use(buffer.as_span(), &user).unwrap();
    copy_on(&user, &mut target, &buffer);
    rig.fake.fail("cuMemFreeAsync", 1, FAULT);

    let failure = rig.cuda.free_on(buffer, &rig.stream).unwrap_err();
    let third = rig.context.new_stream().unwrap();
    rig.cuda.free_on(failure.buffer, &third).unwrap();
    third.synchronize().unwrap();

    assert_eq!(user.clone_dtoh(&target).unwrap(), [1; 64]);
    rig.check();
}

/// A kernel, as it were: a copy that this crate knows nothing of.
#[expect(unsafe_code, reason = "the order is what is tested")]
fn copy_on(stream: &Arc<CudaStream>, target: &mut CudaSlice<u8>, source: &DeviceMemoryBuffer) {
    // SAFETY: the use is told to the allocator.
    let lent = unsafe { BorrowedCudaSlice::<u8>::new(source.as_span(), stream) }.unwrap();
    stream.memcpy_dtod(&*lent, target).unwrap();
}

#[test]
fn a_free_on_a_stream_does_not_wait() {
    let rig = Rig::new();
    rig.fake.set_schedule(Schedule::Delayed);
    let buffer = rig.device(64);
    rig.fake.clear_calls();

    rig.cuda.free_on(buffer, &rig.stream).unwrap();

    assert_eq!(rig.fake.count("cuCtxSynchronize"), 0);
    assert_eq!(rig.fake.count("cuStreamSynchronize"), 0);
    assert!(rig.fake.live().pending > 0);
    rig.check();
}

#[test]
fn a_free_on_a_device_without_pools_is_of_its_family() {
    let rig = Rig::new();
    let other = rig.other_stream();
    let buffer = rig.device_at(64, 1);
    rig.fake.clear_calls();

    rig.cuda.free_on(buffer, &other).unwrap();

    assert_eq!(rig.fake.count("cuMemFree_v2"), 1);
    rig.check();
}

#[test]
fn an_overaligned_block_is_freed_where_it_starts() {
    let rig = Rig::new();
    let before = rig.alive();
    let layout = DeviceLayout::new(64, 4096).unwrap();
    let cuda = Arc::clone(&rig.cuda);
    let buffer = DeviceMemoryBuffer::create_with(cuda, layout, 0).unwrap();
    rig.fake.fail("cuMemFreeAsync", 1, FAULT);

    let failure = rig.cuda.free_on(buffer, &rig.stream).unwrap_err();
    rig.cuda.free_on(failure.buffer, &rig.stream).unwrap();

    assert_eq!(rig.alive(), before);
    rig.check();
}

#[test]
fn what_can_not_be_freed_on_a_stream_comes_back_untouched() {
    let rig = Rig::new();
    let other = rig.other_stream();
    let stranger = CudaAllocator::open().unwrap();
    let buffer = rig.device(8);
    rig.fake.clear_calls();

    let failure = rig.cuda.free_on(buffer, &other).unwrap_err();
    let elsewhere = failure.error;
    rig.fake.set_capture_status(Some(1));
    let failure = rig.cuda.free_on(failure.buffer, &rig.stream).unwrap_err();
    rig.fake.set_capture_status(None);
    let capturing = failure.error;
    let failure = stranger.free_on(failure.buffer, &rig.stream).unwrap_err();

    assert!(matches!(elsewhere.kind(), ErrorKind::DeviceMismatch { .. }));
    assert!(matches!(capturing.kind(), ErrorKind::Capturing { .. }));
    assert!(failure.error.is_not_supported());
    assert_eq!(rig.fake.count("cuMemFreeAsync"), 0);
    rig.cuda.free_on(failure.buffer, &rig.stream).unwrap();
    rig.check();
}

#[test]
fn every_call_of_a_free_may_fail_and_the_buffer_comes_back() {
    let rig = Rig::new();
    let user = rig.context.new_stream().unwrap();
    let kept = Mutex::new(Some(rig.device(8)));

    let calls = rig.fail_each_call(|| {
        let buffer = kept.lock().unwrap().take().unwrap();
        CudaAllocator::record_use(buffer.as_span(), &user).unwrap();
        let outcome = rig.cuda.free_on(buffer, &rig.stream);
        rig.fake.disarm();
        *kept.lock().unwrap() = match outcome {
            Ok(()) => Some(rig.device(8)),
            Err(failure) => Some(failure.buffer),
        };
    });

    assert!(calls > 6, "{calls}");
}
