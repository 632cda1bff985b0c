//! What the driver says of an address.

use std::ffi::c_void;

use super::call::Call;
use super::code::{Code, Done};
use super::host::{self, Kind};
use super::out::put;

/// What an address is in.
#[derive(Clone, Copy, Debug)]
struct Place {
    base: u64,
    size: usize,
    id: u64,
    context: u64,
    device: usize,
    pool: u64,
    /// `None` for memory of a device.
    host: Option<Kind>,
}

/// Writes an attribute of an address.
///
/// # Safety
///
/// `data` is null or fits the attribute.
pub(super) unsafe fn attribute(
    call: &mut Call,
    data: *mut c_void,
    attribute: u32,
    addr: u64,
) -> Done {
    let place = locate(call, addr).ok_or(Code::INVALID_VALUE)?;
    // SAFETY: as promised by the caller.
    unsafe { write(data, attribute, addr, place) }
}

/// The same, with zeros for an address that the driver does not know.
///
/// # Safety
///
/// `data` is null or fits the attribute.
pub(super) unsafe fn attribute_or_zero(
    call: &mut Call,
    data: *mut c_void,
    attribute: u32,
    addr: u64,
) -> Done {
    if let Some(place) = locate(call, addr) {
        // SAFETY: as promised by the caller.
        return unsafe { write(data, attribute, addr, place) };
    }
    match attribute {
        2 | 8 | 10 | 13 | 16 => {
            // SAFETY: these are of 32 bits or of one byte; the first byte of
            // either is there.
            unsafe { put(data.cast::<u8>(), 0) }
        }
        // SAFETY: this one is `int`.
        9 => unsafe { put(data.cast::<i32>(), -2) },
        // SAFETY: the others are of 64 bits.
        _ => unsafe { put(data.cast::<u64>(), 0) },
    }
}

unsafe fn write(data: *mut c_void, attribute: u32, addr: u64, place: Place) -> Done {
    let wide = match attribute {
        1 => place.context,
        3 => addr,
        4 if place.host.is_some() => addr,
        4 => return Err(Code::INVALID_VALUE),
        7 | 20 => place.id,
        11 | 19 => place.base,
        12 | 18 => place.size as u64,
        17 => place.pool,
        2 => {
            let host = matches!(place.host, Some(Kind::Pinned | Kind::Registered));
            // SAFETY: this attribute is of 32 bits.
            return unsafe { put(data.cast::<u32>(), if host { 1 } else { 2 }) };
        }
        8 => {
            let managed = place.host == Some(Kind::Managed);
            // SAFETY: this attribute is one byte.
            return unsafe { put(data.cast::<u8>(), u8::from(managed)) };
        }
        9 => {
            // SAFETY: this attribute is `int`.
            return unsafe { put(data.cast::<i32>(), place.device as i32) };
        }
        10 | 15 => {
            // SAFETY: these attributes are one byte.
            return unsafe { put(data.cast::<u8>(), 0) };
        }
        13 => {
            // SAFETY: this attribute is one byte.
            return unsafe { put(data.cast::<u8>(), 1) };
        }
        _ => return Err(Code::NOT_SUPPORTED),
    };
    // SAFETY: the rest is of 64 bits.
    unsafe { put(data.cast::<u64>(), wide) }
}

/// The start and the size of the allocation around an address.
pub(super) fn range(call: &mut Call, addr: u64) -> Done<(u64, usize)> {
    call.current()?;
    let place = locate(call, addr).ok_or(Code::INVALID_VALUE)?;
    Ok((place.base, place.size))
}

fn locate(call: &Call, addr: u64) -> Option<Place> {
    if let Some((base, block)) = host::find(&call.host, addr) {
        let context = call.contexts.get(&block.context);
        return Some(Place {
            base,
            size: block.size,
            id: block.id,
            context: block.context,
            device: context.map_or(0, |context| context.device),
            pool: 0,
            host: Some(block.kind),
        });
    }
    let device = call.device_of(addr)?;
    let memory = &call.devices.get(device)?.memory;
    let found = memory.find(addr)?;
    let block = memory.block(found.base, found.id)?;
    let pool = match block.family {
        super::block::Family::Sync => 0,
        super::block::Family::Async { pool } => pool,
    };
    Some(Place {
        base: found.base,
        size: found.size,
        id: block.id,
        context: block.context,
        device,
        pool,
        host: None,
    })
}
