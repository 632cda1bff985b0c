//! Page-locked and managed memory, on the fake driver, a simulation.

use std::sync::Arc;
use std::thread;

use device_memory::backend::cuda::cudarc::driver::{CudaContext, CudaStream, result, sys};
use device_memory::backend::cuda::{CudaAllocator, CudaHostAllocator, CudaManagedAllocator};
use device_memory::{
    Device, DeviceAllocator, DeviceLayout, DeviceMemoryBuffer, DeviceType, ErrorKind,
};
use fakecuda::{FakeCuda, Schedule};

use crate::support::{
    FreeFailures, assert_all_given_back, assert_no_memory, bytes, contexts, driver, filled, layout,
    make_none_current, stream,
};

/// The two allocators of such memory, and the page-locked one write-combined.
fn each() -> [Arc<dyn DeviceAllocator>; 3] {
    let plain = CudaHostAllocator::open().unwrap();
    let combined = plain.write_combined();
    let managed = CudaManagedAllocator::open().unwrap();
    [Arc::new(plain), Arc::new(combined), Arc::new(managed)]
}

fn create(allocator: &Arc<dyn DeviceAllocator>, size: usize, index: u16) -> DeviceMemoryBuffer {
    DeviceMemoryBuffer::create_with(Arc::clone(allocator), layout(size), index).unwrap()
}

#[test]
fn the_host_reads_zeros_and_what_it_wrote() {
    let fake = driver(2);
    for allocator in each() {
        for index in [0, 1] {
            let mut buffer = create(&allocator, 100, index);
            assert_eq!(buffer.as_slice().unwrap(), [0; 100]);

            buffer.as_slice_mut().unwrap()[..3].copy_from_slice(b"abc");
            buffer.copy_from_host_at(3, b"def").unwrap();
            let clone = buffer.try_clone().unwrap();
            buffer.fill(9).unwrap();

            assert_eq!(&clone.as_slice().unwrap()[..8], b"abcdef\0\0");
            assert_eq!(buffer.to_vec().unwrap(), [9; 100]);
            assert_eq!(buffer.device().index(), index);
        }
    }
    assert_no_memory(&fake);
}

#[test]
fn copies_between_it_and_a_device_arrive_in_every_schedule() {
    let fake = driver(2);
    for schedule in Schedule::all(3) {
        fake.set_schedule(schedule);
        let device = CudaAllocator::open().unwrap();
        let on_stream = device.on_stream(&stream(0)).unwrap();
        for allocator in each() {
            for handle in [&device, &on_stream] {
                let mut shared = create(&allocator, 777, 0);
                shared.copy_from_host(&bytes(777)).unwrap();
                let mut there = filled(handle, &[0; 777], 0);

                there.copy_from(shared.as_span()).unwrap();
                // A copy that were still to read the source would read this.
                shared.fill(1).unwrap();
                assert_eq!(there.to_vec().unwrap(), bytes(777), "{schedule:?}");

                there.fill(5).unwrap();
                shared.copy_from(there.as_span()).unwrap();
                assert_eq!(shared.as_slice().unwrap(), [5; 777], "{schedule:?}");
            }
        }
        assert_no_memory(&fake);
    }
}

// https://github.com/chelsea0x3b/cudarc/issues/579
#[test]
fn page_locked_memory_is_plain_unless_write_combined_is_asked_for() {
    const PORTABLE: u32 = 1;
    const WRITE_COMBINED: u32 = 4;
    let fake = driver(1);
    let context = CudaContext::new(0).unwrap();
    let [plain, combined, _] = each();
    for (allocator, expected) in [(plain, PORTABLE), (combined, PORTABLE | WRITE_COMBINED)] {
        let buffer = create(&allocator, 64, 0);

        assert_eq!(flags_of(&buffer), expected);
    }
    drop(context);
    make_none_current();
    assert_no_memory(&fake);
}

#[expect(unsafe_code, reason = "calls the driver")]
fn flags_of(buffer: &DeviceMemoryBuffer) -> u32 {
    let address = buffer.as_slice().unwrap().as_ptr();
    let mut flags = 0;
    // SAFETY: the block is page-locked and alive.
    let asked = unsafe { sys::cuMemHostGetFlags(&raw mut flags, address.cast_mut().cast()) };
    asked.result().unwrap();
    flags
}

#[test]
fn alignments_up_to_256_are_given() {
    let fake = driver(1);
    for allocator in each() {
        for align in [1, 8, 64, 256] {
            let layout = DeviceLayout::new(100, align).unwrap();
            let buffer =
                DeviceMemoryBuffer::create_with(Arc::clone(&allocator), layout, 0).unwrap();

            assert!(buffer.ptr().is_aligned_to(align));
        }
    }
    assert_no_memory(&fake);
}

#[test]
fn too_much_is_out_of_memory_and_changes_nothing() {
    let fake = driver(1);
    fake.set_host_memory(1 << 20);
    for allocator in each() {
        let held = create(&allocator, 1 << 19, 0);
        for size in [(1 << 19) + 1, 1 << 40] {
            let layout = layout(size);
            let outcome = DeviceMemoryBuffer::create_with(Arc::clone(&allocator), layout, 0);

            let error = outcome.unwrap_err();
            assert_eq!(error.out_of_memory().unwrap().requested, size);
            let device_type = allocator.device_type();
            let text = format!("out of memory on {device_type}:0: {size} bytes requested");
            assert!(error.to_string().starts_with(&text), "{error}");
        }
        drop(create(&allocator, 1 << 18, 0));
        drop(held);
    }
    assert_no_memory(&fake);
}

#[test]
fn an_index_that_is_not_there_is_an_error_with_the_count() {
    let fake = driver(2);
    for allocator in each() {
        let outcomes = [
            allocator.allocate(layout(8), 2).map(drop),
            allocator.memory_info(2).map(drop),
            allocator.synchronize(2),
            allocator.trim(2).map(drop),
        ];
        for outcome in outcomes {
            let error = outcome.unwrap_err();
            let ErrorKind::InvalidDevice { device, count: 2 } = error.kind() else {
                panic!("{error:?}");
            };
            assert_eq!(*device, Device::new(allocator.device_type(), 2));
        }
    }
    assert_no_memory(&fake);
}

#[test]
fn it_is_freed_on_any_thread_and_contexts_stay_as_they_were() {
    let fake = driver(2);
    for allocator in each() {
        for current in [None, Some(0), Some(1)] {
            let buffers = [0, 1].map(|index| create(&allocator, 64, index));

            let thread = thread::spawn(move || {
                let fake = FakeCuda::install().unwrap();
                let other = current.map(|device| CudaContext::new(device).unwrap());
                let before = contexts(&fake);
                drop(buffers);
                assert_eq!(contexts(&fake), before);
                make_none_current();
                drop(other);
            });

            thread.join().unwrap();
            assert_no_memory(&fake);
        }
    }
}

#[test]
fn a_free_waits_for_work_of_the_device_that_reads_or_writes_it() {
    let fake = driver(1);
    fake.set_schedule(Schedule::Delayed);
    let device = CudaAllocator::open().unwrap();
    let there = filled(&device, &[3; 64], 0);
    for allocator in each() {
        let mut shared = create(&allocator, 64, 0);
        let stream = stream(0);
        enqueue_copy(&stream, &mut shared, &there);

        drop(shared);

        assert_eq!(fake.live().pending, 0);
    }
    drop(there);
    assert_no_memory(&fake);
}

/// Gives a stream a copy from the device to memory of the host that is page-locked,
/// without waiting for it.
#[expect(unsafe_code, reason = "calls the driver")]
fn enqueue_copy(stream: &Arc<CudaStream>, to: &mut DeviceMemoryBuffer, from: &DeviceMemoryBuffer) {
    stream.context().bind_to_thread().unwrap();
    let address = crate::support::address(from);
    let host = to.as_slice_mut().unwrap();
    // SAFETY: the memory is freed after the work, which is what is tested.
    unsafe { result::memcpy_dtoh_async(host, address, stream.cu_stream()) }.unwrap();
    make_none_current();
}

#[test]
fn a_failed_free_is_told_to_the_hook_and_to_no_other_call() {
    let fake = driver(1);
    let failures = FreeFailures::watch();
    let [plain, _, managed] = each();
    for (allocator, call) in [(plain, "cuMemFreeHost"), (managed, "cuMemFree_v2")] {
        let [first, second] = [(); 2].map(|()| create(&allocator, 64, 0));
        fake.fail(call, 1, 999);

        drop(first);

        let told = failures.take();
        assert_eq!(told.len(), 1);
        let text = format!("{call} returned 999 (UNKNOWN)");
        assert!(told[0].2.ends_with(&text), "{told:?}");
        assert_eq!(second.to_vec().unwrap(), [0; 64]);
        drop(second);
        assert_eq!(failures.take(), []);
        let live = fake.live();
        assert_eq!(
            live.pinned + live.managed,
            1 + usize::from(call != "cuMemFreeHost")
        );
    }
}

#[test]
fn clones_of_an_allocator_share_its_devices_and_give_all_back() {
    let fake = driver(2);
    let plain = CudaHostAllocator::open().unwrap();
    let combined = plain.write_combined();
    let handle: Arc<dyn DeviceAllocator> = Arc::new(combined.clone());
    let buffer = create(&handle, 64, 1);
    assert_eq!(fake.live().primary_retains(), 1);

    drop((plain, combined, handle));

    assert_eq!(buffer.as_slice().unwrap(), [0; 64]);
    assert_eq!(buffer.device().device_type(), DeviceType::CudaHost);
    drop(buffer);
    assert_all_given_back(&fake);
}
