//! Memory that passes to cudarc and back.

use device_memory::backend::cuda::{CudaAllocator, lend, lend_mut};
use device_memory::free_failure_count;

use crate::support::{Gpu, MIB, SLACK, empty, filled, skip, stream};

#[test]
fn a_view_is_lent_to_be_read_and_written() {
    let Some(gpu) = Gpu::open() else { return };
    let stream = stream(0);
    let mut buffer = filled(&gpu.allocator, &[1, 0, 0, 0, 2, 0, 0, 0], 0);

    let read = lend::<u32, _>(buffer.as_span(), &stream, |slice| stream.clone_dtoh(slice));
    let part = buffer.as_span_mut().into_subspan(4, 4).unwrap();
    lend_mut::<f32, _>(part, &stream, |slice| {
        stream.memcpy_htod(&[1.5_f32], &mut slice.as_view_mut())
    })
    .unwrap()
    .unwrap();

    assert_eq!(read.unwrap().unwrap(), [1, 2]);
    let expected = [&[1, 0, 0, 0][..], &1.5_f32.to_le_bytes()].concat();
    assert_eq!(buffer.to_vec().unwrap(), expected);
}

#[test]
fn memory_is_adopted_given_away_and_freed_on_a_stream() {
    let Some(gpu) = Gpu::open() else { return };
    let (stream, other) = (stream(0), stream(0));
    let failures = free_failure_count();
    let host = vec![7_u8; MIB];

    let adopted = gpu.allocator.adopt(stream.clone_htod(&host).unwrap());
    assert_eq!(adopted.unwrap().to_vec().unwrap(), host);
    if gpu.has_pools(0) {
        let buffer = filled(&gpu.allocator, &host, 0);
        let slice = CudaAllocator::into_cuda_slice::<u8>(buffer, &stream).unwrap();
        assert_eq!(stream.clone_dtoh(&slice).unwrap(), host);
    } else {
        skip("device 0 has no memory pools, so nothing is given away");
    }
    let buffer = empty(&gpu.allocator, MIB, 0);
    gpu.allocator.free_on(buffer, &other).unwrap();

    assert_eq!(free_failure_count(), failures);
    stream.context().check_err().unwrap();
}

#[test]
fn passing_memory_to_and_fro_leaks_none() {
    let Some(gpu) = Gpu::open() else { return };
    let stream = stream(0);
    let once = || {
        let buffer = empty(&gpu.allocator, MIB, 0);
        let len = lend::<u8, _>(buffer.as_span(), &stream, |slice| slice.len());
        assert_eq!(len.unwrap(), MIB);
        drop(gpu.allocator.adopt(stream.alloc_zeros::<u8>(MIB).unwrap()));
        if gpu.has_pools(0) {
            drop(CudaAllocator::into_cuda_slice::<u8>(buffer, &stream).unwrap());
        }
        stream.synchronize().unwrap();
    };
    once();
    let before = gpu.settled_free_memory();

    (0..200).for_each(|_| once());

    let after = gpu.settled_free_memory();
    assert!(after + SLACK >= before, "{before} bytes free, then {after}");
}
