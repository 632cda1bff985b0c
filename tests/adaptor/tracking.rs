//! Live blocks are known, and no others are taken back.

use std::sync::Arc;

use device_memory::adaptor::{Tracking, Untracked};
use device_memory::testing::{FakeDevice, FaultInjector};
use device_memory::{
    DeviceAllocator, DeviceLayout, DeviceMemoryBuffer, DeviceType, Error, ErrorKind, Operation, Tag,
};

fn layout(size: usize) -> DeviceLayout {
    DeviceLayout::from_size(size).unwrap()
}

fn fake() -> FakeDevice {
    FakeDevice::builder(DeviceType::Cuda)
        .devices(2)
        .reuse_addresses(true)
        .build()
}

fn untracked(error: &Error) -> Untracked {
    match error.kind() {
        ErrorKind::Backend { source, .. } => *source.downcast_ref().unwrap(),
        other => panic!("{other:?}"),
    }
}

// https://github.com/sonots/cumo/pull/173
// https://github.com/OpenNMT/CTranslate2/pull/387
// https://github.com/pytorch/pytorch/issues/146431
#[test]
#[expect(unsafe_code, reason = "breaks the contract, which is to be found")]
fn a_block_of_another_allocator_is_not_taken_back() {
    let fake = fake();
    let tracking = Tracking::over(fake.clone());
    let foreign = fake.allocate(layout(64), 0).unwrap();

    // SAFETY: this breaks the contract; the fake does nothing on it.
    let error = unsafe { tracking.deallocate(foreign, layout(64), 0) }.unwrap_err();

    assert_eq!(untracked(&error), Untracked::Foreign { ptr: foreign });
    assert_eq!(
        error.to_string(),
        format!("deallocate on cuda:0 failed: no live block at {foreign}")
    );
    assert_eq!(fake.deallocations(), 0);
    // SAFETY: the block is the fake's own, and freed once.
    unsafe { fake.deallocate(foreign, layout(64), 0) }.unwrap();
    fake.assert_clean();
}

#[test]
#[expect(unsafe_code, reason = "breaks the contract, which is to be found")]
fn a_second_free_a_wrong_layout_and_a_wrong_device_never_reach_the_device() {
    let fake = fake();
    let tracking = Tracking::over(fake.clone());
    let ptr = tracking.allocate(layout(64), 0).unwrap();

    // SAFETY: these break the contract; the fake does nothing on them.
    let wrong_size = unsafe { tracking.deallocate(ptr, layout(65), 0) }.unwrap_err();
    // SAFETY: as above.
    let wrong_tag =
        unsafe { tracking.deallocate(ptr, layout(64).with_tag(Tag::SCRATCH), 0) }.unwrap_err();
    // SAFETY: as above.
    let wrong_device = unsafe { tracking.deallocate(ptr, layout(64), 1) }.unwrap_err();
    // SAFETY: the block is freed once, as it was allocated.
    unsafe { tracking.deallocate(ptr, layout(64), 0) }.unwrap();
    // SAFETY: as the others.
    let second = unsafe { tracking.deallocate(ptr, layout(64), 0) }.unwrap_err();

    assert_eq!(
        wrong_size.to_string(),
        format!(
            "deallocate on cuda:0 failed: block at {ptr} has DeviceLayout {{ size: 64, align: 64 }}, \
             freed with DeviceLayout {{ size: 65, align: 64 }}"
        )
    );
    assert!(matches!(
        untracked(&wrong_tag),
        Untracked::WrongLayout { .. }
    ));
    assert_eq!(untracked(&wrong_device), Untracked::Foreign { ptr });
    assert_eq!(untracked(&second), Untracked::Foreign { ptr });
    fake.assert_clean();
}

#[test]
fn a_failed_free_leaves_the_block_known_by_its_name() {
    let injector = FaultInjector::new(fake());
    let faults = injector.faults();
    let tracking = Arc::new(Tracking::over(injector));
    let buffer = DeviceMemoryBuffer::create_with(tracking.clone(), layout(64), 0).unwrap();
    assert!(tracking.set_name(0, buffer.ptr(), "kept"));
    faults.fail_nth(Operation::Deallocate, 1);

    let failure = buffer.free().unwrap_err();

    assert_eq!(tracking.report().live[0].name.as_deref(), Some("kept"));
    faults.panic_on(Operation::Deallocate, 1);
    let failure = failure.buffer.free().unwrap_err();
    assert_eq!(tracking.live_blocks(), 1);
    failure.buffer.free().unwrap();
    assert_eq!(tracking.live_blocks(), 0);
}

#[test]
fn the_report_lists_what_is_live_the_largest_first() {
    let tracking = Arc::new(Tracking::over(fake()));
    let create = |size, tag, index| {
        let layout = layout(size).with_tag(tag);
        DeviceMemoryBuffer::create_with(tracking.clone(), layout, index).unwrap()
    };
    let small = create(10, Tag::SCRATCH, 0);
    let large = create(1000, Tag::WEIGHTS, 1);
    drop(create(5000, Tag::NONE, 0));
    tracking.set_name(1, large.ptr(), "layer 3");

    let report = tracking.report();

    assert_eq!(
        report.to_string(),
        format!(
            "2 live block(s), 1010 bytes\n\
             1000 bytes at {} on cuda:1, tag weights, number 2, layer 3\n\
             10 bytes at {} on cuda:0, tag scratch, number 1",
            large.ptr(),
            small.ptr()
        )
    );
}

#[test]
fn an_address_inside_a_block_finds_it_and_one_past_its_end_does_not() {
    let tracking = Arc::new(Tracking::over(fake()));
    let buffer = DeviceMemoryBuffer::create_with(tracking.clone(), layout(64), 0).unwrap();
    let at = |offset| buffer.ptr().checked_add(offset).unwrap();

    assert_eq!(tracking.find(0, at(63)).unwrap().number, 1);
    assert!(tracking.find(0, at(64)).is_none());
    assert!(tracking.find(1, at(0)).is_none());
    assert!(!tracking.set_name(0, at(64), "nothing"));
}

#[test]
fn backtraces_are_kept_if_asked_for() {
    let tracking = Arc::new(Tracking::over(fake()).with_backtraces(true));

    let buffer = DeviceMemoryBuffer::create_with(tracking.clone(), layout(64), 0).unwrap();

    let allocation = tracking.find(0, buffer.ptr()).unwrap();
    let backtrace = allocation.backtrace.unwrap().to_string();
    assert!(
        backtrace.contains("backtraces_are_kept_if_asked_for"),
        "{backtrace}"
    );
    assert_eq!(allocation.thread, std::thread::current().id());
}
