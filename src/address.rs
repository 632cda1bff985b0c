//! An address on a device.
//!
//! Rank 0. Imports nothing from this crate.
//!
//! A device address is not a Rust allocation: it may not be dereferenced on the
//! host, and `ptr::add` on it is undefined behavior. All arithmetic here is
//! done on the address with a check, never with `ptr::add`.

use std::fmt;
use std::ptr::{self, NonNull};

/// An opaque address of device memory, never null.
///
/// Having one gives no right to read or write anything: that right comes with
/// the owner or the view it was taken from. It is what kernels are called with.
///
/// # Examples
///
/// ```
/// use device_memory::DevicePtr;
///
/// let base = DevicePtr::from_addr(0x7000).ok_or("null")?;
/// let next = base.checked_add(0x40).ok_or("overflow")?;
///
/// assert_eq!(next.addr(), 0x7040);
/// assert!(next.is_aligned_to(64));
/// assert_eq!(DevicePtr::from_addr(0), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The memory can not be read, nor is there arithmetic that could wrap:
///
/// ```compile_fail,E0614
/// use device_memory::DevicePtr;
///
/// let ptr = DevicePtr::from_addr(64).unwrap();
/// let byte = *ptr;
/// ```
///
/// ```compile_fail,E0369
/// use device_memory::DevicePtr;
///
/// let next = DevicePtr::from_addr(64).unwrap() + 8;
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DevicePtr(NonNull<u8>);

// SAFETY: a `DevicePtr` is a number with a provenance tag; no method reads or
// writes what it points at.
#[expect(unsafe_code, reason = "a raw pointer is only Send by declaration")]
unsafe impl Send for DevicePtr {}

// SAFETY: as for `Send`; all methods take `self` by value.
#[expect(unsafe_code, reason = "a raw pointer is only Sync by declaration")]
unsafe impl Sync for DevicePtr {}

impl DevicePtr {
    /// Takes the address of a raw pointer, or `None` if it is null.
    ///
    /// For memory that the host can read, pass the pointer that the allocator
    /// gave, so that slices can be made from it again.
    #[inline]
    #[must_use]
    pub const fn from_raw(raw: *mut u8) -> Option<Self> {
        match NonNull::new(raw) {
            Some(ptr) => Some(Self(ptr)),
            None => None,
        }
    }

    /// Takes an address of memory that the host can not read, or `None` for 0.
    #[inline]
    #[must_use]
    pub const fn from_addr(addr: usize) -> Option<Self> {
        Self::from_raw(ptr::without_provenance_mut(addr))
    }

    /// The address as a raw pointer, for kernels and foreign functions.
    #[inline]
    #[must_use]
    pub const fn as_raw(self) -> *mut u8 {
        self.0.as_ptr()
    }

    /// The address as a number.
    #[inline]
    #[must_use]
    pub fn addr(self) -> usize {
        self.0.addr().get()
    }

    /// The address `offset` bytes further, or `None` if that wraps.
    #[inline]
    #[must_use]
    pub fn checked_add(self, offset: usize) -> Option<Self> {
        let addr = self.0.addr().checked_add(offset)?;
        Some(Self(self.0.map_addr(|_| addr)))
    }

    /// The address `offset` bytes further, where the caller knows that it does
    /// not wrap; the last address if it does.
    #[inline]
    pub(crate) fn saturating_add(self, offset: usize) -> Self {
        Self(self.0.map_addr(|addr| addr.saturating_add(offset)))
    }

    /// Whether the address is a multiple of `align`, a power of two.
    #[inline]
    #[must_use]
    pub fn is_aligned_to(self, align: usize) -> bool {
        align.is_power_of_two() && self.addr() & align.wrapping_sub(1) == 0
    }

    /// The address that stands for an allocation of no bytes: aligned to
    /// `align`, a power of two, and never to be read or freed.
    #[inline]
    pub(crate) const fn dangling(align: usize) -> Self {
        match Self::from_addr(align) {
            Some(ptr) => ptr,
            None => Self(NonNull::dangling()),
        }
    }
}

impl fmt::Debug for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DevicePtr({self})")
    }
}

impl fmt::Display for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.addr())
    }
}
