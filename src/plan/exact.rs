//! Towards the smallest plan: which capacities to search, and for how long.
//!
//! Rank 2. Part of `plan`.
//!
//! The lower bound is tried first, since it is the answer for nearly all problems.
//! Where that ends without one, capacities between it and the best plan are halved.
//! Passes repeat with twice as many nodes until the budget ends.

use std::time::{Duration, Instant};

use super::instance::Instance;
use super::options::PlanOptions;
use super::search::{Found, Limits, search, turns};

/// How many nodes a capacity gets in the first pass.
const FIRST_PASS: u64 = 6000;

/// How long a request may still be searched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// When to stop.
    pub(super) deadline: Option<Instant>,
    /// How many nodes each arena may have.
    pub(super) nodes: u64,
    /// How many threads may run.
    pub(super) threads: usize,
}

impl Budget {
    /// The budget of `options`, from now on.
    pub(super) fn new(options: &PlanOptions) -> Self {
        let end = |time: Duration| Instant::now().checked_add(time);
        Self {
            deadline: options.time.and_then(end),
            nodes: options.nodes.unwrap_or(u64::MAX),
            threads: options.threads,
        }
    }
}

/// What a search for a better plan has come to.
#[derive(Clone, Debug, Default)]
pub(super) struct Improved {
    /// Offsets that reach less high, if any were found.
    pub(super) offsets: Option<Vec<usize>>,
    /// What no plan can reach less high than, as far as was proved.
    pub(super) proved: usize,
    /// How many nodes were visited.
    pub(super) nodes: u64,
}

/// Looks for plans of `instance` that reach less high than `peak`, until one meets
/// `capacity`, the smallest is proved, or the budget ends.
pub(super) fn improve(
    instance: &Instance,
    peak: usize,
    capacity: Option<usize>,
    budget: &Budget,
) -> Improved {
    let mut state = State {
        instance,
        budget,
        best: peak,
        floor: instance.lower_bound,
        improved: Improved {
            offsets: None,
            proved: instance.lower_bound,
            nodes: 0,
        },
    };
    match capacity {
        Some(capacity) if instance.lower_bound <= capacity => {
            state.attempt(capacity, budget.nodes);
        }
        Some(_) => {}
        None => state.smallest(),
    }
    state.improved
}

/// A search under way.
struct State<'i> {
    instance: &'i Instance,
    budget: &'i Budget,
    /// The height of the best plan.
    best: usize,
    /// The lowest height that is worth a search: what was proved, or more where a search
    /// has tried all it can and proved nothing.
    floor: usize,
    improved: Improved,
}

impl State<'_> {
    /// Passes over capacities until the smallest is proved or the budget ends.
    fn smallest(&mut self) {
        let mut share = FIRST_PASS;
        while self.best > self.floor && !self.is_over() {
            let mut low = self.floor;
            self.attempt(low, share);
            low = low.max(self.floor);
            // Below `low` nothing was found in this pass.
            while low < self.best && !self.is_over() {
                let middle = low.midpoint(self.best);
                let before = self.best;
                self.attempt(middle, share);
                if self.best == before {
                    low = self.floor.max(middle.saturating_add(1));
                }
            }
            share = share.saturating_mul(2);
        }
    }

    /// Looks for a plan within `capacity`, with `nodes` nodes.
    fn attempt(&mut self, capacity: usize, nodes: u64) {
        let limits = Limits {
            nodes: nodes.min(self.budget.nodes.saturating_sub(self.improved.nodes)),
            deadline: self.budget.deadline,
            threads: self.budget.threads,
        };
        let (found, nodes) = search(self.instance, capacity, &limits);
        self.improved.nodes = self.improved.nodes.saturating_add(nodes);
        let above = capacity.saturating_add(1);
        match found {
            Found::Plan(offsets) => {
                self.best = self.instance.peak(&offsets).min(self.best);
                self.improved.offsets = Some(offsets);
            }
            Found::Impossible => {
                self.floor = self.floor.max(above);
                self.improved.proved = self.improved.proved.max(above);
            }
            Found::Exhausted => self.floor = self.floor.max(above),
            Found::Unknown => {}
        }
    }

    /// Whether the budget has ended.
    fn is_over(&self) -> bool {
        let late = |deadline| Instant::now() >= deadline;
        self.improved.nodes.saturating_add(turns()) >= self.budget.nodes
            || self.budget.deadline.is_some_and(late)
    }
}
