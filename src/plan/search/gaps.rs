//! Which jobs are in each other's way, where some lives have gaps.
//!
//! Rank 2. Part of `plan`.
//!
//! An entry has the run of sections from the first to the last in which its job is
//! alive. Where gaps leave some of them out, the entry says so, and what is left is
//! here, by id. Code that is hot is there twice, with `GAPS` and for problems without.

use super::bound::Entry;
use super::lane::Lane;

/// Bytes of a job that it needs in a run of sections.
#[derive(Clone, Copy, Debug)]
pub(super) struct Need<T> {
    /// The first section.
    pub(super) from: u16,
    /// The section after the last.
    pub(super) to: u16,
    /// The first byte.
    pub(super) low: T,
    /// The byte after the last.
    pub(super) high: T,
}

/// What the jobs with gaps need, by id; nothing where no job has gaps.
#[derive(Clone, Debug)]
pub(super) struct Gaps<T> {
    pub(super) needs: Vec<Vec<Need<T>>>,
}

impl<T: Lane> Gaps<T> {
    /// Whether no job has gaps.
    pub(super) fn is_empty(&self) -> bool {
        self.needs.is_empty()
    }

    /// The lowest release of `above` that leaves it above `below`; `None` if they are
    /// never alive together.
    #[inline(always)]
    pub(super) fn lowest_above<const GAPS: bool>(
        &self,
        below: &Entry<T>,
        above: &Entry<T>,
    ) -> Option<T> {
        let reach = if !below.meets(above) {
            return None;
        } else if GAPS && (below.has_gaps || above.has_gaps) {
            self.reach(below, above)?
        } else {
            below.size
        };
        Some(below.release.plus(reach))
    }

    /// How far above the release of `below` that of `above` is at least, if it lies
    /// above it. `None` if they are never alive together.
    #[cold]
    fn reach(&self, below: &Entry<T>, above: &Entry<T>) -> Option<T> {
        let mut most = None;
        self.each(below, |need| {
            self.each(above, |other| {
                if need.from < other.to && other.from < need.to {
                    let reach = if need.high > other.low {
                        need.high.minus(other.low)
                    } else {
                        T::ZERO
                    };
                    most = most.max(Some(reach));
                }
            });
        });
        most
    }

    /// Calls `found` with each need of a job.
    pub(super) fn each(&self, entry: &Entry<T>, mut found: impl FnMut(Need<T>)) {
        match self.needs.get(usize::from(entry.id)) {
            Some(needs) if entry.has_gaps => needs.iter().copied().for_each(found),
            _ => found(Need {
                from: entry.from,
                to: entry.to,
                low: T::ZERO,
                high: entry.size,
            }),
        }
    }
}
