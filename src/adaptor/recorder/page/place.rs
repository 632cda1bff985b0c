//! Where addresses are on an axis that leaves out what was never used.
//!
//! Rank 4. Part of `adaptor::recorder`. Imports nothing from this crate.

/// Address ranges without the gaps between them.
#[derive(Debug)]
pub(super) struct Places {
    /// First address, address after the last, and bytes before, in order.
    ranges: Vec<(u64, u64, u64)>,
}

impl Places {
    /// The places in the union of some ranges of addresses.
    pub(super) fn of(ranges: impl Iterator<Item = (u64, u64)>) -> Self {
        let mut sorted: Vec<(u64, u64)> = ranges.collect();
        sorted.sort_unstable();
        let mut merged: Vec<(u64, u64, u64)> = Vec::new();
        for (start, end) in sorted {
            match merged.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                last => {
                    let before = last.map_or(0, |last| {
                        last.2.saturating_add(last.1.saturating_sub(last.0))
                    });
                    merged.push((start, end, before));
                }
            }
        }
        Self { ranges: merged }
    }

    /// The bytes in use below an address.
    pub(super) fn below(&self, address: u64) -> u64 {
        let after = self.ranges.partition_point(|range| range.0 <= address);
        let range = after.checked_sub(1).and_then(|at| self.ranges.get(at));
        range.map_or(0, |&(start, end, before)| {
            before.saturating_add(address.min(end).saturating_sub(start))
        })
    }

    /// All bytes.
    pub(super) fn total(&self) -> u64 {
        self.below(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_take_no_place() {
        let places = Places::of([(100, 110), (105, 120), (1000, 1005)].into_iter());

        assert_eq!(places.total(), 25);
        assert_eq!(
            [90, 100, 115, 1000, 1003].map(|at| places.below(at)),
            [0, 0, 15, 20, 23]
        );
    }
}
