//! What the allocator of device memory promises, on the fake driver, a simulation.

#![expect(unsafe_code, reason = "calls an unsafe trait")]

use std::sync::Arc;

use device_memory::backend::cuda::CudaAllocator;
use device_memory::{
    Device, DeviceAllocator, DeviceLayout, DeviceMemoryBuffer, DeviceType, Error, ErrorKind,
    MemoryInfo, Operation,
};
use fakecuda::Schedule;

use crate::support::{
    CUDA_0, CUDA_1, address, assert_all_given_back, assert_no_memory, bytes, driver,
    each_operation, empty, filled, layout, registry, restart,
};

#[test]
fn bytes_survive_create_copy_clone_and_free_in_every_schedule_and_family() {
    let fake = driver(2);
    for pools in [true, false] {
        for schedule in Schedule::all(2) {
            restart(&fake, 2, pools);
            fake.set_schedule(schedule);
            let allocator = CudaAllocator::open().unwrap();
            let registry = registry(&allocator);
            for device in [CUDA_0, CUDA_1] {
                let content = bytes(1000);

                let mut buffer =
                    DeviceMemoryBuffer::create_in(&registry, layout(1000), device).unwrap();
                buffer.copy_from_host(&content).unwrap();
                let clone = buffer.try_clone().unwrap();
                buffer.fill(7).unwrap();
                buffer.copy_from_host_at(3, b"abc").unwrap();

                assert_eq!(clone.to_vec().unwrap(), content);
                let mut expected = vec![7; 1000];
                expected[3..6].copy_from_slice(b"abc");
                assert_eq!(buffer.to_vec().unwrap(), expected);
                assert_eq!(clone.device(), device);
                clone.free().unwrap();
                drop(buffer);
                assert_no_memory(&fake);
            }
            drop((allocator, registry));
            assert_all_given_back(&fake);
        }
    }
}

#[test]
fn any_alignment_is_given_and_its_whole_block_freed() {
    let fake = driver(1);
    for pools in [true, false] {
        restart(&fake, 1, pools);
        let allocator = CudaAllocator::open().unwrap();
        for shift in 0..=20 {
            let align = 1 << shift;
            for size in [1, 300, 5000] {
                let layout = DeviceLayout::new(size, align).unwrap();
                let content = bytes(size);

                let handle = Arc::new(allocator.clone());
                let mut buffer = DeviceMemoryBuffer::create_with(handle, layout, 0).unwrap();
                buffer.copy_from_host(&content).unwrap();

                assert!(buffer.ptr().is_aligned_to(align), "{align}");
                assert_eq!(buffer.to_vec().unwrap(), content);
                let padding = align.max(256) - 256;
                assert_eq!(fake.live().device_bytes(), size + padding);
                drop(buffer);
                assert_no_memory(&fake);
            }
        }
        let shown = format!("{allocator:?}");
        assert!(shown.contains("starts: Mutex { data: {} }"), "{shown}");
    }
}

#[test]
fn no_bytes_make_no_call_of_the_driver() {
    let fake = driver(1);
    let allocator = CudaAllocator::open().unwrap();
    fake.clear_calls();

    let mut none = empty(&allocator, 0, 0);
    none.copy_from_host(&[]).unwrap();
    none.fill(1).unwrap();
    let mut clone = none.try_clone().unwrap();
    clone.copy_from(none.as_span()).unwrap();
    assert_eq!(none.to_vec().unwrap(), Vec::<u8>::new());
    none.free().unwrap();
    drop(clone);

    assert_eq!(fake.counts(), Vec::new());
}

#[test]
fn a_tebibyte_is_out_of_memory_with_the_numbers() {
    let fake = driver(2);
    for pools in [true, false] {
        restart(&fake, 2, pools);
        let registry = registry(&CudaAllocator::open().unwrap());

        let error = DeviceMemoryBuffer::create_in(&registry, layout(1 << 40), CUDA_1).unwrap_err();

        let report = error.out_of_memory().unwrap();
        assert_eq!((report.device, report.requested), (CUDA_1, 1 << 40));
        assert_eq!(
            (report.device_free, report.device_total),
            (Some(4 << 30), Some(4 << 30))
        );
        assert_eq!(error.code(), 0x21);
        assert_eq!(
            error.to_string(),
            "out of memory on cuda:1: 1099511627776 bytes requested (align 64), \
             4294967296 of 4294967296 free on the device"
        );
        assert!(DeviceMemoryBuffer::create_in(&registry, layout(64), CUDA_1).is_ok());
        assert_no_memory(&fake);
    }
}

// A driver may refuse a size that it can not have for its value.
#[test]
fn a_size_beyond_the_device_is_out_of_memory_whatever_the_driver_calls_it() {
    let fake = driver(1);
    for (pools, call) in [(true, "cuMemAllocAsync"), (false, "cuMemAlloc_v2")] {
        restart(&fake, 1, pools);
        let allocator = CudaAllocator::open().unwrap();
        let total = allocator.memory_info(0).unwrap().unwrap().total;
        let failed = |size| {
            fake.fail(call, 1, 1);
            allocator.allocate(layout(size), 0).unwrap_err()
        };

        let beyond = failed(total + 1);
        let within = failed(total);

        assert_eq!(beyond.out_of_memory().unwrap().device_total, Some(total));
        assert!(!within.is_out_of_memory(), "{within}");
        assert!(within.to_string().contains("INVALID_VALUE"), "{within}");
        drop(allocator);
        assert_all_given_back(&fake);
    }
}

#[test]
fn what_is_in_use_is_missing_from_the_report() {
    let fake = driver(1);
    let allocator = CudaAllocator::open().unwrap();
    let held = empty(&allocator, 3 << 30, 0);

    let handle = Arc::new(allocator.clone());
    let error = DeviceMemoryBuffer::create_with(handle, layout(2 << 30), 0).unwrap_err();

    assert_eq!(error.out_of_memory().unwrap().device_free, Some(1 << 30));
    drop(held);
    drop(empty(&allocator, 2 << 30, 0));
    assert_no_memory(&fake);
}

#[test]
fn the_largest_layouts_are_out_of_memory_and_nothing_wraps() {
    let fake = driver(1);
    let allocator = CudaAllocator::open().unwrap();
    let most = isize::MAX as usize;
    for align in [1, 64, 512, 1 << 20] {
        let layout = DeviceLayout::new(most - (align - 1), align).unwrap();

        let handle = Arc::new(allocator.clone());
        let error = DeviceMemoryBuffer::create_with(handle, layout, 0).unwrap_err();

        let report = error.out_of_memory().unwrap();
        assert_eq!((report.requested, report.align), (layout.size(), align));
        assert_eq!(fake.live().device_blocks(), 0);
    }
    assert_no_memory(&fake);
}

// https://github.com/NVlabs/cuda-oxide/pull/252
#[test]
fn a_length_that_overflows_makes_no_call_of_the_driver() {
    let fake = driver(1);
    fake.clear_calls();

    for error in [
        DeviceMemoryBuffer::create_array::<u64>(usize::MAX / 8 + 2, DeviceType::Cuda, 0),
        DeviceMemoryBuffer::create_array::<u64>(usize::MAX, DeviceType::Cuda, 0),
        DeviceMemoryBuffer::create(usize::MAX, DeviceType::Cuda, 0),
    ] {
        assert!(matches!(error.unwrap_err().kind(), ErrorKind::Layout(_)));
    }

    assert_eq!(fake.counts(), Vec::new());
}

#[test]
fn an_index_that_is_not_there_is_an_error_of_every_operation() {
    let fake = driver(2);
    let allocator = CudaAllocator::open().unwrap();
    let mut buffer = empty(&allocator, 64, 0);
    let (ptr, at) = (buffer.ptr(), [2, 3, u16::MAX]);
    fake.clear_calls();

    for index in at {
        let mut outcomes = each_operation(&allocator, index, ptr);
        let next = ptr.checked_add(8).unwrap();
        // SAFETY: it is refused, and the ranges do not overlap.
        let from_there = unsafe { allocator.copy_device_to_device(ptr, 0, next, index, 8) };
        outcomes.push((Operation::CopyDeviceToDevice, from_there));
        for (_, outcome) in outcomes {
            let error = outcome.unwrap_err();
            let device = Device::new(DeviceType::Cuda, index);
            let ErrorKind::InvalidDevice {
                device: found,
                count: 2,
            } = error.kind()
            else {
                panic!("{error:?}");
            };
            assert_eq!(*found, device);
        }
    }

    assert_eq!(fake.counts(), Vec::new());
    buffer.fill(1).unwrap();
    drop(buffer);
    assert_no_memory(&fake);
}

#[test]
fn copies_between_devices_arrive_with_and_without_peer_access() {
    let fake = driver(2);
    for peers in [true, false] {
        for pools in [true, false] {
            for schedule in Schedule::all(1) {
                restart(&fake, 2, pools);
                fake.set_peer_access(peers);
                fake.set_schedule(schedule);
                let allocator = CudaAllocator::open().unwrap();
                let registry = registry(&allocator);
                let content = bytes(777);
                let from = DeviceMemoryBuffer::from_host_in(&registry, &content, CUDA_0).unwrap();
                let mut to = DeviceMemoryBuffer::create_in(&registry, layout(777), CUDA_1).unwrap();

                to.copy_from(from.as_span()).unwrap();

                assert_eq!(to.to_vec().unwrap(), content);
                assert_eq!(fake.count("cuMemcpyPeerAsync"), 1);
                drop((from, to));
                assert_no_memory(&fake);
            }
        }
    }
}

#[test]
fn copies_between_two_allocators_go_through_the_host() {
    let fake = driver(2);
    fake.set_schedule(Schedule::Delayed);
    let [first, second] = [(); 2].map(|()| CudaAllocator::open().unwrap());
    let content = bytes(100_000);
    let from = filled(&first, &content, 0);
    for index in [0, 1] {
        let mut to = empty(&second, content.len(), index);

        to.copy_from(from.as_span()).unwrap();

        assert_eq!(to.to_vec().unwrap(), content);
    }
    assert_eq!(fake.count("cuMemcpyPeerAsync"), 0);
    drop(from);
    assert_no_memory(&fake);
}

#[test]
fn memory_info_counts_what_is_allocated_and_returns_to_where_it_was() {
    let fake = driver(2);
    for pools in [true, false] {
        restart(&fake, 2, pools);
        fake.set_device_memory(1, 1 << 20);
        let allocator = CudaAllocator::open().unwrap();
        let total = 1 << 20;

        let before = allocator.memory_info(1).unwrap();
        let buffer = empty(&allocator, 1 << 16, 1);
        let during = allocator.memory_info(1).unwrap();
        drop(buffer);
        allocator.synchronize(1).unwrap();
        let after = allocator.memory_info(1).unwrap();

        assert_eq!(before, Some(MemoryInfo { free: total, total }));
        let free = total - (1 << 16);
        assert_eq!(during, Some(MemoryInfo { free, total }));
        assert_eq!(after, before);
        assert_no_memory(&fake);
    }
}

#[test]
fn synchronize_waits_for_all_work_of_the_device_it_is_told() {
    let fake = driver(2);
    fake.set_schedule(Schedule::Delayed);
    let allocator = CudaAllocator::open().unwrap();
    let buffers = [0, 1].map(|index| empty(&allocator, 64, index));
    let streams = [0, 1].map(crate::support::stream);
    for (buffer, stream) in buffers.iter().zip(&streams) {
        crate::support::enqueue_write(stream, address(buffer), 3, 64);
    }

    allocator.synchronize(1).unwrap();

    assert_eq!(fake.live().pending, 1);
    assert_eq!(fake.read(address(&buffers[1]), 64), Some(vec![3; 64]));
    allocator.synchronize(0).unwrap();
    assert_eq!(fake.read(address(&buffers[0]), 64), Some(vec![3; 64]));
}

// https://github.com/chelsea0x3b/cudarc/issues/160
#[test]
fn a_buffer_outlives_the_registry_and_every_other_handle() {
    let fake = driver(1);
    let allocator = CudaAllocator::open().unwrap();
    let registry = registry(&allocator);
    let buffer = DeviceMemoryBuffer::from_host_in(&registry, b"kept", CUDA_0).unwrap();

    drop((registry, allocator));

    assert_eq!(buffer.to_vec().unwrap(), b"kept");
    assert_eq!(fake.live().primary_retains(), 1);
    drop(buffer);
    assert_all_given_back(&fake);
}

#[test]
fn the_host_can_not_reach_the_memory() -> Result<(), Error> {
    let _fake = driver(1);
    let allocator = CudaAllocator::open()?;
    let mut buffer = empty(&allocator, 64, 0);

    let shared = buffer.as_slice().map(drop).unwrap_err();
    let exclusive = buffer.as_slice_mut().map(|_| ()).unwrap_err();

    assert!(!allocator.is_host_accessible());
    assert!(shared.is_not_supported() && exclusive.is_not_supported());
    Ok(())
}
