//! One arena as the planners see it: jobs over sections.
//!
//! Rank 2. Part of `plan`.
//!
//! A section is a stretch of steps in which the same values are alive, and of
//! these only the largest are kept: a step whose live values are among those of
//! another asks for nothing new. A job is alive in a run of neighbouring sections, of
//! which gaps may leave some out. What is reserved is one more job, at the bottom in
//! all sections.
//!
//! Whether two jobs are in each other's way, and how far, is for [`Job::reach`] and
//! [`Job::obstacles`] to say, and for nothing else.

use super::problem::{Arena, Item};

/// Bytes of a job that it needs in a run of sections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Need {
    /// The first section.
    pub(super) from: usize,
    /// The section after the last.
    pub(super) to: usize,
    /// The first byte.
    pub(super) low: usize,
    /// The byte after the last, above the first.
    pub(super) high: usize,
}

/// Something to place: its size, and the sections in which it is alive.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// What gaps leave of it; `None` without gaps.
    pub(super) parts: Option<Vec<Need>>,
}

impl Job {
    /// The lowest offset from `offset` on that it may have by its alignment.
    pub(super) fn aligned(&self, offset: usize) -> usize {
        let below = self.align.wrapping_sub(1);
        offset.saturating_add(below) & !below
    }

    /// Adds what it needs in a run of sections, which comes after all before it.
    fn live(&mut self, need: Need) {
        let is_first = self.to == 0;
        self.from = if is_first { need.from } else { self.from };
        self.to = need.to;
        if let Some(parts) = &mut self.parts {
            parts.push(need);
        }
    }

    /// All of it in all its sections.
    fn whole(&self) -> Need {
        Need {
            from: self.from,
            to: self.to,
            low: 0,
            high: self.size,
        }
    }

    /// Calls `found` with what it needs when.
    #[inline]
    pub(super) fn each(&self, mut found: impl FnMut(Need)) {
        match &self.parts {
            None => found(self.whole()),
            Some(parts) => parts.iter().copied().for_each(found),
        }
    }

    /// What it needs when: all of it in all its sections, or what gaps leave.
    pub(super) fn needs(&self) -> impl Iterator<Item = Need> + '_ {
        let whole = self.parts.is_none().then(|| self.whole());
        let parts = self.parts.iter().flatten().copied();
        whole.into_iter().chain(parts)
    }

    /// Whether it needs any byte in any section.
    pub(super) fn takes_room(&self) -> bool {
        self.size > 0 && self.from < self.to
    }

    /// Whether its end counts: not where it has no bytes and may be anywhere.
    fn reaches(&self) -> bool {
        self.size > 0 || self.fixed.is_some()
    }

    /// How far above its offset that of `other` is at least, if `other` lies above it.
    /// `None` if they are never alive together. They are of runs of sections that meet.
    #[inline]
    pub(super) fn reach(&self, other: &Self) -> Option<usize> {
        if self.parts.is_none() && other.parts.is_none() {
            return Some(self.size);
        }
        self.reach_between(other)
    }

    #[cold]
    fn reach_between(&self, other: &Self) -> Option<usize> {
        let met = self.needs().flat_map(|need| other.needs_in(need));
        met.map(|(need, other)| need.high.saturating_sub(other.low))
            .max()
    }

    /// Calls `found` with each range of bytes that it has to end before or to begin
    /// behind while `other` is at `offset`.
    #[inline]
    pub(super) fn obstacles(
        &self,
        other: &Self,
        offset: usize,
        mut found: impl FnMut(usize, usize),
    ) {
        if self.parts.is_none() && other.parts.is_none() {
            return found(offset, offset.saturating_add(other.size));
        }
        self.obstacles_between(other, offset, &mut found);
    }

    #[cold]
    fn obstacles_between(&self, other: &Self, offset: usize, found: &mut dyn FnMut(usize, usize)) {
        for (need, own) in other.needs().flat_map(|need| self.needs_in(need)) {
            let unused = self.size.saturating_sub(own.high);
            let start = offset.saturating_add(need.low).saturating_add(unused);
            let end = offset.saturating_add(need.high).saturating_sub(own.low);
            found(start, end);
        }
    }

    /// `need` with each of its own needs that shares a section with it.
    fn needs_in(&self, need: Need) -> impl Iterator<Item = (Need, Need)> + '_ {
        let own = self.needs();
        let own = own.filter(move |own| own.from < need.to && need.from < own.to);
        own.map(move |own| (need, own))
    }
}

/// In how many steps an item needs any bytes.
fn steps(item: &Item) -> usize {
    let len = |first: usize, last: usize| last.saturating_sub(first).saturating_add(1);
    match &item.stretches {
        None => len(item.first, item.last),
        Some(stretches) => {
            let lens = stretches.iter().map(|of| len(of.first, of.last));
            lens.fold(0, usize::saturating_add)
        }
    }
}

/// Bytes of a job that it needs in a run of steps.
struct Span {
    job: usize,
    first: usize,
    last: usize,
    low: usize,
    high: usize,
}

/// What the items of an arena need, one span an item without gaps.
fn spans(arena: &Arena) -> Vec<Span> {
    let mut spans = Vec::with_capacity(arena.items.len());
    for (job, item) in arena.items.iter().enumerate() {
        match &item.stretches {
            None => spans.push(Span {
                job,
                first: item.first,
                last: item.last,
                low: 0,
                high: item.size,
            }),
            Some(stretches) => spans.extend(stretches.iter().map(|stretch| Span {
                job,
                first: stretch.first,
                last: stretch.last,
                low: stretch.bytes.start,
                high: stretch.bytes.end,
            })),
        }
    }
    spans
}

/// The jobs of one arena.
#[derive(Clone, Debug, Default)]
pub(super) struct Instance {
    /// The jobs, in the order of the items of the arena; what is reserved is the last.
    pub(super) jobs: Vec<Job>,
    /// How many sections there are.
    pub(super) sections: usize,
    /// What the end of the highest job can not be less than: the largest sum of what
    /// is needed in a section, and the end of each job that can not lie lower.
    pub(super) lower_bound: usize,
}

impl Instance {
    /// The instance of an arena.
    pub(super) fn new(arena: &Arena) -> Self {
        let mut jobs: Vec<Job> = arena
            .items
            .iter()
            .map(|item| Job {
                size: item.size,
                align: item.align,
                from: 0,
                to: 0,
                steps: steps(item),
                fixed: item.fixed,
                parts: item.stretches.as_ref().map(|_| Vec::new()),
            })
            .collect();
        let spans = spans(arena);
        let (mut starts, mut ends): (Vec<_>, Vec<_>) = (0..)
            .zip(&spans)
            .map(|(index, span)| ((span.first, index), (span.last, index)))
            .collect();
        starts.sort_unstable();
        ends.sort_unstable();

        let (mut section, mut ended) = (0_usize, false);
        let (mut live, mut lower_bound) = (0_usize, 0);
        let mut begun = vec![0; spans.len()];
        let mut starts = starts.into_iter().peekable();
        for (last, ending) in ends {
            while let Some((_, starting)) = starts.next_if(|&(first, _)| first <= last) {
                section = section.saturating_add(usize::from(ended));
                ended = false;
                if let (Some(span), Some(from)) = (spans.get(starting), begun.get_mut(starting)) {
                    *from = section;
                    live = live.saturating_add(span.high.saturating_sub(span.low));
                }
            }
            lower_bound = live.max(lower_bound);
            ended = true;
            if let (Some(span), Some(&from)) = (spans.get(ending), begun.get::<usize>(ending)) {
                live = live.saturating_sub(span.high.saturating_sub(span.low));
                if let Some(job) = jobs.get_mut(span.job) {
                    job.live(Need {
                        from,
                        to: section.saturating_add(1),
                        low: span.low,
                        high: span.high,
                    });
                }
            }
        }
        let sections = match jobs.is_empty() {
            true => 0,
            false => section.saturating_add(1),
        };
        if arena.reserved > 0 {
            lower_bound = lower_bound.saturating_add(arena.reserved);
            jobs.push(Job {
                size: arena.reserved,
                align: 1,
                from: 0,
                to: sections,
                steps: usize::MAX,
                fixed: Some(0),
                parts: None,
            });
        }
        // Where a job is fixed, and where it has bytes that it never needs, it may reach
        // higher than what is alive.
        let ends = jobs.iter().filter(|job| job.reaches());
        let ends = ends.map(|job| job.fixed.unwrap_or(0).saturating_add(job.size));
        lower_bound = ends.max().unwrap_or(0).max(lower_bound);
        Self {
            sections,
            jobs,
            lower_bound,
        }
    }

    /// The end of the highest job, if each has the offset at its position.
    pub(super) fn peak(&self, offsets: &[usize]) -> usize {
        let ends = self.jobs.iter().zip(offsets);
        let ends = ends.filter(|(job, _)| job.reaches());
        let ends = ends.map(|(job, offset)| offset.saturating_add(job.size));
        ends.max().unwrap_or(0)
    }

    /// Whether some job needs a part of its bytes while it does not need the others.
    pub(super) fn has_windows(&self) -> bool {
        let mut parted = self.jobs.iter().filter(|job| job.parts.is_some());
        parted.any(|job| {
            job.needs()
                .any(|need| (need.low, need.high) != (0, job.size))
        })
    }

    /// The sum of what is needed in each section.
    pub(super) fn section_totals(&self) -> Vec<usize> {
        let mut change = vec![(0_usize, 0_usize); self.sections.saturating_add(1)];
        for job in &self.jobs {
            job.each(|need| {
                let bytes = need.high.saturating_sub(need.low);
                if let Some((up, _)) = change.get_mut(need.from) {
                    *up = up.saturating_add(bytes);
                }
                if let Some((_, down)) = change.get_mut(need.to) {
                    *down = down.saturating_add(bytes);
                }
            });
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
        let largest = |need: Need| {
            let len = need.to.saturating_sub(need.from);
            let row = rows.get(usize::try_from(len.checked_ilog2()?).ok()?)?;
            let width = 1_usize.checked_shl(len.checked_ilog2()?)?;
            let last = row.get(need.to.saturating_sub(width))?;
            Some(*row.get(need.from)?.max(last))
        };
        let jobs = self.jobs.iter();
        jobs.map(|job| job.needs().filter_map(largest).max().unwrap_or(0))
            .collect()
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
