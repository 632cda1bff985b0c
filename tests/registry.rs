//! Which allocator serves which type of device.

#![cfg(feature = "testing")]
#![expect(unsafe_code, reason = "an allocator that tells when it is dropped")]

#[macro_use]
#[path = "support/forward.rs"]
mod forward;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;

use device_memory::testing::FakeDevice;
use device_memory::{
    AllocatorHandle, Device, DeviceAllocator, DeviceAllocatorRegistry, DeviceIndex, DeviceLayout,
    DeviceMemoryBuffer, DevicePtr, DeviceType, ErrorKind, HostAllocator, Operation, Result,
};

const CUDA: DeviceType = DeviceType::Cuda;
const CUDA_0: Device = Device::new(CUDA, 0);

/// A fake that counts how often it is dropped.
#[derive(Debug)]
struct Counted {
    fake: FakeDevice,
    drops: Arc<AtomicUsize>,
    on_drop: fn(),
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.drops.fetch_add(1, Ordering::SeqCst);
        (self.on_drop)();
    }
}

// SAFETY: all calls are passed on to an allocator that keeps the promises.
unsafe impl DeviceAllocator for Counted {
    fn device_type(&self) -> DeviceType {
        self.fake.device_type()
    }
    fn device_count(&self) -> usize {
        self.fake.device_count()
    }
    fn allocate(&self, layout: DeviceLayout, index: DeviceIndex) -> Result<DevicePtr> {
        assert_eq!(self.drops.load(Ordering::SeqCst), 0, "used after drop");
        self.fake.allocate(layout, index)
    }
    unsafe fn deallocate(
        &self,
        ptr: DevicePtr,
        layout: DeviceLayout,
        index: DeviceIndex,
    ) -> Result<()> {
        assert_eq!(self.drops.load(Ordering::SeqCst), 0, "used after drop");
        // SAFETY: the caller's promises are the same.
        unsafe { self.fake.deallocate(ptr, layout, index) }
    }
    forward_copies!(fake);
}

/// An allocator of `device_type`, its fake, and how often it was dropped.
fn counted(device_type: DeviceType) -> (Arc<Counted>, FakeDevice, Arc<AtomicUsize>) {
    counted_with(device_type, || {})
}

/// The same, with something to do when it is dropped.
fn counted_with(
    device_type: DeviceType,
    on_drop: fn(),
) -> (Arc<Counted>, FakeDevice, Arc<AtomicUsize>) {
    let fake = FakeDevice::new(device_type, 2);
    let drops = Arc::new(AtomicUsize::new(0));
    let counted = Counted {
        fake: fake.clone(),
        drops: Arc::clone(&drops),
        on_drop,
    };
    (Arc::new(counted), fake, drops)
}

fn layout(size: usize) -> DeviceLayout {
    DeviceLayout::from_size(size).unwrap()
}

/// A type that no other test of this process registers globally.
fn own_type() -> DeviceType {
    static NEXT: AtomicU8 = AtomicU8::new(0);
    DeviceType::Custom(NEXT.fetch_add(1, Ordering::SeqCst))
}

fn handle(fake: &FakeDevice) -> AllocatorHandle {
    AllocatorHandle::from(Arc::new(fake.clone()))
}

#[test]
fn a_registered_allocator_is_found_by_its_type_alone() {
    let registry = DeviceAllocatorRegistry::new();
    let allocator = handle(&FakeDevice::new(CUDA, 1));

    registry.register(allocator.clone()).unwrap();

    assert!(registry.get(CUDA).unwrap().same_allocator(&allocator));
    assert!(registry.try_get(CUDA).unwrap().same_allocator(&allocator));
    assert!(
        registry
            .registered(CUDA)
            .unwrap()
            .same_allocator(&allocator)
    );
    assert_eq!(registry.get(CUDA).unwrap().device_type(), CUDA);
    for other in [
        DeviceType::CudaHost,
        DeviceType::CudaManaged,
        DeviceType::Custom(0),
        DeviceType::Custom(1),
        DeviceType::Custom(255),
    ] {
        assert!(registry.registered(other).is_none(), "{other}");
    }
    assert!(registry.get(DeviceType::Custom(1)).is_none());
}

#[test]
fn a_type_that_nobody_serves_is_an_error_that_names_it() {
    let registry = DeviceAllocatorRegistry::new();

    let error = registry.try_get(DeviceType::Custom(9)).unwrap_err();

    assert!(error.is_not_registered());
    assert_eq!(error.code(), 0x20);
    assert_eq!(
        error.to_string(),
        "no allocator is registered for device type custom9"
    );
}

#[test]
fn the_host_is_served_without_registration() {
    let registry = DeviceAllocatorRegistry::default();

    assert!(registry.get(DeviceType::Cpu).unwrap().is_host_accessible());
    assert!(registry.try_get(DeviceType::Cpu).is_ok());
    assert!(registry.registered(DeviceType::Cpu).is_none());
    assert!(
        DeviceAllocatorRegistry::global()
            .get(DeviceType::Cpu)
            .is_some()
    );
}

#[test]
fn the_host_may_be_registered_instead_of_the_one_built_in() {
    let fake = FakeDevice::new(DeviceType::Cpu, 1);
    let registry = DeviceAllocatorRegistry::new();

    registry.register(Arc::new(fake.clone())).unwrap();
    drop(DeviceMemoryBuffer::create_in(&registry, layout(8), Device::CPU).unwrap());
    let registered = registry.unregister(DeviceType::Cpu).unwrap();
    let buffer = DeviceMemoryBuffer::create_in(&registry, layout(8), Device::CPU).unwrap();

    assert_eq!(fake.calls().len(), 2);
    assert!(!registered.is_host_accessible());
    assert!(buffer.as_slice().is_ok());
    assert!(registry.register(Arc::new(HostAllocator)).is_ok());
}

#[test]
fn registries_know_nothing_of_each_other() {
    let device_type = own_type();
    let device = Device::new(device_type, 0);
    let (here, there) = (
        DeviceAllocatorRegistry::new(),
        DeviceAllocatorRegistry::new(),
    );
    let fake = FakeDevice::new(device_type, 1);

    here.register(Arc::new(fake.clone())).unwrap();

    assert!(there.get(device_type).is_none());
    assert!(DeviceAllocatorRegistry::global().get(device_type).is_none());
    assert!(DeviceMemoryBuffer::create_in(&there, layout(8), device).is_err());
    assert!(DeviceMemoryBuffer::create(8, device_type, 0).is_err());
    assert!(DeviceMemoryBuffer::create_in(&here, layout(8), device).is_ok());
    fake.assert_clean();
}

#[test]
fn the_global_registry_is_one_and_serves_create() {
    let device_type = own_type();
    let fake = FakeDevice::new(device_type, 1);

    let global = DeviceAllocatorRegistry::global();
    global.register(Arc::new(fake.clone())).unwrap();
    drop(DeviceMemoryBuffer::create(8, device_type, 0).unwrap());

    assert!(std::ptr::eq(global, DeviceAllocatorRegistry::global()));
    assert_eq!(fake.allocations(), 1);
    fake.assert_clean();
}

// https://github.com/pytorch/executorch/pull/18179
#[test]
fn a_second_registration_is_an_error_and_the_first_stays() {
    let registry = DeviceAllocatorRegistry::new();
    let first = handle(&FakeDevice::new(CUDA, 1));
    let (second, _, drops) = counted(CUDA);
    registry.register(first.clone()).unwrap();

    let error = registry.register(second).unwrap_err();

    assert!(matches!(
        error.kind(),
        ErrorKind::AlreadyRegistered { device_type: CUDA }
    ));
    assert_eq!(error.code(), 0x16);
    assert!(registry.get(CUDA).unwrap().same_allocator(&first));
    assert_eq!(drops.load(Ordering::SeqCst), 1);
}

#[test]
fn the_same_allocator_a_second_time_is_the_same_error() {
    let registry = DeviceAllocatorRegistry::new();
    let allocator = handle(&FakeDevice::new(CUDA, 1));
    registry.register(allocator.clone()).unwrap();

    let error = registry.register(allocator.clone()).unwrap_err();

    assert_eq!(error.code(), 0x16);
    assert!(registry.get(CUDA).unwrap().same_allocator(&allocator));
}

#[test]
fn replace_returns_the_one_before() {
    let registry = DeviceAllocatorRegistry::new();
    let (first, second) = (
        handle(&FakeDevice::new(CUDA, 1)),
        handle(&FakeDevice::new(CUDA, 1)),
    );

    let none = registry.replace(first.clone()).unwrap();
    let old = registry.replace(second.clone()).unwrap().unwrap();

    assert!(none.is_none());
    assert!(old.same_allocator(&first));
    assert!(!old.same_allocator(&second));
    assert!(registry.get(CUDA).unwrap().same_allocator(&second));
}

#[test]
fn an_allocator_may_come_back_any_number_of_times() {
    let registry = DeviceAllocatorRegistry::new();
    let (first, _, drops) = counted(CUDA);
    let first = AllocatorHandle::from(first);
    let second = handle(&FakeDevice::new(CUDA, 1));
    registry.register(first.clone()).unwrap();

    for _ in 0..100 {
        let old = registry.replace(second.clone()).unwrap().unwrap();
        assert!(old.same_allocator(&first));
        let old = registry.replace(first.clone()).unwrap().unwrap();
        assert!(old.same_allocator(&second));
        assert!(
            registry
                .replace(first.clone())
                .unwrap()
                .unwrap()
                .same_allocator(&first)
        );
    }
    drop(first);
    assert_eq!(drops.load(Ordering::SeqCst), 0);
    drop(registry);

    assert_eq!(drops.load(Ordering::SeqCst), 1);
}

// https://github.com/sonots/cumo/pull/173
// https://github.com/OpenNMT/CTranslate2/pull/387
#[test]
fn a_live_buffer_keeps_its_allocator_when_another_takes_the_place() {
    let registry = DeviceAllocatorRegistry::new();
    let (first, second) = (FakeDevice::new(CUDA, 1), FakeDevice::new(CUDA, 1));
    registry.register(Arc::new(first.clone())).unwrap();
    let mut old = DeviceMemoryBuffer::create_in(&registry, layout(4), CUDA_0).unwrap();

    registry.replace(Arc::new(second.clone())).unwrap();
    let new = DeviceMemoryBuffer::create_in(&registry, layout(4), CUDA_0).unwrap();
    old.copy_from_host(b"kept").unwrap();
    let clone = old.try_clone().unwrap();
    registry.unregister(CUDA);
    assert_eq!(old.to_vec().unwrap(), b"kept");
    assert_eq!((first.live_blocks(), second.live_blocks()), (2, 1));
    drop((old, clone, new));

    assert_eq!((first.deallocations(), second.deallocations()), (2, 1));
    first.assert_clean();
    second.assert_clean();
}

#[test]
fn an_unregistered_type_is_served_by_nobody_and_may_be_registered_again() {
    // No back end is built in for this type.
    const OWN: DeviceType = DeviceType::Custom(9);
    let registry = DeviceAllocatorRegistry::new();
    let allocator = handle(&FakeDevice::new(OWN, 1));
    registry.register(allocator.clone()).unwrap();

    let old = registry.unregister(OWN).unwrap();

    assert!(old.same_allocator(&allocator));
    assert!(registry.unregister(OWN).is_none());
    assert!(registry.get(OWN).is_none());
    assert!(registry.try_get(OWN).unwrap_err().is_not_registered());
    registry.register(allocator).unwrap();
    assert!(registry.get(OWN).is_some());
}

#[test]
fn every_type_has_a_place_of_its_own() {
    let registry = DeviceAllocatorRegistry::new();
    let types: Vec<_> = [
        DeviceType::Cpu,
        CUDA,
        DeviceType::CudaHost,
        DeviceType::CudaManaged,
    ]
    .into_iter()
    .chain((0..=u8::MAX).map(DeviceType::Custom))
    .collect();
    let handles: Vec<_> = types
        .iter()
        .map(|&device_type| handle(&FakeDevice::new(device_type, 0)))
        .collect();

    for handle in &handles {
        registry.register(handle.clone()).unwrap();
    }

    for (device_type, handle) in types.iter().zip(&handles) {
        let found = registry.get(*device_type).unwrap();
        assert!(found.same_allocator(handle), "{device_type}");
        assert_eq!(found.device_type(), *device_type);
    }
    for device_type in &types[1..] {
        registry.unregister(*device_type);
        assert!(registry.get(*device_type).is_none(), "{device_type}");
    }
    assert!(
        registry
            .get(DeviceType::Cpu)
            .unwrap()
            .same_allocator(&handles[0])
    );
}

#[test]
fn the_debug_text_lists_what_is_registered() {
    let registry = DeviceAllocatorRegistry::new();
    assert_eq!(format!("{registry:?}"), "{}");

    registry.register(Arc::new(HostAllocator)).unwrap();
    registry
        .register(Arc::new(FakeDevice::new(DeviceType::Custom(7), 3)))
        .unwrap();

    let text = format!("{registry:?}");
    assert!(
        text.starts_with("{Cpu: HostAllocator, Custom(7): FakeDevice {"),
        "{text}"
    );
    assert!(text.contains("device_count: 3"), "{text}");
}

mod lifetimes {
    use super::*;

    // https://github.com/chelsea0x3b/cudarc/issues/160
    #[test]
    fn a_local_registry_drops_its_allocators_once_when_the_last_buffer_is_gone() {
        let (allocator, fake, drops) = counted(CUDA);
        let registry = DeviceAllocatorRegistry::new();
        registry.register(allocator).unwrap();
        let first = DeviceMemoryBuffer::create_in(&registry, layout(8), CUDA_0).unwrap();
        let empty = DeviceMemoryBuffer::create_in(&registry, layout(0), CUDA_0).unwrap();

        drop(registry);
        assert_eq!(drops.load(Ordering::SeqCst), 0);
        let clone = first.try_clone().unwrap();
        drop(first);
        assert_eq!(drops.load(Ordering::SeqCst), 0);
        drop(clone);
        assert_eq!(drops.load(Ordering::SeqCst), 0);
        drop(empty);

        assert_eq!(drops.load(Ordering::SeqCst), 1);
        fake.assert_clean();
    }

    #[test]
    fn a_replaced_allocator_is_kept_until_the_registry_is_dropped() {
        let (allocator, _, drops) = counted(CUDA);
        let registry = DeviceAllocatorRegistry::new();
        registry.register(allocator).unwrap();

        drop(registry.replace(handle(&FakeDevice::new(CUDA, 1))).unwrap());
        drop(registry.unregister(CUDA));

        assert_eq!(drops.load(Ordering::SeqCst), 0);
        drop(registry);
        assert_eq!(drops.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_returned_handle_outlives_the_registry() {
        let (allocator, fake, drops) = counted(CUDA);
        let registry = DeviceAllocatorRegistry::new();
        registry.register(allocator).unwrap();
        let found = registry.get(CUDA).unwrap();

        drop(registry);
        let buffer = DeviceMemoryBuffer::create_with(found, layout(8), 1).unwrap();
        assert_eq!(drops.load(Ordering::SeqCst), 0);
        drop(buffer);

        assert_eq!(drops.load(Ordering::SeqCst), 1);
        fake.assert_clean();
    }

    #[test]
    fn handles_are_counted_one_by_one() {
        let (allocator, _, drops) = counted(CUDA);
        let first = AllocatorHandle::from(Arc::clone(&allocator));
        let second = first.clone();
        assert_eq!(Arc::strong_count(&allocator), 3);

        drop(first);
        assert_eq!(Arc::strong_count(&allocator), 2);
        drop(allocator);
        assert_eq!(drops.load(Ordering::SeqCst), 0);
        drop(second);

        assert_eq!(drops.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_buffer_that_is_freed_dissolved_or_refused_gives_its_count_back() {
        let (allocator, fake, drops) = counted(CUDA);
        let create = |size, index| {
            DeviceMemoryBuffer::create_with(Arc::clone(&allocator), layout(size), index)
        };

        create(8, 0).unwrap().free().unwrap();
        create(0, 0).unwrap().free().unwrap();
        let raw = create(8, 1).unwrap().into_raw();
        // SAFETY: the memory is live and nothing else uses it.
        drop(unsafe { DeviceMemoryBuffer::from_raw(raw) });
        assert!(create(8, 2).is_err());
        assert!(create(0, 2).is_err());
        assert!(create(1 << 50, 0).unwrap_err().is_out_of_memory());

        assert_eq!(Arc::strong_count(&allocator), 1);
        drop(allocator);
        assert_eq!(drops.load(Ordering::SeqCst), 1);
        fake.assert_clean();
    }

    #[test]
    fn an_allocator_of_the_global_registry_lives_as_long_as_the_process() {
        let device_type = own_type();
        let (allocator, fake, drops) = counted(device_type);
        let weak = Arc::downgrade(&allocator);
        let registry = DeviceAllocatorRegistry::global();
        registry.register(allocator).unwrap();
        let buffer = DeviceMemoryBuffer::create(8, device_type, 0).unwrap();
        let count = weak.strong_count();
        let more = DeviceMemoryBuffer::create(8, device_type, 0).unwrap();

        drop(registry.unregister(device_type));
        assert_eq!(
            (weak.strong_count(), drops.load(Ordering::SeqCst)),
            (count, 0)
        );
        drop((buffer, more));

        assert_eq!((weak.strong_count(), drops.load(Ordering::SeqCst)), (1, 0));
        fake.assert_clean();
    }

    #[test]
    fn an_allocator_that_panics_when_it_is_dropped_does_not_panic_the_buffer() {
        #[derive(Debug)]
        struct Bomb(HostAllocator);
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("dropped");
            }
        }
        // SAFETY: all calls are passed on to an allocator that keeps the promises.
        unsafe impl DeviceAllocator for Bomb {
            fn device_type(&self) -> DeviceType {
                self.0.device_type()
            }
            fn device_count(&self) -> usize {
                1
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
                // SAFETY: the caller's promises are the same.
                unsafe { self.0.deallocate(ptr, layout, index) }
            }
            forward_copies!(0);
        }
        let buffer =
            DeviceMemoryBuffer::create_with(Arc::new(Bomb(HostAllocator)), layout(8), 0).unwrap();

        drop(buffer);
    }
}

mod races {
    use super::*;

    /// Sets a flag when it goes away.
    struct SetOnDrop<'a>(&'a AtomicBool);

    impl Drop for SetOnDrop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn of_sixteen_registrations_exactly_one_wins() {
        for _ in 0..50 {
            let registry = DeviceAllocatorRegistry::new();
            let handles: Vec<_> = (0..16).map(|_| handle(&FakeDevice::new(CUDA, 1))).collect();
            let start = Barrier::new(16);

            let outcomes: Vec<_> = thread::scope(|scope| {
                let threads: Vec<_> = handles
                    .iter()
                    .map(|handle| {
                        scope.spawn(|| {
                            start.wait();
                            registry.register(handle.clone())
                        })
                    })
                    .collect();
                threads.into_iter().map(|t| t.join().unwrap()).collect()
            });

            let winners: Vec<_> = outcomes
                .iter()
                .zip(&handles)
                .filter(|(outcome, _)| outcome.is_ok())
                .collect();
            assert_eq!(winners.len(), 1);
            assert!(registry.get(CUDA).unwrap().same_allocator(winners[0].1));
            for error in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
                assert!(matches!(error.kind(), ErrorKind::AlreadyRegistered { .. }));
            }
        }
    }

    #[test]
    fn look_ups_during_replacements_find_one_of_the_two() {
        let registry = DeviceAllocatorRegistry::new();
        let fakes = [FakeDevice::new(CUDA, 1), FakeDevice::new(CUDA, 1)];
        let handles = [handle(&fakes[0]), handle(&fakes[1])];
        registry.register(handles[0].clone()).unwrap();
        let stop = AtomicBool::new(false);

        thread::scope(|scope| {
            let lookers: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let mut seen = 0_u32;
                        while !stop.load(Ordering::Relaxed) || seen == 0 {
                            let found = registry.get(CUDA).unwrap();
                            assert!(handles.iter().any(|known| found.same_allocator(known)));
                            let buffer =
                                DeviceMemoryBuffer::create_in(&registry, layout(8), CUDA_0)
                                    .unwrap();
                            drop(buffer);
                            seen += 1;
                        }
                        seen
                    })
                })
                .collect();
            // The others end even if this panics.
            let stopping = SetOnDrop(&stop);
            for turn in 1..=300 {
                let old = registry
                    .replace(handles[turn % 2].clone())
                    .unwrap()
                    .unwrap();
                assert!(old.same_allocator(&handles[(turn + 1) % 2]));
            }
            drop(stopping);
            for looker in lookers {
                assert!(looker.join().unwrap() > 0);
            }
        });

        for fake in &fakes {
            assert_eq!(fake.allocations(), fake.deallocations());
            fake.assert_clean();
        }
    }

    #[test]
    fn of_racing_replacements_each_returns_what_it_displaced() {
        let registry = DeviceAllocatorRegistry::new();
        let fakes: Vec<_> = (0..16).map(|_| FakeDevice::new(CUDA, 1)).collect();
        let handles: Vec<_> = fakes.iter().map(handle).collect();
        let start = Barrier::new(handles.len());
        let position = |found: &AllocatorHandle| {
            let known = handles.iter().position(|known| known.same_allocator(found));
            known.unwrap()
        };

        let displaced: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = handles
                .iter()
                .map(|handle| {
                    scope.spawn(|| {
                        start.wait();
                        registry.replace(handle.clone()).unwrap()
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });

        assert_eq!(displaced.iter().filter(|old| old.is_none()).count(), 1);
        let mut seen: HashSet<_> = displaced.iter().flatten().map(position).collect();
        assert!(seen.insert(position(&registry.get(CUDA).unwrap())));
        assert_eq!(seen.len(), handles.len());
    }

    // https://github.com/pytorch/pytorch/issues/97833
    #[test]
    fn an_allocator_that_is_refused_may_use_the_registry_when_it_is_dropped() {
        static REGISTRY: DeviceAllocatorRegistry = DeviceAllocatorRegistry::new();
        REGISTRY
            .register(Arc::new(FakeDevice::new(CUDA, 1)))
            .unwrap();
        let (refused, _, drops) = counted_with(CUDA, || {
            let _ = REGISTRY.get(CUDA);
            drop(
                REGISTRY
                    .replace(Arc::new(FakeDevice::new(DeviceType::Custom(1), 1)))
                    .unwrap(),
            );
            drop(REGISTRY.unregister(DeviceType::Custom(1)));
        });
        let (sender, receiver) = mpsc::channel();

        thread::spawn(move || sender.send(REGISTRY.register(refused).is_err()));

        assert_eq!(receiver.recv_timeout(Duration::from_secs(60)), Ok(true));
        assert_eq!(drops.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn an_allocator_may_use_the_registry_it_is_in() {
        /// A fake that looks itself up, and another type, in every allocation.
        #[derive(Debug)]
        struct Inquisitive(FakeDevice);
        static REGISTRY: DeviceAllocatorRegistry = DeviceAllocatorRegistry::new();
        // SAFETY: all calls are passed on to an allocator that keeps the promises.
        unsafe impl DeviceAllocator for Inquisitive {
            fn device_type(&self) -> DeviceType {
                let _ = REGISTRY.get(DeviceType::Custom(1));
                let _ = REGISTRY.register(Arc::new(FakeDevice::new(DeviceType::Custom(1), 1)));
                self.0.device_type()
            }
            fn device_count(&self) -> usize {
                self.0.device_count()
            }
            fn allocate(&self, layout: DeviceLayout, index: DeviceIndex) -> Result<DevicePtr> {
                assert!(REGISTRY.get(CUDA).is_some());
                drop(REGISTRY.unregister(DeviceType::Custom(1)));
                let other = FakeDevice::new(DeviceType::Custom(1), 1);
                drop(REGISTRY.replace(Arc::new(other)).unwrap());
                self.0.allocate(layout, index)
            }
            unsafe fn deallocate(
                &self,
                ptr: DevicePtr,
                layout: DeviceLayout,
                index: DeviceIndex,
            ) -> Result<()> {
                let _ = REGISTRY.get(CUDA);
                // SAFETY: the caller's promises are the same.
                unsafe { self.0.deallocate(ptr, layout, index) }
            }
            forward_copies!(0);
        }
        let fake = FakeDevice::new(CUDA, 1);
        REGISTRY
            .register(Arc::new(Inquisitive(fake.clone())))
            .unwrap();

        drop(DeviceMemoryBuffer::create_in(&REGISTRY, layout(8), CUDA_0).unwrap());

        let operations: Vec<_> = fake.calls().iter().map(|call| call.operation).collect();
        assert_eq!(operations, [Operation::Allocate, Operation::Deallocate]);
        fake.assert_clean();
    }
}
