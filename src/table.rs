//! Something for each device, or for each tag.
//!
//! Rank 0. Imports nothing from this crate.
//!
//! Reading takes no lock, and what was given out never moves, so that counters
//! can be kept in it.

use std::sync::OnceLock;

/// How many buckets hold all numbers: bucket `n` holds `2^n` of them, from
/// `2^n - 1` on.
const BUCKETS: usize = 17;

/// Values by small number, each made when it is first asked for.
///
/// The value of number 0 is always there.
#[derive(Debug)]
pub(crate) struct Table<T> {
    first: T,
    /// The bucket of number 0 stays empty.
    buckets: [OnceLock<Box<[T]>>; BUCKETS],
}

impl<T: Default> Default for Table<T> {
    fn default() -> Self {
        Self {
            first: T::default(),
            buckets: std::array::from_fn(|_| OnceLock::new()),
        }
    }
}

impl<T: Default> Table<T> {
    /// The value of `number`. Takes memory of the host for all numbers of its
    /// bucket if it is the first of them, which is less than twice `number`.
    #[inline]
    pub(crate) fn get(&self, number: u16) -> &T {
        if number == 0 {
            return &self.first;
        }
        self.later(number)
    }

    #[inline]
    fn later(&self, number: u16) -> &T {
        let (bucket, len, offset) = place(number);
        let values = self.buckets.get(bucket).map(|bucket| {
            bucket.get_or_init(|| std::iter::repeat_with(T::default).take(len).collect())
        });
        // There is a bucket for every number, and a place in it.
        let value = values.and_then(|values| values.get(offset));
        value.unwrap_or(&self.first)
    }
}

impl<T> Table<T> {
    /// The value of `number`, if it is there.
    pub(crate) fn find(&self, number: u16) -> Option<&T> {
        if number == 0 {
            return Some(&self.first);
        }
        let (bucket, _, offset) = place(number);
        self.buckets.get(bucket)?.get()?.get(offset)
    }

    /// All values that are there, by number. Some were never asked for.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u16, &T)> {
        let later = self
            .buckets
            .iter()
            .zip(0_u32..)
            .flat_map(|(bucket, exponent)| {
                let before = 1_u32.wrapping_shl(exponent).wrapping_sub(1);
                let first = u16::try_from(before).unwrap_or(u16::MAX);
                let values = bucket.get().into_iter().flatten();
                (first..=u16::MAX).zip(values)
            });
        std::iter::once((0, &self.first)).chain(later)
    }
}

/// The bucket of a number, the length of that, and the place in it.
#[inline]
fn place(number: u16) -> (usize, usize, usize) {
    let position = usize::from(number).saturating_add(1);
    let exponent = position.ilog2();
    let len = 1_usize.wrapping_shl(exponent);
    let bucket = usize::try_from(exponent).unwrap_or(0);
    (bucket, len, position.wrapping_sub(len))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn every_number_has_a_value_of_its_own() {
        let table: Table<AtomicUsize> = Table::default();
        for number in 0..=u16::MAX {
            table
                .get(number)
                .fetch_add(usize::from(number), Ordering::Relaxed);
        }

        for number in 0..=u16::MAX {
            assert!(table.find(number).is_some());
            assert_eq!(
                table.get(number).load(Ordering::Relaxed),
                usize::from(number)
            );
        }
    }

    #[test]
    fn values_are_listed_by_number_though_buckets_between_are_missing() {
        let table: Table<AtomicUsize> = Table::default();
        table.get(9).store(90, Ordering::Relaxed);
        table.get(2).store(20, Ordering::Relaxed);
        table.get(u16::MAX).store(7, Ordering::Relaxed);

        let found: Vec<_> = table
            .iter()
            .map(|(number, value)| (number, value.load(Ordering::Relaxed)))
            .filter(|(_, value)| *value != 0)
            .collect();

        assert_eq!(found, [(2, 20), (9, 90), (u16::MAX, 7)]);
        assert!(table.find(100).is_none());
    }
}
