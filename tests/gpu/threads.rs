//! Several threads at once, and memory that passes between them.

use std::sync::Barrier;
use std::thread;

use device_memory::free_failure_count;

use crate::support::{Gpu, KIB, assert_same, bytes, empty, filled, stream};

const THREADS: u64 = 8;

#[test]
fn eight_threads_allocate_copy_and_free_at_once() {
    let Some(gpu) = Gpu::open() else { return };
    let failures = free_failure_count();
    let begin = Barrier::new(8);

    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (allocator, begin) = (&gpu.allocator, &begin);
            scope.spawn(move || {
                begin.wait();
                for round in 0..50 {
                    let size = 1 + (thread as usize * 7919 + round * 104_729) % (256 * KIB);
                    let sent = bytes(size, thread + 1);
                    let buffer = filled(allocator, &sent, 0);
                    let clone = buffer.try_clone().unwrap();
                    drop(buffer);
                    assert_same(&clone.to_vec().unwrap(), &sent, "the clone");
                }
            });
        }
    });

    assert_eq!(free_failure_count(), failures);
}

#[test]
fn eight_threads_have_a_stream_each() {
    let Some(gpu) = Gpu::open() else { return };
    let failures = free_failure_count();

    thread::scope(|scope| {
        for thread in 0..THREADS {
            let allocator = &gpu.allocator;
            scope.spawn(move || {
                let handle = allocator.on_stream(&stream(0)).unwrap();
                for round in 0..50 {
                    let sent = bytes(1 + round * 4099, thread + 1);
                    let buffer = filled(&handle, &sent, 0);
                    drop(empty(&handle, sent.len(), 0));
                    assert_same(&buffer.to_vec().unwrap(), &sent, "the buffer");
                }
            });
        }
    });

    assert_eq!(free_failure_count(), failures);
}

#[test]
fn memory_is_used_and_freed_by_threads_that_never_saw_the_driver() {
    let Some(gpu) = Gpu::open() else { return };
    let failures = free_failure_count();
    let sent = bytes(100_003, 9);
    let handle = gpu.allocator.on_stream(&stream(0)).unwrap();

    for buffer in [filled(&gpu.allocator, &sent, 0), filled(&handle, &sent, 0)] {
        let sent = sent.clone();
        let used = thread::spawn(move || {
            assert_same(&buffer.to_vec().unwrap(), &sent, "on another thread");
        });
        used.join().unwrap();
    }

    assert_eq!(free_failure_count(), failures);
}
