//! Where the bytes of a value are.
//!
//! Rank 4. Part of `graph`.

use crate::graph::ValueId;
use crate::plan::Placement;

/// Where the bytes of a value are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// In a buffer of the plan.
    Planned(Placement),
    /// In memory that the caller gives for a value of the outermost graph.
    Given {
        /// That value, which lies in no other.
        value: ValueId,
        /// Where in its bytes.
        offset: usize,
        /// How many, if that is bounded.
        size: Option<usize>,
    },
}

/// The places of the values of one graph, and of the graphs inside its nodes.
#[derive(Clone, Debug)]
pub(crate) struct Scope {
    pub(crate) places: Vec<Place>,
    pub(crate) inner: Vec<Vec<Scope>>,
}

impl Place {
    /// The `size` bytes from `offset` on.
    pub(super) fn part(self, offset: usize, size: usize) -> Self {
        match self {
            Self::Planned(placement) => Self::Planned(Placement::new(
                placement.memory_id,
                placement.offset.saturating_add(offset),
                size,
            )),
            Self::Given {
                value,
                offset: start,
                ..
            } => Self::Given {
                value,
                offset: start.saturating_add(offset),
                size: Some(size),
            },
        }
    }
}
