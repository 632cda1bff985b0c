//! Who wrote each byte of the arenas last.
//!
//! Rank 4. Part of `pte`. Imports nothing from this crate.
//!
//! Ranges that were never written, or whose writer was forgotten, have no owner.

use std::collections::BTreeMap;
use std::ops::Range;

/// A range of an arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The arena.
    pub(super) buffer: u32,
    /// The bytes.
    pub(super) bytes: Range<usize>,
}

/// The owners `T` of the ranges that have one.
///
/// # Invariants
///
/// 0. No two ranges of one arena overlap, and none is empty.
#[derive(Debug)]
pub(super) struct Owners<T> {
    /// From arena and first byte to the end and the owner.
    ranges: BTreeMap<(u32, usize), (usize, T)>,
}

impl<T: Copy> Owners<T> {
    pub(super) fn new() -> Self {
        Self {
            ranges: BTreeMap::new(),
        }
    }

    /// Makes every range one without an owner.
    pub(super) fn clear(&mut self) {
        self.ranges.clear();
    }

    /// Makes `place` a range without an owner.
    pub(super) fn forget(&mut self, place: &Place) {
        let Range { start, end } = place.bytes;
        let buffer = place.buffer;
        if let Some((key, &(old_end, owner))) = self.ranges.range(..(buffer, start)).next_back() {
            let key = *key;
            if key.0 == buffer && old_end > start {
                self.ranges.insert(key, (start, owner));
                if old_end > end {
                    self.ranges.insert((buffer, end), (old_end, owner));
                }
            }
        }
        while let Some((key, &(old_end, owner))) =
            self.ranges.range((buffer, start)..(buffer, end)).next()
        {
            let key = *key;
            self.ranges.remove(&key);
            if old_end > end {
                self.ranges.insert((buffer, end), (old_end, owner));
            }
        }
    }

    /// Makes `owner` the owner of `place`.
    pub(super) fn assign(&mut self, place: &Place, owner: T) {
        if place.bytes.is_empty() {
            return;
        }
        self.forget(place);
        let Range { start, end } = place.bytes;
        self.ranges.insert((place.buffer, start), (end, owner));
    }

    /// The owners of the parts of `place`, from the first byte on.
    pub(super) fn of<'o>(&'o self, place: &Place) -> impl Iterator<Item = T> + use<'o, T> {
        let Range { start, end } = place.bytes;
        let buffer = place.buffer;
        let before = self
            .ranges
            .range(..(buffer, start))
            .next_back()
            .filter(|&(key, &(old_end, _))| key.0 == buffer && old_end > start && end > start);
        let inside = self.ranges.range((buffer, start)..(buffer, end.max(start)));
        before
            .into_iter()
            .chain(inside)
            .map(|(_, &(_, owner))| owner)
    }

    /// The owner of exactly `place`.
    pub(super) fn exactly(&self, place: &Place) -> Option<T> {
        let (end, owner) = self.ranges.get(&(place.buffer, place.bytes.start))?;
        (*end == place.bytes.end).then_some(*owner)
    }
}

#[cfg(test)]
mod tests {
    use super::{Owners, Place};

    fn place(start: usize, end: usize) -> Place {
        Place {
            buffer: 0,
            bytes: start..end,
        }
    }

    fn all(owners: &Owners<char>) -> String {
        (0..10)
            .map(|byte| owners.of(&place(byte, byte + 1)).next().unwrap_or('.'))
            .collect()
    }

    #[test]
    fn the_last_writer_owns_a_byte() {
        let mut owners = Owners::new();

        owners.assign(&place(0, 8), 'a');
        owners.assign(&place(2, 4), 'b');
        owners.assign(&place(3, 6), 'c');
        owners.assign(&place(9, 10), 'd');

        assert_eq!(all(&owners), "aabcccaa.d");
        let of: String = owners.of(&place(1, 7)).collect();
        assert_eq!(of, "abca");
        assert_eq!(owners.exactly(&place(3, 6)), Some('c'));
        assert_eq!(owners.exactly(&place(3, 5)), None);
    }

    #[test]
    fn a_forgotten_range_has_no_owner() {
        let mut owners = Owners::new();
        owners.assign(&place(0, 10), 'a');

        owners.forget(&place(2, 5));

        assert_eq!(all(&owners), "aa...aaaaa");
        owners.clear();
        assert_eq!(all(&owners), "..........");
    }

    #[test]
    fn arenas_are_apart_and_empty_ranges_own_nothing() {
        let mut owners = Owners::new();
        let other = Place {
            buffer: 1,
            bytes: 0..4,
        };

        owners.assign(&place(0, 4), 'a');
        owners.assign(&other, 'b');
        owners.assign(&place(2, 2), 'c');

        assert_eq!(all(&owners), "aaaa......");
        assert_eq!(owners.of(&other).collect::<String>(), "b");
        assert_eq!(owners.of(&place(2, 2)).count(), 0);
    }
}
