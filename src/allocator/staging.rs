//! Copies between devices by way of the host.
//!
//! Rank 2. Part of `allocator`.

use crate::address::DevicePtr;
use crate::allocator::DeviceAllocator;
use crate::device::DeviceIndex;
use crate::error::{Error, Result};
use crate::layout::DeviceLayout;

/// The most host memory that one copy takes.
const CHUNK: usize = 1 << 20;

/// One side of a copy.
pub(crate) struct End<'a, A: ?Sized> {
    pub(crate) allocator: &'a A,
    pub(crate) ptr: DevicePtr,
    pub(crate) index: DeviceIndex,
}

/// Copies `size` bytes from `src` to `dst`, a piece at a time.
///
/// # Safety
///
/// Both ranges lie in live blocks of their allocator on their index, nothing
/// else accesses `dst` and nothing writes `src` during the call.
#[expect(unsafe_code, reason = "raw copies are unsafe by contract")]
pub(crate) unsafe fn copy<A, B>(dst: End<'_, A>, src: End<'_, B>, size: usize) -> Result<()>
where
    A: DeviceAllocator + ?Sized,
    B: DeviceAllocator + ?Sized,
{
    let mut piece = host_piece(size, 0)?;
    for (offset, len) in pieces(size) {
        let Some(piece) = piece.get_mut(..len) else {
            break;
        };
        let from = src.ptr.saturating_add(offset);
        // SAFETY: `from` to `from + len` lies in the caller's range, and `piece`
        // is `len` bytes of our own.
        unsafe {
            src.allocator
                .copy_device_to_host(piece.as_mut_ptr(), from, len, src.index)?;
        }
        let to = dst.ptr.saturating_add(offset);
        // SAFETY: as above, for the other side.
        unsafe {
            dst.allocator
                .copy_host_to_device(to, piece.as_ptr(), len, dst.index)?;
        }
    }
    Ok(())
}

/// Sets `size` bytes from `dst` to `byte`, a piece at a time.
///
/// # Safety
///
/// The range lies in a live block of its allocator on its index, and nothing
/// else accesses it during the call.
#[expect(unsafe_code, reason = "raw copies are unsafe by contract")]
pub(super) unsafe fn fill<A>(dst: End<'_, A>, byte: u8, size: usize) -> Result<()>
where
    A: DeviceAllocator + ?Sized,
{
    let piece = host_piece(size, byte)?;
    for (offset, len) in pieces(size) {
        let Some(piece) = piece.get(..len) else {
            break;
        };
        let to = dst.ptr.saturating_add(offset);
        // SAFETY: `to` to `to + len` lies in the caller's range, and `piece` is
        // `len` bytes of our own.
        unsafe {
            dst.allocator
                .copy_host_to_device(to, piece.as_ptr(), len, dst.index)?;
        }
    }
    Ok(())
}

/// A piece of host memory for copies of `size` bytes, filled with `byte`.
fn host_piece(size: usize, byte: u8) -> Result<Vec<u8>> {
    host_bytes(size.min(CHUNK), byte)
}

/// `size` bytes of host memory filled with `byte`.
pub(crate) fn host_bytes(size: usize, byte: u8) -> Result<Vec<u8>> {
    let layout = DeviceLayout::new(size, 1)?;
    let mut bytes = Vec::new();
    match bytes.try_reserve_exact(size) {
        Ok(()) => {
            bytes.resize(size, byte);
            Ok(bytes)
        }
        Err(_) => Err(Error::host_out_of_memory(layout)),
    }
}

/// The offsets and lengths of the pieces of `size` bytes.
fn pieces(size: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..size)
        .step_by(CHUNK)
        .map(move |offset| (offset, size.saturating_sub(offset).min(CHUNK)))
}
