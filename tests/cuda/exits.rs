//! The end of a process with live buffers, on the fake driver, a simulation.

use std::cell::RefCell;
use std::sync::OnceLock;

use device_memory::backend::cuda::CudaAllocator;
use device_memory::backend::cuda::cudarc::driver::CudaContext;
use device_memory::{DeviceMemoryBuffer, DeviceType, free_failure_count};
use fakecuda::FakeCuda;

use crate::{alone, check, child, filled, is_child};

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
