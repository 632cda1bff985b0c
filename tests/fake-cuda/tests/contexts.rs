//! Contexts of threads and devices.

#![cfg(target_os = "linux")]
#![allow(
    unsafe_code,
    clippy::multiple_unsafe_ops_per_block,
    reason = "the tests call a C interface"
)]

mod support;

use std::thread;

use cudarc::driver::{CudaContext, result, sys};
use fakecuda::Schedule;
use support::{alloc, code, driver, free, retain, stream};

fn release(device: i32) {
    // SAFETY: the context was retained.
    unsafe { result::primary_ctx::release(device) }.unwrap();
}

fn push(context: sys::CUcontext) -> i32 {
    // SAFETY: the driver is a simulation, which checks what it is told.
    code(unsafe { sys::cuCtxPushCurrent_v2(context) }.result())
}

fn pop() -> i32 {
    let mut context = std::ptr::null_mut();
    // SAFETY: the driver is a simulation, which checks what it is told.
    code(unsafe { sys::cuCtxPopCurrent_v2(&raw mut context) }.result())
}

#[test]
fn a_thread_begins_without_a_context() {
    let fake = driver();
    let ptr = alloc(8);

    let (without, current) = thread::spawn(move || (free(ptr), fake_current()))
        .join()
        .unwrap();

    assert_eq!((without, current), (201, None));
    assert_eq!(fake.live().device_blocks(), 1);
    assert_eq!(free(ptr), 0);
}

fn fake_current() -> Option<(u64, Option<usize>)> {
    fakecuda::FakeCuda::install().unwrap().current_context()
}

#[test]
fn push_and_pop_leave_the_context_of_the_caller() {
    let fake = driver();
    let before = fake.current_context();
    let second = retain(1);

    assert_eq!(push(second), 0);
    assert_eq!(fake.current_context().unwrap().1, Some(1));
    assert_eq!(fake.context_stack_height(), 2);
    assert_eq!(pop(), 0);

    assert_eq!(fake.current_context(), before);
    release(1);
    assert!(fake.violations().is_empty());
}

#[test]
fn a_free_with_the_wrong_device_current_is_reported() {
    let fake = driver();
    let ptr = alloc(8);
    let second = retain(1);
    push(second);

    assert_eq!(free(ptr), 0);

    pop();
    release(1);
    let violations = fake.violations();
    assert!(
        violations[0].contains("cuda:0 is freed with cuda:1 current"),
        "{violations:?}"
    );
}

#[test]
fn the_primary_context_goes_with_its_last_user_and_takes_all_with_it() {
    let fake = driver();
    let second = retain(1);
    assert_eq!(retain(1), second);
    push(second);
    let ptr = alloc(100);
    let on = stream();
    release(1);
    assert_eq!(fake.live().devices[1].primary_retains, 1);
    release(1);

    // SAFETY: the driver is a simulation, which checks what it is told.
    let old_stream = code(unsafe { result::stream::synchronize(on) });

    assert_eq!([old_stream, free(ptr)], [709, 709]);
    assert_eq!(fake.current_context().unwrap().1, None);
    pop();
    assert!(fake.live().is_clean());
    let violations = fake.violations();
    assert!(
        violations[0].contains("destroyed with 1 allocations"),
        "{violations:?}"
    );
    let again = retain(1);
    assert_ne!(again, second, "an old handle never means something new");
    // SAFETY: as above.
    assert_eq!(code(unsafe { result::ctx::set_current(second) }), 709);
    release(1);
}

#[test]
fn some_errors_stay_with_their_context() {
    let fake = driver();
    let second = retain(1);
    push(second);
    fake.fail("cuMemsetD8_v2", 1, 700);
    let ptr = alloc(8);

    // SAFETY: the driver is a simulation, which checks what it is told.
    let first = code(unsafe { result::memset_d8_sync(ptr, 0, 8) });
    let later = [free(ptr), code(result::ctx::synchronize())];

    assert_eq!((first, later), (700, [700, 700]));
    pop();
    let other = alloc(8);
    assert_eq!(free(other), 0, "the other device goes on");
    release(1);
    push(retain(1));
    let fresh = alloc(8);
    assert_eq!(free(fresh), 0, "a new context does too");
    pop();
    release(1);
}

#[test]
fn copies_between_devices() {
    let fake = driver();
    let first = result::ctx::get_current().unwrap().unwrap();
    let second = retain(1);
    let a = alloc(8);
    push(second);
    let b = alloc(8);
    let on = stream();
    fake.set_schedule(Schedule::Delayed);

    // SAFETY: the driver is a simulation, which checks what it is told.
    unsafe {
        result::memset_d8_async(b, 3, 8, on).unwrap();
        result::memcpy_peer_async(first, a, second, b, 8, on).unwrap();
        assert_eq!(fake.read(a, 1), Some(vec![0xCD]));
        result::stream::synchronize(on).unwrap();
        assert_eq!(fake.read(a, 1), Some(vec![3]));
        assert_eq!(
            code(result::memcpy_peer_async(second, a, second, b, 8, on)),
            1
        );
        result::stream::destroy(on).unwrap();
    }

    assert_eq!(free(b), 0);
    pop();
    assert_eq!(free(a), 0);
    release(1);
    assert_eq!(fake.violations().len(), 1);
}

#[test]
fn peer_access_is_enabled_once() {
    let fake = driver();
    let second = retain(1);
    let mut possible = 0;
    // SAFETY: the driver is a simulation, which checks what it is told.
    unsafe {
        sys::cuDeviceCanAccessPeer(&raw mut possible, 0, 1)
            .result()
            .unwrap();
        assert_eq!(possible, 1);
        assert_eq!(code(sys::cuCtxEnablePeerAccess(second, 0).result()), 0);
        assert_eq!(code(sys::cuCtxEnablePeerAccess(second, 0).result()), 704);
        assert_eq!(code(sys::cuCtxDisablePeerAccess(second).result()), 0);
        assert_eq!(code(sys::cuCtxDisablePeerAccess(second).result()), 705);
        fake.set_peer_access(false);
        assert_eq!(code(sys::cuCtxEnablePeerAccess(second, 0).result()), 217);
        fake.set_peer_access(true);
    }
    release(1);
}

#[test]
fn the_safe_layer_of_the_bindings_works_on_it() {
    let fake = driver();
    let context = CudaContext::new(1).unwrap();
    assert!(context.name().unwrap().contains("no GPU"));
    assert_eq!(context.total_mem().unwrap(), 4 << 30);
    for schedule in Schedule::all(8) {
        fake.set_schedule(schedule);
        let on = context.new_stream().unwrap();
        let a = on.clone_htod(&[1_u32, 2, 3]).unwrap();
        let mut b = on.alloc_zeros::<u32>(3).unwrap();
        on.memcpy_dtod(&a, &mut b).unwrap();
        assert_eq!(on.clone_dtoh(&b).unwrap(), [1, 2, 3], "{schedule:?}");
        drop((a, b));
        on.synchronize().unwrap();
    }
    drop(context);
    assert!(fake.violations().is_empty(), "{:?}", fake.violations());
    assert_eq!(fake.live().devices[1].blocks, 0);
    assert_eq!(fake.live().devices[1].primary_retains, 0);
    // The safe layer left no context: the test has another.
    assert_eq!(fake.current_context().unwrap().1, None);
}
