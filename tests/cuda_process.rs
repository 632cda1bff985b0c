//! What takes a process of its own, on the fake driver, a simulation: drivers that
//! lack a function, the global registry, exits and forks. Each case is this test
//! run again.

#![cfg(all(feature = "cuda", target_os = "linux"))]

use std::env;
use std::panic::catch_unwind;
use std::process::{Command, Output};
use std::sync::Arc;
use std::thread;

use device_memory::backend::cuda::cudarc::driver::CudaContext;
use device_memory::backend::cuda::{CudaAllocator, CudaHostAllocator, CudaManagedAllocator};
use device_memory::{
    DeviceAllocator, DeviceAllocatorRegistry, DeviceLayout, DeviceMemoryBuffer, DeviceType,
    ErrorKind, Result,
};
use fakecuda::FakeCuda;

#[path = "cuda/exits.rs"]
mod exits;
#[path = "cuda/forks.rs"]
mod forks;

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
        CudaAllocator::record_use(buffer.as_span(), &other)?;
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
        let fake = match FakeCuda::install_without(&[&lacks]) {
            Ok(fake) => fake,
            // With a sanitizer, the library itself looks for its functions by name.
            Err(error) if error.to_string().contains("undefined symbol") => return,
            Err(error) => panic!("{error}"),
        };
        fake.set_devices(2);
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
