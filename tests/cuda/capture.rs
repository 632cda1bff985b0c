//! Streams that record a graph, on the fake driver, a simulation.

#![expect(unsafe_code, reason = "calls the driver")]

use std::sync::Arc;

use device_memory::backend::cuda::CudaAllocator;
use device_memory::backend::cuda::cudarc::driver::{CudaStream, result, sys};
use device_memory::{Device, DeviceAllocator, DeviceMemoryBuffer, Error, ErrorKind, Operation};
use fakecuda::FakeCuda;

use crate::support::{
    CUDA_0, FreeFailures, assert_no_memory, bytes, contexts, driver, each_operation, empty, filled,
    layout, make_none_current, restart, stream,
};

/// The modes in which a capture can be begun.
const MODES: [sys::CUstreamCaptureMode; 3] = [
    sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
    sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
];

fn begin_capture(stream: &Arc<CudaStream>, mode: sys::CUstreamCaptureMode) {
    stream.context().bind_to_thread().unwrap();
    // SAFETY: the stream is alive.
    unsafe { result::stream::begin_capture(stream.cu_stream(), mode) }.unwrap();
    make_none_current();
}

/// Ends a capture, which fails if it was spoilt.
fn end_capture(stream: &Arc<CudaStream>) {
    stream.context().bind_to_thread().unwrap();
    // SAFETY: the stream is alive.
    let graph = unsafe { result::stream::end_capture(stream.cu_stream()) }.unwrap();
    // SAFETY: the graph was just made.
    unsafe { result::graph::destroy(graph) }.unwrap();
    make_none_current();
}

/// What each operation of a handle on a stream of `cuda:0` says.
fn refusals(handle: &CudaAllocator, buffer: &DeviceMemoryBuffer) -> Vec<(Operation, Error)> {
    let outcomes = each_operation(handle, 0, buffer.ptr()).into_iter();
    outcomes
        .map(|(operation, outcome)| (operation, outcome.unwrap_err()))
        .collect()
}

#[track_caller]
fn assert_capturing(error: &Error, expected: Operation) {
    let ErrorKind::Capturing { device, operation } = error.kind() else {
        panic!("{expected}: {error:?}");
    };
    assert_eq!((*device, *operation), (CUDA_0, expected));
    assert_eq!(error.code(), 0x10);
}

#[test]
fn a_stream_that_captures_is_refused_by_every_operation_and_nothing_is_spoilt() {
    let fake = driver(1);
    for pools in [true, false] {
        for mode in MODES {
            restart(&fake, 1, pools);
            let allocator = CudaAllocator::open().unwrap();
            let stream = stream(0);
            let handle = allocator.on_stream(&stream).unwrap();
            let buffer = filled(&handle, &bytes(64), 0);
            let pending = fake.live().pending;
            begin_capture(&stream, mode);
            let before = contexts(&fake);

            for (operation, error) in refusals(&handle, &buffer) {
                assert_capturing(&error, operation);
                let text = error.to_string();
                assert!(text.contains(&operation.to_string()), "{text}");
                assert!(text.contains("cuda:0"), "{text}");
            }

            assert_eq!(contexts(&fake), before);
            assert_eq!(fake.live().pending, pending);
            end_capture(&stream);
            assert_eq!(buffer.to_vec().unwrap(), bytes(64));
            drop(buffer);
            assert_no_memory(&fake);
        }
    }
}

#[test]
fn a_capture_that_was_spoilt_by_others_is_refused_as_well() {
    let fake = driver(1);
    let handle = CudaAllocator::open()
        .unwrap()
        .on_stream(&stream(0))
        .unwrap();
    let buffer = filled(&handle, &bytes(64), 0);
    for status in [1, 2] {
        fake.set_capture_status(Some(status));

        for (operation, error) in refusals(&handle, &buffer) {
            assert_capturing(&error, operation);
        }
    }
    fake.set_capture_status(None);
    drop(buffer);
    assert_no_memory(&fake);
}

#[test]
fn a_free_while_capturing_gives_the_buffer_back() {
    let fake = driver(1);
    let stream = stream(0);
    let handle = CudaAllocator::open().unwrap().on_stream(&stream).unwrap();
    let buffer = filled(&handle, &bytes(64), 0);
    begin_capture(&stream, MODES[0]);

    let failure = buffer.free().unwrap_err();

    assert_capturing(&failure.error, Operation::Deallocate);
    end_capture(&stream);
    failure.buffer.free().unwrap();
    assert_no_memory(&fake);
}

#[test]
fn a_drop_while_capturing_is_told_to_the_hook_and_leaks_one_block() {
    let fake = driver(1);
    let failures = FreeFailures::watch();
    let stream = stream(0);
    let handle = CudaAllocator::open().unwrap().on_stream(&stream).unwrap();
    let [first, second] = [(); 2].map(|()| filled(&handle, &bytes(64), 0));
    let ptr = first.ptr();
    begin_capture(&stream, MODES[0]);

    drop(first);

    end_capture(&stream);
    let [(device, leaked, text)] = &failures.take()[..] else {
        panic!("one failure is told");
    };
    assert_eq!((*device, *leaked), (CUDA_0, ptr));
    assert!(text.contains("deallocate"), "{text}");
    drop(second);
    assert_eq!(failures.take(), []);
    assert_eq!(fake.live().device_blocks(), 1);
    assert_eq!(fake.violations(), Vec::<String>::new());
}

/// Runs `check` while a stream captures that the allocator was told of.
fn with_recorded_capture(
    fake: &FakeCuda,
    check: impl Fn(&CudaAllocator, DeviceMemoryBuffer) -> DeviceMemoryBuffer,
) {
    for (on_a_stream, mode) in [(true, 0), (true, 1), (true, 2), (false, 2)] {
        restart(fake, 1, true);
        let allocator = CudaAllocator::open().unwrap();
        let recorded = stream(0);
        let freeing = match on_a_stream {
            true => allocator.on_stream(&stream(0)).unwrap(),
            false => allocator.clone(),
        };
        let buffer = empty(&freeing, 64, 0);
        CudaAllocator::record_use(buffer.as_span(), &recorded).unwrap();
        begin_capture(&recorded, MODES[mode]);

        let kept = check(&freeing, buffer);

        // Of a capture that an event of ours were part of, this would fail, or the
        // handle's own stream would capture from then on.
        assert_eq!(fake.count("cuEventRecord"), 0);
        end_capture(&recorded);
        kept.free().unwrap();
        assert_no_memory(fake);
    }
}

#[test]
fn a_recorded_stream_that_captures_makes_the_free_an_error() {
    let fake = driver(1);
    with_recorded_capture(&fake, |_, buffer| {
        let failure = buffer.free().unwrap_err();

        assert_capturing(&failure.error, Operation::Deallocate);
        failure.buffer
    });
}

#[test]
fn other_streams_of_the_device_may_capture_while_a_handle_works() {
    let fake = driver(1);
    for mode in MODES {
        restart(&fake, 1, true);
        let allocator = CudaAllocator::open().unwrap();
        let [capturing, working] = [0; 2].map(stream);
        let handle = allocator.on_stream(&working).unwrap();
        begin_capture(&capturing, mode);

        let buffer = filled(&handle, &bytes(64), 0);
        let read = buffer.to_vec();
        drop(buffer);

        assert_eq!(read.unwrap(), bytes(64));
        end_capture(&capturing);
        assert_no_memory(&fake);
    }
}

#[test]
fn a_handle_is_made_on_a_stream_that_captures_and_serves_after_that() {
    let fake = driver(1);
    let allocator = CudaAllocator::open().unwrap();
    let stream = stream(0);
    begin_capture(&stream, MODES[2]);

    let handle = allocator.on_stream(&stream);

    end_capture(&stream);
    drop(filled(&handle.unwrap(), &bytes(64), 0));
    assert_no_memory(&fake);
}

#[test]
fn the_error_is_of_the_device_of_the_stream() {
    let fake = driver(2);
    let stream = stream(1);
    let handle = CudaAllocator::open().unwrap().on_stream(&stream).unwrap();
    handle.synchronize(1).unwrap();
    begin_capture(&stream, MODES[0]);

    let error = handle.allocate(layout(8), 1).unwrap_err();

    let ErrorKind::Capturing { device, operation } = error.kind() else {
        panic!("{error:?}");
    };
    let expected: Device = "cuda:1".parse().unwrap();
    assert_eq!((*device, *operation), (expected, Operation::Allocate));
    end_capture(&stream);
    assert_no_memory(&fake);
}
