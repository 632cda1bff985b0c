//! What the tests of the CUDA back end share.

use std::sync::{Arc, Mutex};

use device_memory::backend::cuda::CudaAllocator;
use device_memory::backend::cuda::cudarc::driver::{CudaContext, CudaStream, result};
use device_memory::{
    Device, DeviceAllocator, DeviceAllocatorRegistry, DeviceLayout, DeviceMemoryBuffer, DevicePtr,
    DeviceType, FreeFailure, Operation, Result, set_free_failure_hook,
};
use fakecuda::{Exclusive, FakeCuda, Run};

pub(crate) const CUDA_0: Device = Device::new(DeviceType::Cuda, 0);
pub(crate) const CUDA_1: Device = Device::new(DeviceType::Cuda, 1);

/// The simulated driver for one test, as if the process had just begun.
pub(crate) fn driver(devices: usize) -> Exclusive {
    let fake = FakeCuda::install().unwrap().lock();
    restart(&fake, devices, true);
    fake
}

/// Makes the driver forget everything, and gives it devices.
pub(crate) fn restart(fake: &FakeCuda, devices: usize, pools: bool) {
    fake.reset();
    fake.set_devices(devices);
    for device in 0..devices {
        fake.set_pools(device, pools);
    }
}

pub(crate) fn layout(size: usize) -> DeviceLayout {
    DeviceLayout::from_size(size).unwrap()
}

pub(crate) fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8).collect()
}

/// A registry of its own with one allocator.
pub(crate) fn registry(allocator: &CudaAllocator) -> DeviceAllocatorRegistry {
    let registry = DeviceAllocatorRegistry::new();
    registry.register(Arc::new(allocator.clone())).unwrap();
    registry
}

/// A buffer of an allocator, with these bytes.
pub(crate) fn filled(allocator: &CudaAllocator, bytes: &[u8], index: u16) -> DeviceMemoryBuffer {
    let mut buffer = empty(allocator, bytes.len(), index);
    buffer.copy_from_host(bytes).unwrap();
    buffer
}

/// A buffer of an allocator, not written to.
pub(crate) fn empty(allocator: &CudaAllocator, size: usize, index: u16) -> DeviceMemoryBuffer {
    DeviceMemoryBuffer::create_with(Arc::new(allocator.clone()), layout(size), index).unwrap()
}

/// Where a buffer lies, in the driver's form.
pub(crate) fn address(buffer: &DeviceMemoryBuffer) -> u64 {
    buffer.ptr().addr() as u64
}

/// Checks that no memory is left on the driver, once all work is done, and that
/// nothing was done wrong.
#[track_caller]
pub(crate) fn assert_no_memory(fake: &FakeCuda) {
    fake.run_schedule(Run::All);
    assert_eq!(fake.violations(), Vec::<String>::new());
    let live = fake.live();
    let blocks = [live.device_blocks(), live.pinned, live.managed, live.events];
    assert_eq!(blocks, [0; 4], "{live:?}");
}

/// Checks that nothing at all is left on the driver, not even a context, and that
/// nothing was done wrong.
#[track_caller]
pub(crate) fn assert_all_given_back(fake: &FakeCuda) {
    assert_eq!(fake.violations(), Vec::<String>::new());
    let live = fake.live();
    assert!(live.is_clean(), "{live:?}");
    assert_eq!(live.primary_retains(), 0);
}

/// What a thread sees of its contexts: the current one, and how many there are.
pub(crate) fn contexts(fake: &FakeCuda) -> (Option<(u64, Option<usize>)>, usize) {
    (fake.current_context(), fake.context_stack_height())
}

/// A stream that waits for no other, of a context that the test has beside the
/// allocator's.
pub(crate) fn stream(device: usize) -> Arc<CudaStream> {
    let context = CudaContext::new(device).unwrap();
    let stream = context.new_stream().unwrap();
    make_none_current();
    stream
}

/// Leaves this thread without a context.
#[expect(unsafe_code, reason = "calls the driver")]
pub(crate) fn make_none_current() {
    while matches!(result::ctx::get_current(), Ok(Some(_))) {
        // SAFETY: null is no context, which is a choice that there is.
        unsafe { result::ctx::set_current(std::ptr::null_mut()) }.unwrap();
    }
}

/// Gives work to a stream that writes to memory, without waiting for it.
#[expect(unsafe_code, reason = "calls the driver")]
pub(crate) fn enqueue_write(stream: &Arc<CudaStream>, address: u64, byte: u8, size: usize) {
    stream.context().bind_to_thread().unwrap();
    // SAFETY: the driver is a simulation, which checks what it is told.
    unsafe { result::memset_d8_async(address, byte, size, stream.cu_stream()) }.unwrap();
    make_none_current();
}

/// A stream's handle, as the simulation knows it.
pub(crate) fn handle(stream: &Arc<CudaStream>) -> u64 {
    stream.cu_stream() as u64
}

/// Every operation of an allocator on a device, on a block of 64 bytes of `cuda:0`,
/// and what came of it. All are to be refused.
#[expect(unsafe_code, reason = "calls an unsafe trait")]
pub(crate) fn each_operation(
    allocator: &CudaAllocator,
    index: u16,
    block: DevicePtr,
) -> Vec<(Operation, Result<()>)> {
    let mut host = [0_u8; 8];
    let next = block.checked_add(8).unwrap();
    // SAFETY: it is refused, or the block has the bytes.
    let to_device = unsafe { allocator.copy_host_to_device(block, host.as_ptr(), 8, index) };
    // SAFETY: as above.
    let to_host = unsafe { allocator.copy_device_to_host(host.as_mut_ptr(), block, 8, index) };
    // SAFETY: as above, and the ranges do not overlap.
    let on_device = unsafe { allocator.copy_device_to_device(block, index, next, 0, 8) };
    // SAFETY: as above.
    let fill = unsafe { allocator.fill(block, 1, 8, index) };
    // SAFETY: it is refused.
    let free = unsafe { allocator.deallocate(block, layout(64), index) };
    vec![
        (Operation::CopyHostToDevice, to_device),
        (Operation::CopyDeviceToHost, to_host),
        (Operation::CopyDeviceToDevice, on_device),
        (Operation::Fill, fill),
        (Operation::Deallocate, free),
        (
            Operation::Allocate,
            allocator.allocate(layout(8), index).map(drop),
        ),
        (
            Operation::MemoryInfo,
            allocator.memory_info(index).map(drop),
        ),
        (Operation::Synchronize, allocator.synchronize(index)),
        (Operation::Trim, allocator.trim(index).map(drop)),
    ]
}

/// A free that failed: where, at which address, and what was said of it.
pub(crate) type Failed = (Device, DevicePtr, String);

/// The frees that failed since this was made, by way of the hook.
#[derive(Debug)]
pub(crate) struct FreeFailures(Arc<Mutex<Vec<Failed>>>);

impl FreeFailures {
    pub(crate) fn watch() -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&seen);
        set_free_failure_hook(Some(Arc::new(move |failure: &FreeFailure| {
            let error = failure.error.to_string();
            sink.lock()
                .unwrap()
                .push((failure.device, failure.ptr, error));
        })));
        Self(seen)
    }

    /// Those so far, which are forgotten.
    pub(crate) fn take(&self) -> Vec<Failed> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl Drop for FreeFailures {
    fn drop(&mut self) {
        set_free_failure_hook(None);
    }
}
