//! Many threads at once, and threads that end, on the fake driver, a simulation.

use std::cell::RefCell;
use std::sync::{Arc, Barrier, mpsc};
use std::thread;

use device_memory::backend::cuda::CudaAllocator;
use device_memory::backend::cuda::cudarc::driver::CudaContext;
use device_memory::{DeviceAllocator, DeviceMemoryBuffer};
use fakecuda::{FakeCuda, Schedule};

use crate::support::{
    FreeFailures, assert_all_given_back, assert_no_memory, contexts, driver, empty, filled,
    make_none_current, restart, stream,
};

const THREADS: u8 = 8;
const ROUNDS: u8 = 12;

/// What a thread does in a round: buffers on both devices, copied, cloned, and
/// freed here or on another thread.
fn round(allocator: &CudaAllocator, id: u8, round: u8, others: &mpsc::Sender<DeviceMemoryBuffer>) {
    let content = [id, round, 0xA5].repeat(1 + usize::from(round));
    let here = u16::from(id % 2);
    let mut buffer = filled(allocator, &content, here);
    let clone = buffer.try_clone().unwrap();
    let mut there = empty(allocator, content.len(), 1 - here);
    there.copy_from(buffer.as_span()).unwrap();
    buffer.fill(0).unwrap();
    assert_eq!(clone.to_vec().unwrap(), content);
    assert_eq!(there.to_vec().unwrap(), content);
    assert_eq!(buffer.to_vec().unwrap(), vec![0; content.len()]);
    clone.free().unwrap();
    others.send(there).unwrap();
}

#[test]
fn eight_threads_on_two_devices_do_not_meet_and_keep_their_contexts() {
    let fake = driver(2);
    for pools in [true, false] {
        for schedule in Schedule::all(1) {
            restart(&fake, 2, pools);
            fake.set_schedule(schedule);
            let allocator = CudaAllocator::open().unwrap();
            let start = Barrier::new(usize::from(THREADS));
            let (sender, receiver) = mpsc::channel();
            thread::scope(|scope| {
                for id in 0..THREADS {
                    let (allocator, start, sender) = (&allocator, &start, sender.clone());
                    scope.spawn(move || {
                        let fake = FakeCuda::install().unwrap();
                        // A third has no context, the others one of either device.
                        let own = match id % 3 {
                            0 => None,
                            device => Some(CudaContext::new(usize::from(device) - 1).unwrap()),
                        };
                        let before = contexts(&fake);
                        start.wait();
                        for number in 0..ROUNDS {
                            round(allocator, id, number, &sender);
                            assert_eq!(contexts(&fake), before);
                        }
                        make_none_current();
                        drop(own);
                    });
                }
                drop(sender);
                scope.spawn(move || drop(receiver.into_iter().collect::<Vec<_>>()));
            });

            assert_no_memory(&fake);
            drop(allocator);
            assert_all_given_back(&fake);
        }
    }
}

#[test]
fn threads_with_a_stream_each_share_one_allocator() {
    let fake = driver(1);
    for schedule in Schedule::all(2) {
        restart(&fake, 1, true);
        fake.set_schedule(schedule);
        let allocator = CudaAllocator::open().unwrap();
        thread::scope(|scope| {
            for id in 0..THREADS {
                let allocator = &allocator;
                scope.spawn(move || {
                    let handle = allocator.on_stream(&stream(0)).unwrap();
                    let mut kept = Vec::new();
                    for number in 0..ROUNDS {
                        let content = [id, number].repeat(9);
                        let buffer = filled(&handle, &content, 0);
                        let clone = buffer.try_clone().unwrap();
                        assert_eq!(clone.to_vec().unwrap(), content);
                        kept.push(clone);
                    }
                });
            }
        });
        assert_no_memory(&fake);
    }
}

#[test]
fn a_device_that_threads_race_for_is_made_ready_once() {
    let fake = driver(2);
    let allocator = CudaAllocator::open().unwrap();
    let start = Barrier::new(usize::from(THREADS));
    thread::scope(|scope| {
        for id in 0..THREADS {
            let (allocator, start) = (&allocator, &start);
            scope.spawn(move || {
                start.wait();
                allocator.synchronize(u16::from(id % 2)).unwrap();
            });
        }
    });
    assert_eq!(fake.count("cuDevicePrimaryCtxRetain"), 2);
    assert_eq!(fake.live().primary_retains(), 2);
    drop(allocator);
    assert_all_given_back(&fake);
}

thread_local! {
    static LOCAL: RefCell<Vec<DeviceMemoryBuffer>> = const { RefCell::new(Vec::new()) };
}

#[test]
fn a_buffer_in_a_thread_local_is_freed_when_its_thread_ends() {
    let fake = driver(1);
    let failures = FreeFailures::watch();
    for pools in [true, false] {
        restart(&fake, 1, pools);
        let allocator = CudaAllocator::open().unwrap();
        let on_stream = allocator.on_stream(&stream(0)).unwrap();
        for handle in [allocator, on_stream] {
            let thread = thread::spawn(move || {
                let buffer = filled(&handle, b"local", 0);
                LOCAL.with(|local| local.borrow_mut().push(buffer));
            });

            thread.join().unwrap();

            assert_no_memory(&fake);
        }
        make_none_current();
        assert_all_given_back(&fake);
    }
    assert_eq!(failures.take(), []);
}

#[test]
fn buffers_in_the_payload_and_on_the_stack_of_a_thread_that_panics_are_freed() {
    let fake = driver(1);
    let allocator = Arc::new(CudaAllocator::open().unwrap());
    let on_stack = filled(&allocator, b"stack", 0);
    let in_payload = filled(&allocator, b"payload", 0);

    let thread = thread::spawn(move || {
        let _dropped = on_stack;
        std::panic::resume_unwind(Box::new(in_payload));
    });
    drop(thread.join().unwrap_err());

    assert_no_memory(&fake);
}
