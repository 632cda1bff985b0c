//! Where things are in a chart, and what is written at its axes.
//!
//! Rank 2. Part of `plan::picture`. Imports nothing from this crate.
//!
//! Coordinates are whole hundredths of a pixel: there is nothing to round, and
//! one plan always gives one picture.

use std::fmt;

/// A length on the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Length(u64);

impl Length {
    /// So many pixels.
    pub(super) const fn pixels(pixels: u64) -> Self {
        Self(pixels.saturating_mul(100))
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    pub(super) fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    pub(super) fn at_least(self, other: Self) -> Self {
        self.max(other)
    }
}

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.0 / 100, self.0 % 100);
        match part {
            0 => write!(f, "{whole}"),
            _ => write!(f, "{whole}.{part:02}"),
        }
    }
}

/// The area inside the axes, and what its edges stand for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    /// Steps from the left to the right edge, at least 1.
    pub(super) steps: usize,
    /// Bytes from the bottom to the top edge, at least 1.
    pub(super) bytes: usize,
}

impl Frame {
    pub(super) const WIDTH: u64 = 640;
    pub(super) const HEIGHT: u64 = 320;
    pub(super) const LEFT: u64 = 76;
    pub(super) const TOP: u64 = 46;
    pub(super) const RIGHT: u64 = 14;
    pub(super) const BOTTOM: u64 = 40;

    /// Where a step begins.
    pub(super) fn x(self, step: usize) -> Length {
        Length::pixels(Self::LEFT).plus(share(step, self.steps, Self::WIDTH))
    }

    /// Where an offset is.
    pub(super) fn y(self, offset: usize) -> Length {
        let bottom = Self::TOP.saturating_add(Self::HEIGHT);
        Length::pixels(bottom).minus(share(offset, self.bytes, Self::HEIGHT))
    }

    /// The bytes to write at the axis: multiples of a power of two.
    pub(super) fn byte_ticks(self) -> Vec<usize> {
        let wish = self.bytes.div_ceil(8);
        let step = wish.checked_next_power_of_two();
        ticks(self.bytes, step.unwrap_or(wish))
    }

    /// The steps to write at the axis: multiples of 1, 2 or 5 with zeros.
    pub(super) fn step_ticks(self) -> Vec<usize> {
        let wish = self.steps.div_ceil(10);
        let mut decade = 1_usize;
        while decade.saturating_mul(5) < wish {
            decade = decade.saturating_mul(10);
        }
        let steps = [1, 2, 5].map(|digit: usize| digit.saturating_mul(decade));
        let step = steps.into_iter().find(|&step| step >= wish);
        ticks(self.steps, step.unwrap_or(wish))
    }
}

/// `part` of `whole`, of `pixels`.
fn share(part: usize, whole: usize, pixels: u64) -> Length {
    let wide = |value: usize| u128::try_from(value).unwrap_or(u128::MAX);
    let extent = u128::from(Length::pixels(pixels).0);
    let length = wide(part).saturating_mul(extent).checked_div(wide(whole));
    Length(u64::try_from(length.unwrap_or(0)).unwrap_or(u64::MAX))
}

/// The multiples of `step` up to `end`.
fn ticks(end: usize, step: usize) -> Vec<usize> {
    (0..=end).step_by(step.max(1)).take(32).collect()
}

/// A number with its digits in groups: `1,048,576`.
pub(super) struct Grouped(pub(super) usize);

impl fmt::Display for Grouped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (position, digit) in digits.chars().enumerate() {
            let left = digits.len().saturating_sub(position);
            if position > 0 && left.is_multiple_of(3) {
                f.write_str(",")?;
            }
            write!(f, "{digit}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Frame, Grouped, Length};

    #[test]
    fn digits_are_written_in_groups() {
        assert_eq!(Grouped(1_048_576).to_string(), "1,048,576");
        assert_eq!(Grouped(12).to_string(), "12");
    }

    #[test]
    fn ticks_are_round_and_neither_few_nor_many() {
        for exponent in 0..63 {
            for end in [1 << exponent, (3 << exponent) / 2] {
                let frame = Frame {
                    steps: end,
                    bytes: end,
                };
                let (steps, bytes) = (frame.step_ticks(), frame.byte_ticks());

                assert!((2..=12).contains(&steps.len()), "{end}: {steps:?}");
                assert!((2..=9).contains(&bytes.len()), "{end}: {bytes:?}");
                assert!(bytes[1].is_power_of_two());
                let digit = steps[1].to_string().trim_end_matches('0').to_owned();
                assert!(["1", "2", "5"].contains(&digit.as_str()), "{steps:?}");
            }
        }
    }

    #[test]
    fn a_frame_maps_its_corners_and_survives_the_largest_numbers() {
        let frame = Frame {
            steps: 4,
            bytes: usize::MAX,
        };

        assert_eq!(frame.x(0), Length::pixels(76));
        assert_eq!(frame.x(4), Length::pixels(716));
        assert_eq!(frame.y(0), Length::pixels(366));
        assert_eq!(frame.y(usize::MAX), Length::pixels(46));
        assert!(frame.byte_ticks().len() < 10);
        assert_eq!(frame.step_ticks(), [0, 1, 2, 3, 4]);
        assert_eq!(
            Length::pixels(3).minus(Length::pixels(5)),
            Length::pixels(0)
        );
    }
}
