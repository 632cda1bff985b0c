//! Some of the jobs of an instance, to be asked which of them another one meets.
//!
//! Rank 2. Part of `plan::heuristic`.
//!
//! The jobs are in the order of their first sections, in blocks, with a tree over
//! the latest ends of the members of each block. A question costs the blocks in
//! which members are found and no more than the depth of the tree besides.

use crate::plan::instance::{Instance, Job};

/// How many jobs a block has: few enough to look at all of them.
const BLOCK: usize = 16;

/// A set of jobs.
#[derive(Debug)]
pub(super) struct Crowd<'i> {
    jobs: &'i [Job],
    /// The jobs by their first sections.
    by_start: Vec<usize>,
    /// For each job, its place in that order.
    places: Vec<usize>,
    /// For each section, how many jobs have a first section before it.
    begun: Vec<usize>,
    /// The ends of the members, in that order; 0 for others.
    ends: Vec<usize>,
    /// The latest end in each block and above: the root is at 1, the children of a
    /// node at twice its position and after.
    latest: Vec<usize>,
    /// Where the leaves begin, one a block.
    first_leaf: usize,
}

impl<'i> Crowd<'i> {
    /// A set without members.
    pub(super) fn new(instance: &'i Instance) -> Self {
        let jobs = &instance.jobs[..];
        let begun = begun(instance);
        let (mut by_start, mut places) = (vec![0; jobs.len()], vec![0; jobs.len()]);
        let mut next = begun.clone();
        for (position, (job, home)) in jobs.iter().zip(&mut places).enumerate() {
            let Some(place) = next.get_mut(job.from) else {
                continue;
            };
            if let Some(slot) = by_start.get_mut(*place) {
                *slot = position;
            }
            *home = *place;
            *place = place.saturating_add(1);
        }
        let blocks = jobs.len().div_ceil(BLOCK);
        let first_leaf = blocks.checked_next_power_of_two().unwrap_or(1);
        Self {
            jobs,
            by_start,
            places,
            begun,
            ends: vec![0; jobs.len()],
            latest: vec![0; first_leaf.saturating_mul(2)],
            first_leaf,
        }
    }

    /// A set of all jobs.
    pub(super) fn all(instance: &'i Instance) -> Self {
        let mut all = Self::new(instance);
        for (job, &place) in all.jobs.iter().zip(&all.places) {
            if let Some(slot) = all.ends.get_mut(place) {
                *slot = job.to;
            }
        }
        let (_, leaves) = all.latest.split_at_mut(all.first_leaf);
        for (block, leaf) in all.ends.chunks(BLOCK).zip(leaves) {
            *leaf = block.iter().copied().max().unwrap_or(0);
        }
        for node in (1..all.first_leaf).rev() {
            let children = node.saturating_mul(2)..node.saturating_mul(2).saturating_add(2);
            let latest = all.latest.get(children).and_then(|ends| ends.iter().max());
            let latest = latest.copied().unwrap_or(0);
            if let Some(slot) = all.latest.get_mut(node) {
                *slot = latest;
            }
        }
        all
    }

    /// Makes a job a member.
    pub(super) fn insert(&mut self, job: usize) {
        let end = self.jobs.get(job).map_or(0, |job| job.to);
        self.set(job, end);
    }

    /// Makes a job no member.
    pub(super) fn remove(&mut self, job: usize) {
        self.set(job, 0);
    }

    fn set(&mut self, job: usize, end: usize) {
        let place = self.places.get(job).copied().unwrap_or(0);
        if let Some(slot) = self.ends.get_mut(place) {
            *slot = end;
        }
        let block = place / BLOCK;
        let mut latest = self.block(block).iter().copied().max().unwrap_or(0);
        let mut node = self.first_leaf.saturating_add(block);
        while let Some(slot) = self.latest.get_mut(node)
            && *slot != latest
        {
            *slot = latest;
            let sibling = self.latest.get(node ^ 1).copied().unwrap_or(0);
            latest = latest.max(sibling);
            node /= 2;
        }
    }

    /// The ends of the jobs of a block.
    fn block(&self, block: usize) -> &[usize] {
        let start = block.saturating_mul(BLOCK);
        let end = start.saturating_add(BLOCK).min(self.ends.len());
        self.ends.get(start..end).unwrap_or(&[])
    }

    /// Calls `found` for every member that `job` meets, itself included.
    pub(super) fn meeting(&self, job: &Job, mut found: impl FnMut(usize)) {
        let last = self.begun.get(job.to).copied().unwrap_or(self.jobs.len());
        self.visit(1, 0, self.first_leaf, last, job.from, &mut found);
    }

    /// Visits the members below `node`, which has `width` blocks from `start` on,
    /// as far as they come before `last` and end after `from`.
    fn visit(
        &self,
        node: usize,
        start: usize,
        width: usize,
        last: usize,
        from: usize,
        found: &mut impl FnMut(usize),
    ) {
        let ends_after = self.latest.get(node).is_some_and(|&end| end > from);
        let place = start.saturating_mul(BLOCK);
        if place >= last || !ends_after {
            return;
        }
        if width <= 1 {
            let jobs = self.by_start.get(place..last).unwrap_or(&[]);
            for (&end, &job) in self.block(start).iter().zip(jobs) {
                if end > from {
                    found(job);
                }
            }
            return;
        }
        let (half, child) = (width / 2, node.saturating_mul(2));
        self.visit(child, start, half, last, from, found);
        let (right, middle) = (child.saturating_add(1), start.saturating_add(half));
        self.visit(right, middle, half, last, from, found);
    }
}

/// For each section and the end, how many jobs have a first section before it.
fn begun(instance: &Instance) -> Vec<usize> {
    let mut begun = vec![0_usize; instance.sections.saturating_add(1)];
    for job in &instance.jobs {
        if let Some(count) = begun.get_mut(job.from.saturating_add(1)) {
            *count = count.saturating_add(1);
        }
    }
    let mut sum = 0_usize;
    for count in &mut begun {
        sum = sum.saturating_add(*count);
        *count = sum;
    }
    begun
}
