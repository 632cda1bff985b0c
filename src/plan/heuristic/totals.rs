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
        let mut totals = Self {
            less: vec![0; largest.len()],
            largest,
            width,
        };
        for node in (1..width).rev() {
            totals.settle(node);
        }
        totals
    }

    /// The largest number of a range; 0 of none.
    pub(super) fn largest(&self, range: &Range<usize>) -> usize {
        let Some((mut left, mut right)) = self.leaves(range) else {
            return 0;
        };
        let at = |node: usize| self.largest.get(node).copied().unwrap_or(0);
        let less = |node: usize| self.less.get(node).copied().unwrap_or(0);
        let (mut of_left, mut of_right) = (at(left), at(right));
        while left / 2 != right / 2 {
            if left & 1 == 0 {
                of_left = of_left.max(at(left ^ 1));
            }
            if right & 1 == 1 {
                of_right = of_right.max(at(right ^ 1));
            }
            (left, right) = (left / 2, right / 2);
            of_left = of_left.saturating_sub(less(left));
            of_right = of_right.saturating_sub(less(right));
        }
        above(left).fold(of_left.max(of_right), |largest, node| {
            largest.saturating_sub(less(node))
        })
    }

    /// Takes `amount` off every number of a range, none of which is less.
    pub(super) fn take(&mut self, range: &Range<usize>, amount: usize) {
        let Some((mut left, mut right)) = self.leaves(range) else {
            return;
        };
        self.lower(left, amount);
        if left != right {
            self.lower(right, amount);
        }
        while left / 2 != right / 2 {
            if left & 1 == 0 {
                self.lower(left ^ 1, amount);
            }
            if right & 1 == 1 {
                self.lower(right ^ 1, amount);
            }
            (left, right) = (left / 2, right / 2);
            self.settle(left);
            self.settle(right);
        }
        // A node that stays as it was leaves all above it as they were.
        let _ = above(left).all(|node| self.settle(node));
    }

    /// The first and the last leaf of a range, if it has any.
    fn leaves(&self, range: &Range<usize>) -> Option<(usize, usize)> {
        let last = range.end.min(self.width).checked_sub(1)?;
        let ends = (
            self.width.saturating_add(range.start),
            self.width.saturating_add(last),
        );
        (range.start <= last).then_some(ends)
    }

    /// Takes `amount` off all numbers below a node.
    fn lower(&mut self, node: usize, amount: usize) {
        if let (Some(largest), Some(less)) = (self.largest.get_mut(node), self.less.get_mut(node)) {
            *largest = largest.saturating_sub(amount);
            *less = less.saturating_add(amount);
        }
    }

    /// Finds the largest number of a node from those of its children. Whether it is
    /// another than before.
    fn settle(&mut self, node: usize) -> bool {
        let child = node.saturating_mul(2);
        let pair = self.largest.get(child..child.saturating_add(2));
        let below = pair.and_then(|pair| pair.iter().max()).copied();
        let less = self.less.get(node).copied().unwrap_or(0);
        let (Some(slot), Some(below)) = (self.largest.get_mut(node), below) else {
            return false;
        };
        let before = std::mem::replace(slot, below.saturating_sub(less));
        before != *slot
    }
}

/// The nodes above a node, up to the root.
fn above(node: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(node / 2), |node| Some(node / 2)).take_while(|&node| node > 0)
}

#[cfg(test)]
mod tests {
    use super::Totals;

    #[test]
    fn it_is_what_a_list_is() {
        let mut list: Vec<usize> = (0..37).map(|i| 1000 + i * 7919 % 101).collect();
        let mut totals = Totals::new(&list);

        for i in 0..200 {
            let (start, len) = (i * 31 % 37, i * 17 % 29);
            let range = start..(start + len).min(37);
            totals.take(&range, i % 5);
            for number in &mut list[range] {
                *number -= i % 5;
            }
            let asked = (i * 13 % 37)..(i * 13 % 37 + i * 7 % 37).min(37);
            let largest = list[asked.clone()].iter().max().copied().unwrap_or(0);
            assert_eq!(totals.largest(&asked), largest);
        }
    }
}
