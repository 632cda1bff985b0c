//! Who is placed first.
//!
//! Rank 2. Part of `plan::heuristic`.

use std::cmp::Reverse;

use crate::plan::instance::{Instance, Job};

/// An order of jobs. Those that are equal in it come as they were given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::plan) enum Order {
    /// The largest first.
    Size,
    /// The first alive first, the largest of these first.
    Start,
    /// The largest product of size and life first.
    Area,
    /// Those of the section with the largest total first, the largest of these
    /// first.
    Breadth,
    /// Long lives, then area, then the fullest section.
    LifeAreaTotal,
    /// The fullest section, then area, then long lives.
    TotalAreaLife,
    /// The fullest section, then long lives, then area.
    TotalLifeArea,
    /// Area, then the fullest section, then long lives.
    AreaTotalLife,
    /// The largest first, then long lives.
    SizeLife,
}

impl Order {
    /// Those for the guided heuristic.
    pub(super) const GUIDED: [Self; 5] = [
        Self::LifeAreaTotal,
        Self::TotalAreaLife,
        Self::TotalLifeArea,
        Self::AreaTotalLife,
        Self::SizeLife,
    ];

    /// The positions of the jobs in this order.
    pub(in crate::plan) fn of(self, instance: &Instance) -> Vec<usize> {
        let fullest = match self {
            Self::LifeAreaTotal
            | Self::TotalAreaLife
            | Self::TotalLifeArea
            | Self::AreaTotalLife => instance.fullest(),
            Self::Breadth => breadths(instance),
            Self::Size | Self::Start | Self::Area | Self::SizeLife => Vec::new(),
        };
        let mut order: Vec<usize> = (0..instance.jobs.len()).collect();
        order.sort_by_cached_key(|&position| {
            let full = fullest.get(position).copied().unwrap_or(0);
            instance.jobs.get(position).map(|job| self.key(job, full))
        });
        order
    }

    /// What is compared, largest first.
    fn key(self, job: &Job, full: usize) -> Reverse<[u64; 3]> {
        let wide = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let (size, life, full) = (wide(job.size), wide(job.steps), wide(full));
        let area = size.saturating_mul(life);
        let early = u64::MAX.saturating_sub(wide(job.from));
        Reverse(match self {
            Self::Size | Self::SizeLife => [size, life, 0],
            Self::Start => [early, size, 0],
            Self::Area => [area, size, 0],
            Self::Breadth => [u64::MAX.saturating_sub(full), size, 0],
            Self::LifeAreaTotal => [life, area, full],
            Self::TotalAreaLife => [full, area, life],
            Self::TotalLifeArea => [full, life, area],
            Self::AreaTotalLife => [area, full, life],
        })
    }
}

/// For each job, the place of its fullest section among all, the fullest first.
fn breadths(instance: &Instance) -> Vec<usize> {
    let totals = instance.section_totals();
    let mut sections: Vec<usize> = (0..totals.len()).collect();
    sections.sort_by_key(|&section| Reverse(totals.get(section).copied().unwrap_or(0)));
    let mut places = vec![0; totals.len()];
    for (place, section) in sections.into_iter().enumerate() {
        if let Some(slot) = places.get_mut(section) {
            *slot = totals.len().saturating_sub(place);
        }
    }
    let highest = instance.largest_of(&places);
    let from_top = |place: usize| totals.len().saturating_sub(place);
    highest.into_iter().map(from_top).collect()
}
