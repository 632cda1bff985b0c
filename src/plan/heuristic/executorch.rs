//! ExecuTorch's greedy planner, offset for offset.
//!
//! Rank 2. Part of `plan::heuristic`.
//!
//! Values come by size, the largest first, and of equal ones the last first. Each
//! goes to the bottom of the first object in which nothing is alive with it; else
//! above what is alive with it in the first object where that leaves room; else
//! into an object of its own, which never grows. Objects lie end to end.

use std::cmp::Reverse;

use super::crowd::Crowd;
use crate::plan::instance::Instance;

/// Places all jobs; one with a fixed offset is given it, and no other is placed
/// below the end of the highest of them.
pub(in crate::plan) fn executorch_greedy(instance: &Instance) -> Vec<usize> {
    let jobs = &instance.jobs;
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    let size = |position: &usize| jobs.get(*position).map_or(0, |job| job.size);
    order.sort_by_key(|position| (Reverse(size(position)), Reverse(*position)));

    // The sizes of the objects, in which of them each job is, and where.
    let mut objects: Vec<usize> = Vec::new();
    let mut homes: Vec<(usize, usize)> = vec![(0, 0); jobs.len()];
    let mut placed = Crowd::new(instance);
    // For each object, the end of the highest member that is alive with the job.
    let mut ends: Vec<Option<usize>> = Vec::new();
    for position in order {
        let Some(job) = jobs.get(position).filter(|job| job.fixed.is_none()) else {
            continue;
        };
        ends.clear();
        ends.resize(objects.len(), None);
        placed.meeting(job, |other| {
            if let (Some(other), Some(&(object, offset))) = (jobs.get(other), homes.get(other))
                && let Some(end) = ends.get_mut(object)
                && let Some(reach) = other.reach(job)
            {
                *end = Some(offset.saturating_add(reach)).max(*end);
            }
        });
        let free = ends.iter().position(Option::is_none).map(|at| (at, 0));
        let above = || {
            let ends = ends.iter().zip(&objects).enumerate();
            let mut fitting = ends.filter_map(|(at, (end, &size))| {
                let offset = job.aligned((*end)?);
                let fits = offset.saturating_add(job.size) <= size;
                fits.then_some((at, offset))
            });
            fitting.next()
        };
        let (at, offset) = free.or_else(above).unwrap_or((objects.len(), 0));
        if at == objects.len() {
            objects.push(job.size);
        }
        if let Some(home) = homes.get_mut(position) {
            *home = (at, offset);
        }
        placed.insert(position);
    }
    let align = jobs.iter().map(|job| job.align).max().unwrap_or(1);
    let fixed = jobs
        .iter()
        .filter_map(|job| Some(job.fixed?.saturating_add(job.size)));
    let mut start = fixed.max().unwrap_or(0);
    let starts: Vec<usize> = objects
        .iter()
        .map(|size| {
            let at = start.checked_next_multiple_of(align).unwrap_or(start);
            start = at.saturating_add(*size);
            at
        })
        .collect();
    let places = jobs.iter().zip(&homes).map(|(job, &(object, offset))| {
        let start = starts.get(object).copied().unwrap_or(0);
        job.fixed.unwrap_or_else(|| start.saturating_add(offset))
    });
    places.collect()
}
