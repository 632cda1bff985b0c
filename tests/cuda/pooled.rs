//! A pool over the CUDA back end, on the fake driver, a simulation.

use std::sync::Arc;

use device_memory::adaptor::{Pool, PoolBuilder, PoolOnStream};
use device_memory::backend::cuda::CudaAllocator;
use device_memory::testing::conformance::Conformance;
use device_memory::{DeviceAllocator, DeviceMemoryBuffer};
use fakecuda::Schedule;

use crate::support::{address, assert_no_memory, driver, enqueue_write, layout, restart, stream};

const MIB: usize = 1 << 20;

fn pool(growth: usize) -> Pool<CudaAllocator> {
    let cuda = CudaAllocator::open().unwrap();
    PoolBuilder::new().growth(growth).build(cuda)
}

fn create(handle: &Arc<PoolOnStream<CudaAllocator>>, size: usize) -> DeviceMemoryBuffer {
    let handle = Arc::clone(handle) as Arc<dyn DeviceAllocator>;
    DeviceMemoryBuffer::create_with(handle, layout(size), 0).unwrap()
}

#[test]
fn a_pool_and_its_handles_keep_the_contract() {
    let fake = driver(2);
    for pools in [true, false] {
        restart(&fake, 2, pools);
        let pool = pool(MIB);
        let handle = pool.on_stream(&stream(0)).unwrap();

        // Segments that a refusal gives back are free when the device gets there.
        Conformance::new(&pool).shared_devices(true).run().unwrap();
        Conformance::new(&handle)
            .devices([0])
            .shared_devices(true)
            .run()
            .unwrap();

        drop((pool, handle));
        assert_no_memory(&fake);
    }
}

#[test]
fn one_stream_makes_no_call_of_the_driver_for_memory_it_has_again() {
    let fake = driver(1);
    let stream = stream(0);
    let pool = pool(4 * MIB);
    let handle = Arc::new(pool.on_stream(&stream).unwrap());
    drop([create(&handle, 100), create(&handle, MIB)]);
    let calls = fake.total_calls();

    for _ in 0..100 {
        drop([create(&handle, 100), create(&handle, MIB)]);
    }

    assert_eq!(fake.total_calls(), calls);
    drop((handle, pool));
    assert_no_memory(&fake);
}

// https://github.com/NVlabs/cuda-oxide/issues/619
#[test]
fn memory_goes_to_another_stream_after_the_work_of_the_first() {
    let fake = driver(1);
    for (round, schedule) in Schedule::all(3).enumerate() {
        restart(&fake, 1, round % 2 == 0);
        fake.set_schedule(schedule);
        fake.set_device_memory(0, MIB);
        let streams = [0; 2].map(stream);
        let pool = pool(MIB);
        let handles = [0, 1].map(|at: usize| Arc::new(pool.on_stream(&streams[at]).unwrap()));
        for turn in 0..8 {
            let mut buffer = create(&handles[turn % 2], MIB);
            buffer.fill(7).unwrap();
            enqueue_write(&streams[turn % 2], address(&buffer), 1, MIB);
            drop(buffer);
            // Whoever has it next sees no late write of the stream before.
            let mut next = create(&handles[(turn + 1) % 2], MIB);
            next.fill(2).unwrap();
            fake.run_schedule(fakecuda::Run::All);
            assert_eq!(next.to_vec().unwrap(), vec![2; MIB]);
        }
        drop((handles, pool));
        assert_no_memory(&fake);
    }
}

#[test]
fn a_recorded_use_holds_a_block_back() {
    let fake = driver(1);
    fake.set_schedule(Schedule::Delayed);
    let streams = [0; 2].map(stream);
    let pool = pool(4 * MIB);
    let handle = Arc::new(pool.on_stream(&streams[0]).unwrap());
    let buffer = create(&handle, MIB);
    enqueue_write(&streams[1], address(&buffer), 1, MIB);
    pool.record_use(buffer.ptr(), 0, &streams[1]).unwrap();
    let place = buffer.ptr();
    drop(buffer);

    let other = create(&handle, MIB);

    assert_ne!(other.ptr(), place);
    assert_eq!(pool.status(0).unwrap().waiting, MIB);
    drop(other);
    assert_eq!(pool.trim(0).unwrap(), 4 * MIB);
    drop((handle, pool));
    assert_no_memory(&fake);
}
