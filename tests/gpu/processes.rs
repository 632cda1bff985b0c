//! What takes a process of its own: the first use of all, and the end. Each case
//! is this test run again.

use std::cell::RefCell;
use std::env;
use std::process::{Command, Output};
use std::sync::OnceLock;

use device_memory::backend::cuda::CudaAllocator;
use device_memory::{
    Device, DeviceAllocatorRegistry, DeviceMemoryBuffer, DeviceType, MemoryPlan, Placement,
    PlannedBuffer, PlannedMemory, free_failure_count,
};

use crate::support::{CUDA_0, Gpu, KIB, MIB, assert_same, bytes, filled, stream};

/// Names the case that a process is to run.
const CASE: &str = "DEVICE_MEMORY_GPU_CASE";

fn is_child(name: &str) -> bool {
    env::var(CASE).is_ok_and(|running| running == name)
}

/// Runs a test in a process of its own, if there is a GPU.
fn child(name: &str) -> Option<Output> {
    let _gpu = Gpu::open()?;
    let output = Command::new(env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(CASE, name)
        .output()
        .unwrap();
    Some(output)
}

/// Checks that a process ended well and said nothing on `stderr`.
#[track_caller]
fn assert_silent(output: &Output) {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let status = output.status;
    assert!(status.success(), "{status}\n{stdout}\n{stderr}");
    assert_eq!(stderr, "");
}

/// Runs `case` in a process of its own, if there is a GPU.
#[track_caller]
fn alone(name: &str, case: impl FnOnce()) {
    if is_child(name) {
        return case();
    }
    let Some(output) = child(name) else { return };
    assert_silent(&output);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains("1 passed"), "it did not run: {stdout}");
}

#[test]
fn memory_is_created_without_any_other_set_up() {
    alone(
        "processes::memory_is_created_without_any_other_set_up",
        || {
            let mut buffer = DeviceMemoryBuffer::create(MIB, DeviceType::Cuda, 0).unwrap();
            buffer.fill(9).unwrap();

            assert_eq!(buffer.device(), CUDA_0);
            assert_same(&buffer.to_vec().unwrap(), &vec![9; MIB], "the buffer");
            for kind in [DeviceType::CudaHost, DeviceType::CudaManaged] {
                match DeviceMemoryBuffer::from_host(b"four", kind, 0) {
                    Ok(buffer) => assert_eq!(buffer.as_slice().unwrap(), b"four"),
                    Err(error) => assert!(error.is_not_supported(), "{error}"),
                }
            }
        },
    );
}

#[test]
fn a_plan_has_its_arenas_on_the_host_and_on_the_device() {
    let Some(_gpu) = Gpu::open() else { return };
    let placements = vec![
        Placement::new(0, 64, 128),
        Placement::new(1, 4096, 64 * KIB),
        Placement::new(1, 512 * KIB, 64 * KIB),
    ];
    let buffers = vec![
        PlannedBuffer::new(Device::CPU, 4096),
        PlannedBuffer::new(CUDA_0, MIB),
    ];
    let plan = MemoryPlan::new(buffers, placements.clone()).unwrap();
    let sent = bytes(64 * KIB, 8);

    let mut memory = PlannedMemory::allocate(&plan, DeviceAllocatorRegistry::global()).unwrap();
    let mut view = memory.view().unwrap();
    let mut first = view.span_mut(placements[1]).unwrap();
    first.copy_from_host(&sent).unwrap();
    let mut both = view.disjoint_mut(&placements[1..]).unwrap();
    let (front, back) = both.split_at_mut(1);
    back[0].copy_from(front[0].as_span()).unwrap();

    let found = view.span(placements[2]).unwrap().to_vec().unwrap();
    assert_same(&found, &sent, "the second value");
    let addresses = view.place_all(&placements).unwrap();
    assert_eq!(addresses[0].device, Device::CPU);
    assert_eq!(addresses[2].device, CUDA_0);
    let arena = memory.buffer(0, 1).unwrap().ptr();
    assert_eq!(addresses[2].ptr.addr(), arena.addr() + 512 * KIB);
}

static KEPT: OnceLock<Vec<DeviceMemoryBuffer>> = OnceLock::new();

thread_local! {
    static LOCAL: RefCell<Vec<DeviceMemoryBuffer>> = const { RefCell::new(Vec::new()) };
}

/// Leaves memory of every kind to the end of the process.
fn keep_everywhere() {
    let kinds = [
        DeviceType::Cuda,
        DeviceType::CudaHost,
        DeviceType::CudaManaged,
    ];
    let create = |kind| DeviceMemoryBuffer::from_host(b"kept", kind, 0).ok();
    let kept: Vec<_> = kinds.into_iter().filter_map(create).collect();
    assert!(kept.len() >= 2);
    assert!(KEPT.set(kept).is_ok());
    let allocator = CudaAllocator::open().unwrap();
    let handle = allocator.on_stream(&stream(0)).unwrap();
    LOCAL.with(|local| {
        let mut local = local.borrow_mut();
        local.extend(kinds.into_iter().filter_map(create));
        local.push(filled(&handle, b"ordered", 0));
    });
}

#[test]
fn buffers_in_statics_and_thread_locals_at_exit_are_silent() {
    alone(
        "processes::buffers_in_statics_and_thread_locals_at_exit_are_silent",
        || {
            keep_everywhere();
            assert_eq!(KEPT.get().unwrap()[0].to_vec().unwrap(), b"kept");
            assert_eq!(free_failure_count(), 0);
        },
    );
}

#[test]
fn a_process_that_exits_at_once_with_live_buffers_is_silent() {
    let name = "processes::a_process_that_exits_at_once_with_live_buffers_is_silent";
    if is_child(name) {
        keep_everywhere();
        let _on_the_stack = DeviceMemoryBuffer::create(MIB, DeviceType::Cuda, 0).unwrap();
        std::process::exit(0);
    }
    if let Some(output) = child(name) {
        assert_silent(&output);
    }
}
