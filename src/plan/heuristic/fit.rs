//! Where a job goes, among those that are placed already.
//!
//! Rank 2. Part of `plan::heuristic`.

use super::crowd::Crowd;
use crate::plan::instance::{Instance, Job};

/// Which free place a job takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::plan) enum Fit {
    /// The lowest.
    First,
    /// The smallest that is closed above; if none is large enough, on top.
    Best,
}

/// Places the jobs of `order`, those with fixed offsets before all others; `None` as
/// soon as one of them would end at `below` or above.
pub(in crate::plan) fn place(
    instance: &Instance,
    order: &[usize],
    fit: Fit,
    below: usize,
) -> Option<Vec<usize>> {
    let mut offsets: Vec<usize> = vec![0; instance.jobs.len()];
    let mut placed = Crowd::new(instance);
    for (position, job) in instance.jobs.iter().enumerate() {
        if let (Some(fixed), Some(slot)) = (job.fixed, offsets.get_mut(position)) {
            *slot = fixed;
            if job.size > 0 {
                placed.insert(position);
            }
        }
    }
    let mut taken: Vec<(usize, usize)> = Vec::new();
    for &position in order {
        let Some(job) = instance.jobs.get(position) else {
            continue;
        };
        if job.fixed.is_some() || job.size == 0 {
            continue;
        }
        taken.clear();
        placed.meeting(job, |other| {
            if let (Some(&start), Some(other)) = (offsets.get(other), instance.jobs.get(other)) {
                job.obstacles(other, start, |start, end| taken.push((start, end)));
            }
        });
        taken.sort_unstable_by_key(|&(start, _)| start);
        let offset = match fit {
            Fit::First => first(&taken, job),
            Fit::Best => best(&taken, job),
        };
        if offset.saturating_add(job.size) >= below {
            return None;
        }
        if let Some(slot) = offsets.get_mut(position) {
            *slot = offset;
        }
        placed.insert(position);
    }
    Some(offsets)
}

/// The free places between ranges in the order of their starts: where `job` would
/// lie in each, and how large it is; the last one has no end.
fn places<'t>(
    taken: &'t [(usize, usize)],
    job: &'t Job,
) -> impl Iterator<Item = (usize, Option<usize>)> + 't {
    let mut end = 0_usize;
    let between = taken.iter().map(move |&(start, next)| {
        let at = job.aligned(end);
        let room = start.checked_sub(at);
        let fits = room.is_some_and(|room| room >= job.size);
        let size = start.saturating_sub(end);
        end = end.max(next);
        (at, fits.then_some(size))
    });
    between.filter(|(_, size)| size.is_some())
}

/// Behind all ranges.
fn top(taken: &[(usize, usize)], job: &Job) -> usize {
    job.aligned(taken.iter().map(|&(_, end)| end).max().unwrap_or(0))
}

fn first(taken: &[(usize, usize)], job: &Job) -> usize {
    let lowest = places(taken, job).next();
    lowest.map_or_else(|| top(taken, job), |(at, _)| at)
}

fn best(taken: &[(usize, usize)], job: &Job) -> usize {
    let smallest = places(taken, job).min_by_key(|&(_, size)| size);
    smallest.map_or_else(|| top(taken, job), |(at, _)| at)
}
