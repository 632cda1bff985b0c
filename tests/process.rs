//! Forks, exits and builds that abort on panic: each case in a process of its
//! own, which is this test run again.

#![cfg(all(unix, feature = "testing"))]
#![expect(unsafe_code, reason = "fork and what belongs to it")]

use std::cell::RefCell;
use std::env;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

use device_memory::adaptor::{
    Aligned, Arena, ArenaStatus, Binning, Log, Poison, Pool, Recorded, Recorder, Statistics,
    Tracking,
};
use device_memory::testing::{FakeDevice, FaultInjector};
use device_memory::{
    BlockPool, Device, DeviceAllocator, DeviceAllocatorRegistry, DeviceLayout, DeviceMemoryBuffer,
    DeviceTensor, DeviceType, Error, ErrorKind, HostAllocator, MemoryPlan, Operation,
    PlannedBuffer, PlannedMemory, ProcessGeneration, ScalarType, TensorSpec, free_failure_count,
    set_free_failure_hook,
};

const CUDA: DeviceType = DeviceType::Cuda;
const CUDA_0: Device = Device::new(CUDA, 0);

/// Names the case that a process is to run.
const CASE: &str = "DEVICE_MEMORY_TEST_CASE";

/// Runs `case` in a process of its own, in which this test runs alone and on the
/// main thread, and checks that it ends well and says nothing on `stderr`.
fn alone(name: &str, case: impl FnOnce()) {
    if env::var(CASE).is_ok_and(|running| running == name) {
        case();
        return;
    }
    let output = Command::new(env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(CASE, name)
        .output()
        .unwrap();
    check(&output);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(
        stdout.contains("1 passed"),
        "the case did not run: {stdout}"
    );
}

/// Checks that a process ended well and said nothing on `stderr`.
fn check(output: &Output) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{}\n{stdout}\n{stderr}",
        output.status
    );
    assert_eq!(stderr, "");
}

/// Runs `child` in a fork of this process, and checks that it ends well.
fn in_child(child: impl FnOnce()) {
    // SAFETY: the process has one thread, so the child may go on as it likes; or another
    // that works with this crate only, which is to leave nothing that the child needs
    // held, and with the heap of the C library, which forks well.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork failed");
    if pid == 0 {
        let outcome = catch_unwind(AssertUnwindSafe(child));
        let _ = std::io::stderr().flush();
        // SAFETY: this ends the child at once, which owns nothing that matters.
        unsafe { libc::_exit(i32::from(outcome.is_err())) };
    }
    let mut status = 0;
    // SAFETY: `status` is valid for the call, and `pid` is a child of ours.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!((waited, status), (pid, 0), "the child failed");
}

fn layout(size: usize) -> DeviceLayout {
    DeviceLayout::from_size(size).unwrap()
}

/// A fake, and a buffer of `bytes` on it.
fn rig(bytes: &[u8]) -> (FakeDevice, DeviceMemoryBuffer) {
    let fake = FakeDevice::new(CUDA, 1);
    let mut buffer =
        DeviceMemoryBuffer::create_with(Arc::new(fake.clone()), layout(bytes.len()), 0).unwrap();
    buffer.copy_from_host(bytes).unwrap();
    (fake, buffer)
}

/// Puts an adaptor over a fake.
type Holder = fn(FakeDevice) -> Arc<dyn DeviceAllocator>;

/// Adaptors that hold memory of the layer below: one line each.
const HOLDERS: &[Holder] = &[
    |fake| Arc::new(Arena::over(fake, 4096)),
    |fake| Arc::new(Poison::over(fake)),
];

/// Puts an adaptor over the host.
type Keeper = fn(HostAllocator) -> Arc<dyn DeviceAllocator>;

/// Adaptors that keep a ledger of blocks: one line each.
const KEEPERS: &[Keeper] = &[
    |host| Arc::new(Aligned::over(host, 4096).unwrap().native_align(16).unwrap()),
    |host| Arc::new(Binning::over(host)),
    |host| Arc::new(Tracking::over(host)),
];

/// Runs `child` in a fork of this process while another thread keeps calling `busy`,
/// so that a lock that `busy` takes is likely held by a thread that the child has not.
/// A child that is stuck ends by a signal.
fn in_child_while(busy: impl Fn() + Send + Sync, child: impl FnOnce()) {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                busy();
            }
        });
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            in_child(|| {
                // SAFETY: the call has no preconditions.
                unsafe { libc::alarm(60) };
                child();
            });
        }));
        done.store(true, Ordering::Relaxed);
        if let Err(panic) = outcome {
            resume_unwind(panic);
        }
    });
}

fn is_forked(error: &Error) -> bool {
    matches!(error.root(), ErrorKind::ForkedProcess { .. })
}

mod forks {
    use super::*;

    #[test]
    fn pools_are_inert_in_a_child_and_the_parent_goes_on() {
        alone(
            "forks::pools_are_inert_in_a_child_and_the_parent_goes_on",
            || {
                let fake = FakeDevice::new(CUDA, 1);
                let pool = Pool::over(fake.clone());
                let create = |size| {
                    let allocator = Arc::new(pool.clone());
                    DeviceMemoryBuffer::create_with(allocator, layout(size), 0)
                };
                drop(create(100).unwrap());
                let blocks = BlockPool::new(create(4096).unwrap(), 64).unwrap();
                let mut owned = Some((blocks.block().unwrap(), create(1 << 20).unwrap()));
                let calls = fake.calls().len();

                in_child(|| {
                    drop(owned.take());
                    assert!(create(100).unwrap_err().is_forked_process());
                    assert!(pool.trim(0).unwrap_err().is_forked_process());
                    assert!(blocks.block().unwrap_err().is_forked_process());
                    assert_eq!(fake.calls().len(), calls);
                });

                assert_eq!(blocks.free_blocks(), 63);
                drop((owned, blocks));
                assert_eq!(pool.status(0).unwrap().in_use, 0);
                drop(pool);
                fake.assert_clean();
            },
        );
    }

    // https://github.com/pytorch/pytorch/issues/55643
    // https://github.com/vllm-project/vllm/issues/32611
    #[test]
    fn dropping_an_inherited_buffer_makes_no_call_and_the_parent_frees_once() {
        alone(
            "forks::dropping_an_inherited_buffer_makes_no_call_and_the_parent_frees_once",
            || {
                let (fake, buffer) = rig(b"kept");
                let mut buffer = Some(buffer);

                in_child(|| {
                    let failures = free_failure_count();
                    drop(buffer.take());
                    assert_eq!(fake.calls().len(), 2);
                    assert_eq!((fake.deallocations(), fake.live_blocks()), (0, 1));
                    assert_eq!(free_failure_count(), failures);
                });

                let buffer = buffer.unwrap();
                assert_eq!(buffer.to_vec().unwrap(), b"kept");
                drop(buffer);
                assert_eq!(fake.deallocations(), 1);
                fake.assert_clean();
            },
        );
    }

    #[test]
    fn what_holds_memory_of_a_device_gives_none_back_in_a_child_and_all_in_the_parent() {
        alone(
            "forks::what_holds_memory_of_a_device_gives_none_back_in_a_child_and_all_in_the_parent",
            || {
                for hold in HOLDERS {
                    let fake = FakeDevice::new(CUDA, 1);
                    let mut allocator = Some(hold(fake.clone()));
                    let create = |allocator: &Option<Arc<dyn DeviceAllocator>>| {
                        let allocator = allocator.clone().unwrap();
                        DeviceMemoryBuffer::create_with(allocator, layout(64), 0)
                    };
                    drop(create(&allocator).unwrap());
                    let mut kept = Some(create(&allocator).unwrap());
                    let live = fake.live_blocks();
                    let calls = fake.calls().len();

                    in_child(|| {
                        assert!(is_forked(&create(&allocator).unwrap_err()));
                        assert!(allocator.as_ref().unwrap().trim(0).is_err());
                        drop(kept.take());
                        drop(allocator.take());
                        assert_eq!((fake.live_blocks(), fake.calls().len()), (live, calls));
                    });

                    drop(kept);
                    drop(allocator);
                    fake.assert_clean();
                }
            },
        );
    }

    #[test]
    fn what_keeps_a_ledger_gives_and_takes_nothing_in_a_child() {
        alone(
            "forks::what_keeps_a_ledger_gives_and_takes_nothing_in_a_child",
            || {
                for keep in KEEPERS {
                    let allocator = keep(HostAllocator);
                    let ptr = allocator.allocate(layout(64), 0).unwrap();

                    in_child(|| {
                        let refused = allocator.allocate(layout(64), 0).unwrap_err();
                        // SAFETY: the block is not freed in a child, which is the test.
                        let kept = unsafe { allocator.deallocate(ptr, layout(64), 0) };
                        assert!(is_forked(&refused), "{allocator:?}: {refused}");
                        assert!(is_forked(&kept.unwrap_err()), "{allocator:?}");
                    });

                    // SAFETY: the block is freed once, as it was allocated.
                    unsafe { allocator.deallocate(ptr, layout(64), 0) }.unwrap();
                }
            },
        );
    }

    #[test]
    fn a_child_has_no_live_blocks_damages_or_points_to_go_back_to() {
        alone(
            "forks::a_child_has_no_live_blocks_damages_or_points_to_go_back_to",
            || {
                let tracking = Arc::new(Tracking::over(HostAllocator));
                let arena = Arc::new(Arena::over(HostAllocator, 4096));
                let point = arena.checkpoint(0).unwrap();
                let tracked =
                    DeviceMemoryBuffer::create_with(tracking.clone(), layout(64), 0).unwrap();
                let cut = DeviceMemoryBuffer::create_with(arena.clone(), layout(64), 0).unwrap();

                in_child(|| {
                    assert_eq!(tracking.live_blocks(), 0);
                    assert!(tracking.report().live.is_empty());
                    assert!(tracking.find(0, tracked.ptr()).is_none());
                    assert!(!tracking.set_name(0, tracked.ptr(), "name"));
                    assert_eq!(arena.status(0), ArenaStatus::default());
                    assert_eq!(point.live_blocks(), 0);
                    assert!(is_forked(&arena.checkpoint(0).unwrap_err()));
                });

                assert_eq!((tracking.live_blocks(), point.live_blocks()), (1, 1));
                drop((tracked, cut, point));
            },
        );
    }

    #[test]
    fn a_recorder_records_nothing_in_a_child_and_goes_on_in_the_parent() {
        alone(
            "forks::a_recorder_records_nothing_in_a_child_and_goes_on_in_the_parent",
            || {
                let recorder = Recorder::new(100_000);
                let allocator = Arc::new(Recorded::over(HostAllocator, &recorder));
                let create = || {
                    let allocator = allocator.clone();
                    DeviceMemoryBuffer::create_with(allocator, layout(64), 0).unwrap()
                };
                recorder.start();
                for _ in 0..10_000 {
                    drop(create());
                }
                let kept = create();

                let busy = || drop(recorder.recording());
                in_child_while(busy, || {
                    assert!(!recorder.is_on());
                    drop(create());
                    recorder.start();
                    drop(create());
                    recorder.stop();
                    assert!(!recorder.is_on());
                    let recording = recorder.recording();
                    assert_eq!((recording.events(), recording.blocks()), (&[][..], &[][..]));
                    assert!(recording.report(1).starts_with("0 events in "));
                });

                assert!(recorder.is_on());
                assert_eq!(recorder.recording().blocks()[0].address, kept.ptr().addr());
                drop(kept);
                let recording = recorder.recording();
                assert_eq!(recording.events().len(), 20_002);
                assert_eq!(recording.blocks(), []);
            },
        );
    }

    #[test]
    fn blocks_of_a_pool_are_neither_shared_nor_written_in_a_child() {
        alone(
            "forks::blocks_of_a_pool_are_neither_shared_nor_written_in_a_child",
            || {
                let buffer = DeviceMemoryBuffer::create(4096, DeviceType::Cpu, 0).unwrap();
                let pool = BlockPool::new(buffer, 64).unwrap();
                let mut block = pool.block().unwrap();
                let mut shared = block.fork();

                let busy = || drop(pool.block());
                in_child_while(busy, || {
                    assert!(is_forked(&shared.make_mut().unwrap_err()));
                    assert!(is_forked(&pool.block().unwrap_err()));
                    let third = block.fork();
                    assert_eq!((third.shares(), pool.free_blocks()), (0, 0));
                    assert_eq!((third.index(), pool.blocks()), (block.index(), 64));
                    drop(third);
                });

                assert_eq!((block.shares(), pool.free_blocks()), (2, 63));
                shared.make_mut().unwrap().fill(1).unwrap();
                block.make_mut().unwrap().fill(2).unwrap();
                assert_eq!((block.shares(), pool.free_blocks()), (1, 62));
            },
        );
    }

    #[test]
    fn statistics_go_on_counting_in_a_child_without_scopes() {
        alone(
            "forks::statistics_go_on_counting_in_a_child_without_scopes",
            || {
                let statistics = Arc::new(Statistics::over(HostAllocator));
                let create = || {
                    let allocator = statistics.clone();
                    DeviceMemoryBuffer::create_with(allocator, layout(64), 0).unwrap()
                };
                let kept = create();
                statistics.push(0).unwrap();

                in_child(|| {
                    let own = create();
                    assert_eq!(statistics.usage(0).current, 128);
                    drop(own);
                    assert_eq!(statistics.usage(0).current, 64);
                    assert!(is_forked(&statistics.push(0).unwrap_err()));
                    assert_eq!(statistics.pop(0), None);
                });

                drop(kept);
                let scope = statistics.pop(0).unwrap();
                assert_eq!((scope.at_start, scope.at_end), (64, 0));
            },
        );
    }

    // What a log holds back is written once, by the parent.
    #[test]
    fn a_log_writes_nothing_in_a_child() {
        alone("forks::a_log_writes_nothing_in_a_child", || {
            let path = env::temp_dir().join(format!("device-memory-fork-{}", std::process::id()));
            let file = std::fs::File::create(&path).unwrap();
            let writer = std::io::BufWriter::new(file);
            let mut log = Some(Arc::new(Log::csv(HostAllocator, writer)));
            let create = |log: &Option<Arc<Log<HostAllocator>>>| {
                DeviceMemoryBuffer::create_with(log.clone().unwrap(), layout(64), 0).unwrap()
            };
            drop(create(&log));

            in_child(|| {
                drop(create(&log));
                assert_eq!(log.as_ref().unwrap().lost(), 2);
                drop(log.take());
            });

            drop(log);
            let text = std::fs::read_to_string(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            assert_eq!(text.lines().count(), 3, "{text}");
        });
    }

    #[test]
    fn operations_on_an_inherited_buffer_are_errors_that_reach_no_allocator() {
        alone(
            "forks::operations_on_an_inherited_buffer_are_errors_that_reach_no_allocator",
            || {
                let (fake, mut buffer) = rig(b"kept");

                in_child(|| {
                    let host = [1; 4];
                    for error in [
                        buffer.copy_from_host(&host).unwrap_err(),
                        buffer.copy_from_host_at(1, &[1]).unwrap_err(),
                        buffer.copy_to_host(&mut [0; 4]).unwrap_err(),
                        buffer.copy_to_host_at(1, &mut [0]).unwrap_err(),
                        buffer.to_vec().unwrap_err(),
                        buffer.fill(1).unwrap_err(),
                        buffer.copy_from(HostAllocator::span(&host)).unwrap_err(),
                        buffer.as_slice().map(drop).unwrap_err(),
                        buffer.as_slice_mut().map(|_| ()).unwrap_err(),
                        buffer.as_span().to_vec().unwrap_err(),
                        HostAllocator::span_mut(&mut [0; 4])
                            .copy_from(buffer.as_span())
                            .unwrap_err(),
                    ] {
                        assert!(is_forked(&error), "{error:?}");
                        assert_eq!(error.code(), 0x02);
                    }
                    assert_eq!(
                        buffer.fill(1).unwrap_err().to_string(),
                        "memory of cuda:0 belongs to the parent of this forked process"
                    );
                    assert_eq!(fake.calls().len(), 2);
                });

                assert_eq!(buffer.to_vec().unwrap(), b"kept");
            },
        );
    }

    #[test]
    fn cloning_an_inherited_buffer_is_an_error_that_reaches_no_allocator() {
        alone(
            "forks::cloning_an_inherited_buffer_is_an_error_that_reaches_no_allocator",
            || {
                let (fake, buffer) = rig(b"kept");
                let host = DeviceMemoryBuffer::create(8, DeviceType::Cpu, 0).unwrap();

                in_child(|| {
                    assert!(is_forked(&buffer.try_clone().unwrap_err()));
                    assert!(is_forked(&host.try_clone().unwrap_err()));
                    assert_eq!(fake.calls().len(), 2);
                });

                assert!(buffer.try_clone().is_ok());
            },
        );
    }

    #[test]
    fn freeing_an_inherited_buffer_is_an_error_that_gives_it_back() {
        alone(
            "forks::freeing_an_inherited_buffer_is_an_error_that_gives_it_back",
            || {
                let (fake, buffer) = rig(b"kept");
                let ptr = buffer.ptr();
                let mut buffer = Some(buffer);

                in_child(|| {
                    let failure = buffer.take().unwrap().free().unwrap_err();
                    assert!(is_forked(&failure.error));
                    assert_eq!((failure.buffer.ptr(), failure.buffer.size()), (ptr, 4));
                    drop(failure);
                    assert_eq!(fake.calls().len(), 2);
                });

                buffer.unwrap().free().unwrap();
                fake.assert_clean();
            },
        );
    }

    #[test]
    fn nothing_is_made_in_the_child_by_an_allocator_of_the_parent() {
        alone(
            "forks::nothing_is_made_in_the_child_by_an_allocator_of_the_parent",
            || {
                let fake = FakeDevice::new(CUDA, 1);
                let registry = DeviceAllocatorRegistry::global();
                registry.register(Arc::new(fake.clone())).unwrap();
                let plan =
                    MemoryPlan::new(vec![PlannedBuffer::new(CUDA_0, 8)], Vec::new()).unwrap();
                let spec = TensorSpec::contiguous(ScalarType::Float, &[2], CUDA_0).unwrap();

                in_child(|| {
                    for error in [
                        DeviceMemoryBuffer::create(8, CUDA, 0).unwrap_err(),
                        DeviceMemoryBuffer::create_zeroed(8, CUDA, 0).unwrap_err(),
                        DeviceMemoryBuffer::from_host(&[1], CUDA, 0).unwrap_err(),
                        DeviceMemoryBuffer::create_all(registry, &[(layout(8), CUDA_0)])
                            .unwrap_err(),
                        PlannedMemory::allocate(&plan, registry).unwrap_err(),
                        DeviceTensor::create(spec.clone()).unwrap_err(),
                    ] {
                        assert!(is_forked(&error), "{error:?}");
                    }
                    assert_eq!((fake.allocations(), fake.live_blocks()), (0, 0));
                });

                drop(DeviceMemoryBuffer::create(8, CUDA, 0).unwrap());
                fake.assert_clean();
            },
        );
    }

    #[test]
    fn the_child_has_memory_of_its_own() {
        alone("forks::the_child_has_memory_of_its_own", || {
            let (parent_fake, inherited) = rig(b"kept");

            in_child(|| {
                let mut host = DeviceMemoryBuffer::from_host(b"child", DeviceType::Cpu, 0).unwrap();
                host.copy_from_host_at(0, b"C").unwrap();
                let clone = host.try_clone().unwrap();
                assert_eq!(host.as_slice().unwrap(), b"Child");
                assert_eq!(clone.to_vec().unwrap(), b"Child");
                let (fake, device) = rig(b"new");
                assert_eq!(device.to_vec().unwrap(), b"new");
                host.free().unwrap();
                drop((clone, device));
                fake.assert_clean();
                assert_eq!(parent_fake.calls().len(), 2);
            });

            drop(inherited);
            parent_fake.assert_clean();
        });
    }

    #[test]
    fn inherited_host_memory_is_inert_too() {
        alone("forks::inherited_host_memory_is_inert_too", || {
            let host = DeviceMemoryBuffer::from_host(b"kept", DeviceType::Cpu, 0).unwrap();
            let mut host = Some(host);

            in_child(|| {
                let mut host = host.take().unwrap();
                assert!(is_forked(&host.as_slice().map(drop).unwrap_err()));
                assert!(is_forked(&host.as_slice_mut().map(|_| ()).unwrap_err()));
                assert!(is_forked(&host.to_vec().unwrap_err()));
                assert!(is_forked(&host.free().unwrap_err().error));
            });

            assert_eq!(host.unwrap().as_slice().unwrap(), b"kept");
        });
    }

    #[test]
    fn inherited_plans_and_tensors_are_inert() {
        alone("forks::inherited_plans_and_tensors_are_inert", || {
            let fake = FakeDevice::new(CUDA, 1);
            let registry = DeviceAllocatorRegistry::new();
            registry.register(Arc::new(fake.clone())).unwrap();
            let buffers = vec![
                PlannedBuffer::new(CUDA_0, 8),
                PlannedBuffer::new(Device::CPU, 8),
            ];
            let plan = MemoryPlan::new(buffers, Vec::new()).unwrap();
            let spec = TensorSpec::contiguous(ScalarType::Float, &[2], CUDA_0).unwrap();
            let mut memory = Some(PlannedMemory::allocate(&plan, &registry).unwrap());
            let mut tensor = Some(DeviceTensor::create_in(&registry, spec).unwrap());
            let calls = fake.calls().len();

            in_child(|| {
                let mut memory = memory.take().unwrap();
                let tensor = tensor.take().unwrap();
                assert!(is_forked(&memory.fill(0).unwrap_err()));
                assert!(is_forked(&tensor.view().unwrap().to_vec().unwrap_err()));
                assert!(is_forked(
                    &tensor.to_device_in(&registry, Device::CPU).unwrap_err()
                ));
                drop((memory, tensor));
                assert_eq!(fake.calls().len(), calls);
            });

            drop((memory, tensor));
            fake.assert_clean();
        });
    }

    #[test]
    fn nothing_of_no_bytes_belongs_to_a_process() {
        alone("forks::nothing_of_no_bytes_belongs_to_a_process", || {
            let empty = DeviceMemoryBuffer::create(0, DeviceType::Cpu, 0).unwrap();
            let mut buffers = vec![DeviceMemoryBuffer::default(), empty];

            in_child(|| {
                for mut buffer in buffers.drain(..) {
                    buffer.fill(0).unwrap();
                    buffer.copy_from_host(&[]).unwrap();
                    assert!(buffer.to_vec().unwrap().is_empty());
                    buffer.free().unwrap();
                }
            });
        });
    }

    #[test]
    fn what_a_child_made_is_inert_in_its_own_child() {
        alone("forks::what_a_child_made_is_inert_in_its_own_child", || {
            in_child(|| {
                let (fake, buffer) = rig(b"kept");
                let mut buffer = Some(buffer);

                in_child(|| {
                    let buffer = buffer.take().unwrap();
                    assert!(is_forked(&buffer.to_vec().unwrap_err()));
                    drop(buffer);
                    assert_eq!(fake.calls().len(), 2);
                });

                assert_eq!(buffer.take().unwrap().to_vec().unwrap(), b"kept");
                fake.assert_clean();
            });
        });
    }

    #[test]
    fn generations_tell_a_child_from_its_parent() {
        alone("forks::generations_tell_a_child_from_its_parent", || {
            let parent = ProcessGeneration::current();

            in_child(|| {
                assert!(!parent.is_current());
                assert_ne!(parent, ProcessGeneration::current());
                assert!(ProcessGeneration::current().is_current());
            });

            assert!(parent.is_current());
            assert_eq!(parent, ProcessGeneration::current());
        });
    }

    #[test]
    fn a_process_that_made_its_first_buffer_on_another_thread_is_watched() {
        alone(
            "forks::a_process_that_made_its_first_buffer_on_another_thread_is_watched",
            || {
                let maker = thread::spawn(|| rig(b"kept"));
                let (fake, buffer) = maker.join().unwrap();
                let mut buffer = Some(buffer);

                in_child(|| {
                    assert!(is_forked(&buffer.take().unwrap().to_vec().unwrap_err()));
                    assert_eq!(fake.calls().len(), 2);
                });

                drop(buffer);
                fake.assert_clean();
            },
        );
    }
}

mod exits {
    use super::*;

    static KEPT: OnceLock<(FakeDevice, DeviceMemoryBuffer)> = OnceLock::new();
    static KEPT_HOST: OnceLock<DeviceMemoryBuffer> = OnceLock::new();

    thread_local! {
        static LOCAL: RefCell<Vec<DeviceMemoryBuffer>> = const { RefCell::new(Vec::new()) };
    }

    fn keep_locally(buffer: DeviceMemoryBuffer) {
        LOCAL.with(|local| local.borrow_mut().push(buffer));
    }

    fn keep_host_locally() {
        keep_locally(DeviceMemoryBuffer::create_zeroed(64, DeviceType::Cpu, 0).unwrap());
    }

    // https://github.com/rapidsai/rmm/issues/2366
    #[test]
    fn buffers_in_statics_and_thread_locals_at_exit_are_silent() {
        alone(
            "exits::buffers_in_statics_and_thread_locals_at_exit_are_silent",
            || {
                let (fake, buffer) = rig(b"static");
                assert!(KEPT.set((fake.clone(), buffer)).is_ok());
                let host = DeviceMemoryBuffer::create(64, DeviceType::Cpu, 0).unwrap();
                assert!(KEPT_HOST.set(host).is_ok());
                keep_locally(rig(b"local").1);
                keep_host_locally();
                let other = thread::spawn(|| {
                    keep_locally(rig(b"other").1);
                    keep_host_locally();
                });

                other.join().unwrap();

                assert_eq!(fake.live_blocks(), 1);
            },
        );
    }

    #[test]
    fn a_process_that_exits_at_once_with_live_buffers_is_silent() {
        let name = "exits::a_process_that_exits_at_once_with_live_buffers_is_silent";
        if env::var(CASE).is_ok_and(|running| running == name) {
            keep_locally(rig(b"local").1);
            let _on_the_stack = rig(b"stack");
            assert!(KEPT.set(rig(b"static")).is_ok());
            std::process::exit(0);
        }

        let output = Command::new(env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture", "--test-threads=1"])
            .env(CASE, name)
            .output()
            .unwrap();

        check(&output);
    }

    #[test]
    fn a_driver_that_is_shut_down_before_the_last_buffer_is_silent() {
        alone(
            "exits::a_driver_that_is_shut_down_before_the_last_buffer_is_silent",
            || {
                let (fake, first) = rig(b"static");
                let second = DeviceMemoryBuffer::create_with(Arc::new(fake.clone()), layout(8), 0);
                let third = first.try_clone().unwrap();
                assert!(KEPT.set((fake.clone(), first)).is_ok());
                keep_locally(second.unwrap());
                fake.shut_down();

                drop(third);

                assert_eq!(free_failure_count(), 0);
                assert_eq!(fake.calls().pop().unwrap().operation, Operation::Deallocate);
            },
        );
    }

    #[test]
    fn frees_that_fail_write_nothing_with_and_without_a_hook() {
        alone(
            "exits::frees_that_fail_write_nothing_with_and_without_a_hook",
            || {
                std::panic::set_hook(Box::new(|_| {}));
                let injector = FaultInjector::new(FakeDevice::new(CUDA, 1));
                let faults = injector.faults();
                let allocator: Arc<dyn DeviceAllocator> = Arc::new(injector);
                let create = || {
                    let allocator = Arc::clone(&allocator);
                    DeviceMemoryBuffer::create_with(allocator, layout(8), 0).unwrap()
                };
                keep_locally(create());
                let buffers = [create(), create(), create()];
                faults.fail_all(Operation::Deallocate);

                let [first, second, third] = buffers;
                drop(first);
                faults.panic_on(Operation::Deallocate, 1);
                drop(second);
                set_free_failure_hook(Some(Arc::new(|_| {})));
                drop(third);

                assert_eq!(free_failure_count(), 3);
            },
        );
    }

    #[test]
    fn a_free_that_fails_at_exit_is_no_failure_of_the_process() {
        alone(
            "exits::a_free_that_fails_at_exit_is_no_failure_of_the_process",
            || {
                let injector = FaultInjector::new(FakeDevice::new(CUDA, 1));
                let faults = injector.faults();
                let buffer = DeviceMemoryBuffer::create_with(Arc::new(injector), layout(8), 0);

                keep_locally(buffer.unwrap());
                faults.fail_all(Operation::Deallocate);

                assert_eq!(free_failure_count(), 0);
            },
        );
    }
}

#[test]
fn no_bad_input_aborts_a_build_in_which_a_panic_would() {
    let output = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--offline", "--profile", "abort"])
        .args(["--features", "testing", "--example", "abort_free"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env(
            "CARGO_TARGET_DIR",
            concat!(env!("CARGO_TARGET_TMPDIR"), "/abort"),
        )
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("CARGO_BUILD_TARGET")
        .output()
        .unwrap();

    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{stderr}", output.status);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "done\n");
}
