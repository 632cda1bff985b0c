//! The owner of memory: making, moving, copying, freeing.

#![cfg(feature = "testing")]
#![expect(
    unsafe_code,
    reason = "allocators that break their promises, and round trips through raw parts"
)]

#[macro_use]
#[path = "support/forward.rs"]
mod forward;

use std::cell::RefCell;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;

use device_memory::testing::{
    Call, Exhaustion, FakeDevice, FaultInjector, fail_each_call, panic_each_call,
};
use device_memory::{
    AllocatorFault, AllocatorHandle, Device, DeviceAllocator, DeviceAllocatorRegistry, DeviceIndex,
    DeviceLayout, DeviceMemoryBuffer, DevicePtr, DeviceSpan, DeviceSpanMut, DeviceTensor,
    DeviceType, Error, ErrorKind, FreeError, HierarchicalAllocator, HostAllocator, LayoutError,
    MemoryPlan, Operation, PlannedMemory, RawDeviceMemory, Result, TensorView, TensorViewMut,
};
use proptest::prelude::*;

const CUDA: DeviceType = DeviceType::Cuda;
const CUDA_0: Device = Device::new(CUDA, 0);
const CUDA_1: Device = Device::new(CUDA, 1);

/// Asks the address sanitizer, where the test is built with it, to refuse an
/// allocation that is too large instead of stopping the process.
#[unsafe(no_mangle)]
extern "C" fn __asan_default_options() -> *const std::ffi::c_char {
    c"allocator_may_return_null=1".as_ptr()
}

fn layout(size: usize) -> DeviceLayout {
    DeviceLayout::from_size(size).unwrap()
}

/// Two devices, and a registry that knows them.
fn rig() -> (FakeDevice, DeviceAllocatorRegistry) {
    let fake = FakeDevice::new(CUDA, 2);
    let registry = DeviceAllocatorRegistry::new();
    registry.register(Arc::new(fake.clone())).unwrap();
    (fake, registry)
}

/// A buffer of `bytes` on `cuda:index` of the fake.
fn filled(fake: &FakeDevice, bytes: &[u8], index: DeviceIndex) -> DeviceMemoryBuffer {
    let allocator = Arc::new(fake.clone());
    let mut buffer =
        DeviceMemoryBuffer::create_with(allocator, layout(bytes.len()), index).unwrap();
    buffer.copy_from_host(bytes).unwrap();
    buffer
}

/// A type of device that no other test of this process registers.
fn own_type() -> DeviceType {
    static NEXT: AtomicU8 = AtomicU8::new(0);
    DeviceType::Custom(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A fake that the global registry knows under a type of its own.
fn global_fake() -> (FakeDevice, DeviceType) {
    let device_type = own_type();
    let fake = FakeDevice::new(device_type, 2);
    let registry = DeviceAllocatorRegistry::global();
    registry.register(Arc::new(fake.clone())).unwrap();
    (fake, device_type)
}

fn operations(fake: &FakeDevice) -> Vec<Operation> {
    fake.calls().iter().map(|call| call.operation).collect()
}

fn last_call(fake: &FakeDevice) -> Call {
    *fake.calls().last().unwrap()
}

/// The addresses that were given back, in that order.
fn freed(fake: &FakeDevice) -> Vec<DevicePtr> {
    let calls = fake.calls();
    let frees = calls
        .iter()
        .filter(|call| call.operation == Operation::Deallocate);
    frees.filter_map(|call| call.ptr).collect()
}

/// Zeroes, ones, twos and so on.
fn pattern(len: usize) -> Vec<u8> {
    (0..=u8::MAX).cycle().take(len).collect()
}

#[test]
fn what_may_cross_threads_does() {
    fn crosses<T: Send + Sync>() {}

    crosses::<DeviceMemoryBuffer>();
    crosses::<DeviceSpan<'_>>();
    crosses::<DeviceSpanMut<'_>>();
    crosses::<AllocatorHandle>();
    crosses::<DeviceAllocatorRegistry>();
    crosses::<DevicePtr>();
    crosses::<HierarchicalAllocator<'_>>();
    crosses::<PlannedMemory>();
    crosses::<MemoryPlan>();
    crosses::<DeviceTensor>();
    crosses::<TensorView<'_>>();
    crosses::<TensorViewMut<'_>>();
    crosses::<RawDeviceMemory>();
    crosses::<FreeError>();
    crosses::<Error>();
}

mod creation {
    use super::*;

    #[test]
    fn one_allocation_and_one_free_of_the_same_address_layout_and_index() {
        let (fake, registry) = rig();
        let layout = DeviceLayout::new(1024, 512).unwrap();

        let buffer = DeviceMemoryBuffer::create_in(&registry, layout, CUDA_1).unwrap();
        let ptr = buffer.ptr();
        assert_eq!((buffer.size(), buffer.is_empty()), (1024, false));
        assert_eq!((buffer.layout(), buffer.device()), (layout, CUDA_1));
        assert_eq!(buffer.allocator().device_type(), CUDA);
        drop(buffer);

        let calls = fake.calls();
        assert_eq!(
            operations(&fake),
            [Operation::Allocate, Operation::Deallocate]
        );
        for call in calls {
            assert_eq!((call.ptr, call.index), (Some(ptr), 1));
            assert_eq!((call.size, call.align), (1024, Some(512)));
        }
        fake.assert_clean();
    }

    #[test]
    fn the_alignment_is_the_default_where_none_is_asked_for() {
        let (fake, device_type) = global_fake();

        drop(DeviceMemoryBuffer::create(100, device_type, 0).unwrap());
        drop(DeviceMemoryBuffer::create_array::<u16>(50, device_type, 1).unwrap());

        for call in fake.calls() {
            assert_eq!((call.size, call.align), (100, Some(64)));
        }
        assert_eq!(fake.allocations(), 2);
        fake.assert_clean();
    }

    #[test]
    fn zeroed_memory_is_zero_on_a_device_that_starts_otherwise() {
        let (fake, device_type) = global_fake();

        let plain = DeviceMemoryBuffer::create(8, device_type, 1).unwrap();
        let zeroed = DeviceMemoryBuffer::create_zeroed(8, device_type, 1).unwrap();

        assert_eq!(fake.contents(plain.ptr(), 8), Some(vec![0xCD; 8]));
        assert_eq!(fake.contents(zeroed.ptr(), 8), Some(vec![0; 8]));
        assert_eq!(zeroed.device(), Device::new(device_type, 1));
    }

    #[test]
    fn host_bytes_arrive_on_the_device() {
        let (fake, device_type) = global_fake();

        let buffer = DeviceMemoryBuffer::from_host(b"weights", device_type, 1).unwrap();

        assert_eq!(fake.contents(buffer.ptr(), 7), Some(b"weights".to_vec()));
        assert_eq!(buffer.to_vec().unwrap(), b"weights");
        assert_eq!((buffer.size(), buffer.layout().align()), (7, 64));
    }

    #[test]
    fn no_registry_is_asked_where_the_allocator_is_given() {
        let fake = FakeDevice::new(own_type(), 1);
        let allocator: Arc<dyn DeviceAllocator> = Arc::new(fake.clone());

        let buffer = DeviceMemoryBuffer::create_with(allocator, layout(4), 0).unwrap();

        assert_eq!(buffer.device(), Device::new(fake.device_type(), 0));
        drop(buffer);
        fake.assert_clean();
    }

    #[test]
    fn a_type_that_nobody_serves_is_not_found() {
        let device_type = own_type();
        let device = Device::new(device_type, 0);
        let registry = DeviceAllocatorRegistry::new();

        for error in [
            DeviceMemoryBuffer::create(64, device_type, 0).unwrap_err(),
            DeviceMemoryBuffer::create_zeroed(64, device_type, 0).unwrap_err(),
            DeviceMemoryBuffer::from_host(b"abc", device_type, 0).unwrap_err(),
            DeviceMemoryBuffer::create_array::<u8>(64, device_type, 0).unwrap_err(),
            DeviceMemoryBuffer::create_in(&registry, layout(64), device).unwrap_err(),
            DeviceMemoryBuffer::create(0, device_type, 0).unwrap_err(),
        ] {
            assert!(error.is_not_registered());
            assert_eq!(error.code(), 0x20);
            assert!(matches!(
                error.kind(),
                ErrorKind::NotRegistered { device_type: found } if *found == device_type
            ));
        }
    }

    // https://github.com/rapidsai/rmm/issues/1342
    #[test]
    fn an_index_that_does_not_exist_is_an_error_and_never_another_device() {
        let (fake, registry) = rig();

        for index in [2, 99, u16::MAX] {
            let device = Device::new(CUDA, index);
            for size in [0, 64] {
                let error =
                    DeviceMemoryBuffer::create_in(&registry, layout(size), device).unwrap_err();

                assert!(matches!(
                    error.kind(),
                    ErrorKind::InvalidDevice { device: found, count: 2 } if *found == device
                ));
                assert_eq!(error.code(), 0x12);
            }
        }
        assert_eq!((fake.allocations(), fake.live_blocks()), (0, 0));
    }

    // https://github.com/NVlabs/cuda-oxide/pull/252
    #[test]
    fn a_length_that_overflows_reaches_no_allocator() {
        let (fake, device_type) = global_fake();
        let largest = isize::MAX.unsigned_abs();

        for error in [
            DeviceMemoryBuffer::create_array::<u64>(usize::MAX / 8 + 2, device_type, 0),
            DeviceMemoryBuffer::create_array::<u64>(largest / 8 + 1, device_type, 0),
            DeviceMemoryBuffer::create_array::<[u8; 3]>(usize::MAX, device_type, 0),
            DeviceMemoryBuffer::create(usize::MAX, device_type, 0),
            DeviceMemoryBuffer::create(largest, device_type, 0),
            DeviceMemoryBuffer::create_zeroed(usize::MAX - 63, device_type, 0),
        ] {
            let error = error.unwrap_err();

            assert!(matches!(
                error.kind(),
                ErrorKind::Layout(LayoutError::SizeOverflow { .. })
            ));
            assert_eq!(error.code(), 0x12);
        }
        assert_eq!(fake.calls(), []);
    }

    #[test]
    fn no_room_is_out_of_memory_with_the_numbers_and_changes_nothing() {
        let fake = FakeDevice::builder(CUDA).capacity(100).build();
        let allocator = AllocatorHandle::from(Arc::new(fake.clone()));
        let held = DeviceMemoryBuffer::create_with(allocator.clone(), layout(40), 0).unwrap();

        let error = DeviceMemoryBuffer::create_with(allocator, layout(61), 0).unwrap_err();

        assert!(error.is_out_of_memory());
        assert_eq!(error.code(), 0x21);
        let report = error.out_of_memory().unwrap();
        assert_eq!((report.device, report.requested), (CUDA_0, 61));
        assert_eq!(
            (report.device_free, report.device_total),
            (Some(60), Some(100))
        );
        assert_eq!((fake.live_blocks(), fake.live_bytes()), (1, 40));
        drop(held);
        fake.assert_clean();
    }

    #[test]
    fn the_host_out_of_memory_is_an_error_too() {
        let size = isize::MAX.unsigned_abs() - 63;

        let error = DeviceMemoryBuffer::create(size, DeviceType::Cpu, 0).unwrap_err();

        assert!(error.is_out_of_memory());
        assert_eq!(error.out_of_memory().unwrap().requested, size);
        assert_eq!(error.out_of_memory().unwrap().device, Device::CPU);
    }

    #[test]
    fn an_allocator_s_own_error_comes_through_unchanged() {
        let fake = FakeDevice::new(CUDA, 1);
        fake.shut_down();

        let error =
            DeviceMemoryBuffer::create_with(Arc::new(fake.clone()), layout(8), 0).unwrap_err();

        assert!(error.is_shut_down());
        assert_eq!(fake.live_blocks(), 0);
    }

    #[test]
    fn host_memory_is_there_without_registration_and_zeroed() {
        let buffer = DeviceMemoryBuffer::create(4096, DeviceType::Cpu, 0).unwrap();

        assert_eq!(buffer.as_slice().unwrap(), [0; 4096]);
        assert!(buffer.allocator().is_host_accessible());
        assert!(matches!(
            DeviceMemoryBuffer::create(8, DeviceType::Cpu, 1)
                .unwrap_err()
                .kind(),
            ErrorKind::InvalidDevice { count: 1, .. }
        ));
    }

    #[test]
    fn blocks_larger_than_four_gibibytes_have_their_size() {
        // https://github.com/tensorflow/tensorflow/pull/27358
        let (fake, registry) = rig();
        let size = (5 << 30) + 3;
        let mut buffer = DeviceMemoryBuffer::create_in(&registry, layout(size), CUDA_0).unwrap();

        buffer.fill(1).unwrap();
        buffer.copy_from_host_at(size - 2, &[8, 9]).unwrap();
        let mut tail = [0; 3];
        buffer.copy_to_host_at(size - 3, &mut tail).unwrap();

        assert_eq!((buffer.size(), tail), (size, [1, 8, 9]));
        assert!(buffer.copy_from_host_at(size - 1, &[8, 9]).is_err());
        drop(buffer);
        fake.assert_clean();
    }

    #[test]
    fn the_debug_text_says_where_it_is() {
        let fake = FakeDevice::new(CUDA, 1);
        let buffer = filled(&fake, &[0; 48], 0);

        assert_eq!(
            format!("{buffer:?}"),
            format!(
                "DeviceMemoryBuffer {{ device: cuda:0, ptr: {}, size: 48, align: 64, .. }}",
                buffer.ptr()
            )
        );
        assert_eq!(
            format!("{:?}", buffer.as_span()),
            format!(
                "DeviceSpan {{ device: cuda:0, ptr: {}, len: 48 }}",
                buffer.ptr()
            )
        );
    }
}

mod default_buffers {
    use super::*;

    #[test]
    fn one_is_empty_on_the_host_and_asks_no_allocator() {
        let mut buffer = DeviceMemoryBuffer::default();

        assert_eq!((buffer.size(), buffer.is_empty()), (0, true));
        assert_eq!(buffer.device(), Device::CPU);
        assert!(buffer.as_span().is_empty());
        assert_eq!(buffer.as_slice().unwrap(), b"");
        assert_eq!(buffer.as_slice_mut().unwrap(), b"");
        assert_eq!(buffer.to_vec().unwrap(), b"");
        buffer.fill(3).unwrap();
        buffer.copy_from_host(&[]).unwrap();
        assert!(buffer.copy_from_host(&[1]).is_err());
        assert!(buffer.try_clone().unwrap().is_empty());
        buffer.free().unwrap();
    }
}

mod no_bytes {
    use super::*;

    // https://github.com/chelsea0x3b/cudarc/issues/194
    #[test]
    fn nothing_reaches_the_allocator_from_creation_to_drop() {
        let (fake, registry) = rig();
        for align in [1, 64, 4096, 1 << 30] {
            let layout = DeviceLayout::new(0, align).unwrap();
            let mut buffer = DeviceMemoryBuffer::create_in(&registry, layout, CUDA_1).unwrap();

            assert!(buffer.is_empty());
            assert_eq!((buffer.layout(), buffer.device()), (layout, CUDA_1));
            assert!(buffer.ptr().is_aligned_to(align));
            buffer.copy_from_host(&[]).unwrap();
            buffer.copy_to_host(&mut []).unwrap();
            buffer.copy_from_host_at(0, &[]).unwrap();
            buffer.copy_to_host_at(0, &mut []).unwrap();
            buffer.fill(1).unwrap();
            assert_eq!(buffer.to_vec().unwrap(), b"");
            assert_eq!(buffer.as_slice().unwrap(), b"");
            assert_eq!(buffer.as_slice_mut().unwrap(), b"");
            let other = buffer.try_clone().unwrap();
            buffer.copy_from(other.as_span()).unwrap();
            buffer
                .copy_from(DeviceMemoryBuffer::default().as_span())
                .unwrap();
            assert!(buffer.as_span().subspan(0, 0).unwrap().is_empty());
            buffer.free().unwrap();
        }

        assert_eq!(fake.calls(), []);
    }

    #[test]
    fn every_constructor_takes_them() {
        let (fake, device_type) = global_fake();
        let device = Device::new(device_type, 1);

        for buffer in [
            DeviceMemoryBuffer::create(0, device_type, 1),
            DeviceMemoryBuffer::create_zeroed(0, device_type, 1),
            DeviceMemoryBuffer::from_host(&[], device_type, 1),
            DeviceMemoryBuffer::create_array::<u64>(0, device_type, 1),
            DeviceMemoryBuffer::create_array::<()>(9, device_type, 1),
            DeviceMemoryBuffer::create_with(Arc::new(fake.clone()), layout(0), 1),
        ] {
            let buffer = buffer.unwrap();

            assert_eq!((buffer.size(), buffer.device()), (0, device));
        }
        assert_eq!(fake.calls(), []);
    }

    #[test]
    fn copies_of_none_to_and_from_a_full_buffer_are_no_calls() {
        let fake = FakeDevice::new(CUDA, 1);
        let mut buffer = filled(&fake, &[1, 2, 3, 4], 0);
        let before = fake.calls().len();

        for offset in [0, 2, 4] {
            buffer.copy_from_host_at(offset, &[]).unwrap();
            buffer.copy_to_host_at(offset, &mut []).unwrap();
        }
        assert!(buffer.copy_from_host_at(5, &[]).is_err());
        assert!(buffer.copy_to_host_at(5, &mut []).is_err());

        assert_eq!(fake.calls().len(), before);
        assert_eq!(buffer.to_vec().unwrap(), [1, 2, 3, 4]);
    }

    #[test]
    fn a_driver_that_is_shut_down_is_not_noticed() {
        let (fake, registry) = rig();
        fake.shut_down();

        let buffer = DeviceMemoryBuffer::create_in(&registry, layout(0), CUDA_0).unwrap();

        buffer.free().unwrap();
        assert_eq!(fake.calls(), []);
    }
}

mod moves {
    use super::*;

    #[test]
    fn a_buffer_that_moved_is_the_same_memory_and_is_freed_once() {
        fn pass(buffer: DeviceMemoryBuffer) -> DeviceMemoryBuffer {
            buffer
        }
        let fake = FakeDevice::new(CUDA, 2);
        let buffer = filled(&fake, b"moved", 1);
        let (ptr, layout) = (buffer.ptr(), buffer.layout());

        let boxed = Box::new(pass(buffer));
        let moved = pass(*boxed);

        assert_eq!((moved.ptr(), moved.layout()), (ptr, layout));
        assert_eq!(moved.device(), CUDA_1);
        assert_eq!(moved.to_vec().unwrap(), b"moved");
        assert_eq!(fake.deallocations(), 0);
        drop(moved);
        assert_eq!(freed(&fake), [ptr]);
        fake.assert_clean();
    }

    // https://github.com/kokkos/kokkos/issues/3817
    #[test]
    fn an_assignment_over_a_live_buffer_makes_the_new_and_then_frees_the_old_once() {
        let fake = FakeDevice::new(CUDA, 1);
        let mut buffer = filled(&fake, &[1], 0);
        let old = buffer.ptr();
        fake.clear_calls();

        buffer = filled(&fake, &[2], 0);

        assert_eq!(
            operations(&fake),
            [
                Operation::Allocate,
                Operation::CopyHostToDevice,
                Operation::Deallocate
            ]
        );
        assert_eq!(freed(&fake), [old]);
        assert_eq!(buffer.to_vec().unwrap(), [2]);
        drop(buffer);
        fake.assert_clean();
    }

    #[test]
    fn a_failed_assignment_leaves_the_old_buffer() {
        let fake = FakeDevice::builder(CUDA).capacity(8).build();
        let mut buffer = filled(&fake, &[1; 8], 0);

        let failed = DeviceMemoryBuffer::create_with(Arc::new(fake.clone()), layout(1), 0);
        if let Ok(new) = failed {
            buffer = new;
        }

        assert_eq!(buffer.to_vec().unwrap(), [1; 8]);
        assert_eq!(fake.deallocations(), 0);
    }

    #[test]
    fn swap_frees_nothing_and_exchanges_the_memory() {
        let fake = FakeDevice::new(CUDA, 2);
        let mut a = filled(&fake, &[1], 0);
        let mut b = filled(&fake, &[2, 2], 1);
        let (of_a, of_b) = (a.ptr(), b.ptr());

        std::mem::swap(&mut a, &mut b);

        assert_eq!(fake.deallocations(), 0);
        assert_eq!((a.ptr(), a.size(), a.device()), (of_b, 2, CUDA_1));
        assert_eq!((b.ptr(), b.size(), b.device()), (of_a, 1, CUDA_0));
        drop(a);
        assert_eq!(freed(&fake), [of_b]);
        drop(b);
        fake.assert_clean();
    }

    #[test]
    fn replace_and_take_leave_an_empty_buffer_that_frees_nothing() {
        let fake = FakeDevice::new(CUDA, 1);
        let mut first = filled(&fake, &[1], 0);
        let mut second = filled(&fake, &[2], 0);

        #[expect(clippy::mem_replace_with_default, reason = "both ways are under test")]
        let replaced = std::mem::replace(&mut first, DeviceMemoryBuffer::default());
        let taken = std::mem::take(&mut second);

        drop((first, second));
        assert_eq!(fake.deallocations(), 0);
        assert_eq!(replaced.to_vec().unwrap(), [1]);
        assert_eq!(taken.to_vec().unwrap(), [2]);
        drop((replaced, taken));
        assert_eq!(fake.deallocations(), 2);
        fake.assert_clean();
    }

    #[test]
    fn an_option_that_is_taken_from_frees_nothing_again() {
        let fake = FakeDevice::new(CUDA, 1);
        let mut slot = Some(filled(&fake, &[1], 0));

        drop(slot.take());
        assert_eq!(fake.deallocations(), 1);
        slot = None;

        assert!(slot.is_none());
        assert_eq!(fake.deallocations(), 1);
    }

    #[test]
    fn a_vector_frees_each_in_its_order() {
        let fake = FakeDevice::new(CUDA, 1);
        let buffers: Vec<_> = (0..4).map(|byte| filled(&fake, &[byte], 0)).collect();
        let addresses: Vec<_> = buffers.iter().map(DeviceMemoryBuffer::ptr).collect();

        drop(buffers);

        assert_eq!(freed(&fake), addresses);
        fake.assert_clean();
    }
}

mod drops {
    use super::*;

    // https://github.com/EricLBuehler/mistral.rs/pull/1428
    #[test]
    fn a_fresh_thread_frees_on_the_device_of_creation() {
        let fake = FakeDevice::new(CUDA, 2);
        let buffer = filled(&fake, &[1; 8], 1);
        let ptr = buffer.ptr();

        let dropper = thread::spawn(move || {
            drop(buffer);
            thread::current().id()
        });
        let dropper = dropper.join().unwrap();

        let call = last_call(&fake);
        assert_eq!(
            (call.operation, call.ptr),
            (Operation::Deallocate, Some(ptr))
        );
        assert_eq!((call.index, call.thread), (1, dropper));
        fake.assert_clean();
    }

    #[test]
    fn the_destructor_of_a_thread_local_frees_once() {
        thread_local! {
            static HELD: RefCell<Option<DeviceMemoryBuffer>> = const { RefCell::new(None) };
        }
        let fake = FakeDevice::new(CUDA, 1);
        let buffer = filled(&fake, &[1; 8], 0);

        let keeper = thread::spawn(|| HELD.with(|held| *held.borrow_mut() = Some(buffer)));
        keeper.join().unwrap();

        assert_eq!(fake.deallocations(), 1);
        fake.assert_clean();
    }

    #[test]
    fn a_panic_of_the_user_frees_while_unwinding() {
        let fake = FakeDevice::new(CUDA, 1);

        let caught = catch_unwind(AssertUnwindSafe(|| {
            let _buffer = filled(&fake, &[1], 0);
            resume_unwind(Box::new("user"));
        }));

        assert_eq!(caught.unwrap_err().downcast_ref(), Some(&"user"));
        assert_eq!(fake.deallocations(), 1);
        fake.assert_clean();
    }

    // https://github.com/chelsea0x3b/cudarc/issues/160
    #[test]
    fn a_buffer_outlives_the_registry_and_every_other_handle() {
        struct Watched(FakeDevice, Arc<AtomicBool>);
        impl std::fmt::Debug for Watched {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
        impl Drop for Watched {
            fn drop(&mut self) {
                self.1.store(true, Ordering::SeqCst);
            }
        }
        // SAFETY: all calls are passed on to an allocator that keeps the promises.
        unsafe impl DeviceAllocator for Watched {
            fn device_type(&self) -> DeviceType {
                self.0.device_type()
            }
            fn device_count(&self) -> usize {
                self.0.device_count()
            }
            fn allocate(&self, layout: DeviceLayout, index: DeviceIndex) -> Result<DevicePtr> {
                self.0.allocate(layout, index)
            }
            unsafe fn deallocate(
                &self,
                ptr: DevicePtr,
                layout: DeviceLayout,
                index: DeviceIndex,
            ) -> Result<()> {
                assert!(
                    !self.1.load(Ordering::SeqCst),
                    "freed by a dropped allocator"
                );
                // SAFETY: the caller's promises are the same.
                unsafe { self.0.deallocate(ptr, layout, index) }
            }
            forward_copies!(0);
        }
        let fake = FakeDevice::new(CUDA, 1);
        let gone = Arc::new(AtomicBool::new(false));
        let allocator: Arc<dyn DeviceAllocator> =
            Arc::new(Watched(fake.clone(), Arc::clone(&gone)));
        let registry = DeviceAllocatorRegistry::new();
        registry.register(Arc::clone(&allocator)).unwrap();
        let buffer = DeviceMemoryBuffer::create_in(&registry, layout(64), CUDA_0).unwrap();

        drop(registry);
        drop(allocator);
        let alive = !gone.load(Ordering::SeqCst);
        drop(buffer);

        assert!(alive);
        assert!(gone.load(Ordering::SeqCst));
        assert_eq!(fake.deallocations(), 1);
        fake.assert_clean();
    }

    // https://github.com/rapidsai/rmm/issues/2366
    #[test]
    fn a_driver_that_is_shut_down_counts_as_freed() {
        let fake = FakeDevice::new(CUDA, 1);
        let first = filled(&fake, &[1], 0);
        let second = filled(&fake, &[1], 0);
        fake.shut_down();

        first.free().unwrap();
        drop(second);

        assert_eq!(fake.calls().len(), 6);
        assert_eq!(fake.violations().len(), 0);
    }
}

mod explicit_free {
    use super::*;

    #[test]
    fn it_frees_once_and_drop_frees_nothing_more() {
        let fake = FakeDevice::new(CUDA, 1);

        filled(&fake, &[1], 0).free().unwrap();

        assert_eq!(fake.deallocations(), 1);
        fake.assert_clean();
    }

    // https://github.com/bheisler/RustaCUDA/issues/48
    #[test]
    fn a_failure_gives_the_buffer_back_with_all_it_holds() {
        let fake = FakeDevice::new(CUDA, 2);
        let allocator = FaultInjector::new(fake.clone());
        let faults = allocator.faults();
        let mut buffer =
            DeviceMemoryBuffer::create_with(Arc::new(allocator), layout(4), 1).unwrap();
        buffer.copy_from_host(b"kept").unwrap();
        let ptr = buffer.ptr();
        faults.fail_nth(Operation::Deallocate, 1);

        let failure = buffer.free().unwrap_err();

        assert_eq!(failure.to_string(), failure.error.to_string());
        assert_eq!(
            failure.error.to_string(),
            "deallocate on cuda:1 failed: injected fault in call 3: deallocate"
        );
        assert!(std::error::Error::source(&failure).is_some());
        let buffer = failure.buffer;
        assert_eq!((buffer.ptr(), buffer.device()), (ptr, CUDA_1));
        assert_eq!(buffer.to_vec().unwrap(), b"kept");
        assert_eq!(fake.live_blocks(), 1);
        buffer.free().unwrap();
        fake.assert_clean();
    }

    #[test]
    fn a_panic_is_a_failure_that_gives_the_buffer_back() {
        let fake = FakeDevice::new(CUDA, 1);
        let allocator = FaultInjector::new(fake.clone());
        let faults = allocator.faults();
        let buffer = DeviceMemoryBuffer::create_with(Arc::new(allocator), layout(4), 0).unwrap();
        faults.panic_on(Operation::Deallocate, 1);

        let failure = buffer.free().unwrap_err();

        assert!(matches!(
            failure.error.kind(),
            ErrorKind::AllocatorPanicked {
                operation: Operation::Deallocate,
                ..
            }
        ));
        assert_eq!(fake.live_blocks(), 1);
        drop(failure);
        fake.assert_clean();
    }

    #[test]
    fn the_failure_as_an_error_keeps_the_reason_and_frees_once_more() {
        let fake = FakeDevice::new(CUDA, 1);
        let allocator = FaultInjector::new(fake.clone());
        let faults = allocator.faults();
        let buffer = DeviceMemoryBuffer::create_with(Arc::new(allocator), layout(4), 0).unwrap();
        faults.fail_nth(Operation::Deallocate, 1);

        let error = Error::from(buffer.free().unwrap_err());

        assert!(matches!(error.kind(), ErrorKind::Backend { .. }));
        fake.assert_clean();
    }
}

mod raw_parts {
    use super::*;

    // https://github.com/chelsea0x3b/cudarc/pull/516
    #[test]
    fn a_dissolved_owner_frees_nothing() {
        static FAKE: LazyLock<FakeDevice> = LazyLock::new(|| FakeDevice::new(CUDA, 2));
        let buffer = DeviceMemoryBuffer::create_with(&*FAKE, layout(64), 1).unwrap();
        let ptr = buffer.ptr();

        {
            let raw = buffer.into_raw();
            assert_eq!((raw.ptr(), raw.device()), (ptr, CUDA_1));
            assert_eq!(raw.layout(), layout(64));
            assert!(format!("{raw:?}").starts_with("RawDeviceMemory { device: cuda:1, ptr: 0x"));
        }

        assert_eq!((FAKE.deallocations(), FAKE.live_blocks()), (0, 1));
    }

    #[test]
    fn an_owner_made_again_frees_once() {
        let fake = FakeDevice::new(CUDA, 1);
        let buffer = filled(&fake, b"kept", 0);

        let raw = buffer.into_raw();
        // SAFETY: the memory is live and nothing else uses it.
        let buffer = unsafe { DeviceMemoryBuffer::from_raw(raw) };

        assert_eq!(buffer.to_vec().unwrap(), b"kept");
        drop(buffer);
        assert_eq!(fake.deallocations(), 1);
        fake.assert_clean();
    }

    #[test]
    fn an_address_given_away_lets_go_of_the_allocator_and_frees_nothing() {
        let allocator = Arc::new(FakeDevice::new(CUDA, 1));
        let buffer =
            DeviceMemoryBuffer::create_with(Arc::clone(&allocator), layout(64), 0).unwrap();
        let ptr = buffer.ptr();

        let given = buffer.into_raw().into_ptr();

        assert_eq!(given, ptr);
        assert_eq!(Arc::strong_count(&allocator), 1);
        assert_eq!((allocator.deallocations(), allocator.live_blocks()), (0, 1));
    }

    #[test]
    fn memory_of_the_host_goes_to_a_vec_and_comes_from_one() {
        let words = DeviceLayout::new(24, align_of::<u64>()).unwrap();
        let mut buffer = DeviceMemoryBuffer::create_with(&HostAllocator, words, 0).unwrap();
        buffer.as_slice_mut().unwrap()[8] = 7;
        let ptr = buffer.ptr();

        let start = buffer.into_raw().into_ptr().as_raw().cast::<u64>();
        // SAFETY: the block has the layout of three `u64`, is zeroed but for one
        // byte, and is owned by nothing else.
        let mut vec = unsafe { Vec::from_raw_parts(start, 3, 3) };
        vec[2] = 9;
        let mut vec = std::mem::ManuallyDrop::new(vec);
        assert_eq!(DevicePtr::from_raw(vec.as_mut_ptr().cast()), Some(ptr));
        // SAFETY: the vec is full, so its block has this layout, and it is not
        // dropped.
        let back = unsafe { DeviceMemoryBuffer::from_raw_parts(&HostAllocator, ptr, words, 0) };

        let bytes = [0, 7_u64.to_le(), 9].map(u64::to_ne_bytes).concat();
        assert_eq!(back.unwrap().to_vec().unwrap(), bytes);
    }

    #[test]
    fn an_empty_buffer_makes_the_round_trip() {
        let raw = DeviceMemoryBuffer::default().into_raw();

        // SAFETY: there is no memory.
        let buffer = unsafe { DeviceMemoryBuffer::from_raw(raw) };

        assert!(buffer.is_empty());
    }
}

mod copies {
    use super::*;

    #[test]
    fn whole_ones_are_one_call_with_the_address_size_and_index() {
        let (fake, registry) = rig();
        let mut buffer = DeviceMemoryBuffer::create_in(&registry, layout(64), CUDA_1).unwrap();
        let bytes = pattern(64);
        let mut read = vec![0; 64];

        buffer.copy_from_host(&bytes).unwrap();
        let write = last_call(&fake);
        buffer.copy_to_host(&mut read).unwrap();
        let back = last_call(&fake);

        assert_eq!(read, bytes);
        assert_eq!(write.operation, Operation::CopyHostToDevice);
        assert_eq!(back.operation, Operation::CopyDeviceToHost);
        for call in [write, back] {
            assert_eq!((call.ptr, call.size), (Some(buffer.ptr()), 64));
            assert_eq!(call.index, 1);
        }
        assert_eq!(fake.calls().len(), 3);
    }

    #[test]
    fn parts_touch_their_bytes_and_no_others() {
        let fake = FakeDevice::new(CUDA, 1);
        let mut buffer = filled(&fake, &[0; 8], 0);
        let mut part = [9; 3];

        buffer.copy_from_host_at(2, &[1, 2, 3]).unwrap();
        buffer.copy_to_host_at(3, &mut part).unwrap();

        assert_eq!(buffer.to_vec().unwrap(), [0, 0, 1, 2, 3, 0, 0, 0]);
        assert_eq!(part, [2, 3, 0]);
    }

    #[test]
    fn a_range_past_the_end_or_around_it_is_refused_before_the_allocator() {
        let fake = FakeDevice::new(CUDA, 1);
        let mut buffer = filled(&fake, &[5; 8], 0);
        let before = fake.calls().len();

        for (offset, size) in [
            (0, 9),
            (8, 1),
            (7, 2),
            (9, 0),
            (usize::MAX, 1),
            (usize::MAX, 0),
        ] {
            let write = buffer
                .copy_from_host_at(offset, &vec![1; size])
                .unwrap_err();
            let read = buffer
                .copy_to_host_at(offset, &mut vec![1; size])
                .unwrap_err();

            for error in [write, read] {
                assert!(matches!(
                    *error.kind(),
                    ErrorKind::OutOfBounds { device: CUDA_0, offset: o, size: s, len: 8 }
                        if (o, s) == (offset, size)
                ));
            }
        }

        assert_eq!(fake.calls().len(), before);
        assert_eq!(buffer.to_vec().unwrap(), [5; 8]);
    }

    #[test]
    fn a_length_that_differs_is_refused_before_the_allocator() {
        let fake = FakeDevice::new(CUDA, 1);
        let mut buffer = filled(&fake, &[5; 8], 0);
        let other = filled(&fake, &[6; 7], 0);
        let before = fake.calls().len();

        for error in [
            buffer.copy_from_host(&[1; 7]).unwrap_err(),
            buffer.copy_to_host(&mut [1; 7]).unwrap_err(),
            buffer.copy_from(other.as_span()).unwrap_err(),
        ] {
            assert!(matches!(
                error.kind(),
                ErrorKind::LengthMismatch {
                    device: CUDA_0,
                    expected: 8,
                    found: 7
                }
            ));
        }

        assert_eq!(fake.calls().len(), before);
        assert_eq!(buffer.to_vec().unwrap(), [5; 8]);
    }

    #[test]
    fn from_device_to_device_is_one_call_of_the_allocator_of_both() {
        let fake = FakeDevice::new(CUDA, 2);
        let shared = Arc::new(fake.clone());
        let create = |index| {
            DeviceMemoryBuffer::create_with(Arc::clone(&shared), layout(16), index).unwrap()
        };
        let mut from = create(0);
        from.copy_from_host(&pattern(16)).unwrap();

        for index in [0, 1] {
            let mut to = create(index);
            to.copy_from(from.as_span()).unwrap();

            let call = last_call(&fake);
            assert_eq!(call.operation, Operation::CopyDeviceToDevice);
            assert_eq!((call.ptr, call.index), (Some(to.ptr()), index));
            assert_eq!((call.source, call.size), (Some((from.ptr(), 0)), 16));
            assert_eq!(to.to_vec().unwrap(), pattern(16));
        }
        assert_eq!(from.to_vec().unwrap(), pattern(16));
    }

    #[test]
    fn between_allocators_the_bytes_go_through_the_host_in_pieces() {
        let size = (5 << 19) + 1;
        let near = FakeDevice::new(CUDA, 1);
        let far = FakeDevice::new(DeviceType::Custom(200), 2);
        let from = filled(&near, &pattern(size), 0);
        let mut to =
            DeviceMemoryBuffer::create_with(Arc::new(far.clone()), layout(size), 1).unwrap();
        near.clear_calls();
        far.clear_calls();

        to.copy_from(from.as_span()).unwrap();

        assert_eq!(operations(&near), [Operation::CopyDeviceToHost; 3]);
        assert_eq!(operations(&far), [Operation::CopyHostToDevice; 3]);
        assert!(far.calls().iter().all(|call| call.index == 1));
        let sizes: Vec<_> = near.calls().iter().map(|call| call.size).collect();
        assert_eq!(sizes, [1 << 20, 1 << 20, (1 << 19) + 1]);
        assert_eq!(to.to_vec().unwrap(), pattern(size));
    }

    #[test]
    fn between_host_and_device_there_is_no_difference() {
        let fake = FakeDevice::new(CUDA, 1);
        let mut device = filled(&fake, &[0; 6], 0);
        let mut host = DeviceMemoryBuffer::from_host(b"abcdef", DeviceType::Cpu, 0).unwrap();

        device.copy_from(host.as_span()).unwrap();
        host.fill(0).unwrap();
        host.copy_from(device.as_span()).unwrap();
        device
            .as_span_mut()
            .copy_from(HostAllocator::span(b"ghijkl"))
            .unwrap();
        let mut bytes = [0; 6];
        HostAllocator::span_mut(&mut bytes)
            .copy_from(device.as_span())
            .unwrap();

        assert_eq!(host.as_slice().unwrap(), b"abcdef");
        assert_eq!(&bytes, b"ghijkl");
    }

    #[test]
    fn a_fault_on_either_side_is_an_error_and_the_source_stays() {
        let near = FakeDevice::new(CUDA, 1);
        let far = FaultInjector::new(FakeDevice::new(DeviceType::Custom(201), 1));
        let faults = far.faults();
        let from = filled(&near, &[3; 8], 0);
        let mut to = DeviceMemoryBuffer::create_with(Arc::new(far), layout(8), 0).unwrap();
        faults.fail_nth(Operation::CopyHostToDevice, 1);

        let error = to.copy_from(from.as_span()).unwrap_err();

        assert_eq!(
            error.to_string(),
            "copy from host to device on custom201:0 failed: injected fault in call 2: copy from \
             host to device"
        );
        assert_eq!(from.to_vec().unwrap(), [3; 8]);
        to.copy_from(from.as_span()).unwrap();
        assert_eq!(to.to_vec().unwrap(), [3; 8]);
    }

    #[test]
    fn a_panic_of_the_allocator_is_an_error_that_names_the_operation() {
        let allocator = FaultInjector::new(FakeDevice::new(CUDA, 1));
        let faults = allocator.faults();
        let allocator = Arc::new(allocator);
        let mut buffer =
            DeviceMemoryBuffer::create_with(Arc::clone(&allocator), layout(8), 0).unwrap();
        let other = DeviceMemoryBuffer::create_with(allocator, layout(8), 0).unwrap();
        let panicking = |expected: Operation, act: &mut dyn FnMut() -> Result<()>| {
            faults.panic_on(expected, 1);
            let error = act().unwrap_err();
            assert!(
                matches!(
                    error.kind(),
                    ErrorKind::AllocatorPanicked { device: CUDA_0, operation }
                        if *operation == expected
                ),
                "{error:?}"
            );
        };

        panicking(Operation::CopyHostToDevice, &mut || {
            buffer.copy_from_host(&[1; 8])
        });
        panicking(Operation::CopyDeviceToHost, &mut || {
            buffer.copy_to_host(&mut [1; 8])
        });
        panicking(Operation::CopyDeviceToHost, &mut || {
            buffer.to_vec().map(drop)
        });
        panicking(Operation::CopyDeviceToDevice, &mut || {
            buffer.copy_from(other.as_span())
        });
        panicking(Operation::Fill, &mut || buffer.fill(1));
        panicking(Operation::Allocate, &mut || buffer.try_clone().map(drop));
        buffer.fill(4).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [4; 8]);
    }

    // https://github.com/chelsea0x3b/cudarc/issues/314
    #[test]
    fn the_source_may_be_reused_once_the_copy_returns() {
        let fake = FakeDevice::builder(CUDA).delayed_copies(true).build();
        let mut buffer =
            DeviceMemoryBuffer::create_with(Arc::new(fake.clone()), layout(4), 0).unwrap();

        let mut source = vec![1; 4];
        buffer.copy_from_host(&source).unwrap();
        source.fill(9);
        drop(source);

        assert_eq!(fake.pending(), 1);
        assert_eq!(buffer.to_vec().unwrap(), [1; 4]);
    }

    #[test]
    fn delayed_copies_are_seen_in_their_order() {
        let fake = FakeDevice::builder(CUDA)
            .devices(2)
            .delayed_copies(true)
            .build();
        let allocator = Arc::new(fake.clone());
        let create = |index| {
            DeviceMemoryBuffer::create_with(Arc::clone(&allocator), layout(4), index).unwrap()
        };
        let (mut a, mut b, mut far) = (create(0), create(0), create(1));

        a.copy_from_host(&[1; 4]).unwrap();
        b.copy_from(a.as_span()).unwrap();
        a.fill(2).unwrap();
        far.copy_from(b.as_span()).unwrap();
        b.copy_from_host_at(1, &[3]).unwrap();

        assert_eq!(a.to_vec().unwrap(), [2; 4]);
        assert_eq!(b.to_vec().unwrap(), [1, 3, 1, 1]);
        assert_eq!(far.to_vec().unwrap(), [1; 4]);
    }

    #[test]
    fn fill_sets_every_byte_in_one_call() {
        let fake = FakeDevice::new(CUDA, 2);
        let mut buffer = filled(&fake, &[1; 8], 1);

        buffer.fill(0xAB).unwrap();
        let call = last_call(&fake);
        buffer
            .as_span_mut()
            .subspan_mut(2, 3)
            .unwrap()
            .fill(7)
            .unwrap();

        assert_eq!((call.operation, call.size), (Operation::Fill, 8));
        assert_eq!((call.ptr, call.index), (Some(buffer.ptr()), 1));
        assert_eq!(
            buffer.to_vec().unwrap(),
            [0xAB, 0xAB, 7, 7, 7, 0xAB, 0xAB, 0xAB]
        );
    }

    #[test]
    fn host_memory_is_filled_and_copied_in_place() {
        let mut a = DeviceMemoryBuffer::create(6, DeviceType::Cpu, 0).unwrap();
        let mut b = DeviceMemoryBuffer::create(6, DeviceType::Cpu, 0).unwrap();

        a.fill(3).unwrap();
        a.copy_from_host_at(4, &[4]).unwrap();
        b.copy_from(a.as_span()).unwrap();
        b.as_slice_mut().unwrap()[5] = 5;

        assert_eq!(a.as_slice().unwrap(), [3, 3, 3, 3, 4, 3]);
        assert_eq!(b.to_vec().unwrap(), [3, 3, 3, 3, 4, 5]);
    }

    #[test]
    fn more_bytes_than_the_host_has_are_an_error() {
        /// One block of nearly all addresses.
        #[derive(Debug)]
        struct Endless;
        // SAFETY: there is one block, which the host can not read; no copy is
        // ever made.
        unsafe impl DeviceAllocator for Endless {
            fn device_type(&self) -> DeviceType {
                CUDA
            }
            fn device_count(&self) -> usize {
                1
            }
            fn allocate(&self, layout: DeviceLayout, _: DeviceIndex) -> Result<DevicePtr> {
                Ok(DevicePtr::from_addr(layout.align()).unwrap())
            }
            unsafe fn deallocate(
                &self,
                _: DevicePtr,
                _: DeviceLayout,
                _: DeviceIndex,
            ) -> Result<()> {
                Ok(())
            }
            unsafe fn copy_host_to_device(
                &self,
                _: DevicePtr,
                _: *const u8,
                _: usize,
                _: DeviceIndex,
            ) -> Result<()> {
                unreachable!()
            }
            unsafe fn copy_device_to_host(
                &self,
                _: *mut u8,
                _: DevicePtr,
                _: usize,
                _: DeviceIndex,
            ) -> Result<()> {
                unreachable!()
            }
        }
        let size = isize::MAX.unsigned_abs() - 63;
        let buffer = DeviceMemoryBuffer::create_with(&Endless, layout(size), 0).unwrap();

        let error = buffer.to_vec().unwrap_err();

        assert!(error.is_out_of_memory());
        assert_eq!(error.out_of_memory().unwrap().device, Device::CPU);
        assert_eq!(error.out_of_memory().unwrap().requested, size);
    }

    #[test]
    fn a_clone_is_a_copy_of_its_own_with_the_same_recipe() {
        let fake = FakeDevice::new(CUDA, 2);
        let original = DeviceMemoryBuffer::create_with(
            Arc::new(fake.clone()),
            DeviceLayout::new(5, 1024).unwrap(),
            1,
        )
        .unwrap();
        let mut original = original;
        original.copy_from_host(b"state").unwrap();

        let clone = original.try_clone().unwrap();
        original.fill(0).unwrap();

        assert_ne!(clone.ptr(), original.ptr());
        assert_eq!(
            (clone.layout(), clone.device()),
            (original.layout(), CUDA_1)
        );
        assert_eq!(clone.to_vec().unwrap(), b"state");
        drop(original);
        assert_eq!(clone.to_vec().unwrap(), b"state");
        drop(clone);
        fake.assert_clean();
    }
}

mod host_access {
    use super::*;

    #[test]
    fn memory_that_the_host_can_not_read_makes_no_slice() {
        let fake = FakeDevice::new(CUDA, 2);
        let mut buffer = filled(&fake, &[1; 8], 1);
        let before = fake.calls().len();

        let refused = [
            buffer.as_slice().map(|_| ()).unwrap_err(),
            buffer.as_slice_mut().map(|_| ()).unwrap_err(),
            buffer.as_span().as_slice().map(|_| ()).unwrap_err(),
            buffer.as_span_mut().as_slice().map(|_| ()).unwrap_err(),
            buffer.as_span_mut().as_slice_mut().map(|_| ()).unwrap_err(),
            buffer
                .as_span_mut()
                .into_slice_mut()
                .map(|_| ())
                .unwrap_err(),
        ];

        for error in refused {
            assert!(error.is_not_supported());
            assert!(matches!(
                error.kind(),
                ErrorKind::NotHostAccessible { device: CUDA_1 }
            ));
        }
        assert_eq!(fake.calls().len(), before);
    }

    #[test]
    fn slices_of_host_memory_are_the_memory() {
        let mut buffer = DeviceMemoryBuffer::create(4, DeviceType::Cpu, 0).unwrap();
        let ptr = buffer.ptr();

        buffer.as_slice_mut().unwrap().copy_from_slice(b"abcd");
        let slice = buffer.as_slice().unwrap();

        assert_eq!(slice, b"abcd");
        assert_eq!(slice.as_ptr().addr(), ptr.addr());
        assert_eq!(buffer.to_vec().unwrap(), b"abcd");
    }

    #[test]
    fn views_of_host_bytes_read_and_write_them() {
        let mut bytes = *b"abcdef";

        HostAllocator::span_mut(&mut bytes[1..3])
            .copy_from_host(b"XY")
            .unwrap();
        let span = HostAllocator::span(&bytes);

        assert_eq!(span.as_slice().unwrap(), b"aXYdef");
        assert_eq!((span.device(), span.len()), (Device::CPU, 6));
        assert!(HostAllocator::span(&[]).is_empty());
        assert!(HostAllocator::span_mut(&mut []).is_empty());
    }
}

mod spans {
    use super::*;

    #[test]
    fn a_view_has_the_address_length_and_device_of_the_buffer() {
        let fake = FakeDevice::new(CUDA, 2);
        let mut buffer = filled(&fake, &pattern(64), 1);
        let ptr = buffer.ptr();

        let span = buffer.as_span();
        assert_eq!((span.ptr(), span.len(), span.device()), (ptr, 64, CUDA_1));
        assert!(!span.is_empty());
        let span = buffer.as_span_mut();

        assert_eq!((span.ptr(), span.len(), span.device()), (ptr, 64, CUDA_1));
        assert!(!span.is_empty());
    }

    #[test]
    fn the_parts_of_a_split_are_neighbours() {
        let fake = FakeDevice::new(CUDA, 1);
        let mut buffer = filled(&fake, &pattern(10), 0);
        let base = buffer.ptr();

        let (front, back) = buffer.as_span().split_at(4).unwrap();
        assert_eq!((front.ptr(), front.len()), (base, 4));
        assert_eq!((back.ptr(), back.len()), (base.checked_add(4).unwrap(), 6));
        assert_eq!(back.to_vec().unwrap(), [4, 5, 6, 7, 8, 9]);
        let (mut front, mut back) = buffer.as_span_mut().into_split_at(4).unwrap();
        front.fill(1).unwrap();
        back.copy_from_host(&[2; 6]).unwrap();

        assert_eq!(buffer.to_vec().unwrap(), [1, 1, 1, 1, 2, 2, 2, 2, 2, 2]);
    }

    #[test]
    fn a_split_may_be_at_either_end_and_not_beyond() {
        let mut buffer = DeviceMemoryBuffer::create(4, DeviceType::Cpu, 0).unwrap();

        for offset in [0, 4] {
            let (front, back) = buffer.as_span().split_at(offset).unwrap();
            assert_eq!((front.len(), back.len()), (offset, 4 - offset));
            let (front, back) = buffer.as_span_mut().into_split_at(offset).unwrap();
            assert_eq!((front.len(), back.len()), (offset, 4 - offset));
        }
        for offset in [5, usize::MAX] {
            assert!(buffer.as_span().split_at(offset).is_err());
            assert!(buffer.as_span_mut().into_split_at(offset).is_err());
        }
    }

    #[test]
    fn copies_between_parts_of_one_buffer_are_copies_on_its_device() {
        let fake = FakeDevice::new(CUDA, 1);
        let mut buffer = filled(&fake, &pattern(8), 0);

        let (mut front, back) = buffer.as_span_mut().into_split_at(4).unwrap();
        front.copy_from(back.as_span()).unwrap();

        assert_eq!(last_call(&fake).operation, Operation::CopyDeviceToDevice);
        assert_eq!(buffer.to_vec().unwrap(), [4, 5, 6, 7, 4, 5, 6, 7]);
    }

    #[test]
    fn shared_views_may_be_many_and_read_from_many_threads() {
        let fake = FakeDevice::new(CUDA, 1);
        let buffer = filled(&fake, &pattern(64), 0);
        let span = buffer.as_span();

        thread::scope(|scope| {
            for part in 0..4 {
                scope.spawn(move || {
                    let part = span.subspan(part * 16, 16).unwrap();
                    part.to_vec().unwrap()
                });
            }
        });

        assert_eq!(span.to_vec().unwrap(), pattern(64));
    }

    #[test]
    fn exclusive_views_of_parts_are_written_from_many_threads() {
        let fake = FakeDevice::new(CUDA, 1);
        let mut buffer = filled(&fake, &[0; 8], 0);

        let (mut front, mut back) = buffer.as_span_mut().into_split_at(4).unwrap();
        thread::scope(|scope| {
            scope.spawn(move || front.fill(1).unwrap());
            scope.spawn(move || back.fill(2).unwrap());
        });

        assert_eq!(buffer.to_vec().unwrap(), [1, 1, 1, 1, 2, 2, 2, 2]);
    }

    #[test]
    fn an_exclusive_view_becomes_a_shared_one() {
        let mut buffer = DeviceMemoryBuffer::from_host(b"abc", DeviceType::Cpu, 0).unwrap();

        let span = DeviceSpan::from(buffer.as_span_mut());

        assert_eq!(span.as_slice().unwrap(), b"abc");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_part_exists_if_and_only_if_it_lies_within(
            len in 0_usize..100,
            offset in prop_oneof![0_usize..120, any::<usize>()],
            size in prop_oneof![0_usize..120, any::<usize>()],
        ) {
            let mut buffer = DeviceMemoryBuffer::create(len, DeviceType::Cpu, 0).unwrap();
            let base = buffer.ptr();
            let within = offset as u128 + size as u128 <= len as u128;

            let shared = buffer.as_span().subspan(offset, size).map(|span| (span.ptr(), span.len()));
            let exclusive = buffer
                .as_span_mut()
                .into_subspan(offset, size)
                .map(|span| (span.ptr(), span.len()));

            for part in [shared, exclusive] {
                prop_assert_eq!(part.is_ok(), within);
                if let Ok((ptr, found)) = part {
                    prop_assert_eq!(ptr.addr(), base.addr() + offset);
                    prop_assert_eq!(found, size);
                }
            }
        }
    }
}

mod several_at_once {
    use super::*;

    #[test]
    fn all_are_made_in_the_order_of_the_requests() {
        let (fake, registry) = rig();
        let requests = [
            (layout(10), CUDA_1),
            (DeviceLayout::new(20, 512).unwrap(), CUDA_0),
            (layout(0), CUDA_0),
            (layout(30), Device::CPU),
        ];

        let buffers = DeviceMemoryBuffer::create_all(&registry, &requests).unwrap();

        let made: Vec<_> = buffers.iter().map(|b| (b.layout(), b.device())).collect();
        assert_eq!(made, requests);
        let sizes: Vec<_> = fake.calls().iter().map(|call| call.size).collect();
        assert_eq!(sizes, [10, 20]);
        drop(buffers);
        fake.assert_clean();
    }

    #[test]
    fn none_are_made_of_no_requests() {
        let registry = DeviceAllocatorRegistry::new();

        let none = DeviceMemoryBuffer::create_all(&registry, &[]).unwrap();

        assert!(none.is_empty());
    }

    #[test]
    fn one_that_fails_is_named_and_those_before_are_freed_in_reverse() {
        let (fake, registry) = rig();
        let bad = Device::new(CUDA, 7);
        let requests = [
            (layout(10), CUDA_1),
            (layout(20), CUDA_0),
            (layout(30), CUDA_0),
            (layout(40), bad),
            (layout(50), CUDA_0),
        ];

        let error = DeviceMemoryBuffer::create_all(&registry, &requests).unwrap_err();

        assert_eq!(
            error.to_string(),
            "request 3: invalid device cuda:7: 2 device(s) of type cuda present"
        );
        assert_eq!(error.code(), 0x12);
        assert!(matches!(
            error.kind(),
            ErrorKind::AtIndex {
                what: "request",
                index: 3,
                ..
            }
        ));
        let sizes: Vec<_> = fake
            .calls()
            .iter()
            .map(|call| (call.operation, call.size))
            .collect();
        assert_eq!(
            sizes,
            [
                (Operation::Allocate, 10),
                (Operation::Allocate, 20),
                (Operation::Allocate, 30),
                (Operation::Allocate, 40),
                (Operation::Deallocate, 30),
                (Operation::Deallocate, 20),
                (Operation::Deallocate, 10),
            ]
        );
        fake.assert_clean();
    }

    #[test]
    fn a_lack_of_memory_of_one_is_known_as_such() {
        let fake = FakeDevice::builder(CUDA).capacity(100).build();
        let registry = DeviceAllocatorRegistry::new();
        registry.register(Arc::new(fake.clone())).unwrap();
        let requests = [(layout(60), CUDA_0), (layout(60), CUDA_0)];

        let error = DeviceMemoryBuffer::create_all(&registry, &requests).unwrap_err();

        assert!(error.is_out_of_memory());
        assert_eq!(error.out_of_memory().unwrap().in_use, Some(60));
        fake.assert_clean();
    }
}

mod hostile_allocators {
    use super::*;

    /// How an allocator breaks its promises.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Way {
        /// Addresses one byte off.
        OneByteOff,
        /// Addresses so high that the block passes the last one.
        TooHigh,
        /// A type of device that is another each time.
        ChangesType,
        /// Panics when asked for its type.
        PanicsInType,
        /// Panics when asked whether the host can read its memory.
        PanicsInHostAccess,
        /// Panics when asked how many devices there are.
        PanicsInCount,
        /// The same with something that panics again when it is dropped.
        PanicsTwiceInCount,
    }

    /// Something to panic with that tells when it is dropped.
    struct Payload {
        drops: Arc<AtomicU8>,
        panics: bool,
    }

    impl Drop for Payload {
        fn drop(&mut self) {
            self.drops.fetch_add(1, Ordering::SeqCst);
            if self.panics {
                panic_any(Endless);
            }
        }
    }

    /// Something to panic with whose drop panics with the same.
    struct Endless;

    impl Drop for Endless {
        fn drop(&mut self) {
            panic_any(Endless);
        }
    }

    const HIGH: usize = usize::MAX - 63;

    /// A fake whose answers are bent on the way out.
    #[derive(Debug)]
    struct Hostile {
        fake: FakeDevice,
        way: Way,
        asked: AtomicU8,
        drops: Arc<AtomicU8>,
    }

    impl Hostile {
        fn new(way: Way) -> (FakeDevice, Arc<Self>) {
            let fake = FakeDevice::new(CUDA, 1);
            let hostile = Self {
                fake: fake.clone(),
                way,
                asked: AtomicU8::new(0),
                drops: Arc::default(),
            };
            (fake, Arc::new(hostile))
        }

        /// The address that the fake gave.
        fn straight(&self, ptr: DevicePtr) -> DevicePtr {
            match self.way {
                Way::OneByteOff => DevicePtr::from_addr(ptr.addr() - 1).unwrap(),
                Way::TooHigh => self.fake.live()[0].ptr,
                _ => ptr,
            }
        }
    }

    // SAFETY: it breaks the promises on purpose; no copy is made from or to an
    // address that it bent, and the host is never let read one.
    unsafe impl DeviceAllocator for Hostile {
        fn device_type(&self) -> DeviceType {
            match self.way {
                Way::ChangesType => DeviceType::Custom(self.asked.fetch_add(1, Ordering::SeqCst)),
                Way::PanicsInType => panic!("no type"),
                _ => CUDA,
            }
        }
        fn device_count(&self) -> usize {
            let panics = match self.way {
                Way::PanicsInCount => false,
                Way::PanicsTwiceInCount => true,
                _ => return 1,
            };
            let drops = Arc::clone(&self.drops);
            panic_any(Payload { drops, panics })
        }
        fn allocate(&self, layout: DeviceLayout, index: DeviceIndex) -> Result<DevicePtr> {
            let ptr = self.fake.allocate(layout, index)?;
            Ok(match self.way {
                Way::OneByteOff => ptr.checked_add(1).unwrap(),
                Way::TooHigh => DevicePtr::from_addr(HIGH).unwrap(),
                _ => ptr,
            })
        }
        unsafe fn deallocate(
            &self,
            ptr: DevicePtr,
            layout: DeviceLayout,
            index: DeviceIndex,
        ) -> Result<()> {
            // SAFETY: the block is the one that the fake gave.
            unsafe { self.fake.deallocate(self.straight(ptr), layout, index) }
        }
        forward_copies!(fake);
        fn is_host_accessible(&self) -> bool {
            assert_ne!(self.way, Way::PanicsInHostAccess, "no answer");
            false
        }
    }

    fn fault(error: &Error) -> AllocatorFault {
        match error.kind() {
            ErrorKind::BadAllocator {
                device: CUDA_0,
                fault,
            } => *fault,
            other => panic!("{other:?}"),
        }
    }

    // https://github.com/rust-vmm/vm-memory/issues/250
    #[test]
    fn an_address_that_is_not_aligned_is_given_back_and_refused() {
        let (fake, hostile) = Hostile::new(Way::OneByteOff);

        for align in [2, 64, 4096] {
            let layout = DeviceLayout::new(8, align).unwrap();
            let error =
                DeviceMemoryBuffer::create_with(Arc::clone(&hostile), layout, 0).unwrap_err();

            let ptr = freed(&fake).pop().unwrap();
            assert_eq!(
                fault(&error),
                AllocatorFault::Misaligned {
                    addr: ptr.addr() + 1,
                    align
                }
            );
        }
        fake.assert_clean();
    }

    #[test]
    fn an_address_that_is_aligned_by_chance_is_taken() {
        let (fake, hostile) = Hostile::new(Way::OneByteOff);

        let buffer = DeviceMemoryBuffer::create_with(hostile, DeviceLayout::new(8, 1).unwrap(), 0);

        drop(buffer.unwrap());
        fake.assert_clean();
    }

    #[test]
    fn a_block_past_the_last_address_is_given_back_and_refused() {
        let (fake, hostile) = Hostile::new(Way::TooHigh);

        for size in [64, 65, 1 << 20] {
            let error =
                DeviceMemoryBuffer::create_with(Arc::clone(&hostile), layout(size), 0).unwrap_err();

            assert_eq!(fault(&error), AllocatorFault::Wraps { addr: HIGH, size });
        }
        assert_eq!(fake.allocations(), 3);
        fake.assert_clean();
    }

    #[test]
    fn a_block_up_to_the_last_address_is_taken() {
        let (fake, hostile) = Hostile::new(Way::TooHigh);

        let buffer = DeviceMemoryBuffer::create_with(hostile, layout(63), 0).unwrap();

        assert_eq!(buffer.as_span().split_at(63).unwrap().1.len(), 0);
        drop(buffer);
        fake.assert_clean();
    }

    #[test]
    fn bad_memory_that_can_not_be_given_back_is_refused_all_the_same() {
        let (_, hostile) = Hostile::new(Way::OneByteOff);
        let hostile = Arc::into_inner(hostile).unwrap();
        let injector = FaultInjector::new(hostile);
        let faults = injector.faults();
        faults.fail_all(Operation::Deallocate);

        let error = DeviceMemoryBuffer::create_with(Arc::new(injector), layout(8), 0).unwrap_err();

        assert!(matches!(error.kind(), ErrorKind::BadAllocator { .. }));
        assert_eq!(faults.fired().len(), 1);
    }

    #[test]
    fn a_type_that_changes_is_fixed_when_the_buffer_is_made() {
        let (fake, hostile) = Hostile::new(Way::ChangesType);

        let buffer = DeviceMemoryBuffer::create_with(hostile, layout(8), 0).unwrap();
        let device = buffer.device();

        assert_eq!(buffer.device(), device);
        assert_eq!(buffer.as_span().device(), device);
        drop(buffer);
        fake.assert_clean();
    }

    #[test]
    fn a_panic_over_the_number_of_devices_is_an_error_that_leaks_nothing() {
        let (_, hostile) = Hostile::new(Way::PanicsInCount);

        let error =
            DeviceMemoryBuffer::create_with(Arc::clone(&hostile), layout(0), 0).unwrap_err();

        assert!(matches!(error.kind(), ErrorKind::AllocatorPanicked { .. }));
        assert_eq!(hostile.drops.load(Ordering::SeqCst), 1);
        assert_eq!(Arc::strong_count(&hostile), 1);
    }

    #[test]
    fn what_an_allocator_panics_with_may_panic_again_when_it_is_dropped() {
        let (_, hostile) = Hostile::new(Way::PanicsTwiceInCount);

        let created = catch_unwind(AssertUnwindSafe(|| {
            DeviceMemoryBuffer::create_with(Arc::clone(&hostile), layout(0), 0).is_err()
        }));

        assert!(matches!(created, Ok(true)));
        assert!(hostile.drops.load(Ordering::SeqCst) <= 1);
    }

    #[test]
    fn a_panic_over_host_access_is_an_error() {
        let (_, hostile) = Hostile::new(Way::PanicsInHostAccess);
        let mut buffer = DeviceMemoryBuffer::create_with(hostile, layout(8), 0).unwrap();

        let shared = catch_unwind(AssertUnwindSafe(|| buffer.as_slice().is_err()));
        let exclusive = catch_unwind(AssertUnwindSafe(|| buffer.as_slice_mut().is_err()));

        assert!(matches!((shared, exclusive), (Ok(true), Ok(true))));
    }

    #[test]
    fn a_panic_over_the_type_is_an_error() {
        let (_, hostile) = Hostile::new(Way::PanicsInType);
        let registry = DeviceAllocatorRegistry::new();

        let created = catch_unwind(AssertUnwindSafe(|| {
            DeviceMemoryBuffer::create_with(Arc::clone(&hostile), layout(8), 0).is_err()
        }));
        let registered = catch_unwind(AssertUnwindSafe(|| {
            registry.register(Arc::clone(&hostile)).is_err()
        }));
        let replaced = catch_unwind(AssertUnwindSafe(|| {
            registry.replace(Arc::clone(&hostile)).is_err()
        }));

        assert!(matches!(
            (created, registered, replaced),
            (Ok(true), Ok(true), Ok(true))
        ));
        assert!(registry.registered(CUDA).is_none());
    }
}

mod no_error_path_leaks {
    use super::*;

    // https://github.com/NVlabs/cuda-oxide/pull/92

    type Rounds = (
        &'static str,
        u64,
        fn(&Arc<FaultInjector<FakeDevice>>) -> Result<()>,
    );

    /// A constructor of the global registry, which then knows the allocator.
    fn global(allocator: &Arc<FaultInjector<FakeDevice>>) -> DeviceType {
        let registry = DeviceAllocatorRegistry::global();
        drop(registry.replace(Arc::clone(allocator)).unwrap());
        allocator.device_type()
    }

    /// Every constructor, with the number of calls that it and the drop make.
    const ROUNDS: &[Rounds] = &[
        ("create", 2, |a| {
            DeviceMemoryBuffer::create(64, global(a), 1).map(drop)
        }),
        ("create_array", 2, |a| {
            DeviceMemoryBuffer::create_array::<u32>(64, global(a), 1).map(drop)
        }),
        ("create_zeroed", 3, |a| {
            DeviceMemoryBuffer::create_zeroed(64, global(a), 1).map(drop)
        }),
        ("from_host", 3, |a| {
            DeviceMemoryBuffer::from_host(&[1; 64], global(a), 1).map(drop)
        }),
        ("create_in", 2, |a| {
            let registry = DeviceAllocatorRegistry::new();
            registry.register(Arc::clone(a))?;
            let device = Device::new(a.device_type(), 1);
            DeviceMemoryBuffer::create_in(&registry, layout(64), device).map(drop)
        }),
        ("create_with", 2, |a| {
            DeviceMemoryBuffer::create_with(Arc::clone(a), layout(64), 1).map(drop)
        }),
        ("create_all", 6, |a| {
            let registry = DeviceAllocatorRegistry::new();
            registry.register(Arc::clone(a))?;
            let (first, second) = (
                Device::new(a.device_type(), 0),
                Device::new(a.device_type(), 1),
            );
            let requests = [(layout(1), first), (layout(2), second), (layout(3), first)];
            DeviceMemoryBuffer::create_all(&registry, &requests).map(drop)
        }),
        ("try_clone", 6, |a| {
            let mut buffer = DeviceMemoryBuffer::create_with(Arc::clone(a), layout(64), 1)?;
            buffer.copy_from_host(&[1; 64])?;
            buffer.try_clone().map(drop)
        }),
        ("free", 2, |a| {
            let buffer = DeviceMemoryBuffer::create_with(Arc::clone(a), layout(64), 1)?;
            Ok(buffer.free()?)
        }),
        ("into_raw", 2, |a| {
            let raw = DeviceMemoryBuffer::create_with(Arc::clone(a), layout(64), 1)?.into_raw();
            // SAFETY: the memory is live and nothing else uses it.
            drop(unsafe { DeviceMemoryBuffer::from_raw(raw) });
            Ok(())
        }),
    ];

    #[test]
    fn when_each_call_fails_in_turn() {
        for &(name, calls, round) in ROUNDS {
            let fake = FakeDevice::new(own_type(), 2);

            let done = fail_each_call(&fake, round).unwrap_or_else(|e| panic!("{name}: {e}"));

            assert_eq!(done.calls, calls, "{name}");
            fake.assert_clean();
        }
    }

    #[test]
    fn when_each_call_panics_in_turn_and_no_panic_comes_through() {
        for &(name, calls, round) in ROUNDS {
            let fake = FakeDevice::new(own_type(), 2);

            let done = panic_each_call(&fake, round).unwrap_or_else(|e| panic!("{name}: {e}"));

            let Exhaustion {
                calls: made,
                unwound,
                ..
            } = done;
            assert_eq!((made, unwound), (calls, 0), "{name}");
            fake.assert_clean();
        }
    }

    #[test]
    fn when_a_copy_through_the_host_fails_in_each_of_its_pieces() {
        let fake = FakeDevice::new(CUDA, 1);
        let host = DeviceMemoryBuffer::create_zeroed(3 << 20, DeviceType::Cpu, 0).unwrap();

        let round = |allocator: &Arc<FaultInjector<FakeDevice>>| {
            let mut buffer =
                DeviceMemoryBuffer::create_with(Arc::clone(allocator), layout(3 << 20), 0)?;
            buffer.copy_from(host.as_span())
        };

        assert_eq!(fail_each_call(&fake, round).unwrap().calls, 5);
        let panicked = panic_each_call(&fake, round).unwrap();
        assert_eq!((panicked.calls, panicked.unwound), (5, 0));
        fake.assert_clean();
    }
}

mod alignments {
    use super::*;

    // https://github.com/rapidsai/rmm/issues/2002
    // https://github.com/Genesis-Embodied-AI/quadrants/pull/847

    fn any_layout() -> impl Strategy<Value = (usize, usize)> {
        (0_usize..1 << 20, 0..=20_u32).prop_map(|(size, exponent)| (size, 1 << exponent))
    }

    #[test]
    fn one_that_is_no_power_of_two_reaches_no_allocator() {
        for align in [0, 3, 24, usize::MAX] {
            assert_eq!(
                DeviceLayout::new(64, align),
                Err(LayoutError::InvalidAlignment { align })
            );
        }
    }

    #[test]
    fn all_powers_of_two_up_to_a_mebibyte_are_honoured_for_small_blocks() {
        let (fake, registry) = rig();
        for device in [Device::CPU, CUDA_0] {
            for exponent in 0..=20 {
                let layout = DeviceLayout::new(3, 1 << exponent).unwrap();

                let blocks: Vec<_> = (0..3)
                    .map(|_| DeviceMemoryBuffer::create_in(&registry, layout, device).unwrap())
                    .collect();

                assert!(blocks.iter().all(|b| b.ptr().is_aligned_to(1 << exponent)));
                let addresses: HashSet<_> = blocks.iter().map(DeviceMemoryBuffer::ptr).collect();
                assert_eq!(addresses.len(), 3);
            }
        }
        fake.assert_clean();
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_is_honoured_with_any_size_and_blocks_are_disjoint(
            layouts in prop::collection::vec(any_layout(), 1..5),
        ) {
            let (fake, registry) = rig();
            for device in [Device::CPU, CUDA_1] {
                let buffers: Vec<_> = layouts
                    .iter()
                    .map(|&(size, align)| {
                        let layout = DeviceLayout::new(size, align).unwrap();
                        DeviceMemoryBuffer::create_in(&registry, layout, device).unwrap()
                    })
                    .collect();

                for (buffer, &(size, align)) in buffers.iter().zip(&layouts) {
                    prop_assert_eq!(buffer.size(), size);
                    prop_assert!(buffer.ptr().is_aligned_to(align));
                }
                let mut ranges: Vec<_> = buffers
                    .iter()
                    .filter(|buffer| !buffer.is_empty())
                    .map(|buffer| (buffer.ptr().addr(), buffer.ptr().addr() + buffer.size()))
                    .collect();
                ranges.sort_unstable();
                prop_assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0));
            }
            fake.assert_clean();
        }

        #[test]
        fn sizes_near_the_limit_are_out_of_memory_or_no_layout(
            below in 0_usize..1 << 21,
            exponent in 0..=20_u32,
        ) {
            let (fake, registry) = rig();
            let size = isize::MAX.unsigned_abs() - below;

            if let Ok(layout) = DeviceLayout::new(size, 1 << exponent) {
                for device in [Device::CPU, CUDA_0] {
                    let error = DeviceMemoryBuffer::create_in(&registry, layout, device)
                        .unwrap_err();
                    prop_assert!(error.is_out_of_memory());
                }
            }
            fake.assert_clean();
        }
    }
}
