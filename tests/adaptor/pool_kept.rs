//! What a pool keeps as it is follows what that was good for.

use std::sync::Arc;

use device_memory::adaptor::{Pool, PoolBuilder};
use device_memory::testing::FakeDevice;
use device_memory::{DeviceAllocator, DeviceLayout, DeviceMemoryBuffer, DeviceType};

const MIB: usize = 1 << 20;

fn fake(capacity: usize) -> FakeDevice {
    FakeDevice::builder(DeviceType::Cuda)
        .capacity(capacity)
        .build()
}

fn create(pool: &Pool<FakeDevice>, size: usize) -> DeviceMemoryBuffer {
    let layout = DeviceLayout::from_size(size).unwrap();
    DeviceMemoryBuffer::create_with(Arc::new(pool.clone()), layout, 0).unwrap()
}

/// How many bytes are kept of a block that is freed.
fn kept(pool: &Pool<FakeDevice>, size: usize) -> usize {
    let before = pool.status(0).unwrap().cached;
    drop(create(pool, size));
    pool.status(0).unwrap().cached.saturating_sub(before)
}

/// Has blocks searched for so many times, of a size that is not kept.
fn search(pool: &Pool<FakeDevice>, times: usize) {
    for _ in 0..times {
        drop(create(pool, 3 * MIB));
    }
}

#[test]
fn blocks_that_are_kept_are_not_taken_for_memory_in_use() {
    let pool = PoolBuilder::new().initial(4096 * MIB);
    let pool = pool.build(fake(4096 * MIB));
    // Almost half of the device, of which no more than 94 MiB are in use at a time.
    for mib in 17..=47 {
        drop([mib * MIB; 2].map(|size| create(&pool, size)));
    }

    assert_eq!(kept(&pool, 60 * MIB), 60 * MIB);
}

#[test]
fn what_was_in_use_before_a_trim_is_forgotten() {
    let pool = PoolBuilder::new().initial(4096 * MIB);
    let pool = pool.build(fake(4096 * MIB));
    drop(create(&pool, 1400 * MIB));
    assert_eq!(kept(&pool, 16 * MIB), 0);

    assert_eq!(pool.trim(0).unwrap(), 4096 * MIB);

    drop(create(&pool, MIB));
    assert_eq!(kept(&pool, 16 * MIB), 16 * MIB);
}

#[test]
fn a_large_block_does_not_hold_a_segment_back_that_is_to_be_released() {
    let fake = fake(4096 * MIB);
    let builder = PoolBuilder::new().initial(4096 * MIB);
    let pool = builder.release_threshold(0).build(fake.clone());

    drop(create(&pool, 16 * MIB));

    assert_eq!(pool.status(0).unwrap().reserved, 0);
    assert_eq!(fake.live_bytes(), 0);
}

#[test]
fn where_blocks_are_not_had_again_none_are_kept_for_a_while() {
    let pool = PoolBuilder::new().initial(64 * MIB).limit(64 * MIB);
    let pool = pool.build(fake(64 * MIB));
    assert_eq!(kept(&pool, 1000), 1024);

    search(&pool, 512);

    assert_eq!(kept(&pool, 1000), 0);
    let tries = (0..64).find(|_| {
        search(&pool, 512);
        kept(&pool, 1000) > 0
    });
    assert!(tries.is_some(), "they are never kept again");
    for _ in 0..10_000 {
        assert_eq!(create(&pool, 1000).size(), 1000);
    }
    search(&pool, 512);
    assert_eq!(kept(&pool, 1000), 1024, "these were had again");
}

#[test]
fn a_pool_that_may_grow_or_was_told_what_to_keep_never_pauses() {
    let fixed = PoolBuilder::new().initial(64 * MIB).limit(64 * MIB);
    let growing = PoolBuilder::new().limit(64 * MIB);
    for builder in [fixed.cache_limit(1024), growing] {
        let pool = builder.build(fake(64 * MIB));
        for _ in 0..4 {
            search(&pool, 512);
            assert_eq!(kept(&pool, 1000), 1024);
        }
    }
}

#[test]
fn a_limit_that_is_no_multiple_of_a_unit_does_not_hinder_the_first_segment() {
    let pool = PoolBuilder::new().initial(4 * MIB + 100);
    let pool = pool.limit(4 * MIB + 100).build(fake(64 * MIB));

    let first = create(&pool, 1000);

    assert_eq!(pool.status(0).unwrap().reserved, 4 * MIB);
    drop(first);
}
