//! Many threads at once.

#![cfg(feature = "testing")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;

use device_memory::testing::{FakeDevice, FakeDeviceBuilder, FaultInjector};
use device_memory::{
    AllocatorHandle, Device, DeviceAllocatorRegistry, DeviceLayout, DeviceMemoryBuffer, DeviceType,
    MemoryPlan, Operation, Placement, PlannedBuffer, PlannedMemory, free_failure_count,
    set_free_failure_hook,
};

const THREADS: u8 = 8;
const ROUNDS: usize = 200;
const CUDA: DeviceType = DeviceType::Cuda;
const CUDA_0: Device = Device::new(CUDA, 0);
const CUDA_1: Device = Device::new(CUDA, 1);

fn layout(size: usize) -> DeviceLayout {
    DeviceLayout::from_size(size).unwrap()
}

fn fakes() -> FakeDeviceBuilder {
    FakeDevice::builder(CUDA).devices(2)
}

/// Bytes that tell who wrote them and when.
fn signature(thread: u8, round: usize, len: usize) -> Vec<u8> {
    let round = round.to_le_bytes();
    let bytes = [thread, round[0], round[1], 0xA5];
    bytes.into_iter().cycle().take(len).collect()
}

/// Creates, copies, clones and drops on eight threads while allocators are
/// replaced.
fn churn(builder: &FakeDeviceBuilder) {
    let fakes = [builder.clone().build(), builder.clone().build()];
    let handles = [0, 1].map(|i: usize| AllocatorHandle::from(Arc::new(fakes[i].clone())));
    let registry = DeviceAllocatorRegistry::new();
    registry.register(handles[0].clone()).unwrap();
    let start = Barrier::new(usize::from(THREADS));
    let (registry, handles, start) = (&registry, &handles, &start);

    thread::scope(|scope| {
        for id in 0..THREADS {
            scope.spawn(move || {
                start.wait();
                for round in 0..ROUNDS {
                    let device = [CUDA_0, CUDA_1, Device::CPU][round % 3];
                    let len = 1 + round % 97;
                    let bytes = signature(id, round, len);
                    let mut buffer =
                        DeviceMemoryBuffer::create_in(registry, layout(len), device).unwrap();
                    buffer.copy_from_host(&bytes).unwrap();
                    if round % 7 == usize::from(id) % 7 {
                        let other = handles[round % 2].clone();
                        assert!(registry.replace(other).unwrap().is_some());
                    }
                    let clone = buffer.try_clone().unwrap();
                    let mut elsewhere =
                        DeviceMemoryBuffer::create_in(registry, layout(len), CUDA_1).unwrap();
                    elsewhere.copy_from(buffer.as_span()).unwrap();
                    buffer.fill(0).unwrap();
                    assert_eq!(clone.to_vec().unwrap(), bytes);
                    assert_eq!(elsewhere.to_vec().unwrap(), bytes);
                    assert_eq!(buffer.to_vec().unwrap(), vec![0; len]);
                    clone.free().unwrap();
                }
            });
        }
    });

    let made: u64 = fakes.iter().map(FakeDevice::allocations).sum();
    // Of each three rounds, two make two blocks and their copy on devices and
    // one makes one.
    let host_rounds = ROUNDS / 3;
    let blocks = (3 * ROUNDS - 2 * host_rounds) * usize::from(THREADS);
    assert_eq!(made, u64::try_from(blocks).unwrap());
    for fake in &fakes {
        assert_eq!(fake.allocations(), fake.deallocations());
        fake.assert_clean();
    }
}

#[test]
fn creating_copying_replacing_and_dropping_mix_on_eight_threads() {
    churn(&fakes());
}

#[test]
fn delayed_copies_mix_on_eight_threads() {
    churn(&fakes().delayed_copies(true));
}

#[test]
fn addresses_that_come_again_mix_on_eight_threads() {
    churn(&fakes().reuse_addresses(true));
}

#[test]
fn buffers_pass_from_thread_to_thread_with_what_they_hold() {
    let fake = fakes().delayed_copies(true).build();
    let allocator = AllocatorHandle::from(Arc::new(fake.clone()));
    let (first, mut receiver) = mpsc::channel::<DeviceMemoryBuffer>();
    let allocator = &allocator;

    thread::scope(|scope| {
        scope.spawn(move || {
            for round in 0..ROUNDS {
                let index = u16::from(round % 2 == 1);
                let mut buffer =
                    DeviceMemoryBuffer::create_with(allocator.clone(), layout(9), index).unwrap();
                buffer.fill(0).unwrap();
                first.send(buffer).unwrap();
            }
        });
        for id in 1..THREADS {
            let (sender, next) = mpsc::channel();
            let previous = std::mem::replace(&mut receiver, next);
            scope.spawn(move || {
                for mut buffer in previous {
                    buffer.copy_from_host_at(usize::from(id), &[id]).unwrap();
                    sender.send(buffer).unwrap();
                }
            });
        }
        let mut count = 0;
        for buffer in receiver {
            assert_eq!(buffer.to_vec().unwrap(), [0, 1, 2, 3, 4, 5, 6, 7, 0]);
            count += 1;
        }
        assert_eq!(count, ROUNDS);
    });

    let expected = u64::try_from(ROUNDS).unwrap();
    assert_eq!(
        (fake.allocations(), fake.deallocations()),
        (expected, expected)
    );
    let (maker, dropper) = (fake.calls()[0].thread, fake.calls().pop().unwrap());
    assert_eq!(dropper.operation, Operation::Deallocate);
    assert_ne!(dropper.thread, maker);
    fake.assert_clean();
}

#[test]
fn one_buffer_is_read_by_all_at_once() {
    let fake = fakes().build();
    let bytes = signature(9, 9, 4096);
    let mut buffer =
        DeviceMemoryBuffer::create_with(Arc::new(fake.clone()), layout(4096), 1).unwrap();
    buffer.copy_from_host(&bytes).unwrap();
    let (buffer, bytes) = (&buffer, &bytes);

    thread::scope(|scope| {
        for id in 0..usize::from(THREADS) {
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let offset = (id * 500 + round) % 4000;
                    let mut part = [0; 96];
                    buffer.copy_to_host_at(offset, &mut part).unwrap();
                    assert_eq!(part, bytes[offset..offset + 96]);
                    let clone = buffer.try_clone().unwrap();
                    assert_eq!(clone.device(), CUDA_1);
                }
            });
        }
    });

    assert_eq!(fake.live_blocks(), 1);
    assert_eq!(buffer.to_vec().unwrap(), *bytes);
}

#[test]
fn disjoint_parts_of_planned_memory_are_written_by_all_at_once() {
    let fake = fakes().build();
    let registry = DeviceAllocatorRegistry::new();
    registry.register(Arc::new(fake.clone())).unwrap();
    let placements: Vec<_> = (0..usize::from(THREADS))
        .map(|id| Placement::new(u32::from(id % 2 == 1), id / 2 * 64, 64))
        .collect();
    let buffers = vec![
        PlannedBuffer::new(Device::CPU, 256),
        PlannedBuffer::new(CUDA_1, 256),
    ];
    let plan = MemoryPlan::new(buffers, placements).unwrap();
    let mut memory = PlannedMemory::allocate(&plan, &registry).unwrap();
    let mut view = memory.view().unwrap();

    let spans = view.disjoint_mut(plan.placements()).unwrap();
    thread::scope(|scope| {
        for (id, mut span) in (0..THREADS).zip(spans) {
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    span.copy_from_host(&signature(id, round, 64)).unwrap();
                }
            });
        }
    });

    for (id, placement) in (0..THREADS).zip(plan.placements()) {
        let bytes = view.span(*placement).unwrap().to_vec().unwrap();
        assert_eq!(bytes, signature(id, ROUNDS - 1, 64));
    }
}

#[test]
fn all_at_once_make_and_drop_through_the_global_registry() {
    let device_type = DeviceType::Custom(99);
    let fake = FakeDevice::new(device_type, 1);
    let registry = DeviceAllocatorRegistry::global();
    registry.register(Arc::new(fake.clone())).unwrap();

    thread::scope(|scope| {
        for id in 0..THREADS {
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let bytes = signature(id, round, 16);
                    let here = DeviceMemoryBuffer::from_host(&bytes, DeviceType::Cpu, 0).unwrap();
                    let there = DeviceMemoryBuffer::from_host(&bytes, device_type, 0).unwrap();
                    assert_eq!(here.to_vec().unwrap(), there.to_vec().unwrap());
                }
            });
        }
    });

    let expected = u64::from(THREADS) * u64::try_from(ROUNDS).unwrap();
    assert_eq!(fake.allocations(), expected);
    fake.assert_clean();
}

#[test]
fn every_failed_free_is_counted_and_told_while_hooks_are_exchanged() {
    // The only test of this process that lets frees fail.
    let fake = FakeDevice::new(CUDA, 1);
    let injector = FaultInjector::new(fake.clone());
    injector.fail_all(Operation::Deallocate);
    let allocator = AllocatorHandle::from(Arc::new(injector));
    let told = Arc::new(AtomicU64::new(0));
    let hook = || {
        let told = Arc::clone(&told);
        let seen = Mutex::new(Vec::new());
        Some(Arc::new(move |failure: &device_memory::FreeFailure| {
            seen.lock().unwrap().push(failure.ptr);
            told.fetch_add(1, Ordering::Relaxed);
        }) as device_memory::FreeFailureHook)
    };
    set_free_failure_hook(hook());
    let before = free_failure_count();
    let done = AtomicBool::new(false);

    thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|_| {
                let allocator = allocator.clone();
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        drop(DeviceMemoryBuffer::create_with(
                            allocator.clone(),
                            layout(8),
                            0,
                        ));
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                assert!(set_free_failure_hook(hook()).is_some());
                thread::yield_now();
            }
        });
        let outcomes: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Ordering::Relaxed);
        assert!(outcomes.iter().all(Result::is_ok));
    });
    set_free_failure_hook(None);

    let expected = u64::from(THREADS) * u64::try_from(ROUNDS).unwrap();
    assert_eq!(free_failure_count() - before, expected);
    assert_eq!(told.load(Ordering::Relaxed), expected);
    assert_eq!(u64::try_from(fake.live_blocks()).unwrap(), expected);
}
