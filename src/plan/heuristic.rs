//! Placing every job once, in some order: fast, and often as small as possible.
//!
//! Rank 2. Part of `plan`.
//!
//! `order` says who comes first, `fit` where it goes, `guided` keeps a height in
//! view, `executorch` is the original. Each takes an [`Instance`] and gives an
//! offset for each of its jobs.

mod crowd;
mod executorch;
mod fit;
mod guided;
mod order;
mod totals;

use super::instance::Instance;

pub(super) use executorch::executorch_greedy;
pub(super) use fit::{Fit, place};
pub(super) use guided::guided;
pub(super) use order::Order;

/// An offset for each job, how high they reach, and who found them.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    /// The offset of each job, by its position.
    pub(super) offsets: Vec<usize>,
    /// The end of the highest job.
    pub(super) peak: usize,
    /// Which heuristic it was.
    pub(super) name: &'static str,
}

impl Layout {
    fn new(instance: &Instance, offsets: Vec<usize>, name: &'static str) -> Self {
        let peak = instance.peak(&offsets);
        Self {
            offsets,
            peak,
            name,
        }
    }
}

/// The pairs of jobs that may be looked at before no further heuristic is begun.
const WORK: usize = 40_000_000;

/// The best layout of all heuristics, from the cheapest on, which end as soon as
/// one meets `enough`.
///
/// Never higher than what ExecuTorch's planner finds. Which ones are tried depends
/// on the instance alone, so the result is always the same.
pub(super) fn best(instance: &Instance, enough: usize) -> Layout {
    let mut best = by(instance, Order::Size, Fit::Best, "greedy_by_size");
    let mut work = 0_usize;
    for (order, fit, name) in [
        (Order::Start, Fit::Best, "best_fit"),
        (Order::Breadth, Fit::First, "breadth_first_fit"),
        (Order::Size, Fit::First, "size_first_fit"),
        (Order::Start, Fit::First, "first_fit"),
        (Order::Area, Fit::First, "area_first_fit"),
        (Order::Breadth, Fit::Best, "greedy_by_breadth"),
    ] {
        if best.peak <= enough {
            return best;
        }
        work = work.saturating_add(instance.meetings());
        if work > WORK {
            break;
        }
        keep(&mut best, by(instance, order, fit, name));
    }
    if best.peak > enough {
        keep(&mut best, executorch(instance));
    }
    for order in Order::GUIDED {
        for hundredths in [0, 1, 5, 10, 50, 100, 200, 400] {
            if best.peak <= enough {
                return best;
            }
            work = work.saturating_add(instance.meetings().saturating_mul(2));
            if work > WORK {
                return best;
            }
            // Twice the room for each next one, from none on.
            let room = instance.lower_bound / 10_000;
            let height = room
                .saturating_mul(hundredths)
                .saturating_add(instance.lower_bound);
            keep(
                &mut best,
                Layout::new(instance, guided(instance, order, height), "guided"),
            );
        }
    }
    best
}

/// The layout of jobs placed in an order.
pub(super) fn by(instance: &Instance, order: Order, fit: Fit, name: &'static str) -> Layout {
    Layout::new(instance, place(instance, &order.of(instance), fit), name)
}

/// The layout of ExecuTorch's planner.
pub(super) fn executorch(instance: &Instance) -> Layout {
    Layout::new(instance, executorch_greedy(instance), "executorch_greedy")
}

/// Every job on top of all before it.
pub(super) fn naive(instance: &Instance) -> Layout {
    let mut end = 0_usize;
    let offsets = instance.jobs.iter().map(|job| {
        let start = job.fixed.unwrap_or_else(|| job.aligned(end));
        end = end.max(start.saturating_add(job.size));
        start
    });
    let offsets = offsets.collect();
    Layout::new(instance, offsets, "naive")
}

fn keep(best: &mut Layout, other: Layout) {
    if other.peak < best.peak {
        *best = other;
    }
}
