//! Each size goes to its allocator, and comes back to it.

use std::sync::Arc;

use device_memory::adaptor::{Arena, Binning};
use device_memory::testing::{FakeDevice, FaultInjector};
use device_memory::{
    DeviceAllocator, DeviceLayout, DeviceMemoryBuffer, DeviceType, HostAllocator, Operation,
};

fn fake() -> FakeDevice {
    FakeDevice::new(DeviceType::Cuda, 2)
}

fn layout(size: usize) -> DeviceLayout {
    DeviceLayout::from_size(size).unwrap()
}

/// Bins of up to 100 and up to 1000 bytes, added the larger first, and the rest.
fn rig() -> ([FakeDevice; 3], Arc<Binning<FakeDevice>>) {
    let fakes = [(); 3].map(|()| fake());
    let [small, middle, large] = fakes.clone();
    let binning = Binning::over(large)
        .bin(1000, middle)
        .unwrap()
        .bin(100, small)
        .unwrap();
    (fakes, Arc::new(binning))
}

#[test]
fn a_block_is_of_the_first_allocator_whose_bin_holds_its_size() {
    let (fakes, binning) = rig();

    let buffers = [1, 100, 101, 1000, 1001]
        .map(|size| DeviceMemoryBuffer::create_with(binning.clone(), layout(size), 1).unwrap());

    let live = fakes.each_ref().map(FakeDevice::live_blocks);
    assert_eq!(live, [2, 2, 1]);
    drop(buffers);
    fakes.iter().for_each(FakeDevice::assert_clean);
}

#[test]
fn copies_reach_the_allocator_of_the_block_also_from_its_middle_and_between_two() {
    let (fakes, binning) = rig();
    let create = |size| DeviceMemoryBuffer::create_with(binning.clone(), layout(size), 0).unwrap();
    let (mut small, mut large, mut twin) = (create(50), create(5000), create(60));

    small.copy_from_host_at(10, b"middle").unwrap();
    large.fill(1).unwrap();
    let mut target = large.as_span_mut();
    target
        .subspan_mut(4000, 50)
        .unwrap()
        .copy_from(small.as_span())
        .unwrap();
    let mut target = twin.as_span_mut();
    target
        .subspan_mut(5, 50)
        .unwrap()
        .copy_from(small.as_span())
        .unwrap();

    let mut read = [0; 6];
    large.copy_to_host_at(4010, &mut read).unwrap();
    assert_eq!(&read, b"middle");
    twin.copy_to_host_at(15, &mut read).unwrap();
    assert_eq!(&read, b"middle");
    drop((small, large, twin));
    fakes.iter().for_each(FakeDevice::assert_clean);
}

#[test]
fn a_failed_free_can_be_tried_again() {
    let fake = fake();
    let injector = FaultInjector::new(fake.clone());
    let faults = injector.faults();
    let binning = Arc::new(Binning::over(injector));
    let buffer = DeviceMemoryBuffer::create_with(binning, layout(50), 0).unwrap();
    faults.fail_nth(Operation::Deallocate, 1);

    let mut buffer = buffer.free().unwrap_err().buffer;

    buffer.fill(1).unwrap();
    buffer.free().unwrap();
    fake.assert_clean();
}

#[test]
#[expect(unsafe_code, reason = "breaks the contract, which is to be found")]
fn what_is_not_of_a_bin_is_neither_freed_nor_copied() {
    let (fakes, binning) = rig();
    let foreign = fakes[0].allocate(layout(50), 0).unwrap();

    // SAFETY: these break the contract; nothing is done on them.
    let freed = unsafe { binning.deallocate(foreign, layout(50), 0) };
    // SAFETY: as above.
    let filled = unsafe { binning.fill(foreign, 1, 50, 0) };

    assert_eq!(
        freed.unwrap_err().to_string(),
        format!("deallocate on cuda:0 failed: no live block at {foreign}")
    );
    assert!(filled.is_err());
    // SAFETY: the block is the fake's own, and freed once.
    unsafe { fakes[0].deallocate(foreign, layout(50), 0) }.unwrap();
    fakes.iter().for_each(FakeDevice::assert_clean);
}

#[test]
fn allocators_of_two_types_of_device_make_no_bins() {
    let host: Arc<dyn DeviceAllocator> = Arc::new(HostAllocator);
    let cuda: Arc<dyn DeviceAllocator> = Arc::new(fake());

    let error = Binning::over(host).bin(10, cuda).unwrap_err();

    assert_eq!(
        error.to_string(),
        "device mismatch: expected cpu:0, found cuda:0"
    );
}

#[test]
fn there_are_as_many_devices_as_every_allocator_has() {
    let one = FakeDevice::new(DeviceType::Cuda, 1);
    let binning = Binning::over(fake()).bin(10, one).unwrap();

    assert_eq!(binning.device_count(), 1);
    assert!(binning.allocate(layout(50), 1).is_err());
    assert!(binning.trim(1).is_err());
    binning.synchronize(0).unwrap();
}

#[test]
fn of_two_bins_for_one_size_the_first_stays() {
    let fakes = [(); 3].map(|()| fake());
    let [first, second, rest] = fakes.clone();
    let binning = Binning::over(rest)
        .bin(100, first)
        .unwrap()
        .bin(100, second)
        .unwrap();

    let buffer = DeviceMemoryBuffer::create_with(Arc::new(binning), layout(100), 0).unwrap();

    assert_eq!(
        fakes.each_ref().map(FakeDevice::live_blocks),
        [1, 0, 0],
        "first, second, rest"
    );
    drop(buffer);
}

#[test]
fn free_memory_is_that_of_the_allocator_for_large_blocks() {
    let with = |capacity| {
        let builder = FakeDevice::builder(DeviceType::Cuda);
        builder.capacity(capacity).build()
    };
    let binning = Binning::over(with(1 << 30))
        .bin(100, with(1 << 10))
        .unwrap();

    let info = binning.memory_info(0).unwrap().unwrap();

    assert_eq!((info.free, info.total), (1 << 30, 1 << 30));
}

#[test]
fn the_host_may_read_the_memory_if_it_may_read_that_of_every_allocator() {
    let host: Arc<dyn DeviceAllocator> = Arc::new(HostAllocator);
    let hidden: Arc<dyn DeviceAllocator> = Arc::new(FakeDevice::new(DeviceType::Cpu, 1));
    let over = |rest: &Arc<dyn DeviceAllocator>, bin: &Arc<dyn DeviceAllocator>| {
        let binning = Binning::over(rest.clone()).bin(100, bin.clone()).unwrap();
        binning.is_host_accessible()
    };

    assert!(over(&host, &host));
    assert!(!over(&host, &hidden));
    assert!(!over(&hidden, &host));
}

#[test]
fn trim_gives_back_what_every_allocator_kept() {
    let below = fake();
    let bins: Arc<dyn DeviceAllocator> = Arc::new(Arena::over(below.clone(), 1000));
    let rest: Arc<dyn DeviceAllocator> = Arc::new(Arena::over(below.clone(), 2000));
    let binning = Arc::new(Binning::over(rest).bin(100, bins).unwrap());
    let create = |size| DeviceMemoryBuffer::create_with(binning.clone(), layout(size), 0).unwrap();
    drop((create(100), create(101)));

    assert_eq!(binning.trim(0).unwrap(), 3000);

    below.assert_clean();
}
