//! Finding the driver and its devices, on the fake driver, a simulation.

use std::sync::Arc;

use device_memory::backend::cuda::{CudaAllocator, CudaHostAllocator, CudaManagedAllocator};
use device_memory::{
    Device, DeviceAllocator, DeviceMemoryBuffer, DeviceType, Error, ErrorKind, Operation, Result,
};
use fakecuda::FakeCuda;

use crate::support::{assert_all_given_back, bytes, contexts, driver, layout, make_none_current};

/// The three allocators, opened, used once and dropped.
fn open_each() -> [(DeviceType, Result<()>); 3] {
    fn try_out(opened: Result<impl DeviceAllocator + 'static>) -> Result<()> {
        let mut buffer = DeviceMemoryBuffer::create_with(Arc::new(opened?), layout(64), 0)?;
        buffer.copy_from_host(&bytes(64))?;
        assert_eq!(buffer.to_vec()?, bytes(64));
        Ok(())
    }
    [
        (DeviceType::Cuda, try_out(CudaAllocator::open())),
        (DeviceType::CudaHost, try_out(CudaHostAllocator::open())),
        (
            DeviceType::CudaManaged,
            try_out(CudaManagedAllocator::open()),
        ),
    ]
}

/// Checks that opening fails in the same way each time, and leaves nothing.
fn fails_three_times(fake: &FakeCuda, check: impl Fn(DeviceType, &Error)) {
    for _ in 0..3 {
        let before = contexts(fake);
        for (device_type, outcome) in open_each() {
            check(device_type, &outcome.unwrap_err());
        }
        assert_eq!(contexts(fake), before);
        assert_all_given_back(fake);
    }
}

/// Checks that opening works.
fn works(fake: &FakeCuda) {
    for (device_type, outcome) in open_each() {
        outcome.unwrap_or_else(|error| panic!("{device_type}: {error}"));
    }
    assert_all_given_back(fake);
}

#[test]
fn the_driver_is_asked_for_devices_and_none_is_made_ready() {
    let fake = driver(3);

    let allocator = CudaAllocator::open().unwrap();

    assert_eq!(allocator.device_count(), 3);
    assert_eq!(allocator.device_type(), DeviceType::Cuda);
    assert_eq!(fake.live().primary_retains(), 0);
    assert_eq!(fake.count("cuDevicePrimaryCtxRetain"), 0);
    allocator.synchronize(2).unwrap();
    allocator.synchronize(2).unwrap();
    assert_eq!(fake.live().primary_retains(), 1);
    drop(allocator);
    assert_all_given_back(&fake);
}

#[test]
fn a_driver_that_is_too_old_is_named_with_both_versions() {
    let fake = driver(1);
    for (version, said) in [(11_030, "11.3"), (11_000, "11.0"), (0, "0.0")] {
        fake.reset();
        fake.set_driver_version(version);
        fails_three_times(&fake, |device_type, error| {
            let ErrorKind::DriverTooOld {
                device_type: of,
                found,
                needed,
            } = error.kind()
            else {
                panic!("{error:?}");
            };
            assert_eq!(
                (*of, *found, *needed),
                (device_type, version as u32, 11_040)
            );
            let expected = format!("driver of {device_type} is too old: found {said}, needed 11.4");
            assert_eq!(error.to_string(), expected);
            assert_eq!(error.code(), 0x10);
        });
        fake.set_driver_version(11_040);
        works(&fake);
    }
}

fn says_no_device(device_type: DeviceType, error: &Error) {
    let ErrorKind::NoDevice { device_type: of } = error.kind() else {
        panic!("{error:?}");
    };
    assert_eq!(*of, device_type);
    assert_eq!(
        error.to_string(),
        format!("no device of type {device_type} present")
    );
    assert_eq!(error.code(), 0x20);
}

#[test]
fn no_device_is_an_error_that_goes_away_with_the_first_one() {
    let fake = driver(0);

    fails_three_times(&fake, says_no_device);

    fake.reset();
    fake.set_devices(1);
    works(&fake);
}

#[test]
fn the_code_for_no_device_says_so_wherever_it_comes_from() {
    let fake = driver(1);
    for call in ["cuInit", "cuDeviceGetCount"] {
        fake.fail(call, 0, 100);
        fails_three_times(&fake, says_no_device);
        fake.disarm();
        works(&fake);
    }
}

#[test]
fn other_codes_are_told_by_number_and_name_and_may_be_newer_than_the_bindings() {
    let fake = driver(1);
    for (code, name) in [
        (34, "STUB_LIBRARY"),
        (46, "DEVICE_UNAVAILABLE"),
        (803, "SYSTEM_DRIVER_MISMATCH"),
        (804, "COMPAT_NOT_SUPPORTED_ON_DEVICE"),
        (999, "UNKNOWN"),
        (4242, "a code newer than this crate"),
    ] {
        for call in ["cuInit", "cuDriverGetVersion", "cuDeviceGetCount"] {
            fake.fail(call, 0, code);
            fails_three_times(&fake, |device_type, error| {
                let device = Device::new(device_type, 0);
                let ErrorKind::Driver {
                    device: at,
                    operation: Operation::Open,
                    ..
                } = error.kind()
                else {
                    panic!("{error:?}");
                };
                assert_eq!(*at, device);
                let expected = format!("open on {device} failed: {call} returned {code} ({name})");
                assert_eq!(error.to_string(), expected);
                assert!(format!("{error:?}").contains(&code.to_string()));
                assert_eq!(error.code(), 0x01);
            });
            fake.disarm();
            works(&fake);
        }
    }
}

#[test]
fn a_code_newer_than_the_bindings_is_an_error_of_every_call() {
    let fake = driver(1);
    let allocator: Arc<dyn DeviceAllocator> = Arc::new(CudaAllocator::open().unwrap());
    let mut nth = 0;
    loop {
        nth += 1;
        fake.clear();
        fake.fail_call_number(nth, 4242);
        let outcome = DeviceMemoryBuffer::create_with(Arc::clone(&allocator), layout(64), 0)
            .map_err(|error| error.to_string())
            .and_then(|mut buffer| {
                buffer
                    .copy_from_host(&[1; 64])
                    .map_err(|error| error.to_string())?;
                buffer.to_vec().map_err(|error| error.to_string())
            });
        if fake.fired() == 0 {
            break;
        }
        fake.disarm();
        make_none_current();
        if let Err(text) = outcome {
            assert!(
                text.contains("returned 4242 (a code newer than this crate)"),
                "{text}"
            );
        }
    }
    assert!(nth > 10, "{nth}");
}

#[test]
fn a_device_that_can_not_be_made_ready_is_an_error_each_time_and_then_works() {
    let fake = driver(2);
    for call in [
        "cuDeviceGet",
        "cuDevicePrimaryCtxRetain",
        "cuDeviceGetAttribute",
    ] {
        let allocator = CudaAllocator::open().unwrap();
        fake.fail(call, 1, 999);
        fake.fail(call, 2, 46);

        for code in [999, 46] {
            let error = allocator.allocate(layout(8), 1).unwrap_err();
            assert!(
                error
                    .to_string()
                    .contains(&format!("{call} returned {code}")),
                "{error}"
            );
            assert_eq!(fake.live().primary_retains(), 0);
        }

        allocator.synchronize(1).unwrap();
        drop(allocator);
        assert_all_given_back(&fake);
    }
}

#[test]
fn a_device_that_the_driver_has_lost_is_not_there() {
    let fake = driver(2);
    let allocator = CudaAllocator::open().unwrap();
    fake.fail("cuDeviceGet", 1, 101);

    let error = allocator.allocate(layout(8), 1).unwrap_err();

    assert!(
        matches!(error.kind(), ErrorKind::InvalidDevice { count: 2, .. }),
        "{error:?}"
    );
    allocator.synchronize(1).unwrap();
}

#[test]
fn managed_memory_that_the_host_may_not_touch_at_any_time_is_refused() {
    const MANAGED: i32 = 83;
    const CONCURRENT: i32 = 89;
    let fake = driver(2);
    for attribute in [MANAGED, CONCURRENT] {
        fake.set_attribute(1, attribute, 0);

        let error = CudaManagedAllocator::open().unwrap_err();

        let ErrorKind::NotSupported { device, .. } = error.kind() else {
            panic!("{error:?}");
        };
        assert_eq!(*device, Device::new(DeviceType::CudaManaged, 1));
        fake.set_attribute(1, attribute, 1);
        works(&fake);
    }
}
