//! The current contexts of a thread, before and after each call, on the fake
//! driver, a simulation.

#![expect(unsafe_code, reason = "calls the driver")]

use std::sync::Arc;

use device_memory::backend::cuda::CudaAllocator;
use device_memory::backend::cuda::cudarc::driver::{CudaContext, sys};
use device_memory::{DeviceAllocator, DeviceMemoryBuffer};

use crate::support::{
    FreeFailures, assert_all_given_back, assert_no_memory, contexts, driver, empty, filled, layout,
    make_none_current, restart, stream,
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
pub(crate) fn with_each_current(check: impl Fn(&str)) {
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
pub(crate) fn ready() -> CudaAllocator {
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

pub(crate) fn ready_one() -> CudaAllocator {
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
        CudaAllocator::record_use(buffer.as_span(), &stream(0)).unwrap();
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
