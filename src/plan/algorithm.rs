//! The algorithms, by name.
//!
//! Rank 2. Part of `plan`.

use std::fmt;
use std::str::FromStr;

/// What to plan with.
///
/// # Examples
///
/// ```
/// use device_memory::plan::Algorithm;
///
/// assert_eq!("greedy_by_size".parse(), Ok(Algorithm::GreedyBySize));
/// assert_eq!(Algorithm::Auto.to_string(), "auto");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Every value has bytes of its own: no reuse.
    Naive,
    /// ExecuTorch's default planner, offset for offset.
    ExecutorchGreedy,
    /// Largest value first, each into the smallest gap that holds it.
    GreedyBySize,
    /// Step with the most live bytes first, its values by size.
    GreedyByBreadth,
    /// In the order of first uses, each into the smallest gap that holds it.
    BestFit,
    /// In the order of first uses, each at the lowest offset that is free.
    FirstFit,
    /// The best of the heuristics, then a search that ends with the smallest plan
    /// or with its budget.
    Optimal,
    /// The heuristics from the cheapest on, until one meets the lower bound; then a
    /// search.
    #[default]
    Auto,
}

/// A name that no algorithm has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no planning algorithm {name:?}: there are {}", Algorithm::names().join(", "))]
pub struct UnknownAlgorithm {
    /// The name.
    pub name: String,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Naive,
        Self::ExecutorchGreedy,
        Self::GreedyBySize,
        Self::GreedyByBreadth,
        Self::BestFit,
        Self::FirstFit,
        Self::Optimal,
        Self::Auto,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Naive => "naive",
            Self::ExecutorchGreedy => "executorch_greedy",
            Self::GreedyBySize => "greedy_by_size",
            Self::GreedyByBreadth => "greedy_by_breadth",
            Self::BestFit => "best_fit",
            Self::FirstFit => "first_fit",
            Self::Optimal => "optimal",
            Self::Auto => "auto",
        }
    }

    /// All names.
    fn names() -> [&'static str; 8] {
        Self::ALL.map(Self::name)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, UnknownAlgorithm> {
        let found = Self::ALL.into_iter().find(|one| one.name() == name);
        found.ok_or_else(|| UnknownAlgorithm {
            name: name.to_owned(),
        })
    }
}
