//! Numbers of the search, as narrow as the problem allows.
//!
//! Rank 2. Part of `plan`.
//!
//! The search counts in units: the greatest common divisor of all sizes. Most
//! problems fit 16 bits then, and eight sections are updated at once.
//!
//! Where jobs are put, no sum passes three times the capacity, which `Lane::new` leaves
//! room for: rounded up to its alignment, at most the power of two above the capacity, a
//! release at most doubles it, and a size adds it once more. In the bound the releases of
//! jobs passed over may go further and wrap. By then the bound has passed the capacity;
//! to find room where there is none costs time and proves nothing.

use std::fmt::Debug;

/// How many sections a block holds.
pub(super) const LANES: usize = 8;

/// One number for each of eight neighbouring sections.
pub(super) type Block<T> = [T; LANES];

/// A signed integer that offsets are counted in.
pub(super) trait Lane: Copy + Ord + Debug + Send + Sync + 'static {
    /// Zero.
    const ZERO: Self;
    /// More than any offset.
    const INFINITE: Self;
    /// For each count, a block whose first lanes of that count have no bit set and
    /// whose others have all.
    const FROM: [Block<Self>; LANES];

    /// The number, if three times as much is still below `INFINITE`.
    fn new(number: usize) -> Option<Self>;
    /// The number.
    fn get(self) -> u64;
    /// The sum.
    fn plus(self, other: Self) -> Self;
    /// The difference.
    fn minus(self, other: Self) -> Self;
    /// The bits that both have.
    fn and(self, other: Self) -> Self;
    /// The bits that it has not.
    fn not(self) -> Self;
}

/// Masks for each number of lanes left out.
macro_rules! masks {
    () => {{
        let mut masks = [[-1; LANES]; LANES];
        let mut rest: &mut [[_; LANES]] = &mut masks;
        let mut count: i32 = 0;
        while let Some((mask, others)) = rest.split_first_mut() {
            let mut lanes: &mut [_] = mask;
            let mut left: i32 = count;
            while left > 0
                && let Some((lane, more)) = lanes.split_first_mut()
            {
                *lane = 0;
                lanes = more;
                left = left.wrapping_sub(1);
            }
            count = count.wrapping_add(1);
            rest = others;
        }
        masks
    }};
}

/// Makes an integer a lane.
macro_rules! lane {
    ($($int:ty),*) => {$(
        impl Lane for $int {
            const ZERO: Self = 0;
            const INFINITE: Self = <$int>::MAX;
            const FROM: [Block<Self>; LANES] = masks!();

            fn new(number: usize) -> Option<Self> {
                Self::try_from(number.checked_mul(3)?.checked_add(1)?).ok()?;
                Self::try_from(number).ok()
            }

            #[inline(always)]
            fn get(self) -> u64 {
                u64::try_from(self).unwrap_or(0)
            }

            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn minus(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }

            #[inline(always)]
            fn and(self, other: Self) -> Self {
                self & other
            }

            #[inline(always)]
            fn not(self) -> Self {
                !self
            }
        }
    )*};
}

lane!(i16, i32, i64);
