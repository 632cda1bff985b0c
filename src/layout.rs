//! How much memory and how aligned.
//!
//! Rank 0. Imports nothing from this crate.
//!
//! A [`DeviceLayout`] that exists is valid: allocators never see an alignment
//! that is no power of two, nor a size whose rounding up would overflow.

/// The size and the alignment of an allocation, in bytes.
///
/// The alignment is a power of two, and the size rounded up to it does not pass
/// `isize::MAX`. A size of zero is valid.
///
/// # Examples
///
/// ```
/// use device_memory::DeviceLayout;
///
/// let layout = DeviceLayout::array::<f32>(1024)?;
/// assert_eq!((layout.size(), layout.align()), (4096, 64));
/// assert!(DeviceLayout::new(16, 3).is_err());
/// assert!(DeviceLayout::array::<u64>(usize::MAX / 8 + 2).is_err());
/// # Ok::<(), device_memory::LayoutError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceLayout {
    size: usize,
    align_log2: u8,
}

/// Why a size and an alignment make no layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// The alignment is zero or no power of two.
    #[error("invalid alignment {align}: expected a power of two")]
    InvalidAlignment {
        /// The alignment asked for, in bytes.
        align: usize,
    },
    /// No bytes were asked for where there must be some.
    #[error("no allocation of zero bytes can be made")]
    ZeroSize,
    /// The bytes asked for pass the limit for one allocation.
    #[error(
        "size overflow: {len} elements of {element_size} bytes pass the limit of {limit} bytes",
        limit = isize::MAX
    )]
    SizeOverflow {
        /// The number of elements asked for.
        len: usize,
        /// The size of one element, in bytes.
        element_size: usize,
    },
}

impl DeviceLayout {
    /// The alignment that is used where none is asked for, in bytes.
    pub const DEFAULT_ALIGN: usize = 64;

    /// A layout of `size` bytes aligned to `align` bytes.
    ///
    /// # Errors
    ///
    /// - [`InvalidAlignment`](LayoutError::InvalidAlignment): `align` is zero or no power of two.
    /// - [`SizeOverflow`](LayoutError::SizeOverflow): `size`, rounded up to `align`, passes `isize::MAX`.
    #[inline]
    pub const fn new(size: usize, align: usize) -> Result<Self, LayoutError> {
        if !align.is_power_of_two() {
            return Err(LayoutError::InvalidAlignment { align });
        }
        let Some(limit) = isize::MAX
            .unsigned_abs()
            .checked_sub(align.saturating_sub(1))
        else {
            return Err(LayoutError::SizeOverflow {
                len: size,
                element_size: 1,
            });
        };
        if size > limit {
            return Err(LayoutError::SizeOverflow {
                len: size,
                element_size: 1,
            });
        }
        Ok(Self {
            size,
            align_log2: log2(align),
        })
    }

    /// A layout of `size` bytes with the default alignment.
    ///
    /// # Errors
    ///
    /// - [`SizeOverflow`](LayoutError::SizeOverflow): `size` passes the limit of [`new`](Self::new).
    #[inline]
    pub const fn from_size(size: usize) -> Result<Self, LayoutError> {
        Self::new(size, Self::DEFAULT_ALIGN)
    }

    /// A layout for `len` values of `T`, aligned for `T` and at least by default.
    ///
    /// The multiplication is checked in every build profile.
    ///
    /// # Errors
    ///
    /// - [`SizeOverflow`](LayoutError::SizeOverflow): the bytes pass the limit of [`new`](Self::new).
    #[inline]
    pub const fn array<T>(len: usize) -> Result<Self, LayoutError> {
        let element_size = size_of::<T>();
        let align = if align_of::<T>() > Self::DEFAULT_ALIGN {
            align_of::<T>()
        } else {
            Self::DEFAULT_ALIGN
        };
        match len.checked_mul(element_size) {
            Some(size) => match Self::new(size, align) {
                Err(LayoutError::SizeOverflow { .. }) => {
                    Err(LayoutError::SizeOverflow { len, element_size })
                }
                other => other,
            },
            None => Err(LayoutError::SizeOverflow { len, element_size }),
        }
    }

    /// The size in bytes.
    #[inline]
    #[must_use]
    pub const fn size(self) -> usize {
        self.size
    }

    /// The alignment in bytes, a power of two.
    #[inline]
    #[must_use]
    pub const fn align(self) -> usize {
        match 1_usize.checked_shl(widen(self.align_log2)) {
            Some(align) => align,
            None => 1,
        }
    }

    /// Whether the size is zero.
    #[inline]
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.size == 0
    }

    /// The alignment as the exponent of its power of two.
    #[inline]
    pub(crate) const fn align_log2(self) -> u8 {
        self.align_log2
    }

    /// Puts together again what [`size`](Self::size) and
    /// [`align_log2`](Self::align_log2) of one layout gave.
    #[inline]
    pub(crate) const fn from_parts(size: usize, align_log2: u8) -> Self {
        Self { size, align_log2 }
    }
}

/// The exponent of a power of two.
#[expect(
    clippy::as_conversions,
    reason = "the exponent of a usize is below 64, and const code has no TryFrom"
)]
const fn log2(align: usize) -> u8 {
    align.trailing_zeros() as u8
}

#[expect(
    clippy::as_conversions,
    reason = "widening, and const code has no From"
)]
const fn widen(exponent: u8) -> u32 {
    exponent as u32
}
