//! What gaps leave of a value: which of its bytes are needed when.
//!
//! Rank 2. Part of `plan`.

use std::ops::Range;

use super::value::PlanValue;

/// Bytes that are needed in a run of steps.
#[derive(Clone, Debug)]
pub(super) struct Stretch {
    /// The first step.
    pub(super) first: usize,
    /// The last step.
    pub(super) last: usize,
    /// Which bytes: at least one.
    pub(super) bytes: Range<usize>,
}

impl Stretch {
    /// What the gaps of a value leave of its life, in the order of steps, if it has `size`
    /// bytes.
    pub(super) fn of(value: &PlanValue, size: usize) -> Vec<Self> {
        let mut stretches = Vec::new();
        let mut push = |first: Option<usize>, last: Option<usize>, bytes: Range<usize>| {
            if let (Some(first), Some(last)) = (first, last)
                && first <= last
                && !bytes.is_empty()
            {
                stretches.push(Self { first, last, bytes });
            }
        };
        let mut from = Some(value.first_use);
        for gap in &value.gaps {
            let (first, last) = (*gap.steps.start(), *gap.steps.end());
            push(from, first.checked_sub(1), 0..size);
            push(Some(first), Some(last), gap.window.clone().unwrap_or(0..0));
            from = last.checked_add(1);
        }
        push(from, Some(value.last_use), 0..size);
        stretches
    }
}
