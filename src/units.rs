//! Bytes and times for people.
//!
//! Rank 0. Imports nothing from this crate.
//!
//! One digit after the point, rounded down, so that no figure is above the truth.

use std::fmt;
use std::time::Duration;

/// Bytes in the unit that leaves one to four digits before the point.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes(pub(crate) u64);

impl From<usize> for Bytes {
    fn from(size: usize) -> Self {
        Self(u64::try_from(size).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let power = self
            .0
            .checked_ilog2()
            .unwrap_or(0)
            .checked_div(10)
            .unwrap_or(0);
        let unit = UNITS
            .get(usize::try_from(power).unwrap_or(0))
            .unwrap_or(&"B");
        let one = 1_u64.checked_shl(power.saturating_mul(10)).unwrap_or(1);
        f.pad(&tenths(self.0, one, unit))
    }
}

/// A time in the unit that leaves one to three digits before the point.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Time(pub(crate) Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = nanos(self.0);
        let (one, unit) = match nanos {
            0 => return f.pad("0 s"),
            1..1_000 => (1, "ns"),
            1_000..1_000_000 => (1_000, "µs"),
            1_000_000..1_000_000_000 => (1_000_000, "ms"),
            _ => (1_000_000_000, "s"),
        };
        f.pad(&tenths(nanos, one, unit))
    }
}

/// `value / one`, with one digit after the point if it is not 0, and the unit.
fn tenths(value: u64, one: u64, unit: &str) -> String {
    let whole = value.checked_div(one).unwrap_or(0);
    let rest = u128::from(value.checked_rem(one).unwrap_or(0));
    let tenth = rest.saturating_mul(10).checked_div(u128::from(one));
    match tenth.unwrap_or(0) {
        0 => format!("{whole} {unit}"),
        tenth => format!("{whole}.{tenth} {unit}"),
    }
}

/// A time in nanoseconds.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Bytes, Time};

    #[test]
    fn bytes_and_times_are_shown_in_the_unit_that_fits() {
        let bytes =
            [0, 1023, 1024, 1536, (5 << 30) / 2, 5 << 30, u64::MAX].map(|n| Bytes(n).to_string());
        let times = [0, 999, 1_500, 2_000_000, 3_200_000_000]
            .map(|n| Time(Duration::from_nanos(n)).to_string());

        assert_eq!(
            bytes,
            [
                "0 B", "1023 B", "1 KiB", "1.5 KiB", "2.5 GiB", "5 GiB", "15.9 EiB"
            ]
        );
        assert_eq!(times, ["0 s", "999 ns", "1.5 µs", "2 ms", "3.2 s"]);
    }
}
