//! Orders among jobs at equal offsets.
//!
//! Rank 2. Part of `plan`.
//!
//! Which job is tried first decides how soon a plan is found, and no order is good
//! for all problems, so several are tried in turn.

use std::cmp::Reverse;

use crate::plan::instance::Instance;

/// What jobs are compared by; more comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// Steps of life.
    Width,
    /// Steps of life times size.
    Area,
    /// The largest total of a section it crosses.
    Total,
    /// Sections it crosses.
    Sections,
}

/// An order: by the first, where equal by the next.
pub(super) type Order = &'static [By];

/// The orders that are tried, one after the other.
pub(super) const ORDERS: [Order; 4] = [
    &[By::Total, By::Width, By::Area],
    &[By::Total, By::Area, By::Width],
    &[By::Sections, By::Total, By::Area],
    &[By::Width, By::Area, By::Total],
];

/// The jobs of `instance` that take room, in the order `order`.
pub(super) fn ordered(instance: &Instance, order: &[By]) -> Vec<usize> {
    let totals = instance.section_totals();
    let total = |from: usize, to: usize| {
        let crossed = totals.get(from..to).unwrap_or(&[]);
        crossed.iter().copied().max().unwrap_or(0)
    };
    let jobs = instance.jobs.iter().enumerate();
    let jobs = jobs.filter(|(_, job)| job.takes_room());
    let mut keyed: Vec<_> = jobs
        .map(|(index, job)| {
            let keys = order.iter().map(|by| match by {
                By::Width => job.steps,
                By::Area => job.steps.saturating_mul(job.size),
                By::Total => total(job.from, job.to),
                By::Sections => job.to.saturating_sub(job.from),
            });
            (Reverse(keys.collect::<Vec<_>>()), index)
        })
        .collect();
    keyed.sort();
    keyed.into_iter().map(|(_, index)| index).collect()
}
