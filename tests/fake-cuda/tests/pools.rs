//! Stream-ordered allocation, pools, and the two families of calls.

#![cfg(target_os = "linux")]
#![allow(
    unsafe_code,
    clippy::multiple_unsafe_ops_per_block,
    reason = "the tests call a C interface"
)]

mod support;

use std::ptr::null_mut;

use cudarc::driver::{result, sys};
use fakecuda::Schedule;
use support::{alloc, code, driver, free, stream};
use sys::CUmemPool_attribute as Attribute;

fn default_pool() -> sys::CUmemoryPool {
    // SAFETY: the device is there.
    unsafe { result::device::get_default_mem_pool(0) }.unwrap()
}

fn number(pool: sys::CUmemoryPool, attribute: Attribute) -> u64 {
    let mut value = 0_u64;
    // SAFETY: these attributes are of 64 bits.
    unsafe { result::mem_pool::get_attribute(pool, attribute, (&raw mut value).cast()) }.unwrap();
    value
}

fn set_threshold(pool: sys::CUmemoryPool, value: u64) {
    let mut value = value;
    let attribute = Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: this attribute is of 64 bits.
    unsafe { result::mem_pool::set_attribute(pool, attribute, (&raw mut value).cast()) }.unwrap();
}

#[test]
fn memory_is_there_and_gone_in_the_order_of_its_stream() {
    let fake = driver();
    for schedule in Schedule::all(8) {
        fake.set_schedule(schedule);
        let on = stream();
        // SAFETY: the driver is a simulation, which checks what it is told.
        unsafe {
            let ptr = result::malloc_async(on, 100).unwrap();
            result::memset_d8_async(ptr, 1, 100, on).unwrap();
            result::free_async(ptr, on).unwrap();
            result::stream::synchronize(on).unwrap();
            result::stream::destroy(on).unwrap();
        }
        assert!(fake.live().is_clean(), "{schedule:?}");
    }
    assert!(fake.violations().is_empty(), "{:?}", fake.violations());
}

#[test]
fn use_on_another_stream_without_a_wait_is_reported_when_it_is_done() {
    let fake = driver();
    fake.set_schedule(Schedule::Delayed);
    let (first, second) = (stream(), stream());

    // SAFETY: the driver is a simulation, which checks what it is told.
    unsafe {
        let ptr = result::malloc_async(first, 100).unwrap();
        result::memset_d8_async(ptr, 1, 100, second).unwrap();
        result::stream::synchronize(second).unwrap();
        let violations = fake.violations();
        assert!(violations[0].contains("missing wait"), "{violations:?}");
        result::stream::synchronize(first).unwrap();
        fake.clear_violations();

        result::memset_d8_async(ptr, 1, 100, second).unwrap();
        result::free_async(ptr, first).unwrap();
        result::stream::synchronize(first).unwrap();
        result::stream::synchronize(second).unwrap();
        let violations = fake.violations();
        assert!(violations[0].contains("use after free"), "{violations:?}");
        result::stream::destroy(first).unwrap();
        result::stream::destroy(second).unwrap();
    }
}

#[test]
fn use_after_a_free_on_the_same_stream_is_reported() {
    let fake = driver();
    // SAFETY: the driver is a simulation, which checks what it is told.
    unsafe {
        let on = stream();
        fake.set_schedule(Schedule::Delayed);
        let ptr = result::malloc_async(on, 100).unwrap();
        result::free_async(ptr, on).unwrap();
        result::memset_d8_async(ptr, 1, 100, on).unwrap();
        assert_eq!(code(result::free_async(ptr, on)), 1);
        result::stream::synchronize(on).unwrap();
        result::stream::destroy(on).unwrap();
    }
    let violations = fake.violations();
    assert!(violations[0].contains("use after free"), "{violations:?}");
    assert!(violations[1].contains("double free"), "{violations:?}");
    assert!(violations[2].contains("use after free"), "{violations:?}");
}

#[test]
fn the_families_of_calls_do_not_mix() {
    let fake = driver();
    // SAFETY: the driver is a simulation, which checks what it is told.
    unsafe {
        let on = stream();
        let ordered = result::malloc_async(on, 8).unwrap();
        assert_eq!(free(ordered), 0);
        let plain = alloc(8);
        result::free_async(plain, on).unwrap();
        result::stream::destroy(on).unwrap();
    }

    let violations = fake.violations();
    assert_eq!(violations.len(), 2, "{violations:?}");
    assert!(
        violations
            .iter()
            .all(|what| what.contains("family mismatch"))
    );
    assert!(fake.live().is_clean());
}

#[test]
fn a_device_without_pools_says_not_supported() {
    let fake = driver();
    fake.set_pools(0, false);
    // SAFETY: the driver is a simulation, which checks what it is told.
    unsafe {
        assert_eq!(code(result::malloc_async(null_mut(), 8)), 801);
        assert_eq!(code(result::device::get_default_mem_pool(0)), 801);
        let plain = alloc(8);
        assert_eq!(code(result::free_async(plain, null_mut())), 801);
        assert_eq!(free(plain), 0);
    }
    fake.set_pools(0, true);
    assert_eq!(fake.violations().len(), 1);
}

#[test]
fn a_pool_holds_what_was_freed_until_the_program_waits_or_longer() {
    let fake = driver();
    let pool = default_pool();
    let before = result::mem_get_info().unwrap().0;
    let on = stream();
    for (threshold, held) in [(0, 0), (u64::MAX, 1000)] {
        set_threshold(pool, threshold);
        // SAFETY: the driver is a simulation, which checks what it is told.
        unsafe {
            let ptr = result::malloc_async(on, 1000).unwrap();
            result::free_async(ptr, on).unwrap();
            assert_eq!(
                number(pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT),
                1000
            );
            result::stream::synchronize(on).unwrap();
        }
        assert_eq!(
            number(pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT),
            held
        );
        assert_eq!(result::mem_get_info().unwrap().0, before - held as usize);
    }
    // SAFETY: the driver is a simulation, which checks what it is told.
    unsafe {
        result::mem_pool::trim_to(pool, 0).unwrap();
        result::stream::destroy(on).unwrap();
    }
    assert_eq!(result::mem_get_info().unwrap().0, before);
    assert_eq!(number(pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
    set_threshold(pool, 0);
    assert!(fake.violations().is_empty());
}

#[test]
fn memory_that_a_pool_holds_is_not_there_for_others() {
    let fake = driver();
    fake.set_total_memory(1000);
    set_threshold(default_pool(), u64::MAX);
    // SAFETY: the driver is a simulation, which checks what it is told.
    unsafe {
        let on = stream();
        let ptr = result::malloc_async(on, 800).unwrap();
        result::free_async(ptr, on).unwrap();
        result::stream::synchronize(on).unwrap();
        assert_eq!(code(result::malloc_sync(300)), 2);
        result::mem_pool::trim_to(default_pool(), 0).unwrap();
        let ptr = alloc(300);
        free(ptr);
        result::stream::destroy(on).unwrap();
    }
    set_threshold(default_pool(), 0);
    fake.set_total_memory(4 << 30);
}

#[test]
fn a_stream_uses_again_what_it_is_going_to_free() {
    let fake = driver();
    fake.set_total_memory(1000);
    fake.set_schedule(Schedule::Delayed);
    // SAFETY: the driver is a simulation, which checks what it is told.
    unsafe {
        let on = stream();
        let first = result::malloc_async(on, 800).unwrap();
        result::free_async(first, on).unwrap();
        let second = result::malloc_async(on, 900).unwrap();
        result::free_async(second, on).unwrap();
        result::stream::synchronize(on).unwrap();
        result::stream::destroy(on).unwrap();
    }
    fake.set_total_memory(4 << 30);
    assert!(fake.violations().is_empty());
}

#[test]
fn a_pool_of_ones_own_lives_until_its_blocks_are_freed() {
    let fake = driver();
    // SAFETY: all zeros are properties without meaning.
    let mut properties: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
    properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    properties.maxSize = 500;
    // SAFETY: the driver is a simulation, which checks what it is told.
    unsafe {
        let pool = result::mem_pool::create(&raw const properties).unwrap();
        let ptr = result::mem_pool::alloc_async(pool, 400, null_mut()).unwrap();
        assert_eq!(
            code(result::mem_pool::alloc_async(pool, 101, null_mut())),
            2
        );
        result::mem_pool::destroy(pool).unwrap();
        assert_eq!(code(result::mem_pool::alloc_async(pool, 1, null_mut())), 1);
        assert_eq!(fake.live().pools, 1);
        result::free_async(ptr, null_mut()).unwrap();
    }
    assert!(fake.live().is_clean());
    assert!(fake.violations().is_empty());
}
