//! How much memory, how aligned, and what for.
//!
//! Rank 0. Imports nothing from this crate.
//!
//! A [`DeviceLayout`] that exists is valid: allocators never see an alignment
//! that is no power of two, nor a size whose rounding up would overflow.

mod tag;

use std::fmt;

pub use tag::{Tag, TagError};

/// The size and the alignment of an allocation, in bytes, and what it is for.
///
/// The alignment is a power of two, and the size rounded up to it does not pass
/// `isize::MAX`. A size of zero is valid. The tag is [`Tag::NONE`] unless set.
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
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceLayout {
    size: usize,
    /// The exponent of the alignment in the low byte, the tag in the high one, so
    /// that a layout is passed in two registers.
    traits: u16,
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

/// A bit of [`DeviceLayout::traits`] that no layout has set, for owners with one
/// bit to keep.
pub(crate) const SPARE_TRAIT: u16 = 0x80;

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
            traits: log2(align),
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
        match 1_usize.checked_shl(self.align_log2()) {
            Some(align) => align,
            None => 1,
        }
    }

    /// What the memory is for.
    #[inline]
    #[must_use]
    pub const fn tag(self) -> Tag {
        let [_, tag] = self.traits.to_le_bytes();
        Tag::from_byte(tag)
    }

    /// The same layout for memory that is for `tag`.
    #[inline]
    #[must_use]
    pub const fn with_tag(self, tag: Tag) -> Self {
        let [align_log2, _] = self.traits.to_le_bytes();
        Self {
            size: self.size,
            traits: u16::from_le_bytes([align_log2, tag.to_byte()]),
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
    #[expect(
        clippy::as_conversions,
        reason = "widening, and const code has no From"
    )]
    pub(crate) const fn align_log2(self) -> u32 {
        let [align_log2, _] = self.traits.to_le_bytes();
        align_log2 as u32
    }

    /// All but the size, for owners that pack it with other fields. The bit
    /// [`SPARE_TRAIT`] is not set.
    #[inline]
    pub(crate) const fn traits(self) -> u16 {
        self.traits
    }

    /// Puts together again what [`size`](Self::size) and [`traits`](Self::traits)
    /// of one layout gave.
    #[inline]
    pub(crate) const fn from_parts(size: usize, traits: u16) -> Self {
        Self { size, traits }
    }
}

impl fmt::Debug for DeviceLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut layout = f.debug_struct("DeviceLayout");
        layout
            .field("size", &self.size)
            .field("align", &self.align());
        if self.tag() != Tag::NONE {
            layout.field("tag", &self.tag());
        }
        layout.finish()
    }
}

/// The exponent of a power of two.
#[expect(
    clippy::as_conversions,
    reason = "the exponent of a usize is below 64, and const code has no TryFrom"
)]
const fn log2(align: usize) -> u16 {
    align.trailing_zeros() as u16
}
