//! How many bytes are alive in each step.
//!
//! Rank 2. Part of `plan`.

use super::problem::Item;

/// A step and the bytes alive from it on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Level {
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

    /// The bytes that are alive, at each step where that may change.
    pub(super) fn levels(&self) -> impl Iterator<Item = Level> + '_ {
        let mut bytes = 0_usize;
        let steps = self.changes.chunk_by(|(one, ..), (other, ..)| one == other);
        steps.filter_map(move |changes| {
            for (_, begins, ended) in changes {
                bytes = bytes.wrapping_add(*begins).wrapping_sub(*ended);
            }
            let &(step, ..) = changes.first()?;
            Some(Level { step, bytes })
        })
    }

    /// The first step with the most live bytes.
    pub(super) fn most(&self) -> Level {
        self.levels().fold(Level::default(), |most, level| {
            if level.bytes > most.bytes {
                level
            } else {
                most
            }
        })
    }
}
