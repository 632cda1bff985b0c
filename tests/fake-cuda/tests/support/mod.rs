//! What the tests of the simulation share.

#![allow(
    dead_code,
    unsafe_code,
    reason = "each test file uses a part, and calls a C interface"
)]

use std::process::{Command, Output};
use std::sync::OnceLock;

use cudarc::driver::{result, sys};
use fakecuda::{Exclusive, FakeCuda};

/// A context of the first device that lives as long as the process.
struct Primary(sys::CUcontext);

// SAFETY: a context is a handle that any thread may use.
unsafe impl Send for Primary {}
// SAFETY: as above.
unsafe impl Sync for Primary {}

/// The driver for one test, with two devices and the first one's primary context
/// current.
pub(crate) fn driver() -> Exclusive {
    static PRIMARY: OnceLock<Primary> = OnceLock::new();
    let fake = FakeCuda::install().unwrap().lock();
    let primary = PRIMARY.get_or_init(|| {
        fake.set_devices(2);
        result::init().unwrap();
        Primary(retain(0))
    });
    // SAFETY: the context is retained and never released.
    unsafe { result::ctx::set_current(primary.0) }.unwrap();
    fake.clear_calls();
    fake
}

/// Retains the primary context of a device.
pub(crate) fn retain(device: i32) -> sys::CUcontext {
    // SAFETY: the number is that of a device, or the call fails.
    unsafe { result::primary_ctx::retain(device) }.unwrap()
}

/// The number of what a call came to.
pub(crate) fn code<T>(result: Result<T, result::DriverError>) -> i32 {
    result.map_or_else(|error| error.0 as i32, |_| 0)
}

/// Allocates device memory.
pub(crate) fn alloc(size: usize) -> u64 {
    // SAFETY: the driver is a simulation, which checks what it is told.
    unsafe { result::malloc_sync(size) }.unwrap()
}

/// Frees device memory.
pub(crate) fn free(ptr: u64) -> i32 {
    // SAFETY: the driver is a simulation, which checks what it is told.
    code(unsafe { result::free_sync(ptr) })
}

/// Reads device memory, after the work of the null stream.
pub(crate) fn read(ptr: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    // SAFETY: the driver is a simulation, which checks what it is told.
    unsafe { result::memcpy_dtoh_sync(&mut bytes, ptr) }.unwrap();
    bytes
}

/// Writes device memory.
pub(crate) fn write(ptr: u64, bytes: &[u8]) {
    // SAFETY: the driver is a simulation, which checks what it is told.
    unsafe { result::memcpy_htod_sync(ptr, bytes) }.unwrap();
}

/// A stream that waits for no other.
pub(crate) fn stream() -> sys::CUstream {
    result::stream::create(result::stream::StreamKind::NonBlocking).unwrap()
}

/// Runs one ignored test of the calling file in a process of its own.
pub(crate) fn child(test: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        test,
        "--ignored",
        "--nocapture",
        "--test-threads=1",
    ]);
    command.envs(variables.iter().copied());
    command.output().unwrap()
}
