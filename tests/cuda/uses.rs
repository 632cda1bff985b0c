//! Work on other streams that uses a block, and frees, on the fake driver, a
//! simulation.

use std::sync::Arc;
use std::thread;

use device_memory::backend::cuda::CudaAllocator;
use device_memory::backend::cuda::cudarc::driver::{CudaContext, CudaStream};
use device_memory::testing::FaultInjector;
use device_memory::{DeviceAllocator, DeviceLayout, DeviceMemoryBuffer, DeviceType};
use fakecuda::{FakeCuda, Run, Schedule};

use crate::support::{
    FreeFailures, address, assert_all_given_back, assert_no_memory, driver, empty, enqueue_write,
    handle, layout, make_none_current, restart, stream,
};

/// Runs what waits so that the free is reached as early as it can be.
fn run_the_free_first(fake: &FakeCuda, freed_on: Option<&Arc<CudaStream>>, round: u64) {
    if let Some(stream) = freed_on {
        fake.run_schedule(Run::Stream(handle(stream)));
    }
    fake.run_schedule(Run::Steps(round % 5));
    fake.run_schedule(Run::All);
}

/// Lets `other` wait for all work of `stream`, as a program has to before it uses
/// memory that was allocated in the order of `stream`.
fn join(other: &Arc<CudaStream>, stream: &Arc<CudaStream>) {
    other.join(stream).unwrap();
    make_none_current();
}

// https://github.com/NVlabs/cuda-oxide/issues/619
#[test]
fn a_free_waits_for_the_streams_that_were_recorded() {
    let fake = driver(1);
    for pools in [true, false] {
        for round in 0..8 {
            restart(&fake, 1, pools);
            fake.set_schedule(match round {
                0..4 => Schedule::Delayed,
                _ => Schedule::Random(round),
            });
            let allocator = CudaAllocator::open().unwrap();
            let [first, second, third] = [0; 3].map(stream);
            let on_stream = allocator.on_stream(&first).unwrap();
            let buffer = empty(&on_stream, 64, 0);
            for other in [&second, &third] {
                join(other, &first);
                enqueue_write(other, address(&buffer), 1, 64);
                CudaAllocator::record_use(buffer.as_span(), other).unwrap();
                enqueue_write(other, address(&buffer), 2, 64);
            }

            drop(buffer);
            run_the_free_first(&fake, Some(&first), round);

            assert_no_memory(&fake);
        }
    }
}

#[test]
fn the_simulation_sees_a_free_that_does_not_wait() {
    let fake = driver(1);
    fake.set_schedule(Schedule::Delayed);
    let [first, second] = [0; 2].map(stream);
    let on_stream = CudaAllocator::open().unwrap().on_stream(&first).unwrap();
    let buffer = empty(&on_stream, 64, 0);
    join(&second, &first);
    enqueue_write(&second, address(&buffer), 1, 64);

    // Nobody told of the second stream, so this is the caller's mistake.
    drop(buffer);
    run_the_free_first(&fake, Some(&first), 0);

    assert_eq!(fake.violations().len(), 1, "{:?}", fake.violations());
}

#[test]
fn a_drop_without_a_stream_waits_for_the_device_whoever_works_on_it() {
    let fake = driver(1);
    for pools in [true, false] {
        for round in 0..4 {
            restart(&fake, 1, pools);
            fake.set_schedule(Schedule::Delayed);
            let allocator = CudaAllocator::open().unwrap();
            let buffer = empty(&allocator, 64, 0);
            let others = [0; 2].map(stream);
            for other in &others {
                enqueue_write(other, address(&buffer), 1, 64);
            }

            drop(buffer);
            run_the_free_first(&fake, None, round);

            assert_no_memory(&fake);
        }
    }
}

// https://github.com/pytorch/pytorch/issues/196257
#[test]
fn a_free_waits_for_recorded_work_of_a_stream_of_another_device() {
    let fake = driver(2);
    let failures = FreeFailures::watch();
    for pools in [true, false] {
        for on_a_stream in [true, false] {
            restart(&fake, 2, pools);
            fake.set_schedule(Schedule::Delayed);
            let allocator = CudaAllocator::open().unwrap();
            let contexts = [0, 1].map(|device| CudaContext::new(device).unwrap());
            let [own, peer] = contexts.map(|context| context.new_stream().unwrap());
            enable_peer_access(&peer, &own);
            let freeing = match on_a_stream {
                true => allocator.on_stream(&own).unwrap(),
                false => allocator.clone(),
            };
            let buffer = empty(&freeing, 64, 0);
            own.synchronize().unwrap();
            enqueue_write(&peer, address(&buffer), 1, 64);
            CudaAllocator::record_use(buffer.as_span(), &peer).unwrap();

            drop(buffer);
            run_the_free_first(&fake, Some(&own), 0);

            assert_eq!(failures.take(), []);
            assert_no_memory(&fake);
        }
    }
}

/// Lets work of one stream's device reach memory of another's.
#[expect(unsafe_code, reason = "calls the driver")]
fn enable_peer_access(from: &Arc<CudaStream>, to: &Arc<CudaStream>) {
    use device_memory::backend::cuda::cudarc::driver::sys;
    from.context().bind_to_thread().unwrap();
    // SAFETY: the context is alive.
    let enabled = unsafe { sys::cuCtxEnablePeerAccess(to.context().cu_ctx(), 0) };
    enabled.result().unwrap();
    make_none_current();
}

// The null streams of two devices have one handle.
#[test]
fn recorded_null_streams_of_two_devices_are_told_apart() {
    let fake = driver(2);
    let failures = FreeFailures::watch();
    fake.set_schedule(Schedule::Delayed);
    let allocator = CudaAllocator::open().unwrap();
    let contexts = [0, 1].map(|device| CudaContext::new(device).unwrap());
    let [own, peer] = contexts.map(|context| context.default_stream());
    enable_peer_access(&peer, &own);
    let on_stream = allocator.on_stream(&own).unwrap();
    let buffer = empty(&on_stream, 64, 0);
    own.synchronize().unwrap();
    enqueue_write(&peer, address(&buffer), 1, 64);
    CudaAllocator::record_use(buffer.as_span(), &own).unwrap();
    CudaAllocator::record_use(buffer.as_span(), &peer).unwrap();

    drop(buffer);
    for _ in 0..4 {
        fake.run_schedule(Run::Stream(0));
    }

    assert_eq!(failures.take(), []);
    assert_no_memory(&fake);
}

// The handle of this stream means another one on each thread.
#[test]
fn recorded_work_of_the_per_thread_stream_is_refused_or_waited_for_from_any_thread() {
    let fake = driver(1);
    for on_a_stream in [true, false] {
        restart(&fake, 1, true);
        fake.set_schedule(Schedule::Delayed);
        let allocator = CudaAllocator::open().unwrap();
        let per_thread = CudaContext::new(0).unwrap().per_thread_stream();
        make_none_current();
        let freeing = match on_a_stream {
            true => allocator.on_stream(&stream(0)).unwrap(),
            false => allocator.clone(),
        };
        let buffer = empty(&freeing, 64, 0);
        freeing.synchronize(0).unwrap();
        enqueue_write(&per_thread, address(&buffer), 1, 64);
        if let Err(error) = CudaAllocator::record_use(buffer.as_span(), &per_thread) {
            assert!(error.is_not_supported(), "{error:?}");
            fake.run_schedule(Run::All);
        }

        thread::spawn(move || drop(buffer)).join().unwrap();
        freeing.synchronize(0).unwrap();

        assert_no_memory(&fake);
    }
}

#[test]
fn a_use_of_a_part_is_waited_for_when_the_whole_is_freed() {
    let fake = driver(1);
    for (size, align) in [(64, 64), (64, 4096), (4096, 256)] {
        for part in [0, 1, size / 2, size - 1] {
            restart(&fake, 1, true);
            fake.set_schedule(Schedule::Delayed);
            let [first, second, third] = [0; 3].map(stream);
            let on_stream = CudaAllocator::open().unwrap().on_stream(&first).unwrap();
            let layout = DeviceLayout::new(size, align).unwrap();
            let handle = Arc::new(on_stream.clone());
            let buffer = DeviceMemoryBuffer::create_with(handle, layout, 0).unwrap();
            let next = empty(&on_stream, 64, 0);
            for other in [&second, &third] {
                join(other, &first);
                enqueue_write(other, address(&buffer) + part as u64, 1, 1);
                let span = buffer.as_span().subspan(part, 1).unwrap();
                CudaAllocator::record_use(span, other).unwrap();
            }
            CudaAllocator::record_use(buffer.as_span(), &third).unwrap();
            CudaAllocator::record_use(next.as_span(), &second).unwrap();

            drop(buffer);
            assert_eq!(fake.count("cuEventRecord"), 2 + 2, "once a stream");
            drop(next);
            run_the_free_first(&fake, Some(&first), 0);

            assert_eq!(fake.count("cuEventRecord"), 2 + 3);
            assert_no_memory(&fake);
        }
    }
}

#[test]
fn a_use_of_no_bytes_is_nothing_to_wait_for() {
    let fake = driver(1);
    let [first, second] = [0; 2].map(stream);
    let on_stream = CudaAllocator::open().unwrap().on_stream(&first).unwrap();
    let buffer = empty(&on_stream, 64, 0);
    let end = buffer.as_span().subspan(64, 0).unwrap();

    CudaAllocator::record_use(end, &second).unwrap();
    drop(buffer);

    assert_eq!(fake.count("cuEventRecord"), 0);
    assert_eq!(Arc::strong_count(&second), 1);
    assert_no_memory(&fake);
}

// An adaptor may keep a block for others in place of freeing it.
#[test]
fn memory_of_an_allocator_that_is_not_cudas_is_refused() {
    let _fake = driver(1);
    let allocator = CudaAllocator::open().unwrap();
    let stream = stream(0);
    let host = DeviceMemoryBuffer::create(64, DeviceType::Cpu, 0).unwrap();
    let wrapped = Arc::new(FaultInjector::new(allocator));
    let wrapped = DeviceMemoryBuffer::create_with(wrapped, layout(64), 0).unwrap();

    for buffer in [&host, &wrapped] {
        let error = CudaAllocator::record_use(buffer.as_span(), &stream).unwrap_err();

        assert!(error.is_not_supported(), "{error}");
    }
    assert_eq!(Arc::strong_count(&stream), 1);
}

#[test]
fn a_use_is_recorded_whichever_handle_allocated() {
    let fake = driver(1);
    fake.set_schedule(Schedule::Delayed);
    let allocator = CudaAllocator::open().unwrap();
    let [first, second] = [0; 2].map(stream);
    let on_stream = allocator.on_stream(&first).unwrap();
    let buffer = empty(&on_stream, 64, 0);
    join(&second, &first);
    enqueue_write(&second, address(&buffer), 1, 64);

    CudaAllocator::record_use(buffer.as_span(), &second).unwrap();
    drop((allocator, on_stream, second, buffer));
    run_the_free_first(&fake, Some(&first), 0);

    make_none_current();
    drop(first);
    make_none_current();
    assert_all_given_back(&fake);
}

#[test]
fn a_use_is_forgotten_with_its_block() {
    let fake = driver(1);
    fake.set_reuse(true);
    let allocator = CudaAllocator::open().unwrap();
    let [first, second] = [0; 2].map(stream);
    let on_stream = allocator.on_stream(&first).unwrap();
    let buffer = empty(&on_stream, 64, 0);
    let at = address(&buffer);
    for _ in 0..3 {
        CudaAllocator::record_use(buffer.as_span(), &second).unwrap();
    }
    drop(buffer);
    assert_eq!(fake.count("cuEventRecord"), 1, "once a stream");

    let next = empty(&on_stream, 64, 0);
    assert_eq!(address(&next), at);
    drop(next);

    assert_eq!(fake.count("cuEventRecord"), 1);
    assert_eq!(Arc::strong_count(&second), 1);
    assert_no_memory(&fake);
}

#[test]
fn a_use_by_the_stream_itself_costs_nothing() {
    let fake = driver(1);
    let stream = stream(0);
    let on_stream = CudaAllocator::open().unwrap().on_stream(&stream).unwrap();
    let buffer = empty(&on_stream, 64, 0);
    CudaAllocator::record_use(buffer.as_span(), &stream).unwrap();

    drop(buffer);

    assert_eq!(fake.count("cuEventCreate"), 0);
    assert_no_memory(&fake);
}

#[test]
fn recording_from_many_threads_while_others_free_loses_nothing() {
    let fake = driver(1);
    fake.set_schedule(Schedule::Random(3));
    let allocator = CudaAllocator::open().unwrap();
    let streams = [0; 4].map(stream);
    thread::scope(|scope| {
        for id in 0..4 {
            let (allocator, streams) = (&allocator, &streams);
            scope.spawn(move || {
                let on_stream = allocator.on_stream(&streams[id]).unwrap();
                for round in 0..50 {
                    let other = &streams[(id + round) % 4];
                    let buffer = empty(&on_stream, 64, 0);
                    join(other, &streams[id]);
                    enqueue_write(other, address(&buffer), 1, 64);
                    CudaAllocator::record_use(buffer.as_span(), other).unwrap();
                    drop(buffer);
                }
            });
        }
    });
    assert_no_memory(&fake);
    assert!(streams.iter().all(|stream| Arc::strong_count(stream) == 1));
}
