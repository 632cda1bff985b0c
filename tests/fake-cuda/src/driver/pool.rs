//! Pools: memory that a device keeps for stream-ordered allocations.

use std::ffi::c_void;

use super::call::Call;
use super::code::{Code, Done};
use super::out::{get, put};
use super::{context, device};

/// A pool.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) device: usize,
    /// Whether it came with the device.
    pub(super) is_default: bool,
    /// Destroyed by the program, and kept until its blocks are freed.
    pub(super) destroyed: bool,
    /// The bytes it takes of the device.
    pub(super) reserved: usize,
    reserved_high: usize,
    /// The bytes of its blocks.
    used: usize,
    used_high: usize,
    /// The bytes it holds when the program has waited.
    threshold: u64,
    /// `0` without a limit.
    max_size: usize,
    /// Attributes 1 to 3, which are kept and do nothing.
    reuse: [i32; 3],
}

impl Pool {
    pub(super) fn new(device: usize, is_default: bool, max_size: usize) -> Self {
        Self {
            device,
            is_default,
            destroyed: false,
            reserved: 0,
            reserved_high: 0,
            used: 0,
            used_high: 0,
            threshold: 0,
            max_size,
            reuse: [1; 3],
        }
    }

    /// Gives back what is not used, but for `keep` bytes.
    fn shrink(&mut self, keep: u64) {
        let keep = usize::try_from(keep).unwrap_or(usize::MAX);
        self.reserved = self.reserved.min(self.used.max(keep));
    }
}

/// Counts `size` more bytes as used, taking them from the device if need be.
pub(super) fn take(call: &mut Call, handle: u64, size: usize) -> Done {
    let pool = usable(call, handle)?;
    let more = size.saturating_sub(pool.reserved - pool.used);
    let limit = if pool.max_size == 0 {
        usize::MAX
    } else {
        pool.max_size
    };
    let fits = pool
        .reserved
        .checked_add(more)
        .is_some_and(|all| all <= limit);
    if !fits || call.free_memory(pool.device) < more {
        return Err(Code::OUT_OF_MEMORY);
    }
    if let Some(pool) = call.pools.get_mut(&handle) {
        pool.reserved += more;
        pool.used += size;
        pool.reserved_high = pool.reserved_high.max(pool.reserved);
        pool.used_high = pool.used_high.max(pool.used);
    }
    Ok(())
}

/// Counts `size` bytes as unused; the pool keeps them.
pub(super) fn give_back(call: &mut Call, handle: u64, size: usize) {
    let Some(pool) = call.pools.get_mut(&handle) else {
        return;
    };
    pool.used = pool.used.saturating_sub(size);
    if pool.destroyed && pool.used == 0 {
        call.pools.remove(&handle);
    }
}

/// What all pools do when the program has waited.
pub(super) fn shrink_all(call: &mut Call) {
    for pool in call.pools.values_mut() {
        pool.shrink(pool.threshold);
    }
}

/// Makes a pool, from the properties of the C interface.
pub(super) unsafe fn create(call: &mut Call, properties: *const i32) -> Done<u64> {
    /// Where the properties lie, in units of 4 and of 8 bytes.
    const KIND: usize = 0;
    const PLACE: usize = 2;
    const DEVICE: usize = 3;
    const MAX_SIZE: usize = 3;

    // SAFETY: the caller passes properties or null, as the C interface asks,
    // and they are over 80 bytes long.
    let kind = unsafe { get(properties, KIND) }?;
    // SAFETY: as above.
    let place = unsafe { get(properties, PLACE) }?;
    // SAFETY: as above.
    let ordinal = unsafe { get(properties, DEVICE) }?;
    // SAFETY: as above.
    let max_size = unsafe { get(properties.cast::<usize>(), MAX_SIZE) }?;
    if kind != 1 || place != 1 {
        return Err(Code::INVALID_VALUE);
    }
    let index = context::device(call, ordinal)?;
    device::require_pools(call, index)?;
    let handle = call.next_handle();
    call.pools.insert(handle, Pool::new(index, false, max_size));
    Ok(handle)
}

/// Destroys a pool; what is allocated from it lives on.
pub(super) fn destroy(call: &mut Call, handle: u64) -> Done {
    let pool = usable(call, handle)?;
    if pool.is_default {
        return Err(Code::INVALID_VALUE);
    }
    let (device, unused) = (pool.device, pool.used == 0);
    let own = call.devices.get_mut(device);
    if let Some(own) = own.filter(|own| own.current_pool == handle) {
        own.current_pool = own.default_pool;
    }
    if unused {
        call.pools.remove(&handle);
    } else if let Some(pool) = call.pools.get_mut(&handle) {
        pool.destroyed = true;
        pool.threshold = 0;
    }
    Ok(())
}

/// Gives unused memory of a pool back, but for `keep` bytes.
pub(super) fn trim(call: &mut Call, handle: u64, keep: usize) -> Done {
    usable(call, handle)?;
    if let Some(pool) = call.pools.get_mut(&handle) {
        pool.shrink(keep as u64);
    }
    Ok(())
}

/// Makes a pool the one that a device takes from.
pub(super) fn set_current(call: &mut Call, ordinal: i32, handle: u64) -> Done {
    let index = context::device(call, ordinal)?;
    device::require_pools(call, index)?;
    if usable(call, handle)?.device != index {
        return Err(Code::INVALID_VALUE);
    }
    if let Some(own) = call.devices.get_mut(index) {
        own.current_pool = handle;
    }
    Ok(())
}

/// The pool that a device takes from, or the one that it came with.
pub(super) fn of_device(call: &mut Call, ordinal: i32, default: bool) -> Done<u64> {
    let index = context::device(call, ordinal)?;
    device::require_pools(call, index)?;
    let own = call.devices.get(index).ok_or(Code::INVALID_DEVICE)?;
    Ok(if default {
        own.default_pool
    } else {
        own.current_pool
    })
}

/// Writes an attribute of a pool to `value`, which fits it.
pub(super) unsafe fn attribute(
    call: &mut Call,
    handle: u64,
    attribute: u32,
    value: *mut c_void,
) -> Done {
    let pool = usable(call, handle)?;
    let number = match attribute {
        1..=3 => {
            let flag = pool.reuse.get(attribute as usize - 1).copied();
            // SAFETY: these attributes are `int`, says the C interface.
            return unsafe { put(value.cast::<i32>(), flag.unwrap_or(0)) };
        }
        4 => pool.threshold,
        5 => pool.reserved as u64,
        6 => pool.reserved_high as u64,
        7 => pool.used as u64,
        8 => pool.used_high as u64,
        _ => return Err(Code::INVALID_VALUE),
    };
    // SAFETY: these attributes are of 64 bits, says the C interface.
    unsafe { put(value.cast::<u64>(), number) }
}

/// Changes an attribute of a pool to `value`, which fits it.
pub(super) unsafe fn set_attribute(
    call: &mut Call,
    handle: u64,
    attribute: u32,
    value: *const c_void,
) -> Done {
    usable(call, handle)?;
    let wide = match attribute {
        // SAFETY: these attributes are `int`, says the C interface.
        1..=3 => u64::from(unsafe { get(value.cast::<i32>(), 0) }? != 0),
        // SAFETY: the others are of 64 bits.
        _ => unsafe { get(value.cast::<u64>(), 0) }?,
    };
    let pool = call.pools.get_mut(&handle).ok_or(Code::INVALID_VALUE)?;
    match (attribute, wide) {
        (1..=3, _) => {
            if let Some(flag) = pool.reuse.get_mut(attribute as usize - 1) {
                *flag = i32::from(wide != 0);
            }
        }
        (4, _) => pool.threshold = wide,
        (6, 0) => pool.reserved_high = pool.reserved,
        (8, 0) => pool.used_high = pool.used,
        _ => return Err(Code::INVALID_VALUE),
    }
    Ok(())
}

fn usable(call: &Call, handle: u64) -> Done<&Pool> {
    let pool = call.pools.get(&handle);
    pool.filter(|pool| !pool.destroyed)
        .ok_or(Code::INVALID_VALUE)
}
