//! Kernels on a fake device.

#![cfg(feature = "testing")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use device_memory::testing::FakeDevice;
use device_memory::{DeviceLayout, DeviceMemoryBuffer, DeviceType, HostAllocator, Operation};

fn fake() -> FakeDevice {
    FakeDevice::builder(DeviceType::Cuda)
        .devices(2)
        .delayed_copies(true)
        .build()
}

fn buffer(fake: &FakeDevice, bytes: &[u8], index: u16) -> DeviceMemoryBuffer {
    let layout = DeviceLayout::from_size(bytes.len()).unwrap();
    let allocator = Arc::new(fake.clone());
    let mut buffer = DeviceMemoryBuffer::create_with(allocator, layout, index).unwrap();
    buffer.copy_from_host(bytes).unwrap();
    buffer
}

/// Adds what is read to what is written.
fn add(reads: &[Vec<u8>], writes: &mut [Vec<u8>]) {
    for (to, from) in writes[0].iter_mut().zip(&reads[0]) {
        *to += from;
    }
}

#[test]
fn a_kernel_sees_earlier_copies_and_later_copies_see_it() {
    let fake = fake();
    let read = buffer(&fake, &[1, 2, 3], 1);
    let mut written = buffer(&fake, &[10, 20, 30], 1);

    fake.launch(1, &[read.as_span()], &mut [written.as_span_mut()], add)
        .unwrap();

    assert_eq!(written.to_vec().unwrap(), [11, 22, 33]);
    assert_eq!(read.to_vec().unwrap(), [1, 2, 3]);
}

#[test]
fn a_part_of_a_block_is_written_and_the_rest_is_not() {
    let fake = fake();
    let read = buffer(&fake, &[1], 0);
    let mut written = buffer(&fake, &[10, 20, 30], 0);

    let part = written.as_span_mut().into_subspan(1, 1).unwrap();
    fake.launch(0, &[read.as_span()], &mut [part], add).unwrap();

    assert_eq!(written.to_vec().unwrap(), [10, 21, 30]);
}

#[test]
fn one_launch_is_recorded_and_no_copy() {
    let fake = fake();
    let read = buffer(&fake, &[1, 2, 3], 0);
    let mut written = buffer(&fake, &[10, 20], 0);
    fake.clear_calls();

    fake.launch(0, &[read.as_span()], &mut [written.as_span_mut()], add)
        .unwrap();

    let calls = fake.calls();
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].operation, Operation::Launch);
    assert_eq!((calls[0].size, calls[0].succeeded), (5, true));
    assert_eq!(Operation::Launch.to_string(), "launch");
}

#[test]
fn memory_of_another_device_is_refused_and_nothing_runs() {
    let fake = fake();
    let read = buffer(&fake, &[1], 1);
    let mut written = buffer(&fake, &[10], 0);

    let error = fake
        .launch(0, &[read.as_span()], &mut [written.as_span_mut()], add)
        .unwrap_err();

    assert_eq!(
        error.to_string(),
        "device mismatch: expected cuda:0, found cuda:1"
    );
    assert_eq!(written.to_vec().unwrap(), [10]);
}

#[test]
fn memory_of_another_allocator_is_a_violation_and_nothing_runs() {
    let fake = FakeDevice::new(DeviceType::Cpu, 1);
    let layout = DeviceLayout::from_size(1).unwrap();
    let foreign = DeviceMemoryBuffer::create_with(&HostAllocator, layout, 0).unwrap();
    let mut written = buffer(&fake, &[10], 0);

    let failed = fake.launch(0, &[foreign.as_span()], &mut [written.as_span_mut()], add);

    assert!(failed.is_err());
    assert_eq!(fake.violations().len(), 1);
    assert_eq!(written.to_vec().unwrap(), [10]);
}

#[test]
fn an_index_that_is_not_there_is_refused() {
    let fake = FakeDevice::new(DeviceType::Cuda, 1);

    let error = fake.launch(1, &[], &mut [], add).unwrap_err();

    assert_eq!(
        error.to_string(),
        "invalid device cuda:1: 1 device(s) of type cuda present"
    );
}

#[test]
fn a_kernel_that_panics_writes_nothing_and_leaves_the_device_usable() {
    let fake = fake();
    let mut written = buffer(&fake, &[10], 0);

    let panicked = catch_unwind(AssertUnwindSafe(|| {
        fake.launch(0, &[], &mut [written.as_span_mut()], |_, writes| {
            writes[0][0] = 1;
            panic!("kernel");
        })
    }));

    assert!(panicked.is_err());
    assert_eq!(written.to_vec().unwrap(), [10]);
}

#[test]
fn a_kernel_can_not_write_past_a_range_nor_make_it_shorter() {
    let fake = fake();
    let mut longer = buffer(&fake, &[10, 20, 30], 0);
    let mut shorter = buffer(&fake, &[10, 20, 30], 0);

    let part = longer.as_span_mut().into_subspan(0, 2).unwrap();
    fake.launch(0, &[], &mut [part, shorter.as_span_mut()], |_, writes| {
        writes[0] = vec![1, 2, 3, 4];
        writes[1] = vec![5];
    })
    .unwrap();

    assert_eq!(longer.to_vec().unwrap(), [1, 2, 30]);
    assert_eq!(shorter.to_vec().unwrap(), [5, 20, 30]);
    assert!(fake.violations().is_empty());
}

#[test]
fn once_the_driver_is_shut_down_nothing_runs() {
    let fake = FakeDevice::new(DeviceType::Cuda, 1);
    let mut written = buffer(&fake, &[10], 0);
    fake.shut_down();

    let mut ran = false;
    let failed = fake.launch(0, &[], &mut [written.as_span_mut()], |_, _| ran = true);

    assert!(failed.is_err_and(|error| error.is_shut_down()));
    assert!(!ran);
    assert!(!fake.calls().last().unwrap().succeeded);
}

#[test]
fn empty_ranges_are_empty_bytes() {
    let fake = fake();
    let empty = buffer(&fake, &[], 0);
    let mut written = buffer(&fake, &[10], 0);

    fake.launch(0, &[empty.as_span()], &mut [written.as_span_mut()], add)
        .unwrap();

    assert_eq!(written.to_vec().unwrap(), [10]);
}

#[test]
fn a_kernel_may_use_the_device_it_runs_on() {
    let fake = fake();
    let inner = fake.clone();

    fake.launch(0, &[], &mut [], |_, _| drop(buffer(&inner, &[1], 0)))
        .unwrap();

    fake.assert_clean();
}
