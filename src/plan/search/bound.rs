//! Whether what is left can still fit: a bound for each section.
//!
//! Rank 2. Part of `plan`.
//!
//! In a section the jobs lie one above the other, each no lower than the lowest
//! offset it can still have (its release). Stacked in the order of releases they
//! reach a height that no order can undercut. One pass over the jobs computes it
//! for all sections: a job raises each section of its run to its release, then adds
//! its size.
//!
//! A job that was passed over, because something later in the order was placed, can
//! not have its release any more: some other job must come to lie under it first.
//! Its release is then at least the lowest top of the jobs it meets. Those are
//! found in the same pass, since tops are met in the order of releases.

use super::gaps::Gaps;
use super::lane::{Block, LANES, Lane};

/// A job that is not placed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry<T> {
    /// The lowest offset that the jobs placed so far leave it, aligned.
    pub(super) release: T,
    /// Its place in the order of jobs with equal releases.
    pub(super) rank: u16,
    /// Which job it is.
    pub(super) id: u16,
    /// Its first section.
    pub(super) from: u16,
    /// The section after its last.
    pub(super) to: u16,
    /// Its size.
    pub(super) size: T,
    /// Its alignment, less one.
    pub(super) below: T,
    /// Whether its release is the only offset it may have.
    pub(super) fixed: bool,
    /// Whether it is not alive from its first section to its last.
    pub(super) has_gaps: bool,
}

impl<T: Lane> Entry<T> {
    /// Whether both are alive in some section, if their lives have no gaps.
    #[inline(always)]
    pub(super) fn meets(&self, other: &Self) -> bool {
        self.from < other.to && other.from < self.to
    }

    /// Its end, if it lies at its release.
    #[inline(always)]
    pub(super) fn top(&self) -> T {
        self.release.plus(self.size)
    }

    /// The lowest aligned offset from `offset` on.
    #[inline(always)]
    pub(super) fn aligned(&self, offset: T) -> T {
        offset.plus(self.below).and(self.below.not())
    }

    /// Whether both are the same but for their names.
    pub(super) fn is_twin(&self, other: &Self) -> bool {
        let (rank, id) = (other.rank, other.id);
        !self.has_gaps && Self { rank, id, ..*self } == *other
    }

    /// Its place in the order in which jobs are placed.
    #[inline(always)]
    pub(super) fn position(&self) -> (T, u16) {
        (self.release, self.rank)
    }
}

/// Working memory of the bound.
#[derive(Debug)]
pub(super) struct Bound<T> {
    capacity: T,
    /// What jobs with gaps need.
    gaps: Gaps<T>,
    /// The height reached in each section.
    heights: Vec<Block<T>>,
    /// Jobs passed over whose release is not known yet; until then it is the lowest
    /// top found.
    waiting: Vec<Entry<T>>,
}

impl<T: Lane> Bound<T> {
    /// A bound for `sections` sections and jobs with these gaps.
    pub(super) fn new(sections: usize, capacity: T, gaps: Gaps<T>) -> Self {
        let blocks = sections.div_ceil(LANES);
        Self {
            capacity,
            gaps,
            heights: vec![[T::ZERO; LANES]; blocks],
            waiting: Vec::new(),
        }
    }

    /// What jobs with gaps need.
    pub(super) fn gaps(&self) -> &Gaps<T> {
        &self.gaps
    }

    /// Whether `entries`, in the order of their positions, may all fit if nothing is
    /// placed before `after` in that order any more. False is a proof.
    pub(super) fn may_fit(&mut self, entries: &[Entry<T>], after: (T, u16)) -> bool {
        if self.gaps.is_empty() {
            self.may_all_fit::<false>(entries, after)
        } else {
            self.may_all_fit::<true>(entries, after)
        }
    }

    fn may_all_fit<const GAPS: bool>(&mut self, entries: &[Entry<T>], after: (T, u16)) -> bool {
        let passed_over = entries.partition_point(|entry| entry.position() < after);
        let Some((passed_over, ahead)) = entries.split_at_checked(passed_over) else {
            return true;
        };
        self.heights.fill([T::ZERO; LANES]);
        let ahead = if passed_over.is_empty() {
            ahead
        } else {
            let Some(rest) = self.lift::<GAPS>(passed_over, ahead) else {
                return false;
            };
            rest
        };
        for entry in ahead {
            stack::<GAPS, T>(&mut self.heights, entry, &self.gaps);
        }
        let mut highest = [T::ZERO; LANES];
        for block in &self.heights {
            for (high, &height) in highest.iter_mut().zip(block) {
                *high = height.max(*high);
            }
        }
        highest.iter().all(|&height| height <= self.capacity)
    }

    /// Stacks the jobs passed over, and of those ahead as many as it takes to find
    /// their releases; returns the others. `None` if one can not be placed.
    #[inline]
    fn lift<'e, const GAPS: bool>(
        &mut self,
        passed_over: &[Entry<T>],
        ahead: &'e [Entry<T>],
    ) -> Option<&'e [Entry<T>]> {
        let Self {
            heights,
            waiting,
            gaps,
            ..
        } = self;
        waiting.clear();
        waiting.extend(passed_over.iter().map(|entry| Entry {
            release: T::INFINITE,
            ..*entry
        }));
        let mut rest = ahead;
        loop {
            let lowest = (0..)
                .zip(waiting.iter())
                .min_by_key(|(_, entry)| entry.release);
            let Some((position, lowest)) = lowest else {
                return Some(rest);
            };
            let next = match rest.split_first() {
                Some((entry, others)) if entry.release <= lowest.release => {
                    rest = others;
                    *entry
                }
                _ if lowest.release == T::INFINITE => return None,
                _ => waiting.swap_remove(position),
            };
            stack::<GAPS, T>(heights, &next, gaps);
            for entry in waiting.iter_mut() {
                if let Some(lowest) = gaps.lowest_above::<GAPS>(&next, entry)
                    && !entry.fixed
                    && lowest < entry.release
                {
                    entry.release = entry.aligned(lowest).min(entry.release);
                }
            }
        }
    }
}

/// Raises the sections of `entry` to its release, then by what it needs in each.
#[inline(always)]
fn stack<const GAPS: bool, T: Lane>(heights: &mut [Block<T>], entry: &Entry<T>, gaps: &Gaps<T>) {
    if GAPS && entry.has_gaps {
        gaps.each(entry, |need| {
            let size = need.high.minus(need.low);
            stack_run(heights, need.from, need.to, entry.release, size);
        });
    } else {
        stack_run(heights, entry.from, entry.to, entry.release, entry.size);
    }
}

/// Raises a run of sections to `release`, then by `size`.
#[inline(always)]
fn stack_run<T: Lane>(heights: &mut [Block<T>], from: u16, to: u16, release: T, size: T) {
    let (from, to) = (usize::from(from), usize::from(to));
    let (first, last) = (from / LANES, to.saturating_sub(1) / LANES);
    let Some(run) = heights.get_mut(first..=last) else {
        return;
    };
    let (Some(&head), Some(&tail)) = (T::FROM.get(from % LANES), T::FROM.get(to % LANES)) else {
        return;
    };
    let ends_inside = to % LANES != 0;
    let Some((block, others)) = run.split_first_mut() else {
        return;
    };
    if others.is_empty() && ends_inside {
        for ((height, head), tail) in block.iter_mut().zip(head).zip(tail) {
            let mask = head.and(tail.not());
            *height = release.and(mask).max(*height).plus(size.and(mask));
        }
        return;
    }
    for (height, mask) in block.iter_mut().zip(head) {
        *height = release.and(mask).max(*height).plus(size.and(mask));
    }
    let middle = if ends_inside {
        let Some((block, middle)) = others.split_last_mut() else {
            return;
        };
        for (height, tail) in block.iter_mut().zip(tail) {
            let mask = tail.not();
            *height = release.and(mask).max(*height).plus(size.and(mask));
        }
        middle
    } else {
        others
    };
    for block in middle {
        for height in block {
            *height = release.max(*height).plus(size);
        }
    }
}
