//! How to plan: with what, towards what, for how long.
//!
//! Rank 2. Part of `plan`.

use std::time::Duration;

use super::algorithm::Algorithm;

/// What a search works towards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Goal {
    /// The smallest arenas.
    #[default]
    Smallest,
    /// Any arenas within the capacity of their device; where a device has none,
    /// the smallest.
    Fit,
}

/// How to plan a request.
///
/// The default is [`Algorithm::Auto`] with 100 ms of search. A budget in nodes
/// gives the same plan on every machine; time is looked at between nodes.
///
/// # Examples
///
/// ```
/// use device_memory::plan::{Algorithm, PlanOptions};
///
/// let options = PlanOptions::new(Algorithm::Optimal).nodes(10_000).no_deadline();
///
/// assert_eq!(options.nodes, Some(10_000));
/// assert_eq!(options.time, None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlanOptions {
    /// What to plan with.
    pub algorithm: Algorithm,
    /// What a search works towards.
    pub goal: Goal,
    /// How many nodes a search may visit in each arena.
    pub nodes: Option<u64>,
    /// How long all searches of a request may take together.
    pub time: Option<Duration>,
    /// On how many threads to search. The plan found within a budget of nodes does
    /// not depend on it.
    pub threads: usize,
    /// Whether to look for values that can not fit together and of which none can be
    /// left out, if a capacity is proved too small: an irreducible set, not the smallest.
    /// What the limits of time and nodes do not allow to leave out stays in it.
    pub explain: bool,
}

impl Default for PlanOptions {
    fn default() -> Self {
        Self {
            algorithm: Algorithm::Auto,
            goal: Goal::Smallest,
            nodes: None,
            time: Some(Duration::from_millis(100)),
            threads: 1,
            explain: false,
        }
    }
}

impl PlanOptions {
    /// The default options with another algorithm.
    #[must_use]
    pub fn new(algorithm: Algorithm) -> Self {
        Self {
            algorithm,
            ..Self::default()
        }
    }

    /// The same with another goal.
    #[must_use]
    pub fn goal(self, goal: Goal) -> Self {
        Self { goal, ..self }
    }

    /// The same with a budget of nodes for each arena.
    #[must_use]
    pub fn nodes(self, nodes: u64) -> Self {
        Self {
            nodes: Some(nodes),
            ..self
        }
    }

    /// The same with a limit of time.
    #[must_use]
    pub fn time(self, time: Duration) -> Self {
        Self {
            time: Some(time),
            ..self
        }
    }

    /// The same without a limit of time.
    #[must_use]
    pub fn no_deadline(self) -> Self {
        Self { time: None, ..self }
    }

    /// The same on several threads.
    #[must_use]
    pub fn threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// The same with a set of values that can not fit, if a capacity can not be met.
    #[must_use]
    pub fn explain(self) -> Self {
        Self {
            explain: true,
            ..self
        }
    }
}
