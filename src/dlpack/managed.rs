//! The one place that calls a deleter.
//!
//! Rank 8. Part of `dlpack`.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use dlpack_ffi::DLManagedTensorVersioned;

use crate::process::ProcessGeneration;

/// A tensor of whoever made it, whose deleter is called once when this is dropped.
///
/// In a child of the process that this was made in, nothing is called: the memory,
/// and what frees it, are the parent's.
#[derive(Debug)]
pub(super) struct Managed {
    /// # Invariants
    ///
    /// 0. It points at a tensor whose fields up to the flags are those of every
    ///    version, and may be read.
    /// 1. Its deleter, if it has one, has not been called, is this value's to call,
    ///    and may be called on any thread.
    raw: NonNull<DLManagedTensorVersioned>,
    made_in: ProcessGeneration,
}

// SAFETY: the deleter may be called on any thread (invariant 1), and nothing else
// is done with the pointer than reading.
#[expect(unsafe_code, reason = "a raw pointer is only Send by declaration")]
unsafe impl Send for Managed {}

// SAFETY: as for `Send`; shared references only read.
#[expect(unsafe_code, reason = "a raw pointer is only Sync by declaration")]
unsafe impl Sync for Managed {}

impl Managed {
    /// Takes a tensor, and the duty to call its deleter.
    ///
    /// # Safety
    ///
    /// The invariants hold for `raw`.
    #[expect(unsafe_code, reason = "the invariants are the caller's to keep")]
    pub(super) unsafe fn new(raw: NonNull<DLManagedTensorVersioned>) -> Self {
        Self {
            raw,
            made_in: ProcessGeneration::current(),
        }
    }

    /// The tensor. Of another major version, only what comes before its contents
    /// may be read.
    pub(super) fn as_ptr(&self) -> *const DLManagedTensorVersioned {
        self.raw.as_ptr()
    }

    /// The process that this may be used in.
    pub(super) fn made_in(&self) -> ProcessGeneration {
        self.made_in
    }

    /// Gives the tensor away, with the duty to call its deleter.
    pub(super) fn into_raw(self) -> NonNull<c_void> {
        ManuallyDrop::new(self).raw.cast()
    }
}

impl Drop for Managed {
    #[expect(unsafe_code, reason = "calls the deleter")]
    fn drop(&mut self) {
        if !self.made_in.is_current() {
            return;
        }
        // SAFETY: the field may be read (invariant 0).
        let deleter = unsafe { (*self.raw.as_ptr()).deleter };
        if let Some(deleter) = deleter {
            // SAFETY: it was not called before and is this value's to call, on any
            // thread (invariant 1); `drop` runs once.
            unsafe { deleter(self.raw.as_ptr()) };
        }
    }
}
