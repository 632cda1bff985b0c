//! When each value of a graph is needed.
//!
//! Rank 4. Part of `graph`.

use crate::graph::{Graph, Role, ValueId};

/// The steps at which a value is needed, both ends counted.
///
/// Step 0 is before the first node: what is there from the start is needed from
/// then on. The node at position `i` runs at step `i + 1`, and the caller reads
/// the outputs at the step after the last node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lifetime {
    /// The first step.
    pub first: usize,
    /// The last step.
    pub last: usize,
}

impl Lifetime {
    /// Whether both are needed at some step.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    fn extend_to(&mut self, step: usize) {
        self.last = self.last.max(step);
    }
}

/// The lifetime of each value, by its number.
///
/// A value lives from the node that makes it to the last one that reads it, an
/// output to the end; what no one reads lives for one step. Inputs and constants
/// live from the start, mutable buffers always. A value that others lie in lives
/// as long as they do.
///
/// # Examples
///
/// ```
/// use device_memory::graph::{GraphBuilder, lifetimes};
/// use device_memory::{Device, ScalarType, TensorSpec};
///
/// let spec = TensorSpec::contiguous(ScalarType::Float, &[4], Device::CPU)?;
/// let mut builder = GraphBuilder::new("forward");
/// let a = builder.input("a", spec.clone());
/// let [b] = builder.kernel("relu", &[a], [spec.clone().into()]);
/// let [c] = builder.kernel("relu", &[b], [spec.into()]);
/// let lifetimes = lifetimes(&builder.finish(&[c])?);
///
/// let of = |id: device_memory::graph::ValueId| {
///     let lifetime = lifetimes[id.number() as usize];
///     (lifetime.first, lifetime.last)
/// };
/// assert_eq!([of(a), of(b), of(c)], [(0, 1), (1, 2), (2, 3)]);
/// # Ok::<(), device_memory::Error>(())
/// ```
#[must_use]
pub fn lifetimes(graph: &Graph) -> Vec<Lifetime> {
    let end = graph.nodes().len().saturating_add(1);
    let from_start = Lifetime { first: 0, last: 0 };
    let mut lifetimes = vec![from_start; graph.values().len()];
    for buffer in graph.mutable_buffers() {
        extend(&mut lifetimes, buffer, end);
    }
    for (index, node) in graph.nodes().iter().enumerate() {
        let step = index.saturating_add(1);
        for &output in node.outputs() {
            if let Some(lifetime) = lifetimes.get_mut(output.index()) {
                *lifetime = Lifetime {
                    first: step,
                    last: step,
                };
            }
        }
        for read in graph.reads(node) {
            extend(&mut lifetimes, read, step);
        }
    }
    for &output in graph.outputs() {
        extend(&mut lifetimes, output, end);
    }
    // Those that lie in others come after them: the last first, each passes its
    // end on to its base.
    let mut by_making: Vec<ValueId> = Vec::with_capacity(graph.values().len());
    for node in graph.nodes() {
        by_making.extend(node.outputs());
    }
    for id in by_making.into_iter().rev() {
        let of = lifetimes.get(id.index()).copied();
        let base = graph.value(id).and_then(super::Value::base);
        if let (Some(of), Some(base)) = (of, base) {
            extend(&mut lifetimes, base.value, of.last);
        }
    }
    debug_assert!(
        graph
            .values()
            .iter()
            .zip(&lifetimes)
            .all(|(value, of)| value.role() == Role::Computed || of.first == 0)
    );
    lifetimes
}

fn extend(lifetimes: &mut [Lifetime], id: ValueId, step: usize) {
    if let Some(lifetime) = lifetimes.get_mut(id.index()) {
        lifetime.extend_to(step);
    }
}
