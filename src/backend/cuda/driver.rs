//! The driver's functions, with their codes as results.
//!
//! Rank 4. Part of `backend::cuda`.
//!
//! One wrapper a function, each one call. They are unsafe as the functions are:
//! handles and addresses must be what they claim, and a context must be current
//! where the driver wants one. None may be called before `probe` has found the
//! function, or cudarc panics.

use std::ffi::{c_int, c_void};
use std::ptr;

use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdeviceptr, CUevent, CUmemPool_attribute, CUmemoryPool, CUresult,
    CUstream,
};

use super::status::{Outcome, Status};

/// The number of a code.
#[expect(
    clippy::as_conversions,
    reason = "the enum has no conversion, and must not be looked at otherwise"
)]
fn check(call: &'static str, result: CUresult) -> Outcome<()> {
    match result as u32 {
        0 => Ok(()),
        code => Err(Status { call, code }),
    }
}

/// Defines wrappers: a name, what is passed, and the call that is made.
macro_rules! wrappers {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),*) = $call:ident($($passed:expr),*);)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// As for the driver's function.
            #[inline]
            #[expect(unsafe_code, reason = "the driver's functions are unsafe")]
            pub(super) unsafe fn $name($($argument: $type),*) -> Outcome<()> {
                // SAFETY: the caller's promises are those of the function.
                check(stringify!($call), unsafe { sys::$call($($passed),*) })
            }
        )*
    };
    (give $($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),*) -> $out:ty = $start:expr, $call:ident($slot:ident $(, $passed:expr)*);)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// As for the driver's function.
            #[inline]
            #[expect(unsafe_code, reason = "the driver's functions are unsafe")]
            pub(super) unsafe fn $name($($argument: $type),*) -> Outcome<$out> {
                let mut value: $out = $start;
                let $slot = &raw mut value;
                // SAFETY: the caller's promises are those of the function; the
                // slot is a variable of the right type.
                check(stringify!($call), unsafe { sys::$call($slot $(, $passed)*) })?;
                Ok(value)
            }
        )*
    };
}

wrappers! {
    /// Makes the driver ready.
    fn init() = cuInit(0);
    /// Gives the primary context of a device back.
    fn primary_context_release(device: CUdevice) = cuDevicePrimaryCtxRelease_v2(device);
    /// Makes a context current, above the one that is.
    fn context_push(context: CUcontext) = cuCtxPushCurrent_v2(context);
    /// Waits for all work of the current context.
    fn context_synchronize() = cuCtxSynchronize();
    /// Frees, after all work that uses the block.
    fn free(ptr: CUdeviceptr) = cuMemFree_v2(ptr);
    /// Frees when the stream gets there.
    fn free_async(ptr: CUdeviceptr, stream: CUstream) = cuMemFreeAsync(ptr, stream);
    /// Frees page-locked host memory.
    fn host_free(ptr: *mut c_void) = cuMemFreeHost(ptr);
    /// Copies from the host when the stream gets there.
    fn copy_to_device_async(dst: CUdeviceptr, src: *const c_void, size: usize, stream: CUstream) =
        cuMemcpyHtoDAsync_v2(dst, src, size, stream);
    /// Copies to the host when the stream gets there.
    fn copy_to_host_async(dst: *mut c_void, src: CUdeviceptr, size: usize, stream: CUstream) =
        cuMemcpyDtoHAsync_v2(dst, src, size, stream);
    /// Copies on one device when the stream gets there.
    fn copy_on_device_async(dst: CUdeviceptr, src: CUdeviceptr, size: usize, stream: CUstream) =
        cuMemcpyDtoDAsync_v2(dst, src, size, stream);
    /// Copies between devices when the stream gets there.
    fn copy_peer_async(
        dst: CUdeviceptr,
        dst_context: CUcontext,
        src: CUdeviceptr,
        src_context: CUcontext,
        size: usize,
        stream: CUstream
    ) = cuMemcpyPeerAsync(dst, dst_context, src, src_context, size, stream);
    /// Sets bytes when the stream gets there.
    fn fill_async(dst: CUdeviceptr, byte: u8, size: usize, stream: CUstream) =
        cuMemsetD8Async(dst, byte, size, stream);
    /// Destroys a stream.
    fn stream_destroy(stream: CUstream) = cuStreamDestroy_v2(stream);
    /// Waits for all work of a stream.
    fn stream_synchronize(stream: CUstream) = cuStreamSynchronize(stream);
    /// Makes a stream wait for an event.
    fn stream_wait_event(stream: CUstream, event: CUevent) = cuStreamWaitEvent(stream, event, 0);
    /// Marks the work given to a stream so far.
    fn event_record(event: CUevent, stream: CUstream) = cuEventRecord(event, stream);
    /// Waits for what an event marks.
    fn event_synchronize(event: CUevent) = cuEventSynchronize(event);
    /// Whether what an event marks is done: success, or the code for not ready.
    fn event_query(event: CUevent) = cuEventQuery(event);
    /// Exchanges what the calling thread may do while a stream is capturing.
    fn exchange_capture_mode(mode: &mut sys::CUstreamCaptureMode) =
        cuThreadExchangeStreamCaptureMode(ptr::from_mut(mode));
    /// Destroys an event.
    fn event_destroy(event: CUevent) = cuEventDestroy_v2(event);
    /// Gives unused memory of a pool back.
    fn pool_trim(pool: CUmemoryPool, keep: usize) = cuMemPoolTrimTo(pool, keep);
    /// Destroys a pool.
    fn pool_destroy(pool: CUmemoryPool) = cuMemPoolDestroy(pool);
}

wrappers! { give
    /// The version of the driver, 12040 for 12.4.
    fn version() -> c_int = 0, cuDriverGetVersion(slot);
    /// How many devices there are.
    fn device_count() -> c_int = 0, cuDeviceGetCount(slot);
    /// The handle of a device.
    fn device(ordinal: c_int) -> CUdevice = 0, cuDeviceGet(slot, ordinal);
    /// A property of a device.
    fn attribute(device: CUdevice, which: sys::CUdevice_attribute) -> c_int = 0,
        cuDeviceGetAttribute(slot, which, device);
    /// The primary context of a device, kept until it is given back.
    fn primary_context_retain(device: CUdevice) -> CUcontext = ptr::null_mut(),
        cuDevicePrimaryCtxRetain(slot, device);
    /// The context that is current, or null.
    fn context_current() -> CUcontext = ptr::null_mut(), cuCtxGetCurrent(slot);
    /// Makes the context below current again.
    fn context_pop() -> CUcontext = ptr::null_mut(), cuCtxPopCurrent_v2(slot);
    /// Allocates.
    fn alloc(size: usize) -> CUdeviceptr = 0, cuMemAlloc_v2(slot, size);
    /// Allocates when the stream gets there.
    fn alloc_async(size: usize, stream: CUstream) -> CUdeviceptr = 0,
        cuMemAllocAsync(slot, size, stream);
    /// Allocates from a pool when the stream gets there.
    fn alloc_from_pool(size: usize, pool: CUmemoryPool, stream: CUstream) -> CUdeviceptr = 0,
        cuMemAllocFromPoolAsync(slot, size, pool, stream);
    /// Allocates memory that host and devices share.
    fn alloc_managed(size: usize) -> CUdeviceptr = 0, cuMemAllocManaged(slot, size, 1);
    /// Allocates page-locked host memory.
    fn host_alloc(size: usize, flags: u32) -> *mut c_void = ptr::null_mut(),
        cuMemHostAlloc(slot, size, flags);
    /// A stream that waits for no other.
    fn stream_create() -> CUstream = ptr::null_mut(), cuStreamCreate(slot, 1);
    /// An event that keeps no time.
    fn event_create() -> CUevent = ptr::null_mut(), cuEventCreate(slot, 2);
    /// The pool that a device allocates from.
    fn pool_of(device: CUdevice) -> CUmemoryPool = ptr::null_mut(), cuDeviceGetMemPool(slot, device);
    /// A pool of one's own.
    fn pool_create(properties: &sys::CUmemPoolProps) -> CUmemoryPool = ptr::null_mut(),
        cuMemPoolCreate(slot, ptr::from_ref(properties));
}

/// The free and the total memory of the current context's device.
///
/// # Safety
///
/// As for the driver's function.
#[expect(unsafe_code, reason = "the driver's functions are unsafe")]
pub(super) unsafe fn memory_info() -> Outcome<(usize, usize)> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: the caller's promises are those of the function; the slots are
    // variables of the right type.
    check("cuMemGetInfo_v2", unsafe {
        sys::cuMemGetInfo_v2(&raw mut free, &raw mut total)
    })?;
    Ok((free, total))
}

/// A number that a pool keeps.
///
/// # Safety
///
/// As for the driver's function, and `which` is a 64-bit attribute.
#[expect(unsafe_code, reason = "the driver's functions are unsafe")]
pub(super) unsafe fn pool_get(pool: CUmemoryPool, which: CUmemPool_attribute) -> Outcome<u64> {
    let mut value = 0_u64;
    let slot = (&raw mut value).cast();
    // SAFETY: the caller's promises are those of the function; the slot is a
    // variable of 64 bits.
    check("cuMemPoolGetAttribute", unsafe {
        sys::cuMemPoolGetAttribute(pool, which, slot)
    })?;
    Ok(value)
}

/// Sets a number that a pool keeps.
///
/// # Safety
///
/// As for the driver's function, and `which` is a 64-bit attribute.
#[expect(unsafe_code, reason = "the driver's functions are unsafe")]
pub(super) unsafe fn pool_set(
    pool: CUmemoryPool,
    which: CUmemPool_attribute,
    mut value: u64,
) -> Outcome<()> {
    let slot = (&raw mut value).cast();
    // SAFETY: the caller's promises are those of the function; the slot is a
    // variable of 64 bits.
    check("cuMemPoolSetAttribute", unsafe {
        sys::cuMemPoolSetAttribute(pool, which, slot)
    })
}

/// Whether a stream is recording a graph.
///
/// # Safety
///
/// As for the driver's function.
#[expect(unsafe_code, reason = "the driver's functions are unsafe")]
pub(super) unsafe fn is_capturing(stream: CUstream) -> Outcome<bool> {
    let none = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let mut status = none;
    // SAFETY: the caller's promises are those of the function; the slot is a
    // variable of the right type.
    check("cuStreamIsCapturing", unsafe {
        sys::cuStreamIsCapturing(stream, &raw mut status)
    })?;
    Ok(status != none)
}
