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
const WORK: usize = 300_000_000;

/// Instances with more pairs than this are large: what helps them most comes first.
const LARGE: usize = 20_000_000;

/// A heuristic.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Jobs in an order, each where it fits.
    Placed(Order, Fit, &'static str),
    /// From the bottom up, with so many ten-thousandths above the lower bound in view.
    Guided(Order, usize),
    /// The original.
    Executorch,
}

impl Way {
    /// The layout that it finds, if that ends below `below`.
    fn take(self, instance: &Instance, below: usize) -> Option<Layout> {
        let layout = match self {
            Self::Placed(order, fit, name) => {
                let offsets = place(instance, &order.of(instance), fit, below)?;
                Layout::new(instance, offsets, name)
            }
            Self::Executorch => executorch(instance),
            Self::Guided(order, room) => {
                let room = (instance.lower_bound / 10_000).saturating_mul(room);
                let height = instance.lower_bound.saturating_add(room);
                Layout::new(instance, guided(instance, order, height, below)?, "guided")
            }
        };
        Some(layout).filter(|layout| layout.peak < below)
    }
}

/// What comes first for small instances, and is enough for most.
const FOR_SMALL: [Way; 9] = [
    Way::Guided(Order::LifeAreaTotal, 0),
    Way::Placed(Order::Size, Fit::Best, "greedy_by_size"),
    Way::Placed(Order::Start, Fit::Best, "best_fit"),
    Way::Placed(Order::Breadth, Fit::First, "breadth_first_fit"),
    Way::Placed(Order::Size, Fit::First, "size_first_fit"),
    Way::Placed(Order::Start, Fit::First, "first_fit"),
    Way::Placed(Order::Area, Fit::First, "area_first_fit"),
    Way::Placed(Order::Breadth, Fit::Best, "greedy_by_breadth"),
    Way::Executorch,
];

/// What comes first for large ones, for which there is less time.
const FOR_LARGE: [Way; 8] = [
    Way::Placed(Order::Size, Fit::Best, "greedy_by_size"),
    Way::Guided(Order::AreaTotalLife, 20),
    Way::Placed(Order::Area, Fit::First, "area_first_fit"),
    Way::Placed(Order::Breadth, Fit::First, "breadth_first_fit"),
    Way::Placed(Order::Start, Fit::Best, "best_fit"),
    Way::Placed(Order::Start, Fit::First, "first_fit"),
    Way::Placed(Order::Breadth, Fit::Best, "greedy_by_breadth"),
    Way::Executorch,
];

/// The best layout of all heuristics, from the cheapest on, which end as soon as
/// one meets `enough`.
///
/// Those that come first are all tried, among them each that is an algorithm of its
/// own: the best is never higher than any of these. Which others are tried depends on
/// the instance alone, so the result is always the same.
pub(super) fn best(instance: &Instance, enough: usize) -> Layout {
    let rooms = [0, 5, 50, 100, 200, 400];
    let guided = Order::GUIDED.into_iter();
    let guided = guided.flat_map(|order| rooms.map(|room| Way::Guided(order, room)));
    let is_large = instance.meetings() > LARGE;
    let first = if is_large {
        &FOR_LARGE[..]
    } else {
        &FOR_SMALL[..]
    };
    let guided = guided.filter(|way| !first.contains(way));
    let ways = first.iter().copied().chain(guided);
    let mut best = naive(instance);
    let mut work = 0_usize;
    for way in ways {
        if best.peak <= enough {
            break;
        }
        work = work.saturating_add(instance.meetings());
        let is_due = first.contains(&way) || work <= WORK;
        if is_due && let Some(better) = way.take(instance, best.peak) {
            best = better;
        }
    }
    best
}

/// The layout of jobs placed in an order.
pub(super) fn by(instance: &Instance, order: Order, fit: Fit, name: &'static str) -> Layout {
    let layout = Way::Placed(order, fit, name).take(instance, usize::MAX);
    layout.unwrap_or_else(|| naive(instance))
}

/// The layout of ExecuTorch's planner.
pub(super) fn executorch(instance: &Instance) -> Layout {
    Layout::new(instance, executorch_greedy(instance), "executorch_greedy")
}

/// Every job on top of all before it and of those with fixed offsets.
pub(super) fn naive(instance: &Instance) -> Layout {
    let jobs = instance.jobs.iter();
    let fixed = jobs
        .clone()
        .filter_map(|job| Some(job.fixed?.saturating_add(job.size)));
    let mut end = fixed.max().unwrap_or(0);
    let offsets = jobs.map(|job| {
        let start = job.fixed.unwrap_or_else(|| job.aligned(end));
        end = end.max(start.saturating_add(job.size));
        start
    });
    let offsets = offsets.collect();
    Layout::new(instance, offsets, "naive")
}
