//! Pools of devices, on the fake driver, a simulation.

#![expect(unsafe_code, reason = "calls the driver")]

use device_memory::DeviceAllocator;
use device_memory::backend::cuda::CudaAllocator;
use device_memory::backend::cuda::cudarc::driver::{result, sys};
use fakecuda::{FakeCuda, Schedule};

use crate::support::{
    CUDA_0, assert_all_given_back, assert_no_memory, driver, empty, filled, restart, stream,
};

const MIB: usize = 1 << 20;

/// The pool that a device came with, and the one that it allocates from.
fn pools_of(device: i32) -> [sys::CUmemoryPool; 2] {
    // SAFETY: the driver is initialized, and the device is there.
    let default = unsafe { result::device::get_default_mem_pool(device) };
    // SAFETY: as above.
    let current = unsafe { result::device::get_mem_pool(device) };
    [default.unwrap(), current.unwrap()]
}

/// The bytes that a pool keeps when they are unused, and those that it holds.
fn threshold_and_reserved(pool: sys::CUmemoryPool) -> [u64; 2] {
    let which = [
        sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
        sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
    ];
    which.map(|which| {
        let mut value = 0_u64;
        // SAFETY: the pool is alive, and the attributes have 64 bits.
        unsafe { result::mem_pool::get_attribute(pool, which, (&raw mut value).cast()) }.unwrap();
        value
    })
}

fn with_threshold(bytes: usize) -> CudaAllocator {
    let builder = CudaAllocator::builder().release_threshold(bytes as u64);
    builder.open().unwrap()
}

fn reserved(fake: &FakeCuda) -> usize {
    fake.live().devices[0].reserved_bytes
}

#[test]
fn a_threshold_keeps_memory_in_a_pool_of_ones_own() {
    let fake = driver(1);
    let allocator = with_threshold(4 * MIB);
    let mut buffers: Vec<_> = (0..4).map(|_| empty(&allocator, MIB, 0)).collect();
    assert_eq!(fake.live().pools, 1);
    assert_eq!(fake.count("cuMemAllocFromPoolAsync"), 4);
    assert_eq!(fake.count("cuMemAllocAsync"), 0);

    buffers.clear();
    allocator.synchronize(0).unwrap();

    assert_eq!(reserved(&fake), 4 * MIB);
    assert_no_memory(&fake);
    drop(empty(&allocator, 4 * MIB, 0));
    assert_eq!(reserved(&fake), 4 * MIB, "it is used again");
    drop(allocator);
    assert_eq!(reserved(&fake), 0);
    assert_all_given_back(&fake);
}

#[test]
fn the_pool_that_a_device_came_with_is_never_changed() {
    let fake = driver(1);
    let [default, _] = {
        CudaAllocator::open().unwrap();
        pools_of(0)
    };
    for allocator in [with_threshold(MIB), CudaAllocator::open().unwrap()] {
        let on_stream = allocator.on_stream(&stream(0)).unwrap();
        drop([
            filled(&allocator, &[1; 64], 0),
            filled(&on_stream, &[1; 64], 0),
        ]);
        allocator.synchronize(0).unwrap();

        assert_eq!(pools_of(0), [default, default]);
        assert_eq!(threshold_and_reserved(default), [0, 0]);
        assert_eq!(fake.count("cuDeviceSetMemPool"), 0);
    }
    assert_no_memory(&fake);
}

#[test]
fn without_a_threshold_memory_comes_from_the_pool_that_the_program_chose() {
    let fake = driver(1);
    let own = with_threshold(MIB);
    own.synchronize(0).unwrap();
    let allocator = CudaAllocator::open().unwrap();
    let [default, _] = pools_of(0);

    let buffer = empty(&allocator, MIB, 0);

    assert_eq!(threshold_and_reserved(default), [0, MIB as u64]);
    assert_eq!(
        fake.count("cuMemPoolSetAttribute"),
        1,
        "of the own pool only"
    );
    drop(buffer);
    allocator.synchronize(0).unwrap();
    assert_eq!(threshold_and_reserved(default), [0, 0]);
    assert_no_memory(&fake);
}

// https://github.com/microsoft/onnxruntime/issues/9509
#[test]
fn trim_gives_back_what_is_unused_and_says_how_much() {
    let fake = driver(2);
    let allocator = with_threshold(8 * MIB);
    let kept = empty(&allocator, MIB, 0);
    drop(empty(&allocator, 2 * MIB, 0));
    let free = |index| allocator.memory_info(index).unwrap().unwrap().free;
    allocator.synchronize(0).unwrap();
    let before = free(0);

    let trimmed = [allocator.trim(0), allocator.trim(0), allocator.trim(1)];

    assert_eq!(trimmed.map(Result::unwrap), [2 * MIB, 0, 0]);
    assert_eq!(free(0), before + 2 * MIB);
    assert_eq!(reserved(&fake), MIB);
    drop(kept);
    allocator.synchronize(0).unwrap();
    assert_eq!(allocator.trim(0).unwrap(), MIB);
    assert_eq!(reserved(&fake), 0);
    assert_no_memory(&fake);
}

#[test]
fn a_device_without_pools_ignores_the_threshold_and_trims_nothing() {
    let fake = driver(1);
    restart(&fake, 1, false);
    let allocator = with_threshold(8 * MIB);

    drop(filled(&allocator, &[1; 64], 0));

    assert_eq!(allocator.trim(0).unwrap(), 0);
    assert_eq!(fake.count("cuMemPoolCreate"), 0);
    assert_eq!(reserved(&fake), 0);
    assert_no_memory(&fake);
    drop(allocator);
    assert_all_given_back(&fake);
}

#[test]
fn a_buffer_keeps_the_pool_that_it_is_from() {
    let fake = driver(1);
    let allocator = with_threshold(MIB);
    let buffer = filled(&allocator, &[7; 64], 0);

    drop(allocator);

    assert_eq!(buffer.to_vec().unwrap(), [7; 64]);
    drop(buffer);
    assert_all_given_back(&fake);
}

#[test]
fn each_device_has_its_own_pool() {
    let fake = driver(2);
    let allocator = with_threshold(MIB);
    let buffers = [0, 1].map(|index| filled(&allocator, &[1; 64], index));

    assert_eq!(fake.live().pools, 2);
    assert_eq!(buffers[0].device(), CUDA_0);
    drop(buffers);
    assert_no_memory(&fake);
    for index in [0, 1] {
        allocator.synchronize(index).unwrap();
        assert_eq!(allocator.trim(index).unwrap(), 64);
    }
}

// https://github.com/pytorch/pytorch/issues/35901
#[test]
fn memory_that_its_own_stream_is_still_to_free_is_used_again() {
    let fake = driver(1);
    for schedule in Schedule::all(1) {
        restart(&fake, 1, true);
        fake.set_device_memory(0, MIB);
        fake.set_schedule(schedule);
        let allocator = CudaAllocator::open().unwrap();
        let on_stream = allocator.on_stream(&stream(0)).unwrap();
        for allocator in [&allocator, &on_stream] {
            for _ in 0..3 {
                drop(filled(allocator, &vec![1; MIB], 0));
            }
            allocator.synchronize(0).unwrap();
        }
        assert_no_memory(&fake);
    }
}

#[test]
fn memory_that_another_stream_is_still_to_free_is_no_lack_of_it() {
    let fake = driver(1);
    fake.set_device_memory(0, MIB);
    fake.set_schedule(Schedule::Delayed);
    let allocator = CudaAllocator::open().unwrap();
    let on_stream = allocator.on_stream(&stream(0)).unwrap();
    drop(empty(&on_stream, MIB, 0));

    let buffer = empty(&allocator, MIB, 0);

    drop(buffer);
    assert_no_memory(&fake);
}
