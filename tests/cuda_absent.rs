//! The CUDA back end on a machine without any driver, simulated or real. On a
//! machine with one, nothing is tested here.

#![cfg(all(feature = "cuda", target_os = "linux"))]
#![expect(unsafe_code, reason = "asks the loader for a driver")]

use std::ffi::CStr;
use std::process::Command;
use std::thread;

use device_memory::backend::cuda::{CudaAllocator, CudaHostAllocator, CudaManagedAllocator};
use device_memory::{
    Device, DeviceAllocatorRegistry, DeviceLayout, DeviceMemoryBuffer, DeviceTensor, DeviceType,
    Error, ErrorKind, MemoryPlan, PlannedBuffer, PlannedMemory, Result, ScalarType, TensorSpec,
};

const TYPES: [DeviceType; 3] = [
    DeviceType::Cuda,
    DeviceType::CudaHost,
    DeviceType::CudaManaged,
];

/// The names that the loader is asked for.
const NAMES: [&CStr; 2] = [c"libcuda.so", c"libcuda.so.1"];

/// Whether this machine has a driver, so that there is nothing to test.
#[expect(clippy::print_stderr, reason = "who runs the tests has to see it")]
fn there_is_a_driver() -> bool {
    let is_there = NAMES.iter().any(|name| {
        // SAFETY: the name ends with a zero; a driver may be loaded at any time.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY) };
        !handle.is_null()
    });
    if is_there {
        eprintln!("skipped: this machine has a driver");
    }
    is_there
}

/// Checks what is said when no driver is found.
#[track_caller]
fn assert_absent<T>(outcome: Result<T>, device_type: DeviceType) {
    let error = outcome.err().expect("there is no driver");
    let ErrorKind::DriverNotFound {
        device_type: of,
        tried,
    } = error.root()
    else {
        panic!("{error:?}");
    };
    assert_eq!(*of, device_type);
    assert_eq!(tried, &NAMES.map(|name| name.to_str().unwrap()));
    let text = format!("no driver found for {device_type}: tried libcuda.so, libcuda.so.1");
    assert!(error.to_string().ends_with(&text), "{error}");
    assert!(format!("{error:?}").contains("DriverNotFound"));
    assert_eq!(error.code(), 0x20);
    assert!(!error.is_not_registered() && !error.is_out_of_memory());
}

/// Every way to memory of a type of device.
fn ways(device_type: DeviceType) -> Vec<Result<(), Error>> {
    let registry = DeviceAllocatorRegistry::global();
    let own = DeviceAllocatorRegistry::new();
    let device = Device::new(device_type, 0);
    let layout = DeviceLayout::from_size(64).unwrap();
    let buffers = vec![
        PlannedBuffer::new(Device::CPU, 8),
        PlannedBuffer::new(device, 64),
    ];
    let plan = MemoryPlan::new(buffers, Vec::new()).unwrap();
    let spec = TensorSpec::contiguous(ScalarType::Float, &[2], device).unwrap();
    let host = TensorSpec::contiguous(ScalarType::Float, &[2], Device::CPU).unwrap();
    let host = DeviceTensor::create(host).unwrap();
    vec![
        DeviceMemoryBuffer::create(64, device_type, 0).map(drop),
        DeviceMemoryBuffer::create(64, device_type, u16::MAX).map(drop),
        DeviceMemoryBuffer::create(0, device_type, 0).map(drop),
        DeviceMemoryBuffer::create_array::<u64>(8, device_type, 0).map(drop),
        DeviceMemoryBuffer::create_zeroed(64, device_type, 0).map(drop),
        DeviceMemoryBuffer::create_zeroed_in(&own, layout, device).map(drop),
        DeviceMemoryBuffer::from_host(&[1], device_type, 0).map(drop),
        DeviceMemoryBuffer::from_host_in(&own, &[1], device).map(drop),
        DeviceMemoryBuffer::create_in(registry, layout, device).map(drop),
        DeviceMemoryBuffer::create_in(&own, layout, device).map(drop),
        DeviceMemoryBuffer::create_all(registry, &[(layout, Device::CPU), (layout, device)])
            .map(drop),
        registry.try_get(device_type).map(drop),
        own.try_get(device_type).map(drop),
        PlannedMemory::allocate(&plan, registry).map(drop),
        PlannedMemory::allocate_shared(&[&plan, &plan], &own).map(drop),
        DeviceTensor::create(spec.clone()).map(drop),
        DeviceTensor::create_in(&own, spec.clone()).map(drop),
        DeviceTensor::from_host(spec, &[0; 8]).map(drop),
        host.to_device(device).map(drop),
    ]
}

fn everything_is_absent() {
    for device_type in TYPES {
        for outcome in ways(device_type) {
            assert_absent(outcome, device_type);
        }
        assert!(DeviceAllocatorRegistry::global().get(device_type).is_none());
        let registered = DeviceAllocatorRegistry::global().registered(device_type);
        assert!(registered.is_none());
    }
    assert_absent(CudaAllocator::open(), DeviceType::Cuda);
    let builder = CudaAllocator::builder().release_threshold(1);
    assert_absent(builder.open(), DeviceType::Cuda);
    assert_absent(CudaHostAllocator::open(), DeviceType::CudaHost);
    assert_absent(CudaManagedAllocator::open(), DeviceType::CudaManaged);
}

#[test]
fn without_a_driver_every_entry_point_says_so_each_time() {
    if there_is_a_driver() {
        return;
    }
    for _ in 0..3 {
        everything_is_absent();
    }
}

#[test]
fn without_a_driver_every_entry_point_says_so_on_eight_threads() {
    if there_is_a_driver() {
        return;
    }
    thread::scope(|scope| {
        let threads = [(); 8].map(|()| scope.spawn(everything_is_absent));
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn without_a_driver_host_memory_and_bad_layouts_are_as_ever() {
    let host = DeviceMemoryBuffer::from_host(b"host", DeviceType::Cpu, 0).unwrap();
    let overflow = DeviceMemoryBuffer::create_array::<u64>(usize::MAX, DeviceType::Cuda, 0);

    assert_eq!(host.as_slice().unwrap(), b"host");
    let error = overflow.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Layout(_)), "{error:?}");
}

/// Runs an example in a build in which a panic aborts, and checks that it ended
/// well.
#[track_caller]
fn run_where_a_panic_aborts(example: &str) {
    let output = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--offline", "--profile", "abort"])
        .args(["--example", example])
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

#[test]
fn nested_cargo_without_a_driver_nothing_aborts_a_build_in_which_a_panic_would() {
    if there_is_a_driver() {
        return;
    }
    run_where_a_panic_aborts("cuda_absent");
}

#[test]
fn nested_cargo_with_a_driver_that_fails_no_transfer_and_no_loan_aborts_either() {
    run_where_a_panic_aborts("cuda_streams");
}
