//! Handles on streams, on the fake driver, a simulation.

#![expect(unsafe_code, reason = "calls the driver")]

use std::sync::Arc;
use std::thread;

use device_memory::backend::cuda::CudaAllocator;
use device_memory::backend::cuda::cudarc::driver::{CudaContext, CudaStream, sys};
use device_memory::{
    Device, DeviceAllocator, DeviceIndex, DeviceMemoryBuffer, DevicePtr, ErrorKind,
};
use fakecuda::{FakeCuda, Run, Schedule};

use crate::support::{
    CUDA_0, CUDA_1, FreeFailures, address, assert_all_given_back, assert_no_memory, bytes, driver,
    each_operation, empty, enqueue_write, filled, handle, layout, make_none_current, restart,
    stream,
};

/// Does waiting work in an order that is bad for this stream: all others first, or
/// none of them.
fn run_badly(fake: &FakeCuda, this: &Arc<CudaStream>, round: u64) {
    match round % 3 {
        0 => fake.run_schedule(Run::Stream(handle(this))),
        1 => fake.run_schedule(Run::Steps(round + 1)),
        _ => {}
    }
    fake.run_schedule(Run::All);
}

#[test]
fn allocations_frees_and_copies_are_in_the_order_of_the_stream() {
    let fake = driver(1);
    for pools in [true, false] {
        for schedule in Schedule::all(6) {
            restart(&fake, 1, pools);
            fake.set_schedule(schedule);
            let allocator = CudaAllocator::open().unwrap();
            let stream = stream(0);
            let on_stream = allocator.on_stream(&stream).unwrap();

            let mut buffer = empty(&on_stream, 64, 0);
            enqueue_write(&stream, address(&buffer), 1, 64);
            buffer.copy_from_host_at(0, &[2; 16]).unwrap();
            enqueue_write(&stream, address(&buffer) + 32, 3, 16);
            let mut clone = buffer.try_clone().unwrap();
            enqueue_write(&stream, address(&clone), 4, 8);
            let read = clone.to_vec().unwrap();
            clone.fill(5).unwrap();
            enqueue_write(&stream, address(&buffer), 6, 64);
            drop((buffer, clone));

            let expected = [&[4; 8][..], &[2; 8], &[1; 16], &[3; 16], &[1; 16]].concat();
            assert_eq!(read, expected, "{schedule:?}");
            assert_no_memory(&fake);
        }
    }
}

#[test]
fn with_pools_neither_allocating_nor_freeing_waits() {
    let fake = driver(1);
    fake.set_schedule(Schedule::Delayed);
    let stream = stream(0);
    let on_stream = CudaAllocator::open().unwrap().on_stream(&stream).unwrap();

    for pieces in 1..=5 {
        let buffer = empty(&on_stream, 64, 0);
        enqueue_write(&stream, address(&buffer), 1, 64);
        drop(buffer);
        assert_eq!(fake.live().pending, 3 * pieces);
    }

    assert_no_memory(&fake);
}

#[test]
fn every_call_for_memory_names_the_stream_of_the_handle() {
    let fake = driver(1);
    let stream = stream(0);
    let on_stream = CudaAllocator::open().unwrap().on_stream(&stream).unwrap();
    fake.set_recording(true);
    fake.clear_calls();

    let mut buffer = filled(&on_stream, &bytes(64), 0);
    buffer.fill(1).unwrap();
    drop(buffer.try_clone().unwrap().to_vec().unwrap());
    on_stream.synchronize(0).unwrap();
    drop(buffer);

    for call in fake.calls() {
        if call.name.starts_with("cuMem") {
            assert_eq!(call.stream, handle(&stream), "{call:?}");
        }
        assert_ne!(call.name, "cuCtxSynchronize");
        assert_ne!(call.name, "cuEventCreate");
    }
    assert_no_memory(&fake);
}

#[test]
fn work_given_to_the_stream_before_a_free_is_done_first() {
    let fake = driver(1);
    for pools in [true, false] {
        for round in 0..9 {
            restart(&fake, 1, pools);
            fake.set_reuse(true);
            fake.set_schedule([Schedule::Delayed, Schedule::Random(round)][(round % 2) as usize]);
            let allocator = CudaAllocator::open().unwrap();
            let stream = stream(0);
            let on_stream = allocator.on_stream(&stream).unwrap();
            let buffer = empty(&on_stream, 64, 0);
            enqueue_write(&stream, address(&buffer), 1, 64);

            drop(buffer);
            let next = filled(&on_stream, &[9; 64], 0);
            run_badly(&fake, &stream, round);

            assert_eq!(next.to_vec().unwrap(), [9; 64]);
            drop(next);
            assert_no_memory(&fake);
        }
    }
}

// https://github.com/cupy/cupy/pull/4537
#[test]
fn a_buffer_keeps_the_stream_that_it_is_freed_on() {
    let fake = driver(1);
    fake.set_schedule(Schedule::Delayed);
    let allocator = CudaAllocator::open().unwrap();
    let stream = stream(0);
    let on_stream = Arc::new(allocator.on_stream(&stream).unwrap());
    let buffer = DeviceMemoryBuffer::create_with(on_stream, layout(64), 0).unwrap();
    enqueue_write(&stream, address(&buffer), 1, 64);

    drop((stream, allocator));
    drop(buffer);

    make_none_current();
    fake.run_schedule(Run::All);
    assert_all_given_back(&fake);
}

#[test]
fn the_null_stream_and_a_blocking_stream_are_served_too() {
    let fake = driver(2);
    for schedule in Schedule::all(2) {
        restart(&fake, 2, true);
        fake.set_schedule(schedule);
        let allocator = CudaAllocator::open().unwrap();
        for device in [0, 1] {
            let context = CudaContext::new(device).unwrap();
            let stream = context.default_stream();
            make_none_current();
            let on_stream = allocator.on_stream(&stream).unwrap();
            let index = DeviceIndex::try_from(device).unwrap();

            let buffer = filled(&on_stream, &bytes(64), index);
            enqueue_write(&stream, address(&buffer), 1, 8);
            let read = buffer.to_vec().unwrap();
            thread::spawn(move || drop(buffer)).join().unwrap();

            assert_eq!(read, [&[1; 8], &bytes(64)[8..]].concat());
            assert_no_memory(&fake);
        }
    }
}

// The stream of this handle is another one on each thread.
#[test]
fn the_per_thread_stream_is_refused_or_safe_on_every_thread() {
    let fake = driver(1);
    fake.set_schedule(Schedule::Delayed);
    let allocator = CudaAllocator::open().unwrap();
    let stream = CudaContext::new(0).unwrap().per_thread_stream();
    make_none_current();
    match allocator.on_stream(&stream) {
        Err(error) => assert!(error.is_not_supported(), "{error:?}"),
        Ok(on_stream) => {
            let buffer = empty(&on_stream, 64, 0);
            enqueue_write(&stream, address(&buffer), 1, 64);
            let dropper = thread::spawn(move || {
                drop(buffer);
                let fake = FakeCuda::install().unwrap();
                let per_thread = 2;
                let calls = fake.calls();
                assert!(calls.iter().all(|call| call.stream != per_thread));
            });
            dropper.join().unwrap();
            // The free, on the other thread's stream, is reached first.
            for _ in 0..8 {
                fake.run_schedule(Run::Steps(1));
            }
        }
    }
    assert_no_memory(&fake);
}

/// What a handle says of each operation on a device.
fn on_device(handle: &CudaAllocator, index: DeviceIndex, block: DevicePtr) -> Vec<ErrorKind> {
    let outcomes = each_operation(handle, index, block).into_iter();
    outcomes
        .map(|(_, outcome)| outcome.unwrap_err().into_kind())
        .collect()
}

fn mismatch(kind: &ErrorKind) -> Option<(Device, Device)> {
    match kind {
        ErrorKind::DeviceMismatch { expected, found } => Some((*expected, *found)),
        _ => None,
    }
}

#[test]
fn a_handle_serves_the_device_of_its_stream_only() {
    let fake = driver(2);
    let allocator = CudaAllocator::open().unwrap();
    let on_stream = allocator.on_stream(&stream(0)).unwrap();
    let buffer = filled(&on_stream, &bytes(64), 0);
    allocator.synchronize(1).unwrap();
    fake.clear_calls();

    for kind in on_device(&on_stream, 1, buffer.ptr()) {
        assert_eq!(mismatch(&kind), Some((CUDA_0, CUDA_1)), "{kind:?}");
    }

    for (name, _) in fake.counts() {
        assert!(!name.starts_with("cuMem"), "{name}");
    }
    assert_eq!(buffer.to_vec().unwrap(), bytes(64));
    drop(buffer);
    assert_no_memory(&fake);
}

#[test]
fn a_handle_says_that_an_index_is_not_there_before_anything_else() {
    let fake = driver(1);
    let on_stream = CudaAllocator::open()
        .unwrap()
        .on_stream(&stream(0))
        .unwrap();
    let buffer = empty(&on_stream, 64, 0);

    for kind in on_device(&on_stream, 1, buffer.ptr()) {
        assert!(
            matches!(kind, ErrorKind::InvalidDevice { count: 1, .. }),
            "{kind:?}"
        );
    }
    drop(buffer);
    assert_no_memory(&fake);
}

#[test]
fn a_stream_of_a_context_that_is_not_primary_is_refused() {
    let fake = driver(1);
    let allocator = CudaAllocator::open().unwrap();
    let mut own = std::ptr::null_mut();
    // SAFETY: the pointer is to a variable; the device is there.
    let made = unsafe { sys::cuCtxCreate_v4(&raw mut own, std::ptr::null_mut(), 0, 0) };
    made.result().unwrap();
    // SAFETY: the context was just made, and is given away.
    let context = unsafe { CudaContext::from_raw_context(0, 0, own) }.unwrap();
    let stream = context.new_stream().unwrap();
    let before = crate::support::contexts(&fake);

    let error = allocator.on_stream(&stream).unwrap_err();

    assert!(
        matches!(error.kind(), ErrorKind::ContextMismatch { device: CUDA_0 }),
        "{error:?}"
    );
    assert_eq!(crate::support::contexts(&fake), before);
    drop((stream, context));
    make_none_current();
    assert_no_memory(&fake);
}

// https://github.com/NVlabs/cuda-oxide/pull/89
#[test]
fn a_block_is_freed_by_the_family_that_it_was_allocated_by() {
    let fake = driver(1);
    for pools in [true, false] {
        for own_pool in [true, false] {
            restart(&fake, 1, pools);
            let builder = match own_pool {
                true => CudaAllocator::builder().release_threshold(1 << 16),
                false => CudaAllocator::builder(),
            };
            let allocator = builder.open().unwrap();
            let on_stream = allocator.on_stream(&stream(0)).unwrap();
            let buffers = [
                empty(&allocator, 64, 0),
                empty(&on_stream, 64, 0),
                empty(&allocator, 64, 0),
            ];
            // From now on the device says the contrary, which must not matter.
            if !pools {
                fake.set_pools(0, true);
            }

            let [first, second, third] = buffers;
            drop((first, second));
            third.free().unwrap();
            drop(empty(&allocator, 64, 0));

            let frees = ["cuMemFreeAsync", "cuMemFree_v2"].map(|name| fake.count(name));
            assert_eq!(frees, if pools { [4, 0] } else { [0, 4] });
            assert_no_memory(&fake);
        }
    }
}

#[test]
fn a_device_with_pools_and_one_without_have_a_family_each() {
    let fake = driver(2);
    fake.set_pools(1, false);
    let allocator = CudaAllocator::open().unwrap();
    for index in [0, 1, 0, 1] {
        let buffer = filled(&allocator, &bytes(64), index);
        drop(buffer.try_clone().unwrap());
    }

    let counts = [
        "cuMemAllocAsync",
        "cuMemFreeAsync",
        "cuMemAlloc_v2",
        "cuMemFree_v2",
    ];
    assert_eq!(counts.map(|name| fake.count(name)), [4; 4]);
    assert_no_memory(&fake);
}

#[test]
fn a_failed_free_on_a_stream_gives_the_buffer_back() {
    let fake = driver(1);
    let failures = FreeFailures::watch();
    let stream = stream(0);
    let on_stream = CudaAllocator::open().unwrap().on_stream(&stream).unwrap();
    let buffer = filled(&on_stream, &bytes(64), 0);
    CudaAllocator::record_use(buffer.as_span(), &crate::support::stream(0)).unwrap();
    for call in [
        "cuStreamIsCapturing",
        "cuEventCreate",
        "cuEventRecord",
        "cuMemFreeAsync",
    ] {
        let buffer = filled(&on_stream, &bytes(64), 0);
        CudaAllocator::record_use(buffer.as_span(), &crate::support::stream(0)).unwrap();
        fake.fail(call, 1, 999);

        let failure = buffer.free().unwrap_err();

        let ErrorKind::Driver {
            call: failed,
            code: 999,
            ..
        } = failure.error.kind()
        else {
            panic!("{failure:?}");
        };
        assert_eq!(*failed, call);
        assert_eq!(failure.buffer.to_vec().unwrap(), bytes(64));
        failure.buffer.free().unwrap();
    }
    drop(buffer);
    assert_eq!(failures.take(), []);
    assert_no_memory(&fake);
}
