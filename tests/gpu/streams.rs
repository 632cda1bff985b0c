//! Handles on streams: what waits, what does not, and in what order.

#![expect(unsafe_code, reason = "calls the driver")]

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use device_memory::backend::cuda::CudaAllocator;
use device_memory::backend::cuda::cudarc::driver::{CudaStream, result, sys};
use device_memory::{DeviceAllocator, ErrorKind};

use crate::gate::Gate;
use crate::support::{Gpu, MIB, assert_same, bytes, empty, enqueue_fill, filled, skip, stream};

/// A handle on a stream of device 0, of an allocator that keeps what it frees, so
/// that nothing has to be asked of the system. Both were used before.
fn rig(streams: usize) -> (CudaAllocator, CudaAllocator, Vec<Arc<CudaStream>>) {
    let builder = CudaAllocator::builder().release_threshold(u64::MAX);
    let allocator = builder.open().unwrap();
    let streams: Vec<_> = (0..streams).map(|_| stream(0)).collect();
    let handle = allocator.on_stream(&streams[0]).unwrap();
    for stream in &streams {
        let warm = [(); 4].map(|()| empty(&handle, 4 * MIB, 0));
        streams[0].synchronize().unwrap();
        enqueue_fill(stream, &warm[0], 0);
        stream.synchronize().unwrap();
    }
    handle.synchronize(0).unwrap();
    (allocator, handle, streams)
}

#[test]
fn allocations_copies_and_frees_are_in_the_order_of_the_stream() {
    let Some(_gpu) = Gpu::open() else { return };
    let (_allocator, handle, streams) = rig(1);
    let size = 4 * MIB;
    for round in 0..20 {
        let sent = bytes(size / 2, round);

        let mut buffer = empty(&handle, size, 0);
        enqueue_fill(&streams[0], &buffer, 1);
        buffer.copy_from_host_at(0, &sent).unwrap();
        let clone = buffer.try_clone().unwrap();
        enqueue_fill(&streams[0], &buffer, 2);
        drop(buffer);

        let found = clone.to_vec().unwrap();
        assert_same(&found[..size / 2], &sent, "what was copied");
        assert_same(
            &found[size / 2..],
            &vec![1; size / 2],
            "what was there before",
        );
    }
}

#[test]
fn allocating_and_freeing_on_a_stream_do_not_wait_for_it() {
    let Some(gpu) = Gpu::open() else { return };
    if !gpu.has_pools(0) {
        return skip("device 0 has no memory pools");
    }
    let (_allocator, handle, streams) = rig(1);
    let gate = Gate::close(&streams[0]);

    for _ in 0..3 {
        let buffer = empty(&handle, MIB, 0);
        enqueue_fill(&streams[0], &buffer, 1);
        drop(buffer);
    }

    assert!(gate.holds(), "a call waited for the stream");
    gate.open();
    handle.synchronize(0).unwrap();
}

#[test]
fn a_free_comes_after_the_work_of_the_stream_and_before_what_follows() {
    let Some(gpu) = Gpu::open() else { return };
    if !gpu.has_pools(0) {
        return skip("device 0 has no memory pools");
    }
    let (_allocator, handle, streams) = rig(1);
    for round in 0..20 {
        let gate = Gate::close(&streams[0]);
        let buffer = empty(&handle, 4 * MIB, 0);
        enqueue_fill(&streams[0], &buffer, 1);

        drop(buffer);
        let next = empty(&handle, 4 * MIB, 0);
        enqueue_fill(&streams[0], &next, round);
        assert!(gate.holds(), "a call waited for the stream");
        gate.open();

        let found = next.to_vec().unwrap();
        assert_same(&found, &vec![round; 4 * MIB], "the next block");
    }
}

/// Frees a block that the second stream is still to write 1 to, writes `byte` to
/// the next block on the first, and returns whether that was in the same place, and
/// its bytes when all is done.
fn write_late(
    handle: &CudaAllocator,
    streams: &[Arc<CudaStream>],
    is_told: bool,
    byte: u8,
) -> (bool, Vec<u8>) {
    let buffer = empty(handle, 4 * MIB, 0);
    let freed = buffer.ptr();
    handle.synchronize(0).unwrap();
    let gate = Gate::close(&streams[1]);
    enqueue_fill(&streams[1], &buffer, 1);
    if is_told {
        CudaAllocator::record_use(buffer.as_span(), &streams[1]).unwrap();
    }

    drop(buffer);
    let next = empty(handle, 4 * MIB, 0);
    enqueue_fill(&streams[0], &next, byte);
    assert!(gate.holds(), "a call waited for the stream");
    if !is_told {
        streams[0].synchronize().unwrap();
    }
    gate.open();
    streams[1].synchronize().unwrap();
    (next.ptr() == freed, next.to_vec().unwrap())
}

#[test]
fn a_free_waits_for_the_streams_that_were_recorded() {
    let Some(gpu) = Gpu::open() else { return };
    if !gpu.has_pools(0) {
        return skip("device 0 has no memory pools");
    }
    let (_allocator, handle, streams) = rig(2);
    for round in 2..20 {
        let (_, found) = write_late(&handle, &streams, true, round);

        assert_same(&found, &vec![round; 4 * MIB], "the next block");
    }
}

/// That the test above can fail: without being told, the next block is spoilt.
#[test]
fn a_free_that_was_not_told_of_a_stream_does_not_wait_for_it() {
    let Some(gpu) = Gpu::open() else { return };
    if !gpu.has_pools(0) {
        return skip("device 0 has no memory pools");
    }
    if Gate::are_off() {
        return skip("a mistake on purpose, which tools would report");
    }
    let (_allocator, handle, streams) = rig(2);

    let (is_reused, found) = write_late(&handle, &streams, false, 2);

    if is_reused {
        assert_same(&found, &vec![1; 4 * MIB], "the next block");
    } else {
        skip("the next block is another, so a free that does not wait would not show");
    }
}

#[test]
fn without_a_stream_a_drop_waits_for_all_work_of_the_device() {
    let Some(gpu) = Gpu::open() else { return };
    let busy = stream(0);
    let buffer = filled(&gpu.allocator, &[3; 4096], 0);
    let gate = Gate::close(&busy);
    enqueue_fill(&busy, &buffer, 1);
    let opener = gate.handle();
    let opens = thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        opener.open();
    });

    drop(buffer);

    assert!(gate.is_passed(), "the free did not wait");
    opens.join().unwrap();
}

#[test]
fn without_a_stream_memory_may_be_used_by_every_stream_at_once() {
    let Some(gpu) = Gpu::open() else { return };
    let streams = [stream(0), stream(0)];
    for round in 0..20 {
        let buffer = filled(&gpu.allocator, &vec![round; MIB], 0);
        let other = empty(&gpu.allocator, MIB, 0);

        enqueue_fill(&streams[0], &other, round);
        enqueue_fill(&streams[1], &buffer, round + 1);
        for stream in &streams {
            stream.synchronize().unwrap();
        }

        assert_same(&other.to_vec().unwrap(), &vec![round; MIB], "one stream");
        let expected = vec![round + 1; MIB];
        assert_same(&buffer.to_vec().unwrap(), &expected, "the other");
    }
}

#[test]
fn a_stream_that_records_a_graph_is_refused_and_nothing_is_spoilt() {
    let Some(_gpu) = Gpu::open() else { return };
    let (_allocator, handle, streams) = rig(1);
    let mut buffer = filled(&handle, &[4; 64], 0);
    let raw = streams[0].cu_stream();
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    streams[0].context().bind_to_thread().unwrap();
    // SAFETY: the stream is alive.
    unsafe { result::stream::begin_capture(raw, mode) }.unwrap();

    let copy = buffer.copy_from_host(&[5; 64]).unwrap_err();
    let failure = buffer.free().unwrap_err();

    // SAFETY: the stream is alive, and a capture was begun.
    let graph = unsafe { result::stream::end_capture(raw) }.unwrap();
    if !graph.is_null() {
        // SAFETY: the graph was just made.
        unsafe { result::graph::destroy(graph) }.unwrap();
    }
    for error in [&copy, &failure.error] {
        assert!(
            matches!(error.kind(), ErrorKind::Capturing { .. }),
            "{error}"
        );
    }
    assert_eq!(failure.buffer.to_vec().unwrap(), [4; 64]);
}
