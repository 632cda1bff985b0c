//! Threads and their current contexts, on the fake driver, a simulation. The
//! defects of cudarc's own owner, each shown absent here, are the six of its
//! numbered comments.

#![expect(unsafe_code, reason = "calls an unsafe trait and the driver")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use device_memory::backend::cuda::CudaAllocator;
use device_memory::backend::cuda::cudarc::driver::{CudaContext, DriverError, sys};
use device_memory::{DeviceAllocator, DeviceMemoryBuffer, DeviceType, ErrorKind};
use fakecuda::{FakeCuda, Schedule};

use crate::support::{
    CUDA_0, FreeFailures, address, assert_all_given_back, assert_no_memory, bytes, contexts,
    driver, empty, enqueue_write, filled, layout, make_none_current, registry, restart, stream,
};

/// Every call of an allocator on `index` that needs a context.
#[expect(clippy::type_complexity, reason = "said once")]
fn entry_points(
    allocator: &CudaAllocator,
    index: u16,
) -> Vec<(&'static str, Box<dyn Fn() -> bool + '_>)> {
    let buffer = move || {
        let handle = Arc::new(allocator.clone());
        DeviceMemoryBuffer::create_with(handle, layout(64), index)
    };
    vec![
        ("create and drop", Box::new(move || buffer().is_ok())),
        (
            "create and free",
            Box::new(move || buffer().is_ok_and(|buffer| buffer.free().is_ok())),
        ),
        (
            "copy from the host",
            Box::new(move || buffer().is_ok_and(|mut to| to.copy_from_host(&[1; 64]).is_ok())),
        ),
        (
            "copy to the host",
            Box::new(move || buffer().is_ok_and(|from| from.to_vec().is_ok())),
        ),
        (
            "fill",
            Box::new(move || buffer().is_ok_and(|mut to| to.fill(1).is_ok())),
        ),
        (
            "clone",
            Box::new(move || buffer().is_ok_and(|from| from.try_clone().is_ok())),
        ),
        (
            "memory info",
            Box::new(move || allocator.memory_info(index).is_ok()),
        ),
        (
            "synchronize",
            Box::new(move || allocator.synchronize(index).is_ok()),
        ),
        ("trim", Box::new(move || allocator.trim(index).is_ok())),
    ]
}

/// Runs `check` with no context current, with that of each device, and with one
/// that is destroyed.
fn with_each_current(check: impl Fn(&str)) {
    make_none_current();
    check("none current");
    for device in [0, 1] {
        let context = CudaContext::new(device).unwrap();
        check(&format!("cuda:{device} current"));
        make_none_current();
        context.bind_to_thread().unwrap();
        context.bind_to_thread().unwrap();
        check(&format!("cuda:{device} current"));
        make_none_current();
    }
    let mut own = std::ptr::null_mut();
    // SAFETY: the pointer is to a variable; the device is there.
    let made = unsafe { sys::cuCtxCreate_v4(&raw mut own, std::ptr::null_mut(), 0, 1) };
    made.result().unwrap();
    check("another context of cuda:1 current");
    // SAFETY: the context was just made.
    unsafe { sys::cuCtxDestroy_v2(own) }.result().unwrap();
    make_none_current();
}

/// An allocator whose two devices are ready.
fn ready() -> CudaAllocator {
    let allocator = CudaAllocator::open().unwrap();
    for index in [0, 1] {
        allocator.synchronize(index).unwrap();
    }
    allocator
}

#[test]
fn every_call_leaves_the_contexts_of_its_thread_as_they_were() {
    let fake = driver(2);
    for pools in [true, false] {
        restart(&fake, 2, pools);
        let allocator = ready();
        let handle = allocator.on_stream(&stream(1)).unwrap();
        with_each_current(|current| {
            for (allocator, index) in [(&allocator, 0), (&allocator, 1), (&handle, 1)] {
                for (name, call) in entry_points(allocator, index) {
                    let before = contexts(&fake);

                    let worked = call();

                    let what = format!("{name} on cuda:{index}, {current}, pools {pools}");
                    assert!(worked, "{what}");
                    assert_eq!(contexts(&fake), before, "{what}");
                }
            }
        });
        assert_no_memory(&fake);
    }
}

#[test]
fn the_first_use_of_a_device_leaves_them_as_they_were_too() {
    let fake = driver(2);
    with_each_current(|current| {
        for index in [0, 1] {
            let allocator = CudaAllocator::open().unwrap();
            let pool_of_its_own = CudaAllocator::builder().release_threshold(1);
            let with_pool = pool_of_its_own.open().unwrap();
            let before = contexts(&fake);

            drop(empty(&allocator, 8, index));
            drop(empty(&with_pool, 8, index));
            drop((allocator, with_pool));

            assert_eq!(contexts(&fake), before, "cuda:{index}, {current}");
        }
    });
    assert_all_given_back(&fake);
}

#[test]
fn calls_that_fail_leave_them_as_they_were() {
    let fake = driver(2);
    let failures = FreeFailures::watch();
    let allocator = ready();
    let calls = fake.exports();
    // What makes a context current can not go back when it is itself refused.
    let calls = calls.iter().filter(|call| *call != "cuCtxPopCurrent_v2");
    for call in calls {
        with_each_current(|current| {
            for (name, entry) in entry_points(&allocator, 0) {
                let before = contexts(&fake);
                fake.fail(call, 0, 999);

                let _ = entry();

                fake.disarm();
                let what = format!("{name}, {call} fails, {current}");
                assert_eq!(contexts(&fake), before, "{what}");
            }
        });
    }
    drop(failures);
    assert_eq!(fake.violations(), Vec::<String>::new());
}

#[test]
fn a_context_that_is_current_already_is_not_pushed() {
    let fake = driver(1);
    let allocator = ready_one();
    let context = CudaContext::new(0).unwrap();
    fake.clear_calls();

    drop(filled(&allocator, b"bytes", 0));

    assert_eq!(fake.count("cuCtxPushCurrent_v2"), 0);
    assert_eq!(fake.count("cuCtxPopCurrent_v2"), 0);
    assert_eq!(fake.count("cuCtxSetCurrent"), 0);
    drop(context);
}

fn ready_one() -> CudaAllocator {
    let allocator = CudaAllocator::open().unwrap();
    allocator.synchronize(0).unwrap();
    allocator
}

#[test]
fn the_last_handle_of_a_stream_leaves_them_as_they_were_when_its_buffer_is_dropped() {
    let fake = driver(2);
    let allocator = ready();
    for dropped_on in [None, Some(0), Some(1)] {
        let handle = allocator.on_stream(&stream(0)).unwrap();
        let buffer = DeviceMemoryBuffer::create_with(Arc::new(handle), layout(8), 0).unwrap();
        let other = dropped_on.map(|device| CudaContext::new(device).unwrap());
        let before = contexts(&fake);

        drop(buffer);

        assert_eq!(contexts(&fake), before, "{dropped_on:?}");
        make_none_current();
        drop(other);
        make_none_current();
    }
    assert_no_memory(&fake);
}

#[test]
fn the_last_handle_of_a_recorded_stream_leaves_them_as_they_were() {
    let fake = driver(2);
    let allocator = ready();
    for dropped_on in [None, Some(0), Some(1)] {
        let buffer = empty(&allocator, 8, 0);
        allocator.record_use(buffer.ptr(), &stream(0)).unwrap();
        let other = dropped_on.map(|device| CudaContext::new(device).unwrap());
        let before = contexts(&fake);

        drop(buffer);

        assert_eq!(contexts(&fake), before, "{dropped_on:?}");
        make_none_current();
        drop(other);
        make_none_current();
    }
    assert_no_memory(&fake);
}

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

#[test]
fn a_handle_on_a_stream_works_on_a_thread_without_a_context() {
    let fake = driver(2);
    let allocator = CudaAllocator::open().unwrap();
    let context = CudaContext::new(0).unwrap();
    for stream in [context.new_stream().unwrap(), context.default_stream()] {
        make_none_current();
        let handle = allocator.on_stream(&stream).unwrap();
        for (name, call) in entry_points(&handle, 0) {
            assert!(call(), "{name}");
        }
    }
    assert_no_memory(&fake);
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
