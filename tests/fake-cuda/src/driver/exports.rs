//! The functions of the C interface.
//!
//! Each is a name, its arguments, when it may be called, and a line that says
//! what it comes to. Handles are passed as numbers, which they are to a program.

#![expect(
    clippy::multiple_unsafe_ops_per_block,
    clippy::undocumented_unsafe_blocks,
    reason = "the one unsafe thing here is the use of the pointers of a C interface, each as it \
              documents them; `put` and `get` refuse null"
)]

use std::ffi::{c_char, c_void};

use super::call::{Call, When, enter};
use super::code::{Code, Done, describe};
use super::copy::Order::{Now, Stream};
use super::host::Kind;
use super::operation::{HostFunction, Operation};
use super::out::{get, put};
use super::{
    allocate, capture, context, copy, device, event, fault, host, pointer, pool, quick, stream,
    thread,
};

/// Declares the functions, and numbers them in the order of the list. What stands
/// after `or` is tried first, and may say that it does not know.
macro_rules! functions {
    ($(
        $when:ident fn $name:ident($($argument:ident: $kind:ty),* $(,)?)
            $(or $quick:expr)?, $call:ident => $body:expr;
    )*) => {
        #[expect(non_camel_case_types, reason = "named as the functions are")]
        #[derive(Clone, Copy)]
        enum Number { $($name,)* Count }

        /// How many functions there are.
        pub(super) const COUNT: usize = Number::Count as usize;

        /// Their names, by number.
        pub(super) static NAMES: [&str; COUNT] = [$(stringify!($name)),*];

        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $kind),*) -> i32 {
                $(if let Some(code) = unsafe { $quick } {
                    fault::count(Number::$name as usize);
                    return code;
                })?
                enter(Number::$name as usize, When::$when, move |$call: &mut Call| $body)
            }
        )*
    };
}

functions! {
    BeforeInit fn cuInit(flags: u32), call => device::init(call, flags);
    BeforeInit fn cuDriverGetVersion(out: *mut i32), call =>
        unsafe { put(out, call.settings.driver_version) };
    Always fn cuGetErrorName(code: i32, out: *mut *const c_char), _call => unsafe {
        put(out, describe(code).map_or(std::ptr::null(), |texts| texts.0.as_ptr()))?;
        describe(code).map(|_| ()).ok_or(Code::INVALID_VALUE)
    };
    Always fn cuGetErrorString(code: i32, out: *mut *const c_char), _call => unsafe {
        put(out, describe(code).map_or(std::ptr::null(), |texts| texts.1.as_ptr()))?;
        describe(code).map(|_| ()).ok_or(Code::INVALID_VALUE)
    };

    AfterInit fn cuDeviceGetCount(out: *mut i32), call =>
        unsafe { put(out, call.devices.len() as i32) };
    AfterInit fn cuDeviceGet(out: *mut i32, ordinal: i32), call => {
        context::device(call, ordinal)?;
        unsafe { put(out, ordinal) }
    };
    AfterInit fn cuDeviceGetAttribute(out: *mut i32, attribute: i32, ordinal: i32), call => {
        let index = context::device(call, ordinal)?;
        unsafe { put(out, device::attribute(call, index, attribute)?) }
    };
    AfterInit fn cuDeviceGetName(out: *mut c_char, len: i32, ordinal: i32), call => {
        let name = device::name(context::device(call, ordinal)?);
        unsafe { put_text(out, len, &name) }
    };
    AfterInit fn cuDeviceGetPCIBusId(out: *mut c_char, len: i32, ordinal: i32), call => {
        let name = format!("0000:{:02x}:00.0", context::device(call, ordinal)? + 1);
        unsafe { put_text(out, len, &name) }
    };
    AfterInit fn cuDeviceGetUuid(out: *mut [u8; 16], ordinal: i32), call => {
        let index = context::device(call, ordinal)?;
        unsafe { put(out, device::uuid(index)) }
    };
    AfterInit fn cuDeviceGetUuid_v2(out: *mut [u8; 16], ordinal: i32), call => {
        let index = context::device(call, ordinal)?;
        unsafe { put(out, device::uuid(index)) }
    };
    AfterInit fn cuDeviceTotalMem_v2(out: *mut usize, ordinal: i32), call => {
        let index = context::device(call, ordinal)?;
        unsafe { put(out, call.settings.memory_of(index)) }
    };
    AfterInit fn cuDeviceCanAccessPeer(out: *mut i32, one: i32, other: i32), call => {
        let (one, other) = (context::device(call, one)?, context::device(call, other)?);
        unsafe { put(out, i32::from(one != other && call.settings.peer_access)) }
    };
    AfterInit fn cuDeviceGetDefaultMemPool(out: *mut u64, ordinal: i32), call => {
        let pool = pool::of_device(call, ordinal, true)?;
        unsafe { put(out, pool) }
    };
    AfterInit fn cuDeviceGetMemPool(out: *mut u64, ordinal: i32), call => {
        let pool = pool::of_device(call, ordinal, false)?;
        unsafe { put(out, pool) }
    };
    AfterInit fn cuDeviceSetMemPool(ordinal: i32, pool: u64), call =>
        pool::set_current(call, ordinal, pool);

    AfterInit fn cuDevicePrimaryCtxRetain(out: *mut u64, ordinal: i32), call => {
        let handle = context::retain(call, ordinal)?;
        unsafe { put(out, handle) }
    };
    AfterInit fn cuDevicePrimaryCtxRelease_v2(ordinal: i32), call =>
        context::release(call, ordinal);
    AfterInit fn cuDevicePrimaryCtxReset_v2(ordinal: i32), call => context::reset(call, ordinal);
    AfterInit fn cuDevicePrimaryCtxSetFlags_v2(ordinal: i32, flags: u32), call => {
        let index = context::device(call, ordinal)?;
        call.devices.get_mut(index).ok_or(Code::INVALID_DEVICE)?.flags = flags;
        Ok(())
    };
    AfterInit fn cuDevicePrimaryCtxGetState(
        ordinal: i32, flags: *mut u32, active: *mut i32
    ), call => {
        let index = context::device(call, ordinal)?;
        let own = call.devices.get(index).ok_or(Code::INVALID_DEVICE)?;
        unsafe {
            put(flags, own.flags)?;
            put(active, i32::from(own.primary.is_some()))
        }
    };
    AfterInit fn cuCtxCreate_v2(out: *mut u64, flags: u32, ordinal: i32), call => {
        let handle = context::create_current(call, ordinal, flags)?;
        unsafe { put(out, handle) }
    };
    AfterInit fn cuCtxCreate_v4(
        out: *mut u64, _parameters: *mut c_void, flags: u32, ordinal: i32
    ), call => {
        let handle = context::create_current(call, ordinal, flags)?;
        unsafe { put(out, handle) }
    };
    AfterInit fn cuCtxDestroy_v2(handle: u64), call => context::destroy_own(call, handle);
    AfterInit fn cuCtxGetCurrent(out: *mut u64) or quick::current(out), _call =>
        unsafe { put(out, thread::current().unwrap_or(0)) };
    AfterInit fn cuCtxSetCurrent(handle: u64), call => context::set_current(call, handle);
    AfterInit fn cuCtxPushCurrent_v2(handle: u64), call => context::push(call, handle);
    AfterInit fn cuCtxPopCurrent_v2(out: *mut u64), call => {
        let handle = context::pop(call)?;
        if out.is_null() { Ok(()) } else { unsafe { put(out, handle) } }
    };
    AfterInit fn cuCtxGetDevice(out: *mut i32), call => {
        let device = call.current_device()?.1;
        unsafe { put(out, device as i32) }
    };
    AfterInit fn cuCtxGetFlags(out: *mut u32), call => {
        let current = call.current()?;
        unsafe { put(out, call.usable(current)?.flags) }
    };
    AfterInit fn cuCtxGetApiVersion(handle: u64, out: *mut u32), call => {
        let handle = if handle == 0 { call.current()? } else { handle };
        call.usable(handle)?;
        unsafe { put(out, call.settings.driver_version as u32) }
    };
    AfterInit fn cuCtxGetStreamPriorityRange(least: *mut i32, greatest: *mut i32), call => {
        call.current()?;
        unsafe {
            put(least, 0)?;
            put(greatest, -5)
        }
    };
    AfterInit fn cuCtxSynchronize(), call => {
        let current = call.current()?;
        call.forbid_in_capture()?;
        call.finish_context(current);
        call.waited();
        call.current().map(|_| ())
    };
    AfterInit fn cuCtxEnablePeerAccess(peer: u64, flags: u32), call =>
        context::enable_peer(call, peer, flags);
    AfterInit fn cuCtxDisablePeerAccess(peer: u64), call => context::disable_peer(call, peer);

    AfterInit fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize), call => {
        let device = call.current_device()?.1;
        unsafe {
            put(free, call.free_memory(device))?;
            put(total, call.settings.memory_of(device))
        }
    };
    AfterInit fn cuMemAlloc_v2(out: *mut u64, size: usize), call => {
        let addr = allocate::now(call, size)?;
        unsafe { put(out, addr) }
    };
    AfterInit fn cuMemFree_v2(addr: u64), call => allocate::free_now(call, addr);
    AfterInit fn cuMemAllocAsync(out: *mut u64, size: usize, on: u64), call => {
        let addr = allocate::on_stream(call, size, None, on)?;
        unsafe { put(out, addr) }
    };
    AfterInit fn cuMemAllocFromPoolAsync(out: *mut u64, size: usize, pool: u64, on: u64), call => {
        let addr = allocate::on_stream(call, size, Some(pool), on)?;
        unsafe { put(out, addr) }
    };
    AfterInit fn cuMemFreeAsync(addr: u64, on: u64), call =>
        allocate::free_on_stream(call, addr, on);
    AfterInit fn cuMemAllocManaged(out: *mut u64, size: usize, flags: u32), call => {
        let addr = host::allocate(call, Kind::Managed, size, flags)?;
        unsafe { put(out, addr) }
    };
    AfterInit fn cuMemHostAlloc(out: *mut u64, size: usize, flags: u32), call => {
        let addr = host::allocate(call, Kind::Pinned, size, flags)?;
        unsafe { put(out, addr) }
    };
    AfterInit fn cuMemAllocHost_v2(out: *mut u64, size: usize), call => {
        let addr = host::allocate(call, Kind::Pinned, size, 0)?;
        unsafe { put(out, addr) }
    };
    AfterInit fn cuMemFreeHost(addr: u64), call => host::free_pinned(call, addr);
    AfterInit fn cuMemHostRegister_v2(addr: u64, size: usize, flags: u32), call =>
        host::register(call, addr, size, flags);
    AfterInit fn cuMemHostUnregister(addr: u64), call => host::unregister(call, addr);
    AfterInit fn cuMemHostGetDevicePointer_v2(out: *mut u64, addr: u64, _flags: u32), call => {
        call.current()?;
        host::find(&call.host, addr).ok_or(Code::INVALID_VALUE)?;
        unsafe { put(out, addr) }
    };
    AfterInit fn cuMemHostGetFlags(out: *mut u32, addr: u64), call => {
        let flags = host::find(&call.host, addr).ok_or(Code::INVALID_VALUE)?.1.flags;
        unsafe { put(out, flags) }
    };
    AfterInit fn cuMemGetAddressRange_v2(base: *mut u64, size: *mut usize, addr: u64), call => {
        let range = pointer::range(call, addr)?;
        unsafe {
            if !base.is_null() { put(base, range.0)?; }
            if !size.is_null() { put(size, range.1)?; }
        }
        Ok(())
    };
    AfterInit fn cuPointerGetAttribute(data: *mut c_void, attribute: u32, addr: u64), call =>
        unsafe { pointer::attribute(call, data, attribute, addr) };
    AfterInit fn cuPointerGetAttributes(
        count: u32, attributes: *const u32, data: *const *mut c_void, addr: u64
    ), call => {
        for index in 0..count as usize {
            unsafe {
                let (attribute, data) = (get(attributes, index)?, get(data, index)?);
                pointer::attribute_or_zero(call, data, attribute, addr)?;
            }
        }
        Ok(())
    };

    AfterInit fn cuMemcpy(dst: u64, src: u64, len: usize), call =>
        copy::anywhere(call, dst, src, len, Now);
    AfterInit fn cuMemcpyAsync(dst: u64, src: u64, len: usize, on: u64), call =>
        copy::anywhere(call, dst, src, len, Stream(on));
    AfterInit fn cuMemcpyHtoD_v2(dst: u64, src: u64, len: usize), call =>
        copy::host_to_device(call, dst, src, len, Now);
    AfterInit fn cuMemcpyHtoDAsync_v2(dst: u64, src: u64, len: usize, on: u64), call =>
        copy::host_to_device(call, dst, src, len, Stream(on));
    AfterInit fn cuMemcpyDtoH_v2(dst: u64, src: u64, len: usize), call =>
        copy::device_to_host(call, dst, src, len, Now);
    AfterInit fn cuMemcpyDtoHAsync_v2(dst: u64, src: u64, len: usize, on: u64), call =>
        copy::device_to_host(call, dst, src, len, Stream(on));
    AfterInit fn cuMemcpyDtoD_v2(dst: u64, src: u64, len: usize), call =>
        copy::device_to_device(call, dst, src, len, Now);
    AfterInit fn cuMemcpyDtoDAsync_v2(dst: u64, src: u64, len: usize, on: u64), call =>
        copy::device_to_device(call, dst, src, len, Stream(on));
    AfterInit fn cuMemcpyPeer(
        dst: u64, dst_context: u64, src: u64, src_context: u64, len: usize
    ), call =>
        copy::between_contexts(call, (dst, dst_context), (src, src_context), len, Now);
    AfterInit fn cuMemcpyPeerAsync(
        dst: u64, dst_context: u64, src: u64, src_context: u64, len: usize, on: u64
    ), call =>
        copy::between_contexts(call, (dst, dst_context), (src, src_context), len, Stream(on));
    AfterInit fn cuMemsetD8_v2(dst: u64, value: u8, len: usize), call =>
        copy::fill(call, dst, [value; 4], len, Now);
    AfterInit fn cuMemsetD8Async(dst: u64, value: u8, len: usize, on: u64), call =>
        copy::fill(call, dst, [value; 4], len, Stream(on));
    AfterInit fn cuMemsetD32_v2(dst: u64, value: u32, count: usize), call =>
        copy::fill(call, dst, value.to_ne_bytes(), words(count)?, Now);
    AfterInit fn cuMemsetD32Async(dst: u64, value: u32, count: usize, on: u64), call =>
        copy::fill(call, dst, value.to_ne_bytes(), words(count)?, Stream(on));

    AfterInit fn cuMemPoolCreate(out: *mut u64, properties: *const i32), call => {
        let handle = unsafe { pool::create(call, properties) }?;
        unsafe { put(out, handle) }
    };
    AfterInit fn cuMemPoolDestroy(pool: u64), call => pool::destroy(call, pool);
    AfterInit fn cuMemPoolTrimTo(pool: u64, keep: usize), call => pool::trim(call, pool, keep);
    AfterInit fn cuMemPoolGetAttribute(pool: u64, attribute: u32, value: *mut c_void), call =>
        unsafe { pool::attribute(call, pool, attribute, value) };
    AfterInit fn cuMemPoolSetAttribute(pool: u64, attribute: u32, value: *mut c_void), call =>
        unsafe { pool::set_attribute(call, pool, attribute, value) };

    AfterInit fn cuStreamCreate(out: *mut u64, flags: u32), call => {
        let handle = stream::create(call, flags, 0)?;
        unsafe { put(out, handle) }
    };
    AfterInit fn cuStreamCreateWithPriority(out: *mut u64, flags: u32, priority: i32), call => {
        let handle = stream::create(call, flags, priority)?;
        unsafe { put(out, handle) }
    };
    AfterInit fn cuStreamDestroy_v2(on: u64), call => stream::destroy(call, on);
    AfterInit fn cuStreamSynchronize(on: u64), call => {
        call.note(0, 0, on);
        call.current()?;
        let stream = stream::resolve(call, on)?;
        capture::forbid_wait(call, stream)?;
        call.finish_stream(stream);
        call.waited();
        stream::resolve(call, on).map(|_| ())
    };
    AfterInit fn cuStreamQuery(on: u64), call => {
        call.current()?;
        let stream = stream::resolve(call, on)?;
        capture::forbid_wait(call, stream)?;
        if stream::everything(call, stream).is_none() {
            return Ok(());
        }
        call.nudge(stream);
        Err(Code::NOT_READY)
    };
    AfterInit fn cuStreamWaitEvent(on: u64, handle: u64, _flags: u32), call =>
        event::wait(call, on, handle);
    AfterInit fn cuStreamGetCtx(on: u64, out: *mut u64), call => {
        let stream = stream::resolve(call, on)?;
        let home = call.streams.get(&stream).map_or(0, |stream| stream.context);
        unsafe { put(out, home) }
    };
    AfterInit fn cuStreamGetFlags(on: u64, out: *mut u32), call => {
        let stream = stream::resolve(call, on)?;
        let kind = call.streams.get(&stream).map(|stream| stream.kind);
        unsafe { put(out, u32::from(kind == Some(stream::StreamKind::NonBlocking))) }
    };
    AfterInit fn cuStreamGetPriority(on: u64, out: *mut i32), call => {
        let stream = stream::resolve(call, on)?;
        unsafe { put(out, call.streams.get(&stream).map_or(0, |stream| stream.priority)) }
    };
    AfterInit fn cuStreamGetId(on: u64, out: *mut u64), call => {
        let stream = stream::resolve(call, on)?;
        unsafe { put(out, stream) }
    };
    AfterInit fn cuStreamGetDevice(on: u64, out: *mut i32), call => {
        let stream = stream::resolve(call, on)?;
        let home = call.streams.get(&stream).map_or(0, |stream| stream.device);
        unsafe { put(out, home as i32) }
    };
    AfterInit fn cuStreamBeginCapture_v2(on: u64, mode: u32), call =>
        capture::begin(call, on, mode);
    AfterInit fn cuStreamEndCapture(on: u64, out: *mut u64), call => {
        let graph = capture::end(call, on)?;
        unsafe { put(out, graph) }
    };
    AfterInit fn cuStreamIsCapturing(on: u64, out: *mut u32) or quick::is_capturing(on, out), call => {
        let status = capture::status(call, on)?;
        unsafe { put(out, status) }
    };
    AfterInit fn cuThreadExchangeStreamCaptureMode(mode: *mut u32), _call => {
        let new = unsafe { get(mode, 0) }?;
        if new > 2 {
            return Err(Code::INVALID_VALUE);
        }
        unsafe { put(mode, thread::exchange_capture_mode(new)) }
    };
    AfterInit fn cuGraphDestroy(graph: u64), call =>
        call.graphs.remove(&graph).then_some(()).ok_or(Code::INVALID_VALUE);
    AfterInit fn cuLaunchHostFunc(
        on: u64, function: Option<unsafe extern "C" fn(*mut c_void)>, argument: *mut c_void
    ), call => {
        let stream = stream::resolve_here(call, on)?;
        let function = function.ok_or(Code::INVALID_VALUE)?;
        let function = unsafe { HostFunction::new(function, argument) };
        call.submit(stream, Operation::Host { function }).map(|_| ())
    };

    AfterInit fn cuEventCreate(out: *mut u64, flags: u32), call => {
        let handle = event::create(call, flags)?;
        unsafe { put(out, handle) }
    };
    AfterInit fn cuEventDestroy_v2(handle: u64), call => event::destroy(call, handle);
    AfterInit fn cuEventRecord(handle: u64, on: u64), call => event::record(call, handle, on);
    AfterInit fn cuEventRecordWithFlags(handle: u64, on: u64, _flags: u32), call =>
        event::record(call, handle, on);
    AfterInit fn cuEventQuery(handle: u64), call => event::query(call, handle);
    AfterInit fn cuEventSynchronize(handle: u64), call => event::synchronize(call, handle);
    AfterInit fn cuEventElapsedTime(out: *mut f32, start: u64, end: u64), call => {
        let time = event::elapsed(call, start, end)?;
        unsafe { put(out, time) }
    };
    AfterInit fn cuEventElapsedTime_v2(out: *mut f32, start: u64, end: u64), call => {
        let time = event::elapsed(call, start, end)?;
        unsafe { put(out, time) }
    };
}

/// The bytes of `count` words.
fn words(count: usize) -> Done<usize> {
    count.checked_mul(4).ok_or(Code::INVALID_VALUE)
}

/// Writes text and the zero after it, as much as there is room for.
unsafe fn put_text(out: *mut c_char, len: i32, text: &str) -> Done {
    let room = usize::try_from(len).ok().and_then(|len| len.checked_sub(1));
    let room = room.ok_or(Code::INVALID_VALUE)?;
    let kept = text.bytes().take(room).chain([0]);
    for (index, byte) in kept.enumerate() {
        unsafe { put(out.wrapping_add(index), byte as c_char)? };
    }
    Ok(())
}
