//! What the runtime asks of a device, asked of Rust.
//!
//! The runtime's registry belongs to the process and lets nobody replace or take
//! back an allocator. The one that is registered here therefore has no memory of
//! its own and passes each call on to the [`Source`] that is installed at the
//! time.

use std::ffi::c_void;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use device_memory::DeviceType;

/// An error code of the runtime, never 0.
pub type Code = u32;

/// The runtime's code for what is not there.
pub const NOT_FOUND: Code = 0x20;
/// The runtime's code for a bad argument.
pub const INVALID_ARGUMENT: Code = 0x12;

/// What answers the runtime.
///
/// Indices and sizes are as the runtime says them, unchecked. Methods may be
/// called from any thread.
///
/// # Safety
///
/// An implementation may hand out any address. It promises that a copy touches
/// the host's side only within the `size` bytes that the caller vouches for.
#[expect(unsafe_code, reason = "declares the contract of what follows")]
pub unsafe trait Source: Send + Sync {
    /// Allocates `size` bytes.
    ///
    /// # Errors
    ///
    /// A code for the runtime.
    fn allocate(&self, size: usize, index: i8, align: usize) -> Result<*mut u8, Code>;

    /// Takes a block back. The runtime does not want to know whether that worked.
    fn deallocate(&self, ptr: *mut u8, index: i8);

    /// Copies `size` bytes from the host to a device.
    ///
    /// # Errors
    ///
    /// A code for the runtime.
    ///
    /// # Safety
    ///
    /// `src` is valid for reads of `size` bytes.
    unsafe fn copy_host_to_device(
        &self,
        dst: *mut u8,
        src: *const u8,
        size: usize,
        index: i8,
    ) -> Result<(), Code>;

    /// Copies `size` bytes from a device to the host.
    ///
    /// # Errors
    ///
    /// A code for the runtime.
    ///
    /// # Safety
    ///
    /// `dst` is valid for writes of `size` bytes.
    unsafe fn copy_device_to_host(
        &self,
        dst: *mut u8,
        src: *const u8,
        size: usize,
        index: i8,
    ) -> Result<(), Code>;
}

/// What is installed, while this lives.
///
/// The runtime has one registry, so installing waits until nothing else is
/// installed; tests of one program that install something run one after another.
#[must_use = "dropping this takes the source away again"]
pub struct Installed {
    _turn: MutexGuard<'static, ()>,
}

impl fmt::Debug for Installed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Installed").finish_non_exhaustive()
    }
}

/// Lets `source` answer for the CUDA devices of the runtime until the returned
/// guard is dropped.
///
/// The first call registers the allocator that forwards. Without a source it
/// answers that nothing was found, as the runtime does where nothing is registered.
pub fn install(source: Arc<dyn Source>) -> Installed {
    static TURN: Mutex<()> = Mutex::new(());
    static REGISTERED: Once = Once::new();
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    REGISTERED.call_once(|| register(DeviceType::Cuda));
    *current() = Some(source);
    Installed { _turn: turn }
}

impl Drop for Installed {
    fn drop(&mut self) {
        *current() = None;
    }
}

/// Registers the allocator that forwards for a type of device.
///
/// The runtime ends the process if it has one for the type already.
#[expect(unsafe_code, reason = "see SAFETY")]
pub fn register(device_type: DeviceType) {
    let code = device_type.to_executorch().unwrap_or(0);
    // SAFETY: the function takes any code, and registers an allocator that is never dropped.
    unsafe { interop_register(code) };
}

/// Registers null as an allocator, at which the runtime ends the process.
#[expect(unsafe_code, reason = "see SAFETY")]
pub fn register_null() {
    // SAFETY: the runtime checks for null.
    unsafe { interop_register_null() };
}

/// Whether the runtime has an allocator for the type with this code, which may be none.
#[expect(unsafe_code, reason = "see SAFETY")]
#[must_use]
pub fn is_registered(code: i8) -> bool {
    // SAFETY: the runtime answers no to codes that it does not know.
    unsafe { interop_is_registered(code) }
}

/// The source that is installed.
fn current() -> MutexGuard<'static, Option<Arc<dyn Source>>> {
    static CURRENT: Mutex<Option<Arc<dyn Source>>> = Mutex::new(None);
    CURRENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The source for a type of device, without the lock.
fn source(device_type: i8) -> Result<Arc<dyn Source>, Code> {
    if DeviceType::from_executorch(device_type) != Some(DeviceType::Cuda) {
        return Err(NOT_FOUND);
    }
    current().clone().ok_or(NOT_FOUND)
}

/// The code for the runtime, which is 0 where there is no error.
fn to_code(result: Result<(), Code>) -> Code {
    result.err().unwrap_or(0)
}

#[expect(unsafe_code, reason = "called by name from cpp/forwarding.cpp")]
#[unsafe(no_mangle)]
unsafe extern "C" fn interop_allocate(
    device_type: i8,
    size: usize,
    index: i8,
    align: usize,
    out: *mut *mut c_void,
) -> Code {
    match source(device_type).and_then(|source| source.allocate(size, index, align)) {
        Ok(ptr) => {
            // SAFETY: the caller passes the address of a local variable.
            unsafe { out.write(ptr.cast()) };
            0
        }
        Err(code) => code,
    }
}

#[expect(unsafe_code, reason = "called by name from cpp/forwarding.cpp")]
#[unsafe(no_mangle)]
extern "C" fn interop_deallocate(device_type: i8, ptr: *mut c_void, index: i8) {
    if let Ok(source) = source(device_type) {
        source.deallocate(ptr.cast(), index);
    }
}

#[expect(unsafe_code, reason = "called by name from cpp/forwarding.cpp")]
#[unsafe(no_mangle)]
unsafe extern "C" fn interop_copy_host_to_device(
    device_type: i8,
    dst: *mut c_void,
    src: *const c_void,
    size: usize,
    index: i8,
) -> Code {
    to_code(source(device_type).and_then(|source| {
        // SAFETY: the runtime passes host memory of `size` bytes as `src`.
        unsafe { source.copy_host_to_device(dst.cast(), src.cast(), size, index) }
    }))
}

#[expect(unsafe_code, reason = "called by name from cpp/forwarding.cpp")]
#[unsafe(no_mangle)]
unsafe extern "C" fn interop_copy_device_to_host(
    device_type: i8,
    dst: *mut c_void,
    src: *const c_void,
    size: usize,
    index: i8,
) -> Code {
    to_code(source(device_type).and_then(|source| {
        // SAFETY: the runtime passes host memory of `size` bytes as `dst`.
        unsafe { source.copy_device_to_host(dst.cast(), src.cast(), size, index) }
    }))
}

#[expect(unsafe_code, reason = "functions of cpp/forwarding.cpp")]
unsafe extern "C" {
    fn interop_register(device_type: i8);
    fn interop_register_null();
    fn interop_is_registered(device_type: i8) -> bool;
}
