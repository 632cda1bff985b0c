//! Slices of cudarc's that become buffers.

use std::sync::{Arc, Mutex};

use device_memory::backend::cuda::cudarc::driver::CudaContext;
use device_memory::backend::cuda::transfer_scope;
use device_memory::{ErrorKind, free_failure_count, set_free_failure_hook};
use fakecuda::Schedule;

use crate::support::{FAULT, Rig};

#[test]
fn an_adopted_slice_is_copied_and_freed_once_the_way_it_was_allocated() {
    for (device, free) in [(0, "cuMemFreeAsync"), (1, "cuMemFree_v2")] {
        let rig = Rig::new();
        let context = CudaContext::new(device).unwrap();
        let stream = context.new_stream().unwrap();
        let before = rig.alive();
        rig.fake.set_schedule(Schedule::Delayed);
        let slice = stream.clone_htod(&[1_u32, 2]).unwrap();
        rig.fake.clear_calls();

        let mut buffer = rig.cuda.adopt(slice).unwrap();
        let bytes = buffer.to_vec().unwrap();
        buffer.fill(3).unwrap();
        let clone = buffer.try_clone().unwrap();
        drop(buffer);

        assert_eq!(bytes, [1, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(rig.fake.count(free), 1);
        assert_eq!(clone.to_vec().unwrap(), [3; 8]);
        drop(clone);
        assert_eq!(rig.alive(), before);
        assert!(context.check_err().is_ok());
        rig.check();
    }
}

#[test]
fn what_is_adopted_takes_part_in_transfers() {
    let rig = Rig::new();
    rig.fake.set_schedule(Schedule::Delayed);
    let mut buffer = rig
        .cuda
        .adopt(rig.stream.alloc_zeros::<u8>(4).unwrap())
        .unwrap();

    transfer_scope(&rig.stream, |scope| {
        scope.copy_to_device(buffer.as_span_mut(), &[1; 4])
    })
    .unwrap();

    assert_eq!(rig.peek(&buffer), [1; 4]);
    drop(buffer);
    rig.check();
}

#[test]
fn a_free_that_fails_is_told_of_and_kept_for_nobody() {
    let rig = Rig::new();
    let told = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&told);
    let hook = set_free_failure_hook(Some(Arc::new(move |failure| {
        heard
            .lock()
            .unwrap()
            .push((failure.device, failure.layout.size()));
    })));
    let buffer = rig
        .cuda
        .adopt(rig.stream.alloc_zeros::<u8>(4).unwrap())
        .unwrap();
    let device = buffer.device();
    let (before, failures) = (rig.alive(), free_failure_count());
    rig.fake.fail("cuMemFreeAsync", 1, FAULT);

    drop(buffer);

    set_free_failure_hook(hook);
    assert_eq!(*told.lock().unwrap(), [(device, 4)]);
    assert_eq!(free_failure_count(), failures + 1);
    assert!(rig.context.check_err().is_ok());
    let now = rig.alive();
    assert_eq!((now.blocks, now.events + 2), (before.blocks, before.events));
    rig.check();
}

#[test]
fn a_free_that_fails_can_be_tried_again() {
    let rig = Rig::new();
    let before = rig.alive();
    let buffer = rig
        .cuda
        .adopt(rig.stream.alloc_zeros::<u8>(4).unwrap())
        .unwrap();
    rig.fake.fail("cuMemFreeAsync", 1, FAULT);

    let failure = buffer.free().unwrap_err();
    failure.buffer.free().unwrap();

    assert_eq!(rig.alive(), before);
    rig.check();
}

#[test]
fn a_slice_of_another_device_than_the_handles_comes_back() {
    let rig = Rig::new();
    let handle = rig.cuda.on_stream(&rig.other_stream()).unwrap();
    let before = rig.alive();
    let slice = rig.stream.alloc_zeros::<u8>(4).unwrap();

    let failure = handle.adopt(slice).unwrap_err();

    assert!(matches!(
        failure.error.kind(),
        ErrorKind::DeviceMismatch { .. }
    ));
    assert_eq!(failure.slice.len(), 4);
    drop(failure);
    assert_eq!(rig.alive(), before);
    rig.check();
}

#[test]
fn every_call_may_fail_and_the_slice_comes_back() {
    let rig = Rig::new();
    let kept = Mutex::new(Some(rig.stream.alloc_zeros::<u8>(4).unwrap()));

    let calls = rig.fail_each_call(|| {
        let slice = kept.lock().unwrap().take().unwrap();
        let outcome = rig.cuda.adopt(slice);
        rig.fake.disarm();
        *kept.lock().unwrap() = match outcome {
            Ok(_buffer) => Some(rig.stream.alloc_zeros::<u8>(4).unwrap()),
            Err(failure) => Some(failure.slice),
        };
    });

    assert!(calls > 6, "{calls}");
}
