//! Functions that only look something up, which have a short way: whatever a test
//! or the program changes is seen by the next call.

#![cfg(target_os = "linux")]
#![allow(
    unsafe_code,
    clippy::multiple_unsafe_ops_per_block,
    reason = "the tests call a C interface"
)]

mod support;

use cudarc::driver::{result, sys};
use fakecuda::Schedule;
use support::{code, driver, retain, stream};
use sys::CUstreamCaptureMode as Mode;
use sys::CUstreamCaptureStatus as Status;

const CURRENT: &str = "cuCtxGetCurrent";
const CAPTURING: &str = "cuStreamIsCapturing";

/// What `cuCtxGetCurrent` comes to.
fn current() -> i32 {
    code(result::ctx::get_current())
}

/// What `cuStreamIsCapturing` comes to, or `-1` for a stream that is not idle.
fn capturing(on: sys::CUstream) -> i32 {
    // SAFETY: the driver is a simulation, which checks what it is told.
    match unsafe { result::stream::is_capturing(on) } {
        Ok(Status::CU_STREAM_CAPTURE_STATUS_NONE) => 0,
        Ok(_) => -1,
        Err(error) => error.0 as i32,
    }
}

/// A stream that was asked already, twice.
fn asked() -> sys::CUstream {
    let on = stream();
    assert_eq!((capturing(on), capturing(on), current()), (0, 0, 0));
    on
}

fn destroy(on: sys::CUstream) {
    // SAFETY: the driver is a simulation, which checks what it is told.
    unsafe { result::stream::destroy(on) }.unwrap();
}

#[test]
fn each_call_is_counted() {
    let fake = driver();
    let on = asked();
    fake.clear_calls();

    for _ in 0..5 {
        assert_eq!((capturing(on), current()), (0, 0));
    }

    assert_eq!((fake.count(CURRENT), fake.count(CAPTURING)), (5, 5));
    assert_eq!(fake.total_calls(), 10);
    destroy(on);
}

#[test]
fn failures_are_met_by_name_and_by_number() {
    let fake = driver();
    let on = asked();

    fake.fail(CURRENT, 2, 999);
    assert_eq!((current(), current(), current()), (0, 999, 0));
    fake.fail(CAPTURING, 1, 999);
    assert_eq!((capturing(on), capturing(on)), (999, 0));
    fake.fail_call_number(3, 46);
    assert_eq!((current(), capturing(on), current()), (0, 0, 46));
    fake.fail(CAPTURING, 0, 999);
    assert_eq!((capturing(on), capturing(on)), (999, 999));
    fake.disarm();

    assert_eq!((capturing(on), current()), (0, 0));
    assert_eq!(fake.fired(), 5);
    destroy(on);
}

#[test]
fn a_driver_that_is_shut_down_says_so() {
    let fake = driver();
    let on = asked();

    fake.set_shut_down(true);
    assert_eq!((capturing(on), current()), (4, 4));
    fake.set_shut_down(false);

    assert_eq!((capturing(on), current()), (0, 0));
    destroy(on);
}

#[test]
fn calls_are_recorded_from_when_it_is_asked_for() {
    let fake = driver();
    let on = asked();

    fake.set_recording(true);
    assert_eq!((capturing(on), current()), (0, 0));
    let names: Vec<String> = fake.calls().into_iter().map(|call| call.name).collect();
    fake.set_recording(false);
    assert_eq!(current(), 0);

    assert_eq!(names, [CAPTURING, CURRENT]);
    assert_eq!(fake.calls().len(), 2);
    destroy(on);
}

#[test]
fn a_capture_is_seen_from_its_begin_to_its_end() {
    let fake = driver();
    let (on, other) = (asked(), asked());
    assert_eq!(capturing(on), 0);

    // SAFETY: the driver is a simulation, which checks what it is told.
    unsafe { result::stream::begin_capture(on, Mode::CU_STREAM_CAPTURE_MODE_RELAXED) }.unwrap();
    assert_eq!(
        (capturing(on), capturing(on), capturing(other)),
        (-1, -1, 0)
    );
    // SAFETY: as above.
    let graph = unsafe { result::stream::end_capture(on) }.unwrap();
    assert_eq!((capturing(on), capturing(on)), (0, 0));
    fake.set_capture_status(Some(2));
    assert_eq!(capturing(on), -1);
    fake.set_capture_status(None);
    assert_eq!(capturing(on), 0);

    // SAFETY: as above.
    unsafe { sys::cuGraphDestroy(graph) };
    destroy(on);
    destroy(other);
}

#[test]
fn a_stream_is_unknown_once_it_is_destroyed() {
    let fake = driver();
    let on = asked();

    destroy(on);

    assert_eq!((capturing(on), capturing(on)), (400, 400));
    assert_eq!(fake.violations().len(), 2);
    fake.clear_violations();
}

#[test]
fn another_thread_that_destroys_the_stream_is_noticed() {
    let fake = driver();
    let on = asked();
    let address = on as usize;

    std::thread::spawn(move || destroy(address as sys::CUstream))
        .join()
        .unwrap();

    assert_eq!(capturing(on), 400);
    fake.clear_violations();
}

#[test]
fn a_context_must_be_current_and_whole() {
    let fake = driver();
    let on = asked();
    let own = result::ctx::get_current().unwrap().unwrap();

    // SAFETY: the driver is a simulation, which checks what it is told.
    unsafe { result::ctx::set_current(std::ptr::null_mut()) }.unwrap();
    assert_eq!((capturing(on), current()), (201, 0));
    // SAFETY: as above.
    unsafe { result::ctx::set_current(own) }.unwrap();
    assert_eq!(capturing(on), 0);

    let second = retain(1);
    // SAFETY: as above.
    unsafe { result::ctx::set_current(second) }.unwrap();
    let there = asked();
    // SAFETY: as above.
    unsafe { result::primary_ctx::release(1) }.unwrap();
    assert_eq!((capturing(there), capturing(on)), (709, 709));
    // SAFETY: as above.
    unsafe { result::ctx::set_current(own) }.unwrap();
    assert_eq!((capturing(there), capturing(on)), (400, 0));

    fake.clear_violations();
    destroy(on);
}

#[test]
fn a_broken_context_says_so() {
    let fake = driver();
    let second = retain(1);
    // SAFETY: the driver is a simulation, which checks what it is told.
    unsafe { result::ctx::set_current(second) }.unwrap();
    let on = asked();

    fake.fail(CURRENT, 1, 700);
    assert_eq!((current(), current(), capturing(on)), (700, 0, 700));

    // SAFETY: as above.
    unsafe { result::primary_ctx::release(1) }.unwrap();
    fake.clear_violations();
}

#[test]
fn work_is_done_between_calls_by_a_random_schedule() {
    let fake = driver();
    let on = asked();
    fake.set_schedule(Schedule::Random(7));
    let ptr = support::alloc(8);
    for _ in 0..4 {
        // SAFETY: the driver is a simulation, which checks what it is told.
        unsafe { result::memset_d8_async(ptr, 1, 8, on) }.unwrap();
    }

    for _ in 0..64 {
        assert_eq!((current(), capturing(on)), (0, 0));
    }

    assert_eq!(fake.live().pending, 0);
    assert_eq!(support::free(ptr), 0);
    destroy(on);
}
