//! Devices, and what they say of themselves.

use super::call::Call;
use super::code::{Code, Done};
use super::memory::Memory;
use super::pool::Pool;
use super::quick;
use super::state::Device;

/// The attribute that says whether there are stream-ordered allocations.
const MEMORY_POOLS_SUPPORTED: i32 = 115;

/// Makes the devices.
pub(super) fn init(call: &mut Call, flags: u32) -> Done {
    if flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    if call.settings.devices == 0 {
        return Err(Code::NO_DEVICE);
    }
    if call.initialized {
        return Ok(());
    }
    for index in 0..call.settings.devices {
        let memory = Memory::new(call.settings.memory_of(index))?;
        let pool = call.next_handle();
        call.pools.insert(pool, Pool::new(index, true, 0));
        call.devices.push(Device {
            memory,
            primary: None,
            retains: 0,
            flags: 0,
            default_pool: pool,
            current_pool: pool,
        });
    }
    call.initialized = true;
    quick::refresh(call);
    Ok(())
}

/// An attribute of a device; those that no one asks for are 0.
pub(super) fn attribute(call: &Call, device: usize, attribute: i32) -> Done<i32> {
    if attribute <= 0 {
        return Err(Code::INVALID_VALUE);
    }
    if let Some(value) = call.settings.attributes.get(&(device, attribute)) {
        return Ok(*value);
    }
    Ok(match attribute {
        1 => 1024,               // threads of a block
        2 | 3 => 1024,           // block, x and y
        4 => 64,                 // block, z
        5 => i32::MAX,           // grid, x
        6 | 7 => 65_535,         // grid, y and z
        8 | 97 | 81 => 48 << 10, // shared memory
        9 => 64 << 10,           // constant memory
        10 => 32,                // a warp
        11 => i32::MAX,          // pitch
        12 | 82 => 65_536,       // registers
        13 | 36 => 1_000_000,    // clocks, in kHz
        14 => 512,               // alignment of textures
        15 => 1,                 // copies while working
        16 => 4,                 // processors
        19 | 41 | 31 => 1,       // mapped, unified, concurrent
        33 => device as i32 + 1, // PCI bus
        37 => 256,               // bus width
        38 => 4 << 20,           // cache
        39 => 1536,              // threads of a processor
        40 => 2,                 // copy engines
        75 => 8,                 // compute capability
        76 => 0,
        78 | 83 | 89..=91 | 95 | 99 => 1,
        MEMORY_POOLS_SUPPORTED => 1,
        _ => 0,
    })
}

/// Refuses what a device without pools can not do.
pub(super) fn require_pools(call: &Call, device: usize) -> Done {
    match attribute(call, device, MEMORY_POOLS_SUPPORTED)? {
        0 => Err(Code::NOT_SUPPORTED),
        _ => Ok(()),
    }
}

/// The name of a device.
pub(super) fn name(device: usize) -> String {
    format!("simulated device {device} (no GPU)")
}

/// The identity of a device.
pub(super) fn uuid(device: usize) -> [u8; 16] {
    let mut uuid = *b"fake-cuda-dev-\0\0";
    uuid[15] = device as u8;
    uuid
}
