//! Keeping an allocator alive.
//!
//! Rank 2. Part of `allocator`.
//!
//! Counting references costs two atomic operations on a cache line that all
//! threads share. Allocators that live as long as the process need none, and
//! the handle of such a one is a plain reference.
//!
//! Whatever owns memory has a handle, so making one is where the process begins
//! to be watched for forks.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::allocator::DeviceAllocator;
use crate::process::watch_forks;
use crate::unwind::caught;

/// An owning handle of an allocator: counted, or for the life of the process.
///
/// Made from an `Arc` or from a `&'static` reference. Every buffer holds one, so
/// an allocator outlives all that came from it.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use device_memory::{AllocatorHandle, DeviceType, HostAllocator};
///
/// let counted = AllocatorHandle::from(Arc::new(HostAllocator));
/// let forever = AllocatorHandle::from(&HostAllocator);
///
/// assert_eq!(counted.device_type(), forever.device_type());
/// ```
pub struct AllocatorHandle {
    /// # Invariants
    ///
    /// 0. If `counted`, it came from `Arc::into_raw` and this handle owns one
    ///    count of that `Arc`.
    /// 1. If not `counted`, it points at an allocator that lives and does not
    ///    move until the process ends.
    ptr: NonNull<dyn DeviceAllocator>,
    counted: bool,
}

// SAFETY: a handle is an `Arc` or a `&'static` of a type that is Send and Sync
// (supertraits of `DeviceAllocator`).
#[expect(unsafe_code, reason = "a raw pointer is only Send by declaration")]
unsafe impl Send for AllocatorHandle {}

// SAFETY: as for `Send`.
#[expect(unsafe_code, reason = "a raw pointer is only Sync by declaration")]
unsafe impl Sync for AllocatorHandle {}

impl AllocatorHandle {
    /// Takes the handle apart, for owners that pack it with other fields.
    #[inline]
    pub(crate) fn into_parts(self) -> (NonNull<dyn DeviceAllocator>, bool) {
        let this = ManuallyDrop::new(self);
        (this.ptr, this.counted)
    }

    /// Puts a handle together again.
    ///
    /// # Safety
    ///
    /// Both came from one call of [`into_parts`](Self::into_parts), and of all
    /// handles that are made of them at most one is dropped.
    #[inline]
    #[expect(unsafe_code, reason = "the field invariants are the caller's to keep")]
    pub(crate) unsafe fn from_parts(ptr: NonNull<dyn DeviceAllocator>, counted: bool) -> Self {
        Self { ptr, counted }
    }

    /// A handle that counts nothing, for which the allocator is never dropped.
    #[must_use]
    pub(crate) fn into_forever(self) -> Self {
        // The count that this handle owns is never given back, so the allocator
        // lives until the process ends, as invariant 1 wants.
        let (ptr, _) = self.into_parts();
        Self {
            ptr,
            counted: false,
        }
    }

    /// Whether both are handles of one allocator, as far as can be told.
    ///
    /// Allocators without fields may share an address, and the first field of one
    /// has the address of the whole, so the type counts too. A type may look like
    /// two, so a no may be wrong; a yes is not.
    #[must_use]
    pub fn same_allocator(&self, other: &Self) -> bool {
        ptr::eq(self.ptr.as_ptr(), other.ptr.as_ptr())
    }
}

impl Deref for AllocatorHandle {
    type Target = dyn DeviceAllocator;

    #[inline]
    #[expect(unsafe_code, reason = "see SAFETY")]
    fn deref(&self) -> &Self::Target {
        // SAFETY: the allocator is alive while this handle is (invariants 0 and
        // 1), and is only ever used by shared reference.
        unsafe { self.ptr.as_ref() }
    }
}

impl Clone for AllocatorHandle {
    #[inline]
    #[expect(unsafe_code, reason = "see SAFETY")]
    fn clone(&self) -> Self {
        if self.counted {
            // SAFETY: `ptr` came from `Arc::into_raw`, and the count that this
            // handle owns keeps it alive (invariant 0). The new count belongs to
            // the new handle.
            unsafe { Arc::increment_strong_count(self.ptr.as_ptr()) };
        }
        Self {
            ptr: self.ptr,
            counted: self.counted,
        }
    }
}

impl Drop for AllocatorHandle {
    #[inline]
    #[expect(unsafe_code, reason = "see SAFETY")]
    fn drop(&mut self) {
        if self.counted {
            // SAFETY: the handle is counted, so `ptr` came from `Arc::into_raw`,
            // and the one count that it owns is given back here (invariant 0).
            unsafe { give_count_back(self.ptr) };
        }
    }
}

/// Gives one count of an allocator back, and drops it if it was the last. An
/// allocator that panics then has no one to tell.
///
/// Kept out of line: it would make every `drop` larger.
///
/// # Safety
///
/// `ptr` came from `Arc::into_raw`, and the caller owns the count.
#[inline(never)]
#[expect(unsafe_code, reason = "the count is the caller's to give")]
unsafe fn give_count_back(ptr: NonNull<dyn DeviceAllocator>) {
    let _ = caught(|| {
        // SAFETY: the caller's promises are those of the function.
        unsafe { Arc::decrement_strong_count(ptr.as_ptr()) }
    });
}

/// Another handle of the same allocator.
impl From<&AllocatorHandle> for AllocatorHandle {
    #[inline]
    fn from(handle: &AllocatorHandle) -> Self {
        handle.clone()
    }
}

impl fmt::Debug for AllocatorHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl From<Arc<dyn DeviceAllocator>> for AllocatorHandle {
    #[expect(unsafe_code, reason = "see SAFETY")]
    fn from(allocator: Arc<dyn DeviceAllocator>) -> Self {
        watch_forks();
        let raw = Arc::into_raw(allocator).cast_mut();
        // SAFETY: `Arc::into_raw` gives the address of a live value, not null.
        let ptr = unsafe { NonNull::new_unchecked(raw) };
        Self { ptr, counted: true }
    }
}

impl<A: DeviceAllocator + 'static> From<Arc<A>> for AllocatorHandle {
    fn from(allocator: Arc<A>) -> Self {
        let allocator: Arc<dyn DeviceAllocator> = allocator;
        Self::from(allocator)
    }
}

impl From<&'static dyn DeviceAllocator> for AllocatorHandle {
    fn from(allocator: &'static dyn DeviceAllocator) -> Self {
        watch_forks();
        Self {
            ptr: NonNull::from(allocator),
            counted: false,
        }
    }
}

impl<A: DeviceAllocator> From<&'static A> for AllocatorHandle {
    fn from(allocator: &'static A) -> Self {
        let allocator: &'static dyn DeviceAllocator = allocator;
        Self::from(allocator)
    }
}
