//! One arena as the planners see it: jobs over sections.
//!
//! Rank 2. Part of `plan`.
//!
//! A section is a stretch of steps in which the same values are alive, and of
//! these only the largest are kept: a step whose live values are among those of
//! another asks for nothing new. A job is alive in a run of neighbouring sections.
//! Offsets here count from the first byte that the arena leaves to its values.

use super::problem::Arena;

/// Something to place: its size, and the sections in which it is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Job {
    /// In bytes.
    pub(super) size: usize,
    /// In bytes, a power of two.
    pub(super) align: usize,
    /// The first section.
    pub(super) from: usize,
    /// The section after the last.
    pub(super) to: usize,
    /// Its length in steps.
    pub(super) steps: usize,
    /// The offset that it must have.
    pub(super) fixed: Option<usize>,
}

impl Job {
    /// The lowest offset from `offset` on that it may have by its alignment.
    pub(super) fn aligned(&self, offset: usize) -> usize {
        let below = self.align.wrapping_sub(1);
        offset.saturating_add(below) & !below
    }
}

/// The jobs of one arena.
#[derive(Clone, Debug, Default)]
pub(super) struct Instance {
    /// The jobs, in the order of the items of the arena.
    pub(super) jobs: Vec<Job>,
    /// How many sections there are.
    pub(super) sections: usize,
    /// The largest sum of sizes in a section.
    pub(super) lower_bound: usize,
}

impl Instance {
    /// The instance of an arena. Gaps are not in it: a job is alive from its first
    /// step to its last.
    pub(super) fn new(arena: &Arena) -> Self {
        let mut jobs: Vec<Job> = arena
            .items
            .iter()
            .map(|item| Job {
                size: item.size,
                align: item.align,
                from: 0,
                to: 0,
                steps: item.last.saturating_sub(item.first).saturating_add(1),
                fixed: item.fixed.map(|offset| offset.saturating_sub(arena.base)),
            })
            .collect();
        let (mut starts, mut ends): (Vec<_>, Vec<_>) = (0..)
            .zip(&arena.items)
            .map(|(job, item)| ((item.first, job), (item.last, job)))
            .collect();
        starts.sort_unstable();
        ends.sort_unstable();

        let (mut section, mut ended) = (0_usize, false);
        let (mut live, mut lower_bound) = (0_usize, 0);
        let mut starts = starts.into_iter().peekable();
        for (last, ending) in ends {
            while let Some((_, job)) = starts.next_if(|&(first, _)| first <= last) {
                section = section.saturating_add(usize::from(ended));
                ended = false;
                if let Some(job) = jobs.get_mut::<usize>(job) {
                    job.from = section;
                    live = live.saturating_add(job.size);
                }
            }
            lower_bound = live.max(lower_bound);
            ended = true;
            if let Some(job) = jobs.get_mut(ending) {
                job.to = section.saturating_add(1);
                live = live.saturating_sub(job.size);
            }
        }
        Self {
            sections: if jobs.is_empty() {
                0
            } else {
                section.saturating_add(1)
            },
            jobs,
            lower_bound,
        }
    }

    /// The end of the highest job, if each has the offset at its position.
    pub(super) fn peak(&self, offsets: &[usize]) -> usize {
        let ends = self.jobs.iter().zip(offsets);
        let ends = ends.filter(|(job, _)| job.size > 0);
        let ends = ends.map(|(job, offset)| offset.saturating_add(job.size));
        ends.max().unwrap_or(0)
    }

    /// The sum of sizes in each section.
    pub(super) fn section_totals(&self) -> Vec<usize> {
        let mut change = vec![(0_usize, 0_usize); self.sections.saturating_add(1)];
        for job in &self.jobs {
            if let Some((up, _)) = change.get_mut(job.from) {
                *up = up.saturating_add(job.size);
            }
            if let Some((_, down)) = change.get_mut(job.to) {
                *down = down.saturating_add(job.size);
            }
        }
        let mut total = 0_usize;
        let totals = change.into_iter().map(|(up, down)| {
            total = total.saturating_add(up).saturating_sub(down);
            total
        });
        totals.take(self.sections).collect()
    }

    /// For each job, the largest total of the sections in which it is alive.
    pub(super) fn fullest(&self) -> Vec<usize> {
        self.largest_of(&self.section_totals())
    }

    /// For each job, the largest of the numbers of its sections.
    pub(super) fn largest_of(&self, numbers: &[usize]) -> Vec<usize> {
        // Row `n` has the largest of each 2^n numbers from a position on.
        let mut rows = vec![numbers.to_vec()];
        let mut width = 1_usize;
        while let Some(last) = rows.last()
            && width < numbers.len()
        {
            let pairs = last.iter().zip(last.iter().skip(width));
            let next: Vec<usize> = pairs.map(|(one, other)| *one.max(other)).collect();
            rows.push(next);
            width = width.saturating_mul(2);
        }
        let largest = |job: &Job| {
            let len = job.to.saturating_sub(job.from);
            let row = rows.get(usize::try_from(len.checked_ilog2()?).ok()?)?;
            let width = 1_usize.checked_shl(len.checked_ilog2()?)?;
            let last = row.get(job.to.saturating_sub(width))?;
            Some(*row.get(job.from)?.max(last))
        };
        let jobs = self.jobs.iter();
        jobs.map(|job| largest(job).unwrap_or(0)).collect()
    }

    /// About how many pairs of jobs meet: what a heuristic has to look at.
    pub(super) fn meetings(&self) -> usize {
        let mut starting = vec![0_usize; self.sections.saturating_add(1)];
        for job in &self.jobs {
            for (section, up) in [(job.from, true), (job.to, false)] {
                if let Some(slot) = starting.get_mut(section) {
                    *slot = match up {
                        true => slot.wrapping_add(1),
                        false => slot.wrapping_sub(1),
                    };
                }
            }
        }
        let mut live = 0_usize;
        let alive = starting.into_iter().map(|change| {
            live = live.wrapping_add(change);
            live
        });
        let most = alive.max().unwrap_or(0);
        self.jobs.len().saturating_mul(most)
    }
}
