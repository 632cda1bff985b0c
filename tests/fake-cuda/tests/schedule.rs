//! Streams, events, and what each schedule makes visible.

#![cfg(target_os = "linux")]
#![allow(
    unsafe_code,
    clippy::multiple_unsafe_ops_per_block,
    reason = "the tests call a C interface"
)]

mod support;

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::driver::{result, sys};
use fakecuda::{Run, Schedule};
use support::{alloc, code, driver, free, stream};
use sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
use sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;

/// Fills a block on one stream and copies it on another, with a wait between
/// them or without; returns what the copy has read.
fn two_streams(wait: bool) -> u8 {
    let (a, b) = (alloc(8), alloc(8));
    let (first, second) = (stream(), stream());
    let event = result::event::create(CU_EVENT_DISABLE_TIMING).unwrap();
    let mut bytes = [0_u8; 1];
    // SAFETY: the driver is a simulation, which checks what it is told.
    unsafe {
        result::memset_d8_async(a, 7, 8, first).unwrap();
        result::event::record(event, first).unwrap();
        if wait {
            result::stream::wait_event(second, event, CU_EVENT_WAIT_DEFAULT).unwrap();
        }
        result::memcpy_dtod_async(b, a, 8, second).unwrap();
        result::stream::synchronize(second).unwrap();
        result::memcpy_dtoh_async(&mut bytes, b, second).unwrap();
        result::event::destroy(event).unwrap();
        result::stream::destroy(first).unwrap();
        result::stream::destroy(second).unwrap();
    }
    assert_eq!((free(a), free(b)), (0, 0));
    bytes[0]
}

#[test]
fn a_missing_wait_shows_when_work_is_late_and_not_when_it_is_early() {
    let fake = driver();

    fake.set_schedule(Schedule::Eager);
    assert_eq!(two_streams(false), 7);
    fake.set_schedule(Schedule::Delayed);
    assert_eq!(two_streams(false), 0xCD);
    let found = (1..=32).filter(|seed| {
        fake.set_schedule(Schedule::Random(*seed));
        two_streams(false) == 0xCD
    });
    assert!(found.count() > 0);
    assert!(fake.live().is_clean(), "{:?}", fake.live());
}

#[test]
fn with_its_wait_the_copy_is_right_under_every_schedule() {
    let fake = driver();

    for schedule in Schedule::all(32) {
        fake.set_schedule(schedule);
        assert_eq!(two_streams(true), 7, "{schedule:?}");
    }
    assert!(fake.violations().is_empty());
}

#[test]
fn the_same_seed_gives_the_same_order() {
    let fake = driver();
    let run = || {
        fake.set_schedule(Schedule::Random(5));
        (0..20).map(|_| two_streams(false)).collect::<Vec<_>>()
    };

    assert_eq!(run(), run());
}

#[test]
fn the_null_stream_waits_for_blocking_streams_and_not_for_others() {
    let fake = driver();
    fake.set_schedule(Schedule::Delayed);
    let ptr = alloc(2);
    let blocking = result::stream::create(result::stream::StreamKind::Default).unwrap();
    let other = stream();
    let mut bytes = [0_u8; 2];

    // SAFETY: the driver is a simulation, which checks what it is told.
    unsafe {
        result::memset_d8_async(ptr, 1, 1, blocking).unwrap();
        result::memset_d8_async(ptr + 1, 1, 1, other).unwrap();
        result::memcpy_dtoh_sync(&mut bytes, ptr).unwrap();
    }

    assert_eq!(bytes, [1, 0xCD]);
    // SAFETY: as above.
    unsafe {
        result::stream::destroy(blocking).unwrap();
        result::stream::destroy(other).unwrap();
    }
    assert_eq!(free(ptr), 0);
    assert_eq!(fake.live().pending, 0);
}

#[test]
fn a_pageable_source_may_change_after_the_call_and_a_pinned_one_not() {
    let fake = driver();
    fake.set_schedule(Schedule::Delayed);
    let (a, b) = (alloc(1), alloc(1));
    let on = stream();
    let mut pageable = [1_u8];

    // SAFETY: the driver is a simulation, which checks what it is told; `pinned`
    // is used within its one byte until it is freed.
    unsafe {
        let pinned = result::malloc_host(1, 0).unwrap().cast::<u8>();
        pinned.write(1);
        result::memcpy_htod_async(a, &pageable, on).unwrap();
        result::memcpy_htod_async(b, std::slice::from_raw_parts(pinned, 1), on).unwrap();
        pageable[0] = 9;
        pinned.write(9);
        result::stream::synchronize(on).unwrap();
        result::free_host(pinned.cast()).unwrap();
        result::stream::destroy(on).unwrap();
    }

    assert_eq!(pageable, [9]);
    assert_eq!(fake.read(a, 1), Some(vec![1]));
    assert_eq!(fake.read(b, 1), Some(vec![9]));
    assert_eq!((free(a), free(b)), (0, 0));
    assert!(fake.violations().is_empty());
}

#[test]
fn a_pinned_source_that_is_freed_before_its_copy_is_reported_and_not_read() {
    let fake = driver();
    fake.set_schedule(Schedule::Delayed);
    let ptr = alloc(1);
    let on = stream();

    // SAFETY: the driver is a simulation, which checks what it is told.
    unsafe {
        let pinned = result::malloc_host(1, 0).unwrap().cast::<u8>();
        result::memcpy_htod_async(ptr, std::slice::from_raw_parts(pinned, 1), on).unwrap();
        result::free_host(pinned.cast()).unwrap();
        result::stream::synchronize(on).unwrap();
        result::stream::destroy(on).unwrap();
    }

    assert_eq!(fake.read(ptr, 1), Some(vec![0xDB]));
    let violations = fake.violations();
    assert!(
        violations[0].contains("freed before a copy read it"),
        "{violations:?}"
    );
    free(ptr);
}

#[test]
fn a_pinned_destination_is_written_late_and_a_pageable_one_before_the_call_returns() {
    let fake = driver();
    fake.set_schedule(Schedule::Delayed);
    let ptr = alloc(1);
    let on = stream();
    let mut pageable = [0_u8];

    // SAFETY: the driver is a simulation, which checks what it is told; `pinned`
    // is used within its one byte until it is freed.
    unsafe {
        let pinned = result::malloc_host(1, 0).unwrap().cast::<u8>();
        result::memset_d8_async(ptr, 3, 1, on).unwrap();
        result::memcpy_dtoh_async(&mut pageable, ptr, on).unwrap();
        result::memset_d8_async(ptr, 4, 1, on).unwrap();
        result::memcpy_dtoh_async(std::slice::from_raw_parts_mut(pinned, 1), ptr, on).unwrap();
        assert_eq!((pageable[0], pinned.read()), (3, 0xCD));
        result::stream::synchronize(on).unwrap();
        assert_eq!(pinned.read(), 4);
        result::free_host(pinned.cast()).unwrap();
        result::stream::destroy(on).unwrap();
    }
    free(ptr);
}

#[test]
fn events_come_when_their_work_is_done() {
    let fake = driver();
    fake.set_schedule(Schedule::Delayed);
    let ptr = alloc(1);
    let on = stream();
    let event = result::event::create(CU_EVENT_DISABLE_TIMING).unwrap();

    // SAFETY: the driver is a simulation, which checks what it is told.
    unsafe {
        assert_eq!(code(result::event::query(event)), 0);
        result::memset_d8_async(ptr, 3, 1, on).unwrap();
        result::event::record(event, on).unwrap();
        assert_eq!(code(result::event::query(event)), 600);
        assert_eq!(code(result::event::query(event)), 600);
        assert_eq!(code(result::event::query(event)), 0);
        result::event::destroy(event).unwrap();
        assert_eq!(code(result::event::query(event)), 400);
        result::stream::destroy(on).unwrap();
        assert_eq!(code(result::stream::synchronize(on)), 400);
    }
    assert_eq!(fake.violations().len(), 2);
    free(ptr);
}

#[test]
fn a_free_waits_for_the_device() {
    let fake = driver();
    fake.set_schedule(Schedule::Delayed);
    let (a, b) = (alloc(1), alloc(1));
    let on = stream();

    // SAFETY: the driver is a simulation, which checks what it is told.
    unsafe { result::memset_d8_async(a, 3, 1, on) }.unwrap();
    assert_eq!(fake.live().pending, 1);
    assert_eq!(free(b), 0);

    assert_eq!(fake.live().pending, 0);
    assert_eq!(fake.read(a, 1), Some(vec![3]));
    // SAFETY: as above.
    unsafe { result::stream::destroy(on) }.unwrap();
    free(a);
    assert!(fake.violations().is_empty());
}

#[test]
fn functions_of_the_host_run_in_order_and_may_not_use_the_driver() {
    static SEEN: AtomicU32 = AtomicU32::new(0);
    unsafe extern "C" fn function(argument: *mut c_void) {
        SEEN.store(argument.addr() as u32, Ordering::Relaxed);
        let refused = result::mem_get_info();
        assert_eq!(code(refused), 800);
    }
    let fake = driver();
    fake.set_schedule(Schedule::Delayed);
    let on = stream();

    // SAFETY: the function takes any argument.
    unsafe {
        let argument = std::ptr::without_provenance_mut(11);
        result::stream::launch_host_function(on, function, argument).unwrap();
        assert_eq!(SEEN.load(Ordering::Relaxed), 0, "nothing waits for it yet");
        result::stream::synchronize(on).unwrap();
        assert_eq!(SEEN.load(Ordering::Relaxed), 11);
        result::stream::destroy(on).unwrap();
    }
    assert_eq!(fake.violations().len(), 1);
}

#[test]
fn a_test_can_let_work_run() {
    let fake = driver();
    fake.set_schedule(Schedule::Delayed);
    let ptr = alloc(3);
    let on = stream();
    for index in 0..3 {
        // SAFETY: the driver is a simulation, which checks what it is told.
        unsafe { result::memset_d8_async(ptr + index, 1, 1, on) }.unwrap();
    }

    fake.run_schedule(Run::Steps(1));
    assert_eq!(fake.read(ptr, 3), Some(vec![1, 0xCD, 0xCD]));
    fake.run_schedule(Run::Stream(on.addr() as u64));
    assert_eq!(fake.read(ptr, 3), Some(vec![1, 1, 1]));

    // SAFETY: as above.
    unsafe { result::stream::destroy(on) }.unwrap();
    free(ptr);
}

#[test]
fn a_context_waits_for_all_its_streams() {
    let fake = driver();
    fake.set_schedule(Schedule::Delayed);
    let ptr = alloc(3);
    let streams = [stream(), stream(), null_mut()];
    for (index, on) in (0..).zip(streams) {
        // SAFETY: the driver is a simulation, which checks what it is told.
        unsafe { result::memset_d8_async(ptr + index, 1, 1, on) }.unwrap();
    }

    result::ctx::synchronize().unwrap();

    assert_eq!(fake.read(ptr, 3), Some(vec![1, 1, 1]));
    // SAFETY: as above.
    unsafe {
        result::stream::destroy(streams[0]).unwrap();
        result::stream::destroy(streams[1]).unwrap();
    }
    free(ptr);
}
