//! What the hot paths of the CUDA back end take from the heap and make of the
//! driver's things, which is nothing, on the fake driver, a simulation.

#![cfg(all(feature = "cuda", target_os = "linux"))]

#[path = "support/heap.rs"]
mod heap;

use std::sync::Arc;

use device_memory::backend::cuda::CudaAllocator;
use device_memory::backend::cuda::cudarc::driver::CudaContext;
use device_memory::{AllocatorHandle, DeviceLayout, DeviceMemoryBuffer};
use fakecuda::FakeCuda;
use heap::taken_by;

/// Creates, fills, copies both ways and drops.
fn use_once(allocator: &AllocatorHandle, layout: DeviceLayout) {
    let mut buffer = DeviceMemoryBuffer::create_with(allocator, layout, 0).unwrap();
    let mut other = DeviceMemoryBuffer::create_with(allocator, layout, 0).unwrap();
    let mut back = [0; 64];
    buffer.copy_from_host(&[7; 64]).unwrap();
    other.copy_from(buffer.as_span()).unwrap();
    other.copy_to_host(&mut back).unwrap();
    buffer.fill(1).unwrap();
    assert_eq!(back, [7; 64]);
}

/// One test, as there is one driver in a process. Its library has a heap of its own,
/// which is not counted.
#[test]
fn nothing_is_taken_from_the_heap_and_no_event_stream_or_context_made_for_a_buffer() {
    let fake = FakeCuda::install().unwrap().lock();
    let layout = DeviceLayout::from_size(64).unwrap();
    assert_eq!(taken_by(|| drop(Box::new(7))), 1);
    for pools in [true, false] {
        fake.set_pools(0, pools);
        let allocator = CudaAllocator::open().unwrap();
        let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
        let on_stream = allocator.on_stream(&stream).unwrap();
        for allocator in [allocator, on_stream] {
            let handle = AllocatorHandle::from(Arc::new(allocator));
            use_once(&handle, layout);
            fake.clear_calls();

            let taken = taken_by(|| use_once(&handle, layout));

            assert_eq!(taken, 0, "pools {pools}");
            for call in [
                "cuEventCreate",
                "cuEventRecord",
                "cuStreamCreate",
                "cuStreamCreateWithPriority",
                "cuCtxPushCurrent_v2",
                "cuCtxSetCurrent",
                "cuDevicePrimaryCtxRetain",
                "cuMemGetInfo_v2",
            ] {
                assert_eq!(fake.count(call), 0, "pools {pools}: {call}");
            }
        }
    }
    assert_eq!(fake.violations(), Vec::<String>::new());
}
