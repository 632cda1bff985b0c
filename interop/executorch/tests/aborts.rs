//! What ends the process in the runtime, and is an error here.
//!
//! Each is done in a child process, which says that it came so far before it does
//! it.

#![cfg(unix)]

use std::env;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::Arc;

use device_memory::testing::FakeDevice;
use device_memory::{
    Device, DeviceAllocatorRegistry, DeviceLayout, DeviceMemoryBuffer, DeviceType, ErrorKind,
    HierarchicalAllocator,
};
use interop_executorch::forward::{is_registered, register, register_null};
use interop_executorch::original;
use interop_executorch::program::start;

/// Names the test that a child is to run.
const CHILD: &str = "INTEROP_CHILD";
/// What a child prints before it does what ends it.
const REACHED: &str = "came so far";
/// The number of the signal that `abort` raises.
const SIGABRT: i32 = 6;

/// In a child: runs `work`. Otherwise: runs the test of this name in a child, and
/// says how that ended.
fn in_a_child(test: &str, work: impl FnOnce()) -> Option<Output> {
    if env::var_os(CHILD).is_some() {
        start();
        work();
        return None;
    }
    let mut child = Command::new(env::current_exe().unwrap());
    child.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    Some(child.env(CHILD, test).output().unwrap())
}

/// Checks that the child came as far as `REACHED`, and that the runtime ended it then.
#[track_caller]
fn assert_aborted(child: &Output, message: &str) {
    let text = String::from_utf8_lossy(&child.stdout);
    let errors = String::from_utf8_lossy(&child.stderr);
    assert!(text.contains(REACHED), "{text}\n{errors}");
    assert_eq!(child.status.signal(), Some(SIGABRT), "{text}\n{errors}");
    assert!(errors.contains(message), "{errors}");
}

#[expect(clippy::print_stdout, reason = "read by the parent")]
fn reached() {
    println!("{REACHED}");
}

#[test]
fn a_child_that_does_nothing_wrong_ends_well() {
    let child = in_a_child("a_child_that_does_nothing_wrong_ends_well", || {
        register(DeviceType::Cuda);
        register(DeviceType::Cpu);
        let buffers = [(0x10_0000, 64)];
        original::Planned::new(&buffers, &[Device::CPU]).unwrap();
        reached();
    });
    let Some(child) = child else { return };

    assert!(child.status.success());
    assert!(String::from_utf8_lossy(&child.stdout).contains(REACHED));
}

#[test]
fn registering_a_type_twice() {
    let child = in_a_child("registering_a_type_twice", || {
        register(DeviceType::Cuda);
        assert!(is_registered(1));
        reached();
        register(DeviceType::Cuda);
    });
    let Some(child) = child else { return };
    let first = FakeDevice::new(DeviceType::Cuda, 1);
    let second = FakeDevice::new(DeviceType::Cuda, 1);
    let registry = DeviceAllocatorRegistry::new();
    registry.register(Arc::new(first.clone())).unwrap();

    let ours = registry.register(Arc::new(second.clone())).unwrap_err();

    assert_aborted(&child, "Allocator already registered for device type: 1");
    assert!(matches!(
        ours.kind(),
        ErrorKind::AlreadyRegistered {
            device_type: DeviceType::Cuda
        }
    ));
    assert_eq!(ours.code(), 0x16);
    let layout = DeviceLayout::new(64, 64).unwrap();
    let device = Device::new(DeviceType::Cuda, 0);
    let buffer = DeviceMemoryBuffer::create_in(&registry, layout, device).unwrap();
    assert_eq!((first.live_bytes(), second.live_bytes()), (64, 0));
    drop(buffer);
}

#[test]
fn registering_null() {
    let child = in_a_child("registering_null", || {
        reached();
        register_null();
    });
    let Some(child) = child else { return };

    assert_aborted(&child, "Cannot register a null allocator");
    // Here there is nothing to call: what is registered is an `Arc` or a reference,
    // which is never null.
}

#[test]
fn fewer_devices_than_buffers() {
    let child = in_a_child("fewer_devices_than_buffers", || planned_on(1));
    let Some(child) = child else { return };

    assert_aborted(
        &child,
        "planned_buffer_devices size (1) must match buffers size (2)",
    );
    assert_count_mismatch(1);
}

#[test]
fn more_devices_than_buffers() {
    let child = in_a_child("more_devices_than_buffers", || planned_on(3));
    let Some(child) = child else { return };

    assert_aborted(
        &child,
        "planned_buffer_devices size (3) must match buffers size (2)",
    );
    assert_count_mismatch(3);
}

/// The runtime's allocator over two buffers, on so many devices.
fn planned_on(devices: usize) {
    let buffers = [(0x10_0000, 64), (0x20_0000, 64)];
    reached();
    drop(original::Planned::new(
        &buffers,
        &vec![Device::CPU; devices],
    ));
}

/// Ours over two buffers, on so many devices.
#[track_caller]
fn assert_count_mismatch(devices: usize) {
    let registry = DeviceAllocatorRegistry::new();
    let layout = DeviceLayout::new(64, 64).unwrap();
    let make = || DeviceMemoryBuffer::create_in(&registry, layout, Device::CPU).unwrap();
    let mut buffers = [make(), make()];
    let spans = buffers.iter_mut().map(DeviceMemoryBuffer::as_span_mut);

    let ours = HierarchicalAllocator::new(spans.collect(), &vec![Device::CPU; devices]);

    let error = ours.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::CountMismatch { .. }));
    assert_eq!(error.code(), 0x12);
}
