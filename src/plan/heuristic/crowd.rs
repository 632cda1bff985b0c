//! Some of the jobs of an instance, to be asked which of them another one meets.
//!
//! Rank 2. Part of `plan::heuristic`.
//!
//! A tree over the jobs in the order of their first sections, each node with the
//! latest end of the members below it. A question costs a few steps for each
//! member found and no more than the depth of the tree besides.

use crate::plan::instance::{Instance, Job};

/// A set of jobs.
#[derive(Debug)]
pub(super) struct Crowd<'i> {
    jobs: &'i [Job],
    /// The jobs by their first sections.
    by_start: Vec<usize>,
    /// For each job, its leaf.
    leaves: Vec<usize>,
    /// The root is at 1, the children of a node at twice its position and after.
    ends: Vec<usize>,
    /// Where the leaves begin.
    first_leaf: usize,
}

impl<'i> Crowd<'i> {
    /// A set without members.
    pub(super) fn new(instance: &'i Instance) -> Self {
        let jobs = &instance.jobs[..];
        let mut by_start: Vec<usize> = (0..jobs.len()).collect();
        by_start.sort_by_key(|&job| jobs.get(job).map_or(0, |job| job.from));
        let first_leaf = jobs.len().checked_next_power_of_two().unwrap_or(1);
        let mut leaves = vec![0; jobs.len()];
        for (position, &job) in by_start.iter().enumerate() {
            if let Some(leaf) = leaves.get_mut(job) {
                *leaf = first_leaf.saturating_add(position);
            }
        }
        Self {
            jobs,
            by_start,
            leaves,
            ends: vec![0; first_leaf.saturating_mul(2)],
            first_leaf,
        }
    }

    /// A set of all jobs.
    pub(super) fn all(instance: &'i Instance) -> Self {
        let mut all = Self::new(instance);
        for job in 0..instance.jobs.len() {
            all.insert(job);
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
        let mut node = self.leaves.get(job).copied().unwrap_or(0);
        let mut end = end;
        while let Some(slot) = self.ends.get_mut(node) {
            *slot = end;
            let sibling = self.ends.get(node ^ 1).copied().unwrap_or(0);
            end = end.max(sibling);
            node /= 2;
            if node == 0 {
                break;
            }
        }
    }

    /// Calls `found` for every member that `job` meets, itself included.
    pub(super) fn meeting(&self, job: &Job, mut found: impl FnMut(usize)) {
        let starts_before = |&other: &usize| {
            let other = self.jobs.get(other);
            other.is_some_and(|other| other.from < job.to)
        };
        let last = self.by_start.partition_point(starts_before);
        self.visit(1, 0, self.first_leaf, last, job.from, &mut found);
    }

    /// Visits the members below `node`, which has `width` leaves from `start` on,
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
        let ends_after = self.ends.get(node).is_some_and(|&end| end > from);
        if start >= last || !ends_after {
            return;
        }
        if width <= 1 {
            if let Some(&job) = self.by_start.get(start) {
                found(job);
            }
            return;
        }
        let (half, child) = (width / 2, node.saturating_mul(2));
        self.visit(child, start, half, last, from, found);
        let (right, middle) = (child.saturating_add(1), start.saturating_add(half));
        self.visit(right, middle, half, last, from, found);
    }
}
