//! Values read from and written to pointers of the program.

use super::code::{Code, Done};

/// Writes to a pointer that a program passed for a result.
///
/// # Safety
///
/// `ptr` is null or may be written as one `T`.
#[inline]
pub(super) unsafe fn put<T>(ptr: *mut T, value: T) -> Done {
    if ptr.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: it is not null, so it may be written, says the caller.
    unsafe { ptr.write_unaligned(value) };
    Ok(())
}

/// Reads the element numbered `index` from a pointer that a program passed.
///
/// # Safety
///
/// `ptr` is null or may be read as `index + 1` elements.
#[inline]
pub(super) unsafe fn get<T: Copy>(ptr: *const T, index: usize) -> Done<T> {
    if ptr.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: it is not null, so it may be read so far, says the caller.
    let at = unsafe { ptr.add(index) };
    // SAFETY: as above.
    Ok(unsafe { at.read_unaligned() })
}
