//! Allocation and free of device memory, at once and in the order of a stream.

use super::block::{Block, Family};
use super::bytes::Bytes;
use super::call::Call;
use super::code::{Code, Done};
use super::host::{self, Kind};
use super::operation::Operation;
use super::{device, pool, stream};

/// Allocates at once.
pub(super) fn now(call: &mut Call, size: usize) -> Done<u64> {
    let (context, device) = call.current_device()?;
    call.forbid_in_capture()?;
    call.note(0, size, 0);
    if size == 0 {
        return Err(Code::INVALID_VALUE);
    }
    if call.free_memory(device) < size {
        return Err(Code::OUT_OF_MEMORY);
    }
    let base = insert(call, device, context, size, Family::Sync)?;
    if let Some(device) = call.devices.get_mut(device) {
        device.memory.unpooled += size;
    }
    call.note(base, size, 0);
    Ok(base)
}

/// Frees at once, after all work of the device.
pub(super) fn free_now(call: &mut Call, addr: u64) -> Done {
    call.note(addr, 0, 0);
    let (context, current) = call.current_device()?;
    call.forbid_in_capture()?;
    if call.host.get(&addr).map(|block| block.kind) == Some(Kind::Managed) {
        call.finish_device(current);
        call.host.remove(&addr);
        return Ok(());
    }
    let (device, id) = start_of_block(call, addr)?;
    let Some(block) = memory_block(call, device, addr, id) else {
        return Err(Code::INVALID_VALUE);
    };
    let (size, family, home, made) = (block.size, block.family, block.context, block.made);
    call.note(addr, size, 0);
    if device != current {
        call.violate(format!(
            "{addr:#x} of cuda:{device} is freed with cuda:{current} current"
        ));
    } else if home != context {
        call.violate(format!("{addr:#x} is freed with another context current"));
    }
    match family {
        Family::Sync => call.finish_device(device),
        // No wait here: the documentation leaves that to the program.
        Family::Async { .. } => {
            if call.settings.strict_families {
                call.violate(format!(
                    "family mismatch: {addr:#x} is from cuMemAllocAsync"
                ));
            }
            if !made {
                call.violate(format!(
                    "{addr:#x} is freed before its stream has come to its allocation"
                ));
            }
        }
    }
    let reuse = call.settings.reuse;
    release(call, device, addr, id, reuse);
    Ok(())
}

/// Allocates in the order of a stream.
pub(super) fn on_stream(call: &mut Call, size: usize, pool: Option<u64>, handle: u64) -> Done<u64> {
    call.note(0, size, handle);
    let stream = stream::resolve(call, handle)?;
    let home = call
        .streams
        .get(&stream)
        .map(|stream| (stream.context, stream.device));
    let (context, own) = home.ok_or(Code::INVALID_HANDLE)?;
    device::require_pools(call, own)?;
    let current = call.devices.get(own).map(|device| device.current_pool);
    let pool = pool.or(current).ok_or(Code::INVALID_VALUE)?;
    if size == 0 {
        return Err(Code::INVALID_VALUE);
    }
    if pool::take(call, pool, size).is_err() {
        // What this stream is going to free may be used again in its order.
        call.finish_stream(stream);
        pool::take(call, pool, size)?;
    }
    let device = call.pools.get(&pool).map_or(own, |pool| pool.device);
    let base = match insert(call, device, context, size, Family::Async { pool }) {
        Ok(base) => base,
        Err(code) => {
            pool::give_back(call, pool, size);
            return Err(code);
        }
    };
    let id = call
        .devices
        .get(device)
        .and_then(|device| device.memory.blocks.get(&base));
    let id = id.map_or(0, |block| block.id);
    call.note(base, size, handle);
    let submitted = call.submit(stream, Operation::Make { device, base, id });
    if let Err(code) = submitted {
        let reuse = call.settings.reuse;
        release(call, device, base, id, reuse);
        return Err(code);
    }
    Ok(base)
}

/// Frees in the order of a stream.
pub(super) fn free_on_stream(call: &mut Call, addr: u64, handle: u64) -> Done {
    call.note(addr, 0, handle);
    let stream = stream::resolve(call, handle)?;
    let own = call.streams.get(&stream).map(|stream| stream.device);
    let own = own.ok_or(Code::INVALID_HANDLE)?;
    let (device, id) = start_of_block(call, addr)?;
    let Some(block) = memory_block(call, device, addr, id) else {
        return Err(Code::INVALID_VALUE);
    };
    let (size, family) = (block.size, block.family);
    call.note(addr, size, handle);
    if device != own {
        call.violate(format!(
            "{addr:#x} of cuda:{device} is freed on a stream of cuda:{own}"
        ));
        return Err(Code::INVALID_VALUE);
    }
    if family == Family::Sync && call.settings.strict_families {
        call.violate(format!("family mismatch: {addr:#x} is from cuMemAlloc"));
    }
    device::require_pools(call, own)?;
    call.submit(
        stream,
        Operation::Release {
            device,
            base: addr,
            id,
        },
    )?;
    // It may be gone already.
    let memory = call
        .devices
        .get_mut(device)
        .map(|device| &mut device.memory);
    if let Some(block) = memory.and_then(|memory| memory.block_mut(addr, id)) {
        block.free_requested = true;
    }
    Ok(())
}

/// Takes a block out of the books.
pub(super) fn release(call: &mut Call, device: usize, base: u64, id: u64, reuse: bool) {
    let Some(own) = call.devices.get_mut(device) else {
        return;
    };
    if own.memory.block(base, id).is_none() {
        return;
    }
    let Some(block) = own.memory.remove(base, reuse) else {
        return;
    };
    match block.family {
        Family::Sync => own.memory.unpooled -= block.size,
        Family::Async { pool } => pool::give_back(call, pool, block.size),
    }
}

fn insert(call: &mut Call, device: usize, context: u64, size: usize, family: Family) -> Done<u64> {
    let block = Block {
        id: call.next_id(),
        size,
        family,
        context,
        made: family == Family::Sync,
        free_requested: false,
        bytes: Bytes::new(size)?,
    };
    let reuse = call.settings.reuse;
    let own = call.devices.get_mut(device).ok_or(Code::INVALID_DEVICE)?;
    own.memory.insert(block, reuse)
}

fn memory_block(call: &Call, device: usize, base: u64, id: u64) -> Option<&Block> {
    call.devices.get(device)?.memory.block(base, id)
}

/// The device and the block that start at an address which is to be freed.
fn start_of_block(call: &mut Call, addr: u64) -> Done<(usize, u64)> {
    let Some(device) = call.device_of(addr) else {
        let known = host::find(&call.host, addr).is_some();
        let what = if known {
            "host memory"
        } else {
            "no device memory"
        };
        call.violate(format!("free of {addr:#x}: {what}"));
        return Err(Code::INVALID_VALUE);
    };
    let memory = call.devices.get(device).map(|device| &device.memory);
    let memory = memory.ok_or(Code::INVALID_VALUE)?;
    let complaint = match memory.blocks.get(&addr) {
        Some(block) if !block.free_requested => return Ok((device, block.id)),
        Some(_) => format!("double free of {addr:#x}: a stream is to free it already"),
        None => match (memory.find(addr), memory.find_retired(addr)) {
            (Some(found), _) => {
                format!("free of {addr:#x}: inside the block at {:#x}", found.base)
            }
            (None, Some(retired)) => format!(
                "double free of {addr:#x}: in block {} of {} bytes, which is freed",
                retired.id, retired.size
            ),
            (None, None) => format!("free of {addr:#x}: nothing was allocated there"),
        },
    };
    call.violate(complaint);
    Err(Code::INVALID_VALUE)
}
