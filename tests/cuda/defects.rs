//! The defects of cudarc's own owner of memory, each shown absent, on the fake
//! driver, a simulation.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use device_memory::backend::cuda::CudaAllocator;
use device_memory::backend::cuda::cudarc::driver::{CudaContext, DriverError, sys};
use device_memory::{DeviceAllocator, DeviceMemoryBuffer, DeviceType, ErrorKind};
use fakecuda::{FakeCuda, Schedule};

use crate::contexts::{ready, ready_one, with_each_current};
use crate::support::{
    CUDA_0, FreeFailures, address, assert_all_given_back, assert_no_memory, bytes, contexts,
    driver, empty, enqueue_write, filled, layout, make_none_current, registry, restart, stream,
};

// Defect 1. https://github.com/EricLBuehler/mistral.rs/pull/1428
#[test]
fn a_buffer_dropped_on_a_thread_without_a_context_is_freed() {
    let fake = driver(1);
    for pools in [true, false] {
        for schedule in Schedule::all(1) {
            restart(&fake, 1, pools);
            fake.set_schedule(schedule);
            let allocator = CudaAllocator::open().unwrap();
            let streams = [allocator.clone(), allocator.on_stream(&stream(0)).unwrap()];
            for allocator in &streams {
                let buffer = filled(allocator, b"bytes", 0);

                let after = thread::spawn(move || {
                    drop(buffer);
                    contexts(&FakeCuda::install().unwrap())
                });

                assert_eq!(after.join().unwrap(), (None, 0));
                assert_no_memory(&fake);
            }
        }
    }
}

// Defect 2. https://github.com/rapidsai/rmm/issues/1342
#[test]
fn a_free_goes_to_the_device_of_the_buffer_whatever_is_current() {
    let fake = driver(2);
    for pools in [true, false] {
        restart(&fake, 2, pools);
        let allocator = ready();
        with_each_current(|current| {
            for index in [0, 1] {
                let buffer = filled(&allocator, &bytes(64), index);
                let at = address(&buffer);
                fake.set_recording(true);
                fake.clear_calls();

                drop(buffer);

                let name = if pools {
                    "cuMemFreeAsync"
                } else {
                    "cuMemFree_v2"
                };
                let calls = fake.calls();
                let frees: Vec<_> = calls.iter().filter(|call| call.name == name).collect();
                assert_eq!(frees.len(), 1, "{current}");
                assert_eq!(
                    (frees[0].ptr, frees[0].device),
                    (at, Some(usize::from(index)))
                );
                fake.set_recording(false);
                assert_no_memory(&fake);
            }
        });
    }
}

#[test]
fn a_free_works_after_the_context_that_was_current_is_destroyed() {
    let fake = driver(2);
    let allocator = ready_one();
    let buffer = filled(&allocator, &bytes(64), 0);
    let other = CudaContext::new(1).unwrap();
    drop(other);
    let before = contexts(&fake);
    assert_eq!(
        before.0.unwrap().1,
        None,
        "it is destroyed, and still current"
    );

    let read = buffer.to_vec();
    drop(buffer);

    assert_eq!(read.unwrap(), bytes(64));
    assert_eq!(contexts(&fake), before);
    make_none_current();
    assert_no_memory(&fake);
}

// Defect 3.
#[test]
fn an_old_error_disables_nothing() {
    let fake = driver(2);
    let failures = FreeFailures::watch();
    let allocator = ready();
    let beside = CudaContext::new(0).unwrap();
    make_none_current();
    let buffers = [0, 1].map(|index| filled(&allocator, &bytes(64), index));
    fake.fail("cuMemcpyDtoHAsync_v2", 1, 999);
    buffers[0].to_vec().unwrap_err();
    beside.record_err::<()>(Err(DriverError(sys::CUresult::CUDA_ERROR_INVALID_VALUE)));

    let read = buffers.each_ref().map(|buffer| buffer.to_vec().unwrap());
    drop(buffers);

    assert_eq!(read, [bytes(64), bytes(64)]);
    assert_eq!(failures.take(), []);
    assert_no_memory(&fake);
}

// Defect 4. https://github.com/chelsea0x3b/cudarc/issues/590
#[test]
fn a_failed_free_is_told_to_the_hook_and_to_no_other_call() {
    let fake = driver(2);
    let failures = FreeFailures::watch();
    let allocator = ready();
    let beside = CudaContext::new(0).unwrap();
    let registry = registry(&allocator);
    let first = filled(&allocator, &bytes(64), 0);
    let (at, ptr) = (address(&first), first.ptr());
    fake.fail("cuMemFreeAsync", 1, 999);

    drop(first);

    let text = "deallocate on cuda:0 failed: cuMemFreeAsync returned 999 (UNKNOWN)";
    assert_eq!(failures.take(), [(CUDA_0, ptr, String::from(text))]);
    beside.check_err().unwrap();
    for device in [CUDA_0, crate::support::CUDA_1] {
        let mut next = DeviceMemoryBuffer::create_in(&registry, layout(64), device).unwrap();
        next.copy_from_host(&bytes(64)).unwrap();
        assert_eq!(next.to_vec().unwrap(), bytes(64));
    }
    allocator.synchronize(0).unwrap();
    assert_eq!(failures.take(), []);
    assert_eq!(
        fake.read(at, 64),
        Some(bytes(64)),
        "it is leaked, not freed"
    );
}

#[test]
fn a_free_that_fails_gives_the_buffer_back_and_may_be_tried_again() {
    let fake = driver(1);
    for pools in [true, false] {
        for align in [64, 4096] {
            restart(&fake, 1, pools);
            let allocator = Arc::new(CudaAllocator::open().unwrap());
            let layout = device_memory::DeviceLayout::new(64, align).unwrap();
            let mut buffer = DeviceMemoryBuffer::create_with(allocator, layout, 0).unwrap();
            buffer.fill(3).unwrap();
            fake.fail(
                if pools {
                    "cuMemFreeAsync"
                } else {
                    "cuMemFree_v2"
                },
                1,
                1,
            );

            let failure = buffer.free().unwrap_err();

            assert!(matches!(
                failure.error.kind(),
                ErrorKind::Driver { code: 1, .. }
            ));
            assert_eq!(failure.buffer.to_vec().unwrap(), [3; 64]);
            failure.buffer.free().unwrap();
            assert_no_memory(&fake);
        }
    }
}

// Defect 5.
#[test]
fn a_size_that_overflows_is_an_error_and_no_small_block() {
    let fake = driver(1);
    fake.clear_calls();

    let wraps_to_8 = usize::MAX / 8 + 2;
    let outcome = DeviceMemoryBuffer::create_array::<u64>(wraps_to_8, DeviceType::Cuda, 0);

    assert!(matches!(outcome.unwrap_err().kind(), ErrorKind::Layout(_)));
    assert_eq!(fake.total_calls(), 0);
}

// Defect 6.
#[test]
fn two_allocators_of_one_device_agree_on_what_is_written() {
    let fake = driver(1);
    for pools in [true, false] {
        for schedule in Schedule::all(3) {
            restart(&fake, 1, pools);
            fake.set_schedule(schedule);
            let [first, second] = [(); 2].map(|()| CudaAllocator::open().unwrap());
            let on_streams = [
                first
                    .on_stream(&CudaContext::new(0).unwrap().default_stream())
                    .unwrap(),
                second.on_stream(&stream(0)).unwrap(),
            ];
            make_none_current();
            let all = [&first, &second, &on_streams[0], &on_streams[1]];
            for writer in all {
                for reader in all {
                    let mut from = empty(writer, 8, 0);
                    let mut to = empty(reader, 8, 0);

                    from.copy_from_host(&[5; 8]).unwrap();
                    to.copy_from(from.as_span()).unwrap();

                    assert_eq!(to.to_vec().unwrap(), [5; 8]);
                }
            }
            assert_no_memory(&fake);
        }
    }
}

#[test]
fn a_registry_for_each_of_two_allocators_works_on_one_device() {
    let fake = driver(1);
    fake.set_schedule(Schedule::Delayed);
    let registries = [(); 2].map(|()| registry(&CudaAllocator::open().unwrap()));
    let [from, mut to] = [(&registries[0], 1), (&registries[1], 2)].map(|(registry, byte)| {
        DeviceMemoryBuffer::from_host_in(registry, &[byte; 8], CUDA_0).unwrap()
    });

    to.copy_from(from.as_span()).unwrap();

    assert_eq!(fake.live().primary_retains(), 2);
    drop((registries, from));
    assert_eq!(to.to_vec().unwrap(), [1; 8]);
    drop(to);
    assert_all_given_back(&fake);
}

#[test]
fn a_synchronous_copy_is_complete_for_work_of_every_stream() {
    let fake = driver(1);
    fake.set_schedule(Schedule::Delayed);
    let allocator = CudaAllocator::open().unwrap();
    let other = stream(0);
    let buffer = filled(&allocator, &[1; 8], 0);

    enqueue_write(&other, address(&buffer), 2, 4);
    other.synchronize().unwrap();

    assert_eq!(
        fake.read(address(&buffer), 8),
        Some(vec![2, 2, 2, 2, 1, 1, 1, 1])
    );
    drop(buffer);
    assert_no_memory(&fake);
}

// https://github.com/chelsea0x3b/cudarc/issues/277
#[test]
fn a_buffer_dropped_while_unwinding_is_freed_and_a_failure_is_no_second_panic() {
    let fake = driver(1);
    let failures = FreeFailures::watch();
    let allocator = ready_one();
    for fails in [false, true] {
        let buffer = filled(&allocator, b"bytes", 0);
        if fails {
            fake.fail("cuMemFreeAsync", 1, 999);
        }

        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let _dropped = buffer;
            std::panic::resume_unwind(Box::new("the caller's"));
        }));

        let payload = outcome.unwrap_err();
        assert_eq!(payload.downcast_ref::<&str>(), Some(&"the caller's"));
        assert_eq!(failures.take().len(), usize::from(fails));
        assert_eq!(fake.live().device_blocks(), usize::from(fails));
        assert_eq!(contexts(&fake), (None, 0));
    }
}
