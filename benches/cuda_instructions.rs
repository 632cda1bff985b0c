//! Allocating, freeing and copying through the fake driver, raw and through the
//! back end, for counting instructions from outside.
//!
//! `cuda_instructions OPERATION COUNT`, called by `cuda_instructions.sh`. The
//! driver below is a simulation; what is counted is what the back end adds to it.

#![expect(
    unsafe_code,
    clippy::print_stderr,
    reason = "a program that calls the driver itself, to compare"
)]

use std::hint::black_box;
use std::process::ExitCode;
use std::ptr;
use std::sync::Arc;

use device_memory::backend::cuda::CudaAllocator;
use device_memory::backend::cuda::cudarc::driver::sys::CUstream;
use device_memory::backend::cuda::cudarc::driver::{CudaContext, CudaStream, result};
use device_memory::{AllocatorHandle, DeviceLayout, DeviceMemoryBuffer};
use fakecuda::FakeCuda;

const SIZE: usize = 1024;

fn repeat(count: u64, mut operation: impl FnMut()) {
    for _ in 0..count {
        operation();
    }
}

/// A buffer of the allocator, and its drop.
fn buffers(count: u64, allocator: CudaAllocator) {
    let handle = AllocatorHandle::from(Arc::new(allocator));
    let layout = DeviceLayout::from_size(SIZE).expect("layout");
    repeat(count, || {
        let buffer = DeviceMemoryBuffer::create_with(&handle, layout, 0);
        black_box(&buffer.expect("memory of the fake device"));
    });
}

/// A copy from the host to a buffer of the allocator.
fn copies(count: u64, allocator: CudaAllocator) {
    let layout = DeviceLayout::from_size(SIZE).expect("layout");
    let buffer = DeviceMemoryBuffer::create_with(Arc::new(allocator), layout, 0);
    let mut buffer = buffer.expect("memory of the fake device");
    let bytes = [7; SIZE];
    repeat(count, || {
        let copied = buffer.copy_from_host(black_box(&bytes));
        black_box(copied).expect("copy");
    });
}

/// The driver's copy from the host, and its wait.
fn raw_copies(count: u64, stream: CUstream) {
    // SAFETY: the context is current.
    let ptr = unsafe { result::malloc_sync(SIZE) }.expect("memory of the fake device");
    let bytes = [7_u8; SIZE];
    repeat(count, || {
        // SAFETY: the block has room for the bytes, which are there until the copy
        // is waited for.
        let copied = unsafe { result::memcpy_htod_async(ptr, black_box(&bytes), stream) };
        black_box(copied).expect("copy");
        // SAFETY: the stream is alive.
        unsafe { result::stream::synchronize(stream) }.expect("wait");
    });
    // SAFETY: the block was allocated here, and all copies are done.
    unsafe { result::free_sync(ptr) }.expect("free");
}

/// The driver's stream-ordered allocation, and its free.
fn raw_on_stream(count: u64, stream: &CudaStream) {
    repeat(count, || {
        // SAFETY: the context is current and the stream alive.
        let ptr = unsafe { result::malloc_async(stream.cu_stream(), SIZE) };
        let ptr = black_box(ptr.expect("memory of the fake device"));
        // SAFETY: the block was just allocated on this stream.
        unsafe { result::free_async(ptr, stream.cu_stream()) }.expect("free");
    });
}

/// The driver's synchronous allocation, and its free.
fn raw_synchronous(count: u64) {
    repeat(count, || {
        // SAFETY: the context is current.
        let ptr = unsafe { result::malloc_sync(SIZE) };
        let ptr = black_box(ptr.expect("memory of the fake device"));
        // SAFETY: the block was just allocated.
        unsafe { result::free_sync(ptr) }.expect("free");
    });
}

fn main() -> ExitCode {
    // `cargo bench` and `cargo test --benches` pass flags of their own; without
    // an operation there is nothing to do.
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [operation, count] = arguments.as_slice() else {
        return ExitCode::SUCCESS;
    };
    let Ok(count) = count.parse::<u64>() else {
        return ExitCode::SUCCESS;
    };
    let fake = FakeCuda::install().expect("the fake driver").lock();
    fake.set_pools(0, !operation.contains("synchronous"));
    let allocator = CudaAllocator::open().expect("the fake driver");
    let context = CudaContext::new(0).expect("the fake driver");
    let stream = context.new_stream().expect("the fake driver");

    match operation.as_str() {
        "raw_on_stream" => raw_on_stream(count, &stream),
        "raw_synchronous" => raw_synchronous(count),
        "raw_copy_on_stream" => raw_copies(count, stream.cu_stream()),
        "raw_copy" => raw_copies(count, ptr::null_mut()),
        "copy_on_stream" => copies(count, allocator.on_stream(&stream).expect("its device")),
        "copy" => copies(count, allocator),
        "on_stream" => buffers(count, allocator.on_stream(&stream).expect("its device")),
        "synchronous" => buffers(count, allocator),
        other => {
            eprintln!("error: unknown operation {other}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
