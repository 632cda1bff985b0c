//! A budget is never passed, and comes back whole.

use std::sync::Arc;

use device_memory::adaptor::{Budget, Limit};
use device_memory::testing::{FakeDevice, FaultInjector};
use device_memory::{
    DeviceLayout, DeviceMemoryBuffer, DeviceType, ErrorKind, HostAllocator, Operation, Tag,
};

fn fake(capacity: usize) -> FakeDevice {
    FakeDevice::builder(DeviceType::Cuda)
        .devices(2)
        .capacity(capacity)
        .build()
}

fn layout(size: usize) -> DeviceLayout {
    DeviceLayout::from_size(size).unwrap()
}

/// What a device was asked for after so many calls.
fn asked_since(fake: &FakeDevice, calls: usize) -> Vec<Operation> {
    let calls = fake.calls().into_iter().skip(calls);
    calls.map(|call| call.operation).collect()
}

#[test]
fn a_limit_that_was_set_can_be_lifted() {
    let limit = Arc::new(Limit::over(fake(1 << 20), 100));

    limit.set_limit(0, Budget::Bytes(usize::MAX)).unwrap();

    assert_eq!(limit.limit(0), usize::MAX);
    assert!(DeviceMemoryBuffer::create_with(limit, layout(101), 0).is_ok());
}

#[test]
fn over_the_limit_is_out_of_memory_and_changes_nothing() {
    let fake = fake(1 << 20);
    let limit = Arc::new(Limit::over(fake.clone(), 100));
    let kept = DeviceMemoryBuffer::create_with(limit.clone(), layout(60), 1).unwrap();
    let calls = fake.calls().len();

    let error = DeviceMemoryBuffer::create_with(limit.clone(), layout(41), 1).unwrap_err();

    assert_eq!(
        error.to_string(),
        "out of memory on cuda:1: 41 bytes requested (align 64), 60 in use, limit 100, \
         1048516 of 1048576 free on the device"
    );
    assert_eq!((limit.in_use(1), limit.limit(1)), (60, 100));
    assert_eq!(asked_since(&fake, calls), [Operation::MemoryInfo]);
    assert!(DeviceMemoryBuffer::create_with(limit.clone(), layout(40), 1).is_ok());
    assert!(DeviceMemoryBuffer::create_with(limit.clone(), layout(100), 0).is_ok());
    drop(kept);
    assert_eq!(limit.in_use(1), 0);
}

#[test]
fn what_the_layer_below_refuses_is_given_back_to_the_budget_and_reported() {
    let injector = FaultInjector::new(fake(100));
    let faults = injector.faults();
    let limit = Arc::new(Limit::over(injector, 1000));
    let kept = DeviceMemoryBuffer::create_with(limit.clone(), layout(60), 0).unwrap();
    faults.fail_nth(Operation::Allocate, 1);

    let error = DeviceMemoryBuffer::create_with(limit.clone(), layout(41), 0).unwrap_err();

    let report = error.out_of_memory().unwrap();
    assert_eq!((report.in_use, report.limit), (Some(60), Some(1000)));
    assert_eq!(limit.in_use(0), 60);
    drop(kept);
}

#[test]
fn a_failed_free_stays_counted_until_it_succeeds() {
    let injector = FaultInjector::new(fake(1 << 20));
    let faults = injector.faults();
    let limit = Arc::new(Limit::over(injector, 100));
    let buffer = DeviceMemoryBuffer::create_with(limit.clone(), layout(60), 0).unwrap();
    faults.fail_nth(Operation::Deallocate, 1);

    let failure = buffer.free().unwrap_err();

    assert_eq!(limit.in_use(0), 60);
    failure.buffer.free().unwrap();
    assert_eq!(limit.in_use(0), 0);
}

#[test]
fn a_tag_has_a_limit_of_its_own_within_that_of_the_device() {
    let limit = Arc::new(Limit::over(fake(1 << 20), 100));
    limit.set_tag_limit(0, Tag::SCRATCH, 30).unwrap();
    let create =
        |size, tag| DeviceMemoryBuffer::create_with(limit.clone(), layout(size).with_tag(tag), 0);

    let scratch = create(30, Tag::SCRATCH).unwrap();
    let refused = create(1, Tag::SCRATCH).unwrap_err();
    let weights = create(70, Tag::WEIGHTS).unwrap();
    let full = create(1, Tag::KV_CACHE).unwrap_err();

    assert_eq!(
        refused.to_string(),
        "out of memory on cuda:0: 1 bytes requested (align 64, tag scratch), 30 in use, limit 30, \
         1048546 of 1048576 free on the device"
    );
    assert_eq!(full.out_of_memory().unwrap().limit, Some(100));
    assert_eq!(limit.tag_in_use(0, Tag::KV_CACHE), 0);
    drop((scratch, weights));
    assert_eq!(limit.in_use(0), 0);
    assert_eq!(limit.tag_in_use(0, Tag::SCRATCH), 0);
    assert_eq!(limit.tag_in_use(0, Tag::WEIGHTS), 0);
}

// https://github.com/EricLBuehler/mistral.rs/pull/2022
#[test]
fn a_limit_may_be_a_part_of_the_device() {
    let limit = Arc::new(Limit::over(fake(1000), usize::MAX));
    let kept = DeviceMemoryBuffer::create_with(limit.clone(), layout(200), 0).unwrap();

    assert_eq!(limit.set_limit(0, Budget::PercentOfTotal(90)).unwrap(), 900);
    assert_eq!(limit.set_limit(0, Budget::PercentOfFree(50)).unwrap(), 600);
    assert_eq!(limit.set_limit(1, Budget::Bytes(7)).unwrap(), 7);
    assert_eq!(
        limit.set_limit(0, Budget::PercentOfTotal(200)).unwrap(),
        1000
    );
    assert_eq!((limit.limit(0), limit.limit(1)), (1000, 7));
    drop(kept);
}

#[test]
fn a_part_of_a_device_that_can_not_tell_its_memory_is_refused() {
    let limit = Limit::over(HostAllocator, 5);

    let error = limit.set_limit(0, Budget::PercentOfTotal(90)).unwrap_err();

    assert!(error.is_not_supported());
    assert_eq!(limit.limit(0), 5);
    let absent = limit.set_limit(9, Budget::Bytes(1)).unwrap_err();
    assert!(matches!(absent.kind(), ErrorKind::InvalidDevice { .. }));
    assert!(limit.set_tag_limit(9, Tag::NONE, 1).is_err());
    assert!(limit.reserve(9, Tag::NONE, 1).is_err());
}

// https://github.com/huggingface/text-embeddings-inference/issues/688
#[test]
fn a_reservation_takes_from_the_budget_until_it_is_dropped() {
    let limit = Arc::new(Limit::over(fake(1 << 20), 100));

    let reserved = limit.reserve(0, Tag::KV_CACHE, 80).unwrap();
    let refused = limit.reserve(0, Tag::NONE, 21);
    let no_room = DeviceMemoryBuffer::create_with(limit.clone(), layout(21), 0);

    assert!(refused.unwrap_err().is_out_of_memory());
    assert!(no_room.unwrap_err().is_out_of_memory());
    assert_eq!(
        (reserved.bytes(), limit.tag_in_use(0, Tag::KV_CACHE)),
        (80, 80)
    );
    drop(reserved);
    assert_eq!(limit.in_use(0), 0);
    assert!(DeviceMemoryBuffer::create_with(limit.clone(), layout(100), 0).is_ok());
}

#[test]
fn sizes_that_add_up_past_all_addresses_are_refused() {
    let fake = fake(1 << 20);
    let limit = Arc::new(Limit::over(fake.clone(), usize::MAX));
    let most = DeviceLayout::new(isize::MAX.unsigned_abs(), 1).unwrap();
    let reserved = [(); 2].map(|()| limit.reserve(0, Tag::NONE, most.size()).unwrap());

    let refused = DeviceMemoryBuffer::create_with(limit.clone(), layout(2), 0).unwrap_err();

    assert!(refused.is_out_of_memory());
    assert_eq!(asked_since(&fake, 0), [Operation::MemoryInfo]);
    drop(reserved);
    assert_eq!(limit.in_use(0), 0);
}

#[test]
fn a_limit_below_what_is_in_use_takes_nothing_away_and_gives_nothing_more() {
    let limit = Arc::new(Limit::over(fake(1 << 20), 100));
    let create = |size| DeviceMemoryBuffer::create_with(limit.clone(), layout(size), 0);
    let mut kept = create(80).unwrap();
    let small = create(10).unwrap();

    limit.set_limit(0, Budget::Bytes(50)).unwrap();
    kept.fill(1).unwrap();
    let refused = create(1).unwrap_err();
    drop(kept);

    assert_eq!(
        refused.to_string(),
        "out of memory on cuda:0: 1 bytes requested (align 64), 90 in use, limit 50, \
         1048486 of 1048576 free on the device"
    );
    assert!(create(40).is_ok());
    assert!(create(41).is_err());
    drop(small);
    assert_eq!(limit.in_use(0), 0);
}
