//! Placing from the bottom up with a height in view.
//!
//! Rank 2. Part of `plan::heuristic`.
//!
//! A job waits at the lowest offset that those below leave it. It is put there if
//! all that is still to come in its sections would fit above it and below the
//! height; else it is passed over until something comes to lie under it. If only
//! such jobs are left, the lowest is put down all the same. This is the descent of
//! the exact search, without looking ahead or back.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::crowd::Crowd;
use super::fit::{Fit, place};
use super::order::Order;
use super::totals::Totals;
use crate::plan::instance::Instance;

/// Places all jobs, below `height` if that works out.
pub(in crate::plan) fn guided(instance: &Instance, order: Order, height: usize) -> Vec<usize> {
    let mut descent = Descent::new(instance, order);
    while let Some((job, offset)) = descent.next(height) {
        descent.put(job, offset);
    }
    // What was put down although it did not fit may have left holes.
    let mut settled: Vec<usize> = (0..instance.jobs.len()).collect();
    settled.sort_by_key(|&job| descent.offsets.get(job).copied().unwrap_or(0));
    place(instance, &settled, Fit::First)
}

struct Descent<'i> {
    instance: &'i Instance,
    unplaced: Crowd<'i>,
    totals: Totals,
    ranks: Vec<usize>,
    /// The lowest offset that is left to each job.
    releases: Vec<usize>,
    offsets: Vec<usize>,
    is_placed: Vec<bool>,
    /// Release, rank and job; one whose release was raised since does not count.
    waiting: BinaryHeap<Reverse<(usize, usize, usize)>>,
    /// The same, of jobs passed over.
    passed_over: BinaryHeap<Reverse<(usize, usize, usize)>>,
}

impl<'i> Descent<'i> {
    fn new(instance: &'i Instance, order: Order) -> Self {
        let count = instance.jobs.len();
        let mut ranks = vec![0; count];
        for (rank, job) in order.of(instance).into_iter().enumerate() {
            if let Some(slot) = ranks.get_mut(job) {
                *slot = rank;
            }
        }
        let mut descent = Self {
            instance,
            unplaced: Crowd::all(instance),
            totals: Totals::new(&instance.section_totals()),
            ranks,
            releases: vec![0; count],
            offsets: vec![0; count],
            is_placed: vec![false; count],
            waiting: BinaryHeap::new(),
            passed_over: BinaryHeap::new(),
        };
        for (job, of) in instance.jobs.iter().enumerate() {
            match of.fixed {
                Some(fixed) => descent.put(job, fixed),
                None if of.size == 0 => descent.put(job, 0),
                None => descent.wait(job),
            }
        }
        descent
    }

    fn wait(&mut self, job: usize) {
        let release = self.releases.get(job).copied().unwrap_or(0);
        let rank = self.ranks.get(job).copied().unwrap_or(0);
        self.waiting.push(Reverse((release, rank, job)));
    }

    /// The next job to be put down, and where.
    fn next(&mut self, height: usize) -> Option<(usize, usize)> {
        while let Some(Reverse((release, rank, job))) = self.waiting.pop() {
            if !self.is_current(job, release) {
                continue;
            }
            let Some(of) = self.instance.jobs.get(job) else {
                continue;
            };
            let fullest = of
                .needs()
                .map(|need| self.totals.largest(&(need.from..need.to)));
            let above = fullest.max().unwrap_or(0);
            if release.saturating_add(above) <= height {
                return Some((job, release));
            }
            self.passed_over.push(Reverse((release, rank, job)));
        }
        while let Some(Reverse((release, _, job))) = self.passed_over.pop() {
            if self.is_current(job, release) {
                return Some((job, release));
            }
        }
        None
    }

    fn is_current(&self, job: usize, release: usize) -> bool {
        self.is_placed.get(job) == Some(&false) && self.releases.get(job) == Some(&release)
    }

    /// Puts a job down and raises what it meets.
    fn put(&mut self, job: usize, offset: usize) {
        let Some(of) = self.instance.jobs.get(job) else {
            return;
        };
        if let (Some(slot), Some(is_placed)) =
            (self.offsets.get_mut(job), self.is_placed.get_mut(job))
        {
            *slot = offset;
            *is_placed = true;
        }
        self.unplaced.remove(job);
        for need in of.needs() {
            let bytes = need.high.saturating_sub(need.low);
            self.totals.take(&(need.from..need.to), bytes);
        }
        if of.size == 0 {
            return;
        }
        let (jobs, ranks) = (&self.instance.jobs, &self.ranks);
        let (releases, waiting) = (&mut self.releases, &mut self.waiting);
        self.unplaced.meeting(of, |other| {
            let (Some(release), Some(job)) = (releases.get_mut(other), jobs.get(other)) else {
                return;
            };
            let Some(top) = of.reach(job).map(|reach| offset.saturating_add(reach)) else {
                return;
            };
            if *release < top {
                *release = job.aligned(top);
                let rank = ranks.get(other).copied().unwrap_or(0);
                waiting.push(Reverse((*release, rank, other)));
            }
        });
    }
}
