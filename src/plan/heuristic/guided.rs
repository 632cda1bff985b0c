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
use std::collections::binary_heap::PeekMut;

use super::crowd::Crowd;
use super::fit::{Fit, place};
use super::order::Order;
use super::totals::Totals;
use crate::plan::instance::Instance;

/// Places all jobs, below `height` if that works out; `None` as soon as they are
/// going to end at `below` or above.
pub(in crate::plan) fn guided(
    instance: &Instance,
    order: Order,
    height: usize,
    below: usize,
) -> Option<Vec<usize>> {
    let mut descent = Descent::new(instance, order);
    while let Some(next) = descent.next(height) {
        if next.end >= below {
            return None;
        }
        descent.put(next.job, next.offset);
    }
    if instance.peak(&descent.offsets) <= instance.lower_bound {
        return Some(descent.offsets);
    }
    // What was passed over may have left holes.
    let mut settled: Vec<usize> = (0..instance.jobs.len()).collect();
    settled.sort_by_key(|&job| descent.offsets.get(job).copied().unwrap_or(0));
    place(instance, &settled, Fit::First, below)
}

/// A job that is put down next.
#[derive(Clone, Copy, Debug)]
struct Next {
    job: usize,
    offset: usize,
    /// What is still to come in its sections ends there or above.
    end: usize,
}

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It may be looked at.
    Waiting,
    /// It did not fit at its release.
    PassedOver,
    /// It has an offset.
    Placed,
}

struct Descent<'i> {
    instance: &'i Instance,
    unplaced: Crowd<'i>,
    totals: Totals,
    /// The jobs by rank.
    order: Vec<usize>,
    /// The rank of each job.
    ranks: Vec<usize>,
    /// The lowest offset that is left to each job.
    releases: Vec<usize>,
    offsets: Vec<usize>,
    standings: Vec<Standing>,
    /// The release and rank of jobs that wait. A release may have been raised since;
    /// that is seen when its job would be the next.
    waiting: BinaryHeap<Reverse<(usize, usize)>>,
    /// The same, of jobs passed over; one that was raised since does not count.
    passed_over: BinaryHeap<Reverse<(usize, usize)>>,
}

impl<'i> Descent<'i> {
    fn new(instance: &'i Instance, order: Order) -> Self {
        let count = instance.jobs.len();
        let order = order.of(instance);
        let mut ranks = vec![0; count];
        for (rank, &job) in order.iter().enumerate() {
            if let Some(slot) = ranks.get_mut(job) {
                *slot = rank;
            }
        }
        let mut descent = Self {
            instance,
            unplaced: Crowd::all(instance),
            totals: Totals::new(&instance.section_totals()),
            order,
            ranks,
            releases: vec![0; count],
            offsets: vec![0; count],
            standings: vec![Standing::Waiting; count],
            waiting: BinaryHeap::new(),
            passed_over: BinaryHeap::new(),
        };
        for (job, of) in instance.jobs.iter().enumerate() {
            match of.fixed {
                Some(fixed) => descent.put(job, fixed),
                None if of.size == 0 => descent.put(job, 0),
                None => {}
            }
        }
        let ranks = descent.order.iter().enumerate();
        let waiting = ranks.filter(|&(_, &job)| descent.stands(job, Standing::Waiting));
        let waiting = waiting.map(|(rank, &job)| Reverse((descent.release(job), rank)));
        descent.waiting = waiting.collect();
        descent
    }

    fn release(&self, job: usize) -> usize {
        self.releases.get(job).copied().unwrap_or(0)
    }

    fn stands(&self, job: usize, standing: Standing) -> bool {
        self.standings.get(job) == Some(&standing)
    }

    fn stand(&mut self, job: usize, standing: Standing) {
        if let Some(slot) = self.standings.get_mut(job) {
            *slot = standing;
        }
    }

    /// The release and the rank of the waiting job with the lowest release, which
    /// waits no more.
    fn lowest(&mut self) -> Option<(usize, usize)> {
        loop {
            let mut top = self.waiting.peek_mut()?;
            let Reverse((release, rank)) = *top;
            let raised = self.order.get(rank).and_then(|&job| self.releases.get(job));
            match raised {
                Some(&raised) if raised > release => *top = Reverse((raised, rank)),
                _ => return Some(PeekMut::pop(top).0),
            }
        }
    }

    /// The next job to be put down, and where.
    fn next(&mut self, height: usize) -> Option<Next> {
        while let Some((offset, rank)) = self.lowest() {
            let next = self.at(offset, rank)?;
            if next.end <= height {
                return Some(next);
            }
            self.stand(next.job, Standing::PassedOver);
            self.passed_over.push(Reverse((offset, rank)));
        }
        while let Some(Reverse((offset, rank))) = self.passed_over.pop() {
            let next = self.at(offset, rank)?;
            if self.stands(next.job, Standing::PassedOver) && offset == self.release(next.job) {
                return Some(next);
            }
        }
        None
    }

    /// The job of a rank, at `offset`.
    fn at(&self, offset: usize, rank: usize) -> Option<Next> {
        let &job = self.order.get(rank)?;
        let of = self.instance.jobs.get(job)?;
        let mut above = 0;
        of.each(|need| above = self.totals.largest(&(need.from..need.to)).max(above));
        let end = offset.saturating_add(above);
        Some(Next { job, offset, end })
    }

    /// Puts a job down and raises what it meets.
    fn put(&mut self, job: usize, offset: usize) {
        let Some(of) = self.instance.jobs.get(job) else {
            return;
        };
        if let Some(slot) = self.offsets.get_mut(job) {
            *slot = offset;
        }
        self.stand(job, Standing::Placed);
        self.unplaced.remove(job);
        let totals = &mut self.totals;
        of.each(|need| totals.take(&(need.from..need.to), need.high.saturating_sub(need.low)));
        if of.size == 0 {
            return;
        }
        let end = offset.saturating_add(of.size);
        let (jobs, ranks) = (&self.instance.jobs, &self.ranks);
        let (releases, standings) = (&mut self.releases, &mut self.standings);
        let waiting = &mut self.waiting;
        self.unplaced.meeting(of, |other| {
            let (Some(release), Some(job)) = (releases.get_mut(other), jobs.get(other)) else {
                return;
            };
            if *release >= end {
                return;
            }
            let top = of.reach(job).map(|reach| offset.saturating_add(reach));
            if let Some(top) = top.filter(|&top| *release < top) {
                *release = job.aligned(top);
                if let Some(standing) = standings.get_mut(other)
                    && *standing == Standing::PassedOver
                {
                    *standing = Standing::Waiting;
                    let rank = ranks.get(other).copied().unwrap_or(0);
                    waiting.push(Reverse((*release, rank)));
                }
            }
        });
    }
}
