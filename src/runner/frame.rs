//! What the values of a graph look like while it runs.
//!
//! Rank 9. Part of `runner`.

use crate::error::Result;
use crate::graph::{Graph, ValueId};
use crate::runner::value_of;
use crate::shape::TensorSpec;

/// The values of one graph whose sizes were found to be other than planned.
#[derive(Debug)]
pub(super) struct Frame {
    found: Vec<Option<TensorSpec>>,
}

impl Frame {
    pub(super) fn new(graph: &Graph) -> Self {
        Self {
            found: vec![None; graph.values().len()],
        }
    }

    /// What a value looks like now.
    pub(super) fn spec<'a>(&'a self, graph: &'a Graph, id: ValueId) -> Result<&'a TensorSpec> {
        match self.found.get(id.index()) {
            Some(Some(found)) => Ok(found),
            _ => Ok(value_of(graph, id)?.spec()),
        }
    }

    /// Says what a value looks like now; as planned if `None`.
    pub(super) fn set(&mut self, id: ValueId, spec: Option<TensorSpec>) {
        if let Some(found) = self.found.get_mut(id.index()) {
            *found = spec;
        }
    }

    /// What a value that lies in another one looks like at first: it has the sizes of
    /// its base where it was planned with the same ones.
    pub(super) fn inherited(&self, graph: &Graph, id: ValueId) -> Result<Option<TensorSpec>> {
        let value = value_of(graph, id)?;
        let Some(base) = value.base() else {
            return Ok(None);
        };
        let planned = value_of(graph, base.value)?.spec();
        match self.found.get(base.value.index()) {
            Some(Some(found)) if planned.sizes() == value.spec().sizes() => {
                value.spec().resized(found.sizes()).map(Some)
            }
            _ => Ok(None),
        }
    }
}
