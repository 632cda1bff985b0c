//! ExecuTorch's greedy planner, offset for offset.
//!
//! Rank 2. Part of `plan::heuristic`.
//!
//! Values come by size, the largest first, and of equal ones the last first. Each
//! goes to the bottom of the first object in which nothing is alive with it; else
//! above what is alive with it in the first object where that leaves room; else
//! into an object of its own, which never grows. Objects lie end to end.

use std::cmp::Reverse;

use crate::plan::instance::{Instance, Job};

/// A range that values share.
struct Object<'i> {
    size: usize,
    /// The values in it, and their offsets.
    members: Vec<(&'i Job, usize)>,
}

impl Object<'_> {
    /// The end of the highest member that is alive with `job`, if there is one.
    fn end(&self, job: &Job) -> Option<usize> {
        let members = self.members.iter();
        let ends = members.filter_map(|(member, offset)| {
            let reach = member.reach(job)?;
            Some(offset.saturating_add(reach))
        });
        ends.max()
    }
}

/// Places all jobs; one with a fixed offset is given it, and no other is placed
/// below the end of the highest of them.
pub(in crate::plan) fn executorch_greedy(instance: &Instance) -> Vec<usize> {
    let jobs = &instance.jobs;
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    let size = |position: &usize| jobs.get(*position).map_or(0, |job| job.size);
    order.sort_by_key(|position| (Reverse(size(position)), Reverse(*position)));

    let mut objects: Vec<Object<'_>> = Vec::new();
    let mut homes: Vec<(usize, usize)> = vec![(0, 0); jobs.len()];
    for position in order {
        let Some(job) = jobs.get(position).filter(|job| job.fixed.is_none()) else {
            continue;
        };
        let ends: Vec<Option<usize>> = objects.iter().map(|object| object.end(job)).collect();
        let free = ends.iter().position(Option::is_none).map(|at| (at, 0));
        let above = || {
            let ends = ends.iter().zip(&objects).enumerate();
            let mut fitting = ends.filter_map(|(at, (end, object))| {
                let offset = job.aligned((*end)?);
                let fits = offset.saturating_add(job.size) <= object.size;
                fits.then_some((at, offset))
            });
            fitting.next()
        };
        let (at, offset) = free.or_else(above).unwrap_or((objects.len(), 0));
        if at == objects.len() {
            objects.push(Object {
                size: job.size,
                members: Vec::new(),
            });
        }
        if let Some(object) = objects.get_mut(at) {
            object.members.push((job, offset));
        }
        if let Some(home) = homes.get_mut(position) {
            *home = (at, offset);
        }
    }
    let align = jobs.iter().map(|job| job.align).max().unwrap_or(1);
    let fixed = jobs
        .iter()
        .filter_map(|job| Some(job.fixed?.saturating_add(job.size)));
    let mut start = fixed.max().unwrap_or(0);
    let starts: Vec<usize> = objects
        .iter()
        .map(|object| {
            let at = start.checked_next_multiple_of(align).unwrap_or(start);
            start = at.saturating_add(object.size);
            at
        })
        .collect();
    let places = jobs.iter().zip(&homes).map(|(job, &(object, offset))| {
        let start = starts.get(object).copied().unwrap_or(0);
        job.fixed.unwrap_or_else(|| start.saturating_add(offset))
    });
    places.collect()
}
