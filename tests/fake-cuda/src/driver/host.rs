//! Host memory that the driver knows: pinned, registered and managed.
//!
//! It is real memory, with pages that fault after its end.

use std::collections::BTreeMap;

use super::bytes::{FRESH, Mapping};
use super::call::Call;
use super::code::{Code, Done};

const PAGE: usize = 4096;

/// What a range of host memory is to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// From `cuMemHostAlloc`.
    Pinned,
    /// Given to `cuMemHostRegister`; not ours to free.
    Registered,
    /// From `cuMemAllocManaged`.
    Managed,
}

/// A range of host memory that the driver knows.
#[derive(Debug)]
pub(super) struct HostBlock {
    pub(super) id: u64,
    pub(super) kind: Kind,
    pub(super) size: usize,
    pub(super) flags: u32,
    pub(super) context: u64,
    /// Keeps the memory, if it is ours.
    _pages: Option<Mapping>,
}

/// All of them, by address.
pub(super) type HostBlocks = BTreeMap<u64, HostBlock>;

/// The block around an address, with its start.
pub(super) fn find(blocks: &HostBlocks, addr: u64) -> Option<(u64, &HostBlock)> {
    let (base, block) = blocks.range(..=addr).next_back()?;
    (addr - base < block.size as u64).then_some((*base, block))
}

/// Allocates pinned or managed memory.
pub(super) fn allocate(call: &mut Call, kind: Kind, size: usize, flags: u32) -> Done<u64> {
    let context = call.current()?;
    call.forbid_in_capture()?;
    if size == 0 {
        return Err(Code::INVALID_VALUE);
    }
    if kind == Kind::Managed && !matches!(flags, 1 | 2) {
        return Err(Code::INVALID_VALUE);
    }
    let limit = call.settings.host_memory;
    let held: usize = call.host.values().map(|block| block.size).sum();
    if held.saturating_add(size) > limit {
        return Err(Code::OUT_OF_MEMORY);
    }
    let pages = size
        .checked_next_multiple_of(PAGE)
        .ok_or(Code::OUT_OF_MEMORY)?;
    let mut mapping = Mapping::new(pages, PAGE)?;
    mapping.as_mut_slice().fill(FRESH);
    let addr = mapping.addr();
    let block = HostBlock {
        id: call.next_id(),
        kind,
        size,
        flags,
        context,
        _pages: Some(mapping),
    };
    call.host.insert(addr, block);
    call.note(addr, size, 0);
    Ok(addr)
}

/// Frees pinned memory. Work that waits and would touch it is reported when it
/// comes to it.
pub(super) fn free_pinned(call: &mut Call, addr: u64) -> Done {
    call.note(addr, 0, 0);
    call.current()?;
    match call.host.get(&addr).map(|block| block.kind) {
        Some(Kind::Pinned) => {
            call.host.remove(&addr);
            Ok(())
        }
        _ => {
            call.violate(format!("free of {addr:#x}: no pinned memory starts there"));
            Err(Code::INVALID_VALUE)
        }
    }
}

/// Makes memory of the caller pinned.
pub(super) fn register(call: &mut Call, addr: u64, size: usize, flags: u32) -> Done {
    call.note(addr, size, 0);
    let context = call.current()?;
    let end = addr.checked_add(size as u64).ok_or(Code::INVALID_VALUE)?;
    if addr == 0 || size == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let before = call.host.range(..end).next_back();
    if before.is_some_and(|(base, block)| base + block.size as u64 > addr) {
        return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
    }
    let block = HostBlock {
        id: call.next_id(),
        kind: Kind::Registered,
        size,
        flags,
        context,
        _pages: None,
    };
    call.host.insert(addr, block);
    Ok(())
}

/// Ends what [`register`] began.
pub(super) fn unregister(call: &mut Call, addr: u64) -> Done {
    call.note(addr, 0, 0);
    call.current()?;
    match call.host.get(&addr).map(|block| block.kind) {
        Some(Kind::Registered) => {
            call.host.remove(&addr);
            Ok(())
        }
        _ => Err(Code::HOST_MEMORY_NOT_REGISTERED),
    }
}
