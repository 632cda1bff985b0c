//! A number for each section, changed and asked for by ranges.
//!
//! Rank 2. Part of `plan::heuristic`. Imports nothing from this crate.

use std::ops::Range;

/// Numbers in a row.
///
/// A tree in which a node has the largest number below it, less what is still to
/// be taken off all of them at once; that is kept apart in the node.
#[derive(Debug)]
pub(super) struct Totals {
    largest: Vec<usize>,
    less: Vec<usize>,
    width: usize,
}

impl Totals {
    /// These numbers.
    pub(super) fn new(numbers: &[usize]) -> Self {
        let width = numbers
            .len()
            .max(1)
            .checked_next_power_of_two()
            .unwrap_or(1);
        let mut largest = vec![0; width];
        largest.extend_from_slice(numbers);
        largest.resize(width.saturating_mul(2), 0);
        for node in (1..width).rev() {
            let child = node.saturating_mul(2);
            let pair = largest.get(child..child.saturating_add(2));
            let above = pair.and_then(|pair| pair.iter().max()).copied();
            if let (Some(slot), Some(above)) = (largest.get_mut(node), above) {
                *slot = above;
            }
        }
        Self {
            less: vec![0; largest.len()],
            largest,
            width,
        }
    }

    /// The largest number of a range.
    pub(super) fn largest(&self, range: &Range<usize>) -> usize {
        self.ask(1, 0..self.width, range)
    }

    /// Takes `amount` off every number of a range, none of which is less.
    pub(super) fn take(&mut self, range: &Range<usize>, amount: usize) {
        self.change(1, 0..self.width, range, amount);
    }

    fn ask(&self, node: usize, covers: Range<usize>, range: &Range<usize>) -> usize {
        if covers.start >= range.end || range.start >= covers.end {
            return 0;
        }
        let own = self.largest.get(node).copied().unwrap_or(0);
        if range.start <= covers.start && covers.end <= range.end {
            return own;
        }
        let (left, right) = halves(&covers);
        let child = node.saturating_mul(2);
        let below =
            self.ask(child, left, range)
                .max(self.ask(child.saturating_add(1), right, range));
        below.saturating_sub(self.less.get(node).copied().unwrap_or(0))
    }

    fn change(&mut self, node: usize, covers: Range<usize>, range: &Range<usize>, amount: usize) {
        if covers.start >= range.end || range.start >= covers.end {
            return;
        }
        if range.start <= covers.start && covers.end <= range.end {
            if let Some(slot) = self.largest.get_mut(node) {
                *slot = slot.saturating_sub(amount);
            }
            if let Some(slot) = self.less.get_mut(node) {
                *slot = slot.saturating_add(amount);
            }
            return;
        }
        let (left, right) = halves(&covers);
        let child = node.saturating_mul(2);
        self.change(child, left, range, amount);
        self.change(child.saturating_add(1), right, range, amount);
        let pair = self.largest.get(child..child.saturating_add(2));
        let below = pair
            .and_then(|pair| pair.iter().max())
            .copied()
            .unwrap_or(0);
        let less = self.less.get(node).copied().unwrap_or(0);
        if let Some(slot) = self.largest.get_mut(node) {
            *slot = below.saturating_sub(less);
        }
    }
}

fn halves(range: &Range<usize>) -> (Range<usize>, Range<usize>) {
    let half = range.end.saturating_sub(range.start) / 2;
    let middle = range.start.saturating_add(half);
    (range.start..middle, middle..range.end)
}

#[cfg(test)]
mod tests {
    use super::Totals;

    #[test]
    fn it_is_what_a_list_is() {
        let mut list: Vec<usize> = (0..37).map(|i| 1000 + i * 7919 % 101).collect();
        let mut totals = Totals::new(&list);

        for i in 0..200 {
            let (start, len) = (i * 31 % 37, i * 17 % 9);
            let range = start..(start + len).min(37);
            totals.take(&range, i % 5);
            for number in &mut list[range] {
                *number -= i % 5;
            }
            let asked = (i * 13 % 37)..37;
            let largest = list[asked.clone()].iter().max().copied().unwrap_or(0);
            assert_eq!(totals.largest(&asked), largest);
        }
    }
}
