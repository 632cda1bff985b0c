//! Failures on order, counts, captures, and the end of the driver.

#![cfg(target_os = "linux")]
#![allow(
    unsafe_code,
    clippy::multiple_unsafe_ops_per_block,
    reason = "the tests call a C interface"
)]

mod support;

use std::cell::Cell;

use cudarc::driver::{result, sys};
use support::{alloc, code, driver, free, read, stream};
use sys::CUstreamCaptureMode as Mode;
use sys::CUstreamCaptureStatus as Status;

#[test]
fn the_nth_call_of_a_function_fails_and_does_nothing() {
    let fake = driver();
    fake.fail("cuMemAlloc_v2", 2, 2);

    let first = alloc(8);
    // SAFETY: the driver is a simulation, which checks what it is told.
    let second = code(unsafe { result::malloc_sync(8) });
    let third = alloc(8);

    assert_eq!(second, 2);
    assert_eq!(fake.live().device_blocks(), 2);
    assert_eq!((fake.count("cuMemAlloc_v2"), fake.fired()), (3, 1));
    assert_eq!((free(first), free(third)), (0, 0));
}

#[test]
fn every_call_of_a_sequence_can_be_failed_in_turn() {
    let fake = driver();
    let last = Cell::new(0);
    let sequence = || {
        // SAFETY: the driver is a simulation, which checks what it is told.
        let ptr = unsafe { result::malloc_sync(8) }.map_err(|_| ())?;
        last.set(ptr);
        // SAFETY: as above.
        let done = unsafe { result::memset_d8_sync(ptr, 1, 8) }.map_err(|_| ());
        // SAFETY: as above.
        let freed = unsafe { result::free_sync(ptr) }.map_err(|_| ());
        done.and(freed)
    };

    let mut failed = 0;
    loop {
        fake.clear();
        fake.fail_call_number(failed + 1, 999);
        let done = sequence();
        if fake.fired() == 0 {
            assert_eq!(done, Ok(()));
            break;
        }
        assert_eq!(done, Err(()));
        failed += 1;
        if failed == 3 {
            assert_eq!(
                fake.live().device_blocks(),
                1,
                "a free that fails frees nothing"
            );
            assert_eq!(free(last.get()), 0);
        }
    }

    assert_eq!(failed, 3);
}

#[test]
fn every_call_can_fail_until_it_is_forgiven() {
    let fake = driver();
    fake.fail("cuMemGetInfo_v2", 0, 999);

    assert_eq!(code(result::mem_get_info()), 999);
    assert_eq!(code(result::mem_get_info()), 999);
    fake.disarm();
    assert_eq!(code(result::mem_get_info()), 0);
}

#[test]
fn a_code_without_a_name_is_returned_as_it_is() {
    let fake = driver();
    fake.fail("cuMemFree_v2", 1, 4242);
    let ptr = alloc(8);
    type Free = unsafe extern "C" fn(u64) -> u32;

    // An enum of the bindings can not hold the number.
    // SAFETY: the function is there and has this type but for its result.
    let raw = unsafe {
        let library = libc::dlopen(c"libcuda.so".as_ptr(), libc::RTLD_LAZY);
        let symbol = libc::dlsym(library, c"cuMemFree_v2".as_ptr());
        std::mem::transmute::<*mut std::ffi::c_void, Free>(symbol)(ptr)
    };

    assert_eq!(raw, 4242);
    assert_eq!(free(ptr), 0);
}

#[test]
fn calls_are_recorded_when_asked_for() {
    let fake = driver();
    fake.set_recording(true);
    let ptr = alloc(640);
    free(ptr);

    let calls = fake.calls();

    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0].name, "cuMemAlloc_v2");
    assert_eq!((calls[1].ptr, calls[1].size), (ptr, 640));
    assert_eq!((calls[1].device, calls[1].code), (Some(0), 0));
    assert_eq!(calls[0].thread, calls[1].thread);
    assert_eq!(
        Some(calls[0].context),
        fake.current_context().map(|current| current.0)
    );
    assert_eq!(fake.counts().len(), 2);
    assert_eq!(fake.total_calls(), 2);
}

#[test]
fn a_driver_that_is_shut_down_says_so_until_it_is_not() {
    let fake = driver();
    let ptr = alloc(8);
    fake.set_shut_down(true);

    assert_eq!(free(ptr), 4);
    fake.set_shut_down(false);
    assert_eq!(free(ptr), 0);
}

#[test]
fn nothing_is_allocated_while_a_stream_captures() {
    let fake = driver();
    let (on, ptr) = (stream(), alloc(8));
    // SAFETY: the driver is a simulation, which checks what it is told.
    unsafe {
        result::stream::begin_capture(on, Mode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
        let status = result::stream::is_capturing(on).unwrap();
        assert_eq!(status, Status::CU_STREAM_CAPTURE_STATUS_ACTIVE);
        result::memset_d8_async(ptr, 1, 8, on).unwrap();
        assert_eq!(code(result::malloc_sync(8)), 900);
        let status = result::stream::is_capturing(on).unwrap();
        assert_eq!(status, Status::CU_STREAM_CAPTURE_STATUS_INVALIDATED);
        assert_eq!(code(result::stream::end_capture(on)), 901);

        result::stream::begin_capture(on, Mode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        let other = alloc(8);
        free(other);
        let graph = result::stream::end_capture(on).unwrap();
        assert_eq!(fake.live().graphs, 1);
        result::graph::destroy(graph).unwrap();
        result::stream::destroy(on).unwrap();
    }
    assert_eq!(read(ptr, 1), [0xCD], "captured work is not done");
    free(ptr);
}

#[test]
fn an_event_of_a_capture_can_not_be_asked_and_asking_spoils_it() {
    let fake = driver();
    let on = stream();
    let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING).unwrap();
    // SAFETY: the driver is a simulation, which checks what it is told.
    unsafe {
        result::stream::begin_capture(on, Mode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        result::event::record(event, on).unwrap();
        assert_eq!(code(result::event::query(event)), 907);
        assert_eq!(code(result::stream::end_capture(on)), 901);
        result::event::destroy(event).unwrap();
        result::stream::destroy(on).unwrap();
    }
    assert!(fake.live().is_clean());
}

#[test]
fn a_test_can_say_what_streams_say_of_their_capture() {
    let fake = driver();
    let on = stream();
    fake.set_capture_status(Some(2));
    // SAFETY: the driver is a simulation, which checks what it is told.
    unsafe {
        let status = result::stream::is_capturing(on).unwrap();
        assert_eq!(status, Status::CU_STREAM_CAPTURE_STATUS_INVALIDATED);
        fake.set_capture_status(None);
        let status = result::stream::is_capturing(on).unwrap();
        assert_eq!(status, Status::CU_STREAM_CAPTURE_STATUS_NONE);
        result::stream::destroy(on).unwrap();
    }
}

#[test]
#[should_panic(expected = "the fake driver has no function cuMemAllocc")]
fn a_mistake_in_a_test_is_told() {
    let fake = driver();
    fake.fail("cuMemAllocc", 1, 2);
}
