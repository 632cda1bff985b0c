//! Copies and fills, and the places they go between.
//!
//! Pinned memory is read when the copy is done. Other host memory is read when
//! the copy is asked for, and written before the call returns.

use super::bytes::FREED;
use super::call::Call;
use super::code::{Code, Done};
use super::host::{self, Kind};
use super::operation::Operation;
use super::stream;

/// Where bytes are.
#[derive(Debug)]
pub(super) enum Spot {
    /// In a block of a device.
    Device {
        device: usize,
        base: u64,
        id: u64,
        offset: usize,
    },
    /// In host memory that the driver knows.
    Known {
        base: u64,
        id: u64,
        addr: u64,
        kind: Kind,
    },
    /// In other host memory.
    Host { addr: u64 },
    /// Here: read from host memory before.
    Bytes(Vec<u8>),
}

/// In which order a copy is done.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    /// In that of the null stream, and the call waits where it says it does.
    Now,
    /// In that of the stream of this handle.
    Stream(u64),
}

impl Spot {
    /// Whether bytes there have to be read or written before a call returns.
    fn is_pageable(&self) -> bool {
        matches!(self, Self::Host { .. })
    }

    fn is_host(&self) -> bool {
        match self {
            Self::Host { .. } => true,
            Self::Known { kind, .. } => *kind != Kind::Managed,
            Self::Device { .. } | Self::Bytes(_) => false,
        }
    }
}

/// The stream of an order.
fn stream_of(call: &mut Call, order: Order) -> Done<u64> {
    let handle = match order {
        Order::Now => {
            call.forbid_in_capture()?;
            0
        }
        Order::Stream(handle) => handle,
    };
    call.current()?;
    stream::resolve(call, handle)
}

/// One side of a copy: an address, and which addresses are due there.
type Side = (u64, fn(&mut Call, u64, usize) -> Done<Spot>);

/// Copies from the host to a device.
pub(super) fn host_to_device(
    call: &mut Call,
    dst: u64,
    src: u64,
    len: usize,
    order: Order,
) -> Done {
    note(call, dst, len, order);
    between(call, (dst, device_spot), (src, host_spot), len, order)
}

/// Copies from a device to the host.
pub(super) fn device_to_host(
    call: &mut Call,
    dst: u64,
    src: u64,
    len: usize,
    order: Order,
) -> Done {
    note(call, src, len, order);
    between(call, (dst, host_spot), (src, device_spot), len, order)
}

/// Copies from a device to a device.
pub(super) fn device_to_device(
    call: &mut Call,
    dst: u64,
    src: u64,
    len: usize,
    order: Order,
) -> Done {
    note(call, dst, len, order);
    between(call, (dst, device_spot), (src, device_spot), len, order)
}

/// Copies between any two addresses.
pub(super) fn anywhere(call: &mut Call, dst: u64, src: u64, len: usize, order: Order) -> Done {
    note(call, dst, len, order);
    between(call, (dst, any_spot), (src, any_spot), len, order)
}

/// Copies between contexts.
pub(super) fn between_contexts(
    call: &mut Call,
    (dst, dst_context): (u64, u64),
    (src, src_context): (u64, u64),
    len: usize,
    order: Order,
) -> Done {
    for (addr, context) in [(dst, dst_context), (src, src_context)] {
        let named = call.usable(context)?.device;
        let own = call.device_of(addr);
        if own.is_some_and(|own| own != named) {
            call.violate(format!(
                "{addr:#x} is not on cuda:{named}, as the call says"
            ));
            return Err(Code::INVALID_VALUE);
        }
    }
    device_to_device(call, dst, src, len, order)
}

/// Fills device memory.
pub(super) fn fill(call: &mut Call, dst: u64, pattern: [u8; 4], len: usize, order: Order) -> Done {
    note(call, dst, len, order);
    let stream = stream_of(call, order)?;
    if len == 0 {
        return Ok(());
    }
    let dst = device_spot(call, dst, len)?;
    let on_host = dst.is_host();
    let ticket = call.submit(stream, Operation::Fill { dst, pattern, len })?;
    if on_host && matches!(order, Order::Now) {
        call.run_to(ticket);
    }
    Ok(())
}

fn note(call: &mut Call, ptr: u64, len: usize, order: Order) {
    let handle = match order {
        Order::Now => 0,
        Order::Stream(handle) => handle,
    };
    call.note(ptr, len, handle);
}

/// Copies between two sides.
fn between(call: &mut Call, dst: Side, src: Side, len: usize, order: Order) -> Done {
    let stream = stream_of(call, order)?;
    if len == 0 {
        return Ok(());
    }
    let dst = dst.1(call, dst.0, len)?;
    let src = src.1(call, src.0, len)?;
    copy(call, stream, dst, src, len, order)
}

fn copy(call: &mut Call, stream: u64, dst: Spot, src: Spot, len: usize, order: Order) -> Done {
    let now = matches!(order, Order::Now);
    let mut wait = dst.is_pageable() || (now && (dst.is_host() || src.is_host()));
    let src = if src.is_pageable() {
        if now {
            call.finish_stream(stream);
            // Read already; what it is written to may wait.
            wait = dst.is_host();
        }
        Spot::Bytes(take(call, src, len).unwrap_or_default())
    } else {
        src
    };
    let ticket = call.submit(stream, Operation::Copy { dst, src, len })?;
    if wait {
        call.run_to(ticket);
    }
    Ok(())
}

fn any_spot(call: &mut Call, addr: u64, len: usize) -> Done<Spot> {
    if call.device_of(addr).is_some() {
        device_spot(call, addr, len)
    } else {
        host_spot(call, addr, len)
    }
}

/// A range that a device can access.
fn device_spot(call: &mut Call, addr: u64, len: usize) -> Done<Spot> {
    let Some(device) = call.device_of(addr) else {
        if host::find(&call.host, addr).is_some() {
            return host_spot(call, addr, len);
        }
        call.violate(format!(
            "host address {addr:#x} where a device address is due"
        ));
        return Err(Code::INVALID_VALUE);
    };
    let memory = call.devices.get(device).map(|device| &device.memory);
    let memory = memory.ok_or(Code::INVALID_VALUE)?;
    let Some(found) = memory.find(addr) else {
        let complaint = match memory.find_retired(addr) {
            Some(old) => format!(
                "use after free: {addr:#x} is in block {} of {} bytes, which is freed",
                old.id, old.size
            ),
            None => format!("{addr:#x} is in no block of cuda:{device}"),
        };
        call.violate(complaint);
        return Err(Code::INVALID_VALUE);
    };
    if found.size - found.offset < len {
        call.violate(format!(
            "{len} bytes at {addr:#x} pass the end of the block at {:#x} of {} bytes",
            found.base, found.size
        ));
        return Err(Code::INVALID_VALUE);
    }
    let block = memory.block(found.base, found.id);
    if block.is_some_and(|block| block.free_requested) {
        call.violate(format!(
            "use after free: a stream is to free {addr:#x} already"
        ));
    }
    Ok(Spot::Device {
        device,
        base: found.base,
        id: found.id,
        offset: found.offset,
    })
}

/// A range of host memory.
fn host_spot(call: &mut Call, addr: u64, len: usize) -> Done<Spot> {
    let complaint = if addr == 0 {
        String::from("null where a host address is due")
    } else if call.device_of(addr).is_some() {
        format!("device address {addr:#x} where a host address is due")
    } else if let Some((base, block)) = host::find(&call.host, addr) {
        let left = base + block.size as u64 - addr;
        if len as u64 <= left {
            return Ok(Spot::Known {
                base,
                id: block.id,
                addr,
                kind: block.kind,
            });
        }
        format!(
            "{len} bytes at {addr:#x} pass the end of {} bytes of host memory at {base:#x}",
            block.size
        )
    } else {
        return Ok(Spot::Host { addr });
    };
    call.violate(complaint);
    Err(Code::INVALID_VALUE)
}

/// Reads bytes, or `None` if they are gone.
pub(super) fn take(call: &mut Call, src: Spot, len: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![FREED; len];
    match src {
        Spot::Bytes(bytes) => return Some(bytes),
        Spot::Host { addr } => read_host(addr, &mut bytes),
        Spot::Known {
            base,
            id,
            addr,
            kind,
        } => {
            if !is_known(call, base, id) {
                call.violate(format!(
                    "{kind:?} memory at {addr:#x} was freed before a copy read it"
                ));
                return None;
            }
            read_host(addr, &mut bytes);
        }
        Spot::Device {
            device,
            base,
            id,
            offset,
        } => {
            check_made(call, device, base, id)?;
            let memory = &call.devices.get(device)?.memory;
            memory.block(base, id)?.bytes.read(offset, &mut bytes);
        }
    }
    Some(bytes)
}

/// Writes bytes, unless where they go is gone.
pub(super) fn poke(call: &mut Call, dst: &Spot, bytes: &[u8]) {
    match *dst {
        Spot::Bytes(_) => {}
        Spot::Host { addr } => write_host(addr, bytes),
        Spot::Known {
            base,
            id,
            addr,
            kind,
        } => {
            if is_known(call, base, id) {
                write_host(addr, bytes);
            } else {
                call.violate(format!(
                    "{kind:?} memory at {addr:#x} was freed before a copy wrote it"
                ));
            }
        }
        Spot::Device {
            device,
            base,
            id,
            offset,
        } => {
            if check_made(call, device, base, id).is_none() {
                return;
            }
            let memory = call
                .devices
                .get_mut(device)
                .map(|device| &mut device.memory);
            if let Some(block) = memory.and_then(|memory| memory.block_mut(base, id)) {
                block.bytes.write(offset, bytes);
            }
        }
    }
}

fn is_known(call: &Call, base: u64, id: u64) -> bool {
    call.host.get(&base).is_some_and(|block| block.id == id)
}

/// Reports a block that is not there when a stream comes to use it.
fn check_made(call: &mut Call, device: usize, base: u64, id: u64) -> Option<()> {
    let memory = &call.devices.get(device)?.memory;
    let complaint = match memory.block(base, id) {
        Some(block) if block.made => return Some(()),
        Some(_) => format!("{base:#x} is used before its stream has allocated it (missing wait)"),
        None => format!("use after free of block {id} at {base:#x}"),
    };
    call.violate(complaint);
    None
}

fn read_host(addr: u64, out: &mut [u8]) {
    let src = std::ptr::with_exposed_provenance::<u8>(addr as usize);
    // SAFETY: the program passed this range as host memory to read, or it is
    // memory that the driver knows and holds; `out` is not it, being ours.
    unsafe { src.copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) };
}

fn write_host(addr: u64, bytes: &[u8]) {
    let dst = std::ptr::with_exposed_provenance_mut::<u8>(addr as usize);
    // SAFETY: the program passed this range as host memory to write, or it is
    // memory that the driver knows and holds; `bytes` are ours.
    unsafe { dst.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}
