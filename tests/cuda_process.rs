//! What takes a process of its own, on the fake driver, a simulation: drivers that
//! lack a function, the global registry, exits and forks. Each case is this test
//! run again.

#![cfg(all(feature = "cuda", target_os = "linux"))]
#![expect(unsafe_code, reason = "fork and what belongs to it")]

use std::cell::RefCell;
use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Output};
use std::sync::{Arc, OnceLock};
use std::thread;

use device_memory::backend::cuda::cudarc::driver::CudaContext;
use device_memory::backend::cuda::{CudaAllocator, CudaHostAllocator, CudaManagedAllocator};
use device_memory::{
    DeviceAllocator, DeviceAllocatorRegistry, DeviceLayout, DeviceMemoryBuffer, DeviceType,
    ErrorKind, Result, free_failure_count,
};
use fakecuda::FakeCuda;

/// Names the case that a process is to run.
const CASE: &str = "DEVICE_MEMORY_TEST_CASE";
/// Names the function that the driver of a process lacks.
const LACKS: &str = "DEVICE_MEMORY_TEST_LACKS";

fn child(name: &str, lacks: &str) -> Output {
    Command::new(env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(CASE, name)
        .env(LACKS, lacks)
        .output()
        .unwrap()
}

fn is_child(name: &str) -> bool {
    env::var(CASE).is_ok_and(|running| running == name)
}

/// Runs `case` in a process of its own, and checks that it ends well and says
/// nothing on `stderr`.
fn alone(name: &str, case: impl FnOnce()) {
    if is_child(name) {
        case();
        return;
    }
    let output = child(name, "");
    check(&output);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains("1 passed"), "it did not run: {stdout}");
}

/// Checks that a process ended well and said nothing on `stderr`.
#[track_caller]
fn check(output: &Output) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    let stdout = String::from_utf8_lossy(&output.stdout);
    let status = output.status;
    assert!(status.success(), "{status}\n{stdout}\n{stderr}");
    assert_eq!(stderr, "");
}

/// Runs `child` in a fork of this process, and checks that it ends well.
fn in_fork(child: impl FnOnce()) {
    // SAFETY: the process has one thread, so the child may go on as it likes.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork failed");
    if pid == 0 {
        let outcome = catch_unwind(AssertUnwindSafe(child));
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

fn filled(allocator: &CudaAllocator) -> DeviceMemoryBuffer {
    let handle = Arc::new(allocator.clone());
    let mut buffer = DeviceMemoryBuffer::create_with(handle, layout(4), 0).unwrap();
    buffer.copy_from_host(b"kept").unwrap();
    buffer
}

/// Uses an allocator in every way, between devices too.
fn use_all(allocator: impl DeviceAllocator + 'static) -> Result<()> {
    use_up_to(allocator, 1)
}

/// The same with devices up to `last`.
fn use_up_to(allocator: impl DeviceAllocator + 'static, last: u16) -> Result<()> {
    let allocator: Arc<dyn DeviceAllocator> = Arc::new(allocator);
    let mut buffer = DeviceMemoryBuffer::create_with(Arc::clone(&allocator), layout(4), 0)?;
    buffer.copy_from_host(b"some")?;
    let clone = buffer.try_clone()?;
    assert_eq!(clone.to_vec()?, b"some");
    buffer.fill(1)?;
    let mut other = DeviceMemoryBuffer::create_with(Arc::clone(&allocator), layout(4), last)?;
    other.copy_from(clone.as_span())?;
    allocator.memory_info(0)?;
    allocator.synchronize(0)?;
    allocator.trim(0)?;
    Ok(())
}

/// Uses everything that opens.
fn use_everything() -> Vec<Result<()>> {
    let device = CudaAllocator::open();
    let on_stream = device.as_ref().map_or(Ok(()), |allocator| {
        // cudarc panics for what it lacks itself, or aborts for this one; that is
        // not what is tested.
        if env::var(LACKS).is_ok_and(|lacks| lacks == "cuCtxSetCurrent") {
            return Ok(());
        }
        let stream = catch_unwind(|| {
            let context = CudaContext::new(0).unwrap();
            [(); 2].map(|()| context.new_stream().unwrap())
        });
        let Ok([own, other]) = stream else {
            return Ok(());
        };
        let handle = allocator.on_stream(&own)?;
        let buffer = filled(&handle);
        handle.record_use(buffer.ptr(), &other)?;
        drop(buffer);
        use_up_to(handle, 0)
    });
    let device = device.and_then(use_all);
    vec![
        device,
        CudaAllocator::builder()
            .release_threshold(1)
            .open()
            .and_then(use_all),
        CudaHostAllocator::open().and_then(use_all),
        CudaManagedAllocator::open().and_then(use_all),
        on_stream,
    ]
}

#[test]
fn a_driver_that_lacks_any_one_function_is_an_error_with_its_name_or_does_without() {
    let name = "a_driver_that_lacks_any_one_function_is_an_error_with_its_name_or_does_without";
    if is_child(name) {
        std::panic::set_hook(Box::new(|_| {}));
        let lacks = env::var(LACKS).unwrap();
        FakeCuda::install_without(&[&lacks]).unwrap().set_devices(2);
        let mut missed = 0;
        for _ in 0..2 {
            for outcome in use_everything() {
                let Err(error) = outcome else {
                    continue;
                };
                missed += 1;
                let ErrorKind::MissingSymbol { symbol, .. } = error.kind() else {
                    panic!("{lacks}: {error:?}");
                };
                assert_eq!(*symbol, lacks);
                assert!(
                    error.to_string().ends_with(&format!("lacks {lacks}")),
                    "{error}"
                );
                assert_eq!(error.code(), 0x10);
            }
        }
        // Whoever opens the driver looks for all functions, so all miss one or none.
        assert!([0, 8].contains(&missed), "{lacks}: {missed}");
        return;
    }
    let functions = FakeCuda::install().unwrap().exports();
    assert!(functions.len() > 60);
    for lacks in functions {
        let output = child(name, &lacks);
        assert!(output.status.success(), "without {lacks}: {output:?}");
    }
}

mod registry {
    use super::*;

    #[test]
    fn the_first_use_opens_the_back_end_without_any_set_up() {
        alone(
            "registry::the_first_use_opens_the_back_end_without_any_set_up",
            || {
                let fake = FakeCuda::install().unwrap();
                let registry = DeviceAllocatorRegistry::global();

                drop(DeviceMemoryBuffer::create(8, DeviceType::Cpu, 0).unwrap());
                assert_eq!(
                    fake.total_calls(),
                    0,
                    "nothing is opened before it is asked for"
                );
                let mut buffer = DeviceMemoryBuffer::create(1024, DeviceType::Cuda, 0).unwrap();
                buffer.fill(7).unwrap();

                assert_eq!(buffer.to_vec().unwrap(), [7; 1024]);
                assert!(registry.registered(DeviceType::Cuda).is_none());
                assert!(registry.get(DeviceType::Cuda).is_some());
                assert_eq!(fake.count("cuInit"), 1);
                let error = DeviceMemoryBuffer::create(8, DeviceType::Cuda, 1).unwrap_err();
                assert!(matches!(
                    error.kind(),
                    ErrorKind::InvalidDevice { count: 1, .. }
                ));
                drop(buffer);
                assert_eq!(fake.live().device_blocks(), 0);
                assert_eq!(fake.violations(), Vec::<String>::new());
            },
        );
    }

    #[test]
    fn each_of_the_three_types_is_opened_once_by_threads_that_race() {
        alone(
            "registry::each_of_the_three_types_is_opened_once_by_threads_that_race",
            || {
                let fake = FakeCuda::install().unwrap();
                let types = [
                    DeviceType::Cuda,
                    DeviceType::CudaHost,
                    DeviceType::CudaManaged,
                ];
                thread::scope(|scope| {
                    for id in 0..12 {
                        scope.spawn(move || {
                            for round in 0..3 {
                                let device_type = types[(id + round) % 3];
                                let content = [1, 2, 3];
                                let buffer =
                                    DeviceMemoryBuffer::from_host(&content, device_type, 0)
                                        .unwrap();
                                assert_eq!(buffer.to_vec().unwrap(), content);
                                let host = device_type != DeviceType::Cuda;
                                assert_eq!(buffer.as_slice().is_ok(), host);
                            }
                        });
                    }
                });
                assert_eq!(fake.count("cuInit"), 3);
                assert_eq!(fake.live().primary_retains(), 3);
                assert_eq!(fake.live().device_blocks() + fake.live().pinned, 0);
                assert_eq!(fake.violations(), Vec::<String>::new());
            },
        );
    }

    #[test]
    fn a_failed_open_is_forgotten() {
        alone("registry::a_failed_open_is_forgotten", || {
            let fake = FakeCuda::install().unwrap();
            fake.set_driver_version(11_000);
            for _ in 0..2 {
                let error = DeviceMemoryBuffer::create(8, DeviceType::Cuda, 0).unwrap_err();
                assert!(
                    matches!(error.kind(), ErrorKind::DriverTooOld { .. }),
                    "{error:?}"
                );
                assert!(
                    DeviceAllocatorRegistry::global()
                        .get(DeviceType::Cuda)
                        .is_none()
                );
            }
            fake.set_driver_version(13_040);
            fake.fail("cuInit", 1, 999);
            let error = DeviceMemoryBuffer::create(8, DeviceType::Cuda, 0).unwrap_err();
            assert!(error.to_string().contains("cuInit returned 999"), "{error}");

            drop(DeviceMemoryBuffer::create(8, DeviceType::Cuda, 0).unwrap());

            assert!(
                DeviceAllocatorRegistry::global()
                    .get(DeviceType::Cuda)
                    .is_some()
            );
        });
    }
}

mod exits {
    use super::*;

    static KEPT: OnceLock<[DeviceMemoryBuffer; 3]> = OnceLock::new();

    thread_local! {
        static LOCAL: RefCell<Vec<DeviceMemoryBuffer>> = const { RefCell::new(Vec::new()) };
    }

    fn keep_everywhere() {
        let types = [
            DeviceType::Cuda,
            DeviceType::CudaHost,
            DeviceType::CudaManaged,
        ];
        let three = types.map(|kind| DeviceMemoryBuffer::from_host(b"kept", kind, 0).unwrap());
        assert!(KEPT.set(three).is_ok());
        for kind in types {
            let buffer = DeviceMemoryBuffer::from_host(b"local", kind, 0).unwrap();
            LOCAL.with(|local| local.borrow_mut().push(buffer));
        }
        let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
        let handle = CudaAllocator::open().unwrap().on_stream(&stream).unwrap();
        LOCAL.with(|local| local.borrow_mut().push(filled(&handle)));
    }

    // https://github.com/rapidsai/rmm/issues/2366
    #[test]
    fn buffers_in_statics_and_thread_locals_at_exit_are_silent() {
        alone(
            "exits::buffers_in_statics_and_thread_locals_at_exit_are_silent",
            || {
                let fake = FakeCuda::install().unwrap();
                keep_everywhere();
                assert_eq!(fake.violations(), Vec::<String>::new());
            },
        );
    }

    #[test]
    fn a_process_that_exits_at_once_with_live_buffers_is_silent() {
        let name = "exits::a_process_that_exits_at_once_with_live_buffers_is_silent";
        if is_child(name) {
            FakeCuda::install().unwrap();
            keep_everywhere();
            let _on_the_stack = filled(&CudaAllocator::open().unwrap());
            std::process::exit(0);
        }
        check(&child(name, ""));
    }

    #[test]
    fn a_driver_that_is_shut_down_before_the_last_buffers_is_silent() {
        alone(
            "exits::a_driver_that_is_shut_down_before_the_last_buffers_is_silent",
            || {
                let fake = FakeCuda::install().unwrap();
                keep_everywhere();
                let on_the_stack = filled(&CudaAllocator::open().unwrap());
                fake.set_shut_down(true);

                drop(on_the_stack);

                assert_eq!(free_failure_count(), 0);
            },
        );
    }

    #[test]
    fn a_process_that_panics_with_live_buffers_says_only_that() {
        let name = "exits::a_process_that_panics_with_live_buffers_says_only_that";
        if is_child(name) {
            FakeCuda::install().unwrap();
            std::panic::set_hook(Box::new(|_| {}));
            keep_everywhere();
            let _on_the_stack = filled(&CudaAllocator::open().unwrap());
            panic!("the caller's");
        }
        let output = child(name, "");
        assert_eq!(output.status.code(), Some(101), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    }
}

mod forks {
    use super::*;

    /// Checks that the driver was not called in this child.
    fn assert_untouched(fake: FakeCuda, calls: u64) {
        assert_eq!(fake.total_calls(), calls);
        assert_eq!(fake.violations(), Vec::<String>::new());
    }

    // https://github.com/pytorch/pytorch/issues/55643
    // https://github.com/vllm-project/vllm/issues/32611
    #[test]
    fn what_a_child_inherits_is_inert_and_the_parent_goes_on() {
        alone(
            "forks::what_a_child_inherits_is_inert_and_the_parent_goes_on",
            || {
                let fake = FakeCuda::install().unwrap();
                let allocator = CudaAllocator::open().unwrap();
                let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
                let handle = allocator.on_stream(&stream).unwrap();
                let types = [
                    DeviceType::Cuda,
                    DeviceType::CudaHost,
                    DeviceType::CudaManaged,
                ];
                let mut all = Vec::from(
                    types.map(|kind| DeviceMemoryBuffer::from_host(b"kept", kind, 0).unwrap()),
                );
                all.extend([filled(&allocator), filled(&handle)]);
                allocator.record_use(all[3].ptr(), &stream).unwrap();
                let (calls, live) = (fake.total_calls(), fake.live());
                // The streams are the crate's to keep, in parent and child.
                drop(stream);
                let mut owned = Some((all, allocator, handle));

                in_fork(|| {
                    let (mut all, allocator, handle) = owned.take().unwrap();
                    for buffer in &mut all {
                        assert!(buffer.to_vec().unwrap_err().is_forked_process());
                        assert!(buffer.fill(1).unwrap_err().is_forked_process());
                        assert!(buffer.try_clone().unwrap_err().is_forked_process());
                    }
                    for kind in types {
                        let error = DeviceMemoryBuffer::create(8, kind, 0).unwrap_err();
                        assert!(error.is_forked_process(), "{error:?}");
                    }
                    for allocator in [&allocator, &handle] {
                        let outcomes = [
                            allocator.allocate(layout(8), 0).map(drop),
                            allocator.memory_info(0).map(drop),
                            allocator.synchronize(0),
                            allocator.trim(0).map(drop),
                        ];
                        for outcome in outcomes {
                            assert!(outcome.unwrap_err().is_forked_process());
                        }
                    }
                    assert!(all.pop().unwrap().free().is_err());
                    drop((all, allocator, handle));
                    assert_eq!(free_failure_count(), 0);
                    assert_untouched(fake, calls);
                });

                assert_eq!(fake.live(), live);
                let (all, allocator, handle) = owned.unwrap();
                for buffer in &all {
                    assert_eq!(buffer.to_vec().unwrap(), b"kept");
                }
                drop((all, allocator, handle));
                let left = fake.live();
                assert_eq!((left.device_blocks(), left.pinned, left.managed), (0, 0, 0));
                assert_eq!(fake.violations(), Vec::<String>::new());
            },
        );
    }

    #[test]
    fn a_child_that_opens_anew_gets_an_error_and_no_panic() {
        alone(
            "forks::a_child_that_opens_anew_gets_an_error_and_no_panic",
            || {
                let fake = FakeCuda::install().unwrap();
                let buffer = filled(&CudaAllocator::open().unwrap());

                in_fork(|| {
                    for error in [
                        CudaAllocator::open().map(drop).unwrap_err(),
                        CudaHostAllocator::open().map(drop).unwrap_err(),
                        CudaManagedAllocator::open().map(drop).unwrap_err(),
                    ] {
                        assert!(!error.to_string().is_empty());
                    }
                });

                assert_eq!(buffer.to_vec().unwrap(), b"kept");
                drop(buffer);
                assert_eq!(fake.live().device_blocks(), 0);
            },
        );
    }
}
