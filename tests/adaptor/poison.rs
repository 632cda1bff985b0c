//! Writes where there should be none are found.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use device_memory::adaptor::{Damage, Poison, Region};
use device_memory::testing::{FakeDevice, FaultInjector};
use device_memory::{
    DeviceAllocator, DeviceLayout, DeviceMemoryBuffer, DevicePtr, DeviceType, HostAllocator,
    Operation, free_failure_count,
};

fn layout(size: usize) -> DeviceLayout {
    DeviceLayout::from_size(size).unwrap()
}

/// Writes one byte to the host's memory, as a kernel might.
#[expect(unsafe_code, reason = "a stray write, into memory that the test holds")]
fn stray_write(ptr: DevicePtr, offset: isize, byte: u8) {
    // SAFETY: the tests write into red zones and into kept blocks, which are allocated.
    let at = unsafe { ptr.as_raw().offset(offset) };
    // SAFETY: as above; nothing else uses them meanwhile.
    unsafe { at.write(byte) };
}

fn create(poison: &Arc<Poison<HostAllocator>>, size: usize) -> DeviceMemoryBuffer {
    DeviceMemoryBuffer::create_with(poison.clone(), layout(size), 0).unwrap()
}

fn facts(damages: &[Damage]) -> Vec<(Region, usize, u8)> {
    let facts = damages
        .iter()
        .map(|damage| (damage.region, damage.offset, damage.found));
    facts.collect()
}

#[test]
fn new_memory_is_filled_and_blocks_are_as_asked() {
    let fake = FakeDevice::new(DeviceType::Cuda, 1);
    let poison = Arc::new(Poison::over(fake.clone()));

    let buffer = DeviceMemoryBuffer::create_with(poison.clone(), layout(100), 0).unwrap();

    assert_eq!(buffer.to_vec().unwrap(), [0xCA; 100]);
    assert_eq!(fake.live()[0].layout.size(), 64 + 100 + 64);
    drop(buffer);
    assert_eq!(poison.damages(), []);
    assert_eq!(fake.live_blocks(), 1);
    assert_eq!(poison.trim(0).unwrap(), 228);
    fake.assert_clean();
}

#[test]
fn a_write_past_either_end_is_found_when_the_block_is_given_back() {
    let poison = Arc::new(Poison::over(HostAllocator));
    let [before, after] = [10, 20].map(|size| create(&poison, size));
    stray_write(before.ptr(), -1, 1);
    stray_write(after.ptr(), 20, 2);

    drop((before, after));
    poison.trim(0).unwrap();

    assert_eq!(
        facts(&poison.damages()),
        [(Region::Before, 63, 1), (Region::After, 0, 2)]
    );
    let text = poison.damages()[1].to_string();
    assert!(
        text.starts_with("byte 0 of the red zone after a block of 20 bytes at 0x"),
        "{text}"
    );
    assert!(
        text.ends_with(" on cpu:0 was overwritten with 0x02"),
        "{text}"
    );
}

#[test]
fn a_write_after_a_free_is_found_and_told_to_the_hook() {
    let told: Arc<Mutex<Vec<Damage>>> = Arc::default();
    let tell = told.clone();
    let poison = Poison::over(HostAllocator).on_damage(move |damage| {
        tell.lock().unwrap().push(*damage);
        panic!("a hook that panics is cut short");
    });
    let poison = Arc::new(poison);
    let buffer = create(&poison, 100);
    let ptr = buffer.ptr();

    drop(buffer);
    stray_write(ptr, 42, 9);
    drop(poison);

    assert_eq!(facts(&told.lock().unwrap()), [(Region::Freed, 42, 9)]);
}

#[test]
fn the_oldest_blocks_are_given_back_when_too_much_is_kept() {
    let fake = FakeDevice::new(DeviceType::Cuda, 1);
    let poison = Arc::new(Poison::over(fake.clone()).quarantine(500));
    let create = |size| DeviceMemoryBuffer::create_with(poison.clone(), layout(size), 0).unwrap();
    let first = create(100).ptr();
    drop(create(101));
    assert_eq!(fake.live_blocks(), 2);

    drop(create(102));
    let unkept = create(1000);
    drop(unkept);

    assert_eq!(fake.live_blocks(), 2);
    assert!(
        fake.live()
            .iter()
            .all(|block| block.ptr.addr() != first.addr() - 64)
    );
}

#[test]
fn what_is_kept_is_given_back_before_memory_is_said_to_be_out() {
    let fake = FakeDevice::builder(DeviceType::Cuda).capacity(400).build();
    let poison = Arc::new(Poison::over(fake.clone()));
    let create = |size| DeviceMemoryBuffer::create_with(poison.clone(), layout(size), 0);
    drop(create(200).unwrap());
    assert_eq!(fake.live_blocks(), 1);

    let again = create(200).unwrap();
    let refused = create(200).unwrap_err();

    assert_eq!(refused.out_of_memory().unwrap().requested, 200);
    drop(again);
}

#[test]
fn without_quarantine_and_zones_the_layer_below_gets_the_same_layout() {
    let fake = FakeDevice::new(DeviceType::Cuda, 1);
    let poison = Arc::new(Poison::over(fake.clone()).quarantine(0).red_zone(0));

    let buffer = DeviceMemoryBuffer::create_with(poison, layout(100), 0).unwrap();

    assert_eq!(fake.live()[0].layout, layout(100));
    buffer.free().unwrap();
    fake.assert_clean();
}

// https://github.com/chelsea0x3b/cudarc/issues/590
#[test]
fn a_kept_block_that_can_not_be_given_back_fails_no_free_of_another() {
    let injector = FaultInjector::new(FakeDevice::new(DeviceType::Cuda, 1));
    let faults = injector.faults();
    let poison = Arc::new(Poison::over(injector).quarantine(300));
    let create = |size| DeviceMemoryBuffer::create_with(poison.clone(), layout(size), 0).unwrap();
    create(100).free().unwrap();
    faults.fail_nth(Operation::Deallocate, 1);
    let before = free_failure_count();

    create(101).free().unwrap();

    assert!(free_failure_count() > before);
}

#[test]
fn of_large_blocks_both_ends_are_filled_and_looked_at() {
    let poison = Arc::new(Poison::over(HostAllocator).depth(16));
    let buffer = create(&poison, 100);
    let bytes = buffer.to_vec().unwrap();
    let ptr = buffer.ptr();

    drop(buffer);
    stray_write(ptr, 50, 1);
    stray_write(ptr, 99, 2);
    poison.trim(0).unwrap();

    assert_eq!(bytes[..16], [0xCA; 16]);
    assert_eq!(bytes[16..84], [0; 68]);
    assert_eq!(bytes[84..], [0xCA; 16]);
    assert_eq!(facts(&poison.damages()), [(Region::Freed, 99, 2)]);
}

#[test]
fn a_red_zone_is_rounded_up_to_a_power_of_two_and_to_the_alignment() {
    let fake = FakeDevice::new(DeviceType::Cuda, 1);
    let poison = Arc::new(Poison::over(fake.clone()).red_zone(33));
    let create = |layout| DeviceMemoryBuffer::create_with(poison.clone(), layout, 0).unwrap();

    let plain = create(DeviceLayout::new(10, 1).unwrap());
    let aligned = create(DeviceLayout::new(10, 256).unwrap());

    let sizes: Vec<_> = fake
        .live()
        .iter()
        .map(|block| block.layout.size())
        .collect();
    assert_eq!(sizes, [64 + 10 + 64, 256 + 10 + 64]);
    drop((plain, aligned));
}

#[test]
fn the_first_thousand_damages_are_kept_and_the_hook_is_told_of_all() {
    let told = Arc::new(AtomicUsize::new(0));
    let tell = told.clone();
    let poison = Poison::over(HostAllocator).on_damage(move |_| {
        tell.fetch_add(1, Ordering::Relaxed);
    });
    let poison = Arc::new(poison);

    for _ in 0..1030 {
        let buffer = create(&poison, 8);
        stray_write(buffer.ptr(), 8, 1);
        drop(buffer);
    }
    poison.trim(0).unwrap();

    assert_eq!(poison.damages().len(), 1024);
    assert_eq!(told.load(Ordering::Relaxed), 1030);
}

#[test]
fn what_can_not_be_filled_or_looked_at_is_given_back_all_the_same() {
    let fake = FakeDevice::new(DeviceType::Cuda, 1);
    let injector = FaultInjector::new(fake.clone());
    let faults = injector.faults();
    let poison = Arc::new(Poison::over(injector));
    let create = || DeviceMemoryBuffer::create_with(poison.clone(), layout(100), 0).unwrap();
    let [unread, unfilled] = [create(), create()];
    faults.fail_all(Operation::CopyDeviceToHost);
    unread.free().unwrap();
    poison.trim(0).unwrap();
    faults.fail_all(Operation::Fill);

    unfilled.free().unwrap();

    assert_eq!(poison.damages(), []);
    fake.assert_clean();
}

#[test]
fn an_allocation_whose_zones_can_not_be_filled_fails_and_gives_its_memory_back() {
    for nth in 1..=3 {
        let fake = FakeDevice::new(DeviceType::Cuda, 1);
        let injector = FaultInjector::new(fake.clone());
        let faults = injector.faults();
        let poison = Arc::new(Poison::over(injector));
        faults.fail_nth(Operation::Fill, nth);

        let error = DeviceMemoryBuffer::create_with(poison, layout(100), 0).unwrap_err();

        assert!(!error.is_out_of_memory(), "{error}");
        fake.assert_clean();
    }
}
