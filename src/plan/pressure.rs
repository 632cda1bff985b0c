//! How many bytes are alive in each step.
//!
//! Rank 2. Part of `plan`.

use super::problem::Item;

/// A step and the bytes alive in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Worst {
    /// The step.
    pub(super) step: usize,
    /// The sum of what is alive then, in bytes.
    pub(super) bytes: usize,
}

/// Where the sum of live bytes changes.
#[derive(Clone, Debug)]
pub(super) struct Pressure {
    /// A step, and what begins and what has ended there.
    changes: Vec<(usize, usize, usize)>,
}

impl Pressure {
    /// The pressure of `items`.
    pub(super) fn new<'i>(items: impl IntoIterator<Item = &'i Item>) -> Self {
        let mut changes = Vec::new();
        for need in items.into_iter().flat_map(Item::needs) {
            let bytes = need.bytes.len();
            changes.push((need.first, bytes, 0));
            // A life that ends with the last step there is has no step after it.
            let after = need.last.checked_add(1);
            changes.extend(after.map(|step| (step, 0, bytes)));
        }
        changes.sort_unstable();
        Self { changes }
    }

    /// The first step with the most live bytes.
    pub(super) fn most(&self) -> Worst {
        let (mut live, mut worst) = (0_usize, Worst::default());
        let mut changes = self.changes.iter().peekable();
        while let Some(&(step, begins, ended)) = changes.next() {
            live = live.wrapping_add(begins).wrapping_sub(ended);
            let complete = changes.peek().is_none_or(|(next, _, _)| *next != step);
            if complete && live > worst.bytes {
                worst = Worst { step, bytes: live };
            }
        }
        worst
    }
}
