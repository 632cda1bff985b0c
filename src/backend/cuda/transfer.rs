//! Copies that go on while the caller does something else.
//!
//! Rank 7. Part of `backend::cuda`. Imports `buffer`, `free_failure`, `span` and
//! the words.
//!
//! A device reads and writes the memory of a copy after the call that asked for
//! it has returned. So safe code must not touch that memory until the copy is
//! waited for, and no value whose `drop` would wait may be relied on, since it
//! can be forgotten. There are two ways out, and both are here: to wait in a
//! function that the caller can not leave, [`transfer_scope`], and to give the
//! memory away until the copy is done, [`upload`] and [`download`].

mod moved;
mod scope;

pub use moved::{Transfer, TransferError, download, upload};
pub use scope::{TransferScope, transfer_scope};

use crate::buffer::DeviceMemoryBuffer;
use crate::error::{Error, Operation};
use crate::free_failure::{self, FreeFailure};

/// Leaves memory to a copy that may never end, and tells the hook.
#[cold]
pub(super) fn leak(buffer: DeviceMemoryBuffer, operation: Operation) {
    let device = buffer.device();
    free_failure::report(FreeFailure {
        device,
        ptr: buffer.ptr(),
        layout: buffer.layout(),
        error: Error::backend(device, operation, "the driver can not be waited for"),
    });
    std::mem::forget(buffer);
}
