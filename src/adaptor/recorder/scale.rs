//! Where values stand on an axis.
//!
//! Rank 4. Part of `adaptor::recorder`. Imports nothing.

/// An axis: values from `from` to `to` on `pixels` pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) pixels: u32,
}

impl Scale {
    /// Where a value is, in pixels from the beginning.
    pub(super) fn at(&self, value: u64) -> f64 {
        let part = value.saturating_sub(self.from);
        let whole = self.to.saturating_sub(self.from).max(1);
        let millis = u128::from(part.min(whole))
            .saturating_mul(u128::from(self.pixels).saturating_mul(1000))
            .checked_div(u128::from(whole));
        let millis = millis.and_then(|millis| u32::try_from(millis).ok());
        f64::from(millis.unwrap_or(0)) / 1000.0
    }

    /// Round values on the axis, at most `most` of them or a few more: multiples of
    /// a step that is one of `ones`, times a power of `base`.
    pub(super) fn ticks(&self, most: u64, ones: &[u64], base: u64) -> Vec<u64> {
        let width = self.to.saturating_sub(self.from);
        let mut unit: u64 = 1;
        let step = 'found: loop {
            for one in ones {
                let step = unit.saturating_mul(*one);
                if width.checked_div(step).unwrap_or(0) <= most || step == u64::MAX {
                    break 'found step;
                }
            }
            unit = unit.saturating_mul(base);
        };
        let first = self.from.checked_next_multiple_of(step);
        let next = |tick: &u64| tick.checked_add(step).filter(|tick| *tick <= self.to);
        std::iter::successors(first.filter(|tick| *tick <= self.to), next).collect()
    }

    /// [`ticks`](Self::ticks) of an axis of bytes.
    pub(super) fn byte_ticks(&self, most: u64) -> Vec<u64> {
        self.ticks(most, &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512], 1024)
    }

    /// [`ticks`](Self::ticks) of an axis of nanoseconds.
    pub(super) fn time_ticks(&self, most: u64) -> Vec<u64> {
        self.ticks(most, &[1, 2, 5], 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_round_ticks_and_stays_on_its_pixels() {
        let axis = Scale {
            from: 0,
            to: 5 << 20,
            pixels: 100,
        };

        assert_eq!(
            axis.byte_ticks(5),
            [0, 1 << 20, 2 << 20, 3 << 20, 4 << 20, 5 << 20]
        );
        assert!((axis.at(5 << 19) - 50.0).abs() < 0.01);
        assert!((axis.at(u64::MAX) - 100.0).abs() < 0.01);
    }

    #[test]
    fn the_widest_and_the_emptiest_axis_have_ticks() {
        let widest = Scale {
            from: 0,
            to: u64::MAX,
            pixels: 100,
        };
        let empty = Scale {
            from: 7,
            to: 7,
            pixels: 100,
        };

        assert!((1..9).contains(&widest.time_ticks(5).len()));
        assert!((1..9).contains(&widest.byte_ticks(5).len()));
        assert_eq!(empty.time_ticks(5), [7]);
    }
}
