//! What came and went is counted once, by device and by tag.

use std::sync::Arc;
use std::thread;

use device_memory::adaptor::Statistics;
use device_memory::testing::{FakeDevice, FaultInjector};
use device_memory::{
    DeviceAllocator as _, DeviceLayout, DeviceMemoryBuffer, DeviceType, Operation, Tag,
};
use proptest::prelude::*;

fn layout(size: usize, tag: Tag) -> DeviceLayout {
    DeviceLayout::from_size(size).unwrap().with_tag(tag)
}

fn fake() -> FakeDevice {
    FakeDevice::new(DeviceType::Cuda, 2)
}

#[test]
fn each_device_and_tag_has_figures_of_its_own() {
    let statistics = Arc::new(Statistics::over(fake()));
    let create = |size, tag, index| {
        DeviceMemoryBuffer::create_with(statistics.clone(), layout(size, tag), index).unwrap()
    };

    let weights = create(100, Tag::WEIGHTS, 0);
    drop(create(50, Tag::SCRATCH, 0));
    drop(create(60, Tag::SCRATCH, 0));
    let other = create(7, Tag::NONE, 1);

    let all = statistics.usage(0);
    assert_eq!((all.current, all.peak, all.total), (100, 160, 210));
    assert_eq!((all.allocations, all.frees, all.failures), (3, 2, 0));
    let scratch = statistics.tag_usage(0, Tag::SCRATCH);
    assert_eq!((scratch.current, scratch.peak, scratch.total), (0, 60, 110));
    assert_eq!(statistics.usage(1).current, 7);
    let tags: Vec<Tag> = statistics.tags(0).into_iter().map(|(tag, _)| tag).collect();
    assert_eq!(tags, [Tag::WEIGHTS, Tag::SCRATCH]);
    drop((weights, other));
    assert_eq!(statistics.usage(0).current, 0);
}

#[test]
fn a_tag_that_is_persistent_is_counted_apart_from_its_twin() {
    let statistics = Arc::new(Statistics::over(fake()));
    let named = Tag::named("statistics twin").unwrap();

    let buffer =
        DeviceMemoryBuffer::create_with(statistics.clone(), layout(8, named.persistent()), 0);

    assert_eq!(statistics.tag_usage(0, named.persistent()).current, 8);
    assert_eq!(statistics.tag_usage(0, named).current, 0);
    assert_eq!(statistics.tags(0)[0].0, named.persistent());
    drop(buffer);
}

#[test]
fn failures_are_counted_and_leave_the_rest_alone() {
    let injector = FaultInjector::new(fake());
    let faults = injector.faults();
    let statistics = Arc::new(Statistics::over(injector));
    let kept =
        DeviceMemoryBuffer::create_with(statistics.clone(), layout(8, Tag::NONE), 0).unwrap();
    let before = statistics.usage(0);
    faults.fail_nth(Operation::Allocate, 1);
    faults.fail_nth(Operation::Deallocate, 1);

    let error =
        DeviceMemoryBuffer::create_with(statistics.clone(), layout(9, Tag::NONE), 0).unwrap_err();
    let after = statistics.usage(0);
    let failure = kept.free().unwrap_err();

    assert_eq!(error.out_of_memory().unwrap().in_use, Some(8));
    assert_eq!(after.failures, 1);
    assert_eq!((after.current, after.peak, after.total), (8, 8, 8));
    assert_eq!(before.failures, 0);
    assert_eq!(
        (statistics.usage(0).current, statistics.usage(0).frees),
        (8, 0)
    );
    failure.buffer.free().unwrap();
    assert_eq!(
        (statistics.usage(0).current, statistics.usage(0).frees),
        (0, 1)
    );
}

#[test]
fn a_scope_has_a_peak_of_its_own_that_counts_for_the_one_around_it() {
    let statistics = Arc::new(Statistics::over(fake()));
    let create = |size| {
        DeviceMemoryBuffer::create_with(statistics.clone(), layout(size, Tag::NONE), 0).unwrap()
    };
    drop(create(500));
    let kept = create(100);

    statistics.push(0).unwrap();
    drop(create(10));
    statistics.push(0).unwrap();
    let inner_kept = create(30);
    drop(create(20));
    let peak_inside = statistics.usage(0).peak;
    let inner = statistics.pop(0).unwrap();
    let outer = statistics.pop(0).unwrap();

    assert_eq!((inner.at_start, inner.at_end, inner.peak), (100, 130, 150));
    assert_eq!((inner.total, inner.allocations, inner.frees), (50, 2, 1));
    assert_eq!((outer.at_start, outer.at_end, outer.peak), (100, 130, 150));
    assert_eq!((outer.allocations, outer.frees), (3, 2));
    assert_eq!((peak_inside, statistics.usage(0).peak), (150, 500));
    assert_eq!(statistics.pop(0), None);
    assert!(statistics.push(7).is_err());
    drop((kept, inner_kept));
}

#[test]
fn counters_balance_after_eight_threads_and_no_peak_is_above_the_device() {
    let device = FakeDevice::builder(DeviceType::Cuda)
        .capacity(64 * 12)
        .reuse_addresses(true)
        .build();
    let statistics = Arc::new(Statistics::over(device.clone()));

    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..500 {
                    let _ = DeviceMemoryBuffer::create_with(
                        statistics.clone(),
                        layout(64, Tag::SCRATCH),
                        0,
                    );
                }
            });
        }
    });

    let usage = statistics.usage(0);
    assert_eq!(usage.current, 0);
    assert!(usage.peak <= 64 * 12, "{usage:?}");
    assert_eq!(usage.allocations, device.allocations());
    assert_eq!(usage.frees, device.deallocations());
    assert_eq!(usage.allocations + usage.failures, 8 * 500);
}

#[test]
fn a_scope_has_what_other_threads_do_and_what_fails() {
    let injector = FaultInjector::new(fake());
    let faults = injector.faults();
    let statistics = Arc::new(Statistics::over(injector));
    let create = || DeviceMemoryBuffer::create_with(statistics.clone(), layout(64, Tag::NONE), 0);
    faults.fail_nth(Operation::Allocate, 1);
    create().unwrap_err();

    statistics.push(0).unwrap();
    thread::scope(|scope| scope.spawn(|| drop(create().unwrap())).join()).unwrap();
    faults.fail_nth(Operation::Allocate, 1);
    create().unwrap_err();
    let scope = statistics.pop(0).unwrap();

    assert_eq!((scope.allocations, scope.frees, scope.failures), (1, 1, 1));
    assert_eq!((scope.peak, scope.total), (64, 64));
    assert_eq!(statistics.usage(0).failures, 2);
}

proptest! {
    #[test]
    fn figures_are_those_of_a_naive_count(
        steps in proptest::collection::vec((0_usize..4, 1_usize..100, any::<bool>()), 1..200)
    ) {
        let statistics = Arc::new(Statistics::over(fake()));
        let tags = [Tag::NONE, Tag::WEIGHTS, Tag::SCRATCH, Tag::KV_CACHE];
        let mut live: Vec<(usize, DeviceMemoryBuffer)> = Vec::new();
        let (mut peak, mut total, mut frees) = (0, 0, 0);

        for (at, size, free) in steps {
            if free && !live.is_empty() {
                live.swap_remove(at % live.len());
                frees += 1;
            } else {
                let layout = layout(size, tags[at]);
                let buffer = DeviceMemoryBuffer::create_with(statistics.clone(), layout, 1);
                live.push((at, buffer.unwrap()));
                total += size as u64;
            }
            peak = peak.max(live.iter().map(|(_, buffer)| buffer.size()).sum());
        }

        let usage = statistics.usage(1);
        prop_assert_eq!(usage.peak, peak);
        prop_assert_eq!((usage.total, usage.frees), (total, frees));
        for (at, tag) in tags.into_iter().enumerate() {
            let of_tag = live.iter().filter(|(tag, _)| *tag == at);
            let bytes: usize = of_tag.map(|(_, buffer)| buffer.size()).sum();
            prop_assert_eq!(statistics.tag_usage(1, tag).current, bytes);
        }
        prop_assert_eq!(statistics.inner().live_bytes(), usage.current);
        prop_assert!(statistics.memory_info(0).is_ok());
    }
}
