//! Many threads, and functions of the host that wait for one another.

#![cfg(target_os = "linux")]
#![allow(
    unsafe_code,
    clippy::multiple_unsafe_ops_per_block,
    reason = "the tests call a C interface"
)]

mod support;

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use cudarc::driver::{result, sys};
use fakecuda::Schedule;
use support::{alloc, code, driver, free, stream};

/// A context that may be given to another thread.
#[derive(Clone, Copy)]
struct Context(sys::CUcontext);

// SAFETY: a context is a handle that any thread may use.
unsafe impl Send for Context {}

impl Context {
    fn current() -> Self {
        Self(result::ctx::get_current().unwrap().unwrap())
    }

    fn bind(self) {
        // SAFETY: the context lives as long as the process.
        unsafe { result::ctx::set_current(self.0) }.unwrap();
    }
}

#[test]
fn threads_with_streams_of_their_own_do_not_disturb_each_other() {
    let fake = driver();
    for schedule in Schedule::all(4) {
        fake.set_schedule(schedule);
        let context = Context::current();
        let threads: Vec<_> = (0..8_u8)
            .map(|number| {
                thread::spawn(move || {
                    context.bind();
                    for round in 0..50 {
                        work(number.wrapping_add(round));
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(fake.live().is_clean(), "{schedule:?}: {:?}", fake.live());
    }
    assert!(fake.violations().is_empty(), "{:?}", fake.violations());
}

fn work(value: u8) {
    let on = stream();
    let mut bytes = [0_u8; 16];
    // SAFETY: the driver is a simulation, which checks what it is told.
    unsafe {
        let ordered = result::malloc_async(on, 16).unwrap();
        let plain = alloc(16);
        result::memset_d8_async(ordered, value, 16, on).unwrap();
        result::memcpy_dtod_async(plain, ordered, 16, on).unwrap();
        result::free_async(ordered, on).unwrap();
        result::memcpy_dtoh_async(&mut bytes, plain, on).unwrap();
        result::stream::synchronize(on).unwrap();
        result::stream::destroy(on).unwrap();
        free(plain);
    }
    assert_eq!(bytes, [value; 16]);
}

/// Takes what the test sends, and waits until it does.
unsafe extern "C" fn wait(argument: *mut c_void) {
    // SAFETY: the argument is the receiver of the test, which lives on.
    let receiver = unsafe { &*argument.cast::<Receiver<u64>>() };
    assert_ne!(receiver.recv().unwrap(), 0);
}

#[test]
fn no_call_waits_for_a_function_of_the_host_but_those_that_wait() {
    let fake = driver();
    for schedule in Schedule::all(4) {
        fake.set_schedule(schedule);
        let (sender, receiver) = channel::<u64>();
        let on = stream();
        let ptr = alloc(1);
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING).unwrap();
        let argument = (&raw const receiver).cast_mut().cast();
        // SAFETY: the function gets what it needs, and is done before that goes.
        unsafe {
            result::stream::launch_host_function(on, wait, argument).unwrap();
            result::memset_d8_async(ptr, 1, 1, on).unwrap();
            result::event::record(event, on).unwrap();
            assert_eq!(code(result::event::query(event)), 600);
            assert_eq!(fake.read(ptr, 1), Some(vec![0xCD]));
            sender.send(1).unwrap();
            result::event::synchronize(event).unwrap();
            assert_eq!(fake.read(ptr, 1), Some(vec![1]));
            result::event::destroy(event).unwrap();
            result::stream::destroy(on).unwrap();
        }
        assert_eq!(free(ptr), 0);
        assert!(fake.live().is_clean(), "{schedule:?}: {:?}", fake.live());
    }
}

#[test]
fn a_function_of_the_host_may_wait_for_a_thread_that_uses_the_driver() {
    let fake = driver();
    fake.set_schedule(Schedule::Delayed);
    let context = Context::current();
    let (sender, receiver) = channel::<u64>();
    let on = stream();
    let argument = (&raw const receiver).cast_mut().cast();
    // SAFETY: the function gets what it needs, and is done before that goes.
    unsafe { result::stream::launch_host_function(on, wait, argument) }.unwrap();

    let other = thread::spawn(move || {
        context.bind();
        let ptr = alloc(8);
        // SAFETY: the driver is a simulation, which checks what it is told.
        unsafe { result::memset_d8_async(ptr, 1, 8, null_mut()) }.unwrap();
        sender.send(ptr).unwrap();
        // It waits for the device, and so for the function.
        assert_eq!(free(ptr), 0);
    });
    // SAFETY: as above.
    unsafe { result::stream::synchronize(on) }.unwrap();

    other.join().unwrap();
    // SAFETY: as above.
    unsafe { result::stream::destroy(on) }.unwrap();
    assert!(fake.live().is_clean());
    assert!(fake.violations().is_empty());
}
