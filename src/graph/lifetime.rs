//! When each value of a graph is needed.
//!
//! Rank 4. Part of `graph`.

use crate::graph::{Graph, Op, Value, ValueId};

/// The steps at which a value is needed, both ends counted.
///
/// Step 0 is before the first node: what is there from the start is needed from
/// then on. Each node takes one step, and one with graphs inside it those of the
/// graphs too. The caller reads the outputs at the step after the last node.
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
    lifetimes_on(graph, &Clock::of(graph))
}

/// At which steps the nodes of a graph run.
///
/// A node with graphs inside it runs from its first step, through the steps of
/// those, one graph after the other, to its last.
#[derive(Debug)]
pub(crate) struct Clock {
    /// The first step of each node.
    starts: Vec<usize>,
    /// The last step of each node.
    ends: Vec<usize>,
    /// The step after the last node.
    end: usize,
}

impl Clock {
    pub(crate) fn of(graph: &Graph) -> Self {
        let mut clock = Self {
            starts: Vec::with_capacity(graph.nodes().len()),
            ends: Vec::with_capacity(graph.nodes().len()),
            end: 0,
        };
        let mut next = 1_usize;
        for node in graph.nodes() {
            clock.starts.push(next);
            let inner = node.op().graphs().map(|inner| Self::of(inner).len());
            let last = inner.fold(next, usize::saturating_add);
            clock.ends.push(last);
            next = last.saturating_add(1);
        }
        clock.end = next;
        clock
    }

    /// The number of steps, the first and the last one counted.
    pub(crate) fn len(&self) -> usize {
        self.end.saturating_add(1)
    }

    /// The first step of the node at `index`.
    pub(crate) fn start(&self, index: usize) -> usize {
        self.starts.get(index).copied().unwrap_or(self.end)
    }

    /// The last step of the node at `index`.
    pub(crate) fn end(&self, index: usize) -> usize {
        self.ends.get(index).copied().unwrap_or(self.end)
    }
}

/// The lifetime of each value on a clock of the same graph.
pub(crate) fn lifetimes_on(graph: &Graph, clock: &Clock) -> Vec<Lifetime> {
    let from_start = Lifetime { first: 0, last: 0 };
    let mut lifetimes = vec![from_start; graph.values().len()];
    for buffer in graph.mutable_buffers() {
        extend(&mut lifetimes, buffer, clock.end);
    }
    for (index, node) in graph.nodes().iter().enumerate() {
        let (first, last) = (clock.start(index), clock.end(index));
        for &output in node.outputs() {
            if let Some(lifetime) = lifetimes.get_mut(output.index()) {
                *lifetime = Lifetime { first, last };
            }
        }
        // A loop takes over what it is given at its start.
        let read_until = match node.op() {
            Op::Loop { .. } => first,
            _ => last,
        };
        for read in graph.reads(node) {
            extend(&mut lifetimes, read, read_until);
        }
    }
    for &output in graph.outputs() {
        extend(&mut lifetimes, output, clock.end);
    }
    // What lies in another value is made after it: the last first, each passes its
    // end on to its base.
    let made = graph.nodes().iter().rev();
    for &id in made.flat_map(|node| node.outputs().iter().rev()) {
        let of = lifetimes.get(id.index()).copied();
        let base = graph.value(id).and_then(Value::base);
        if let (Some(of), Some(base)) = (of, base) {
            extend(&mut lifetimes, base.value, of.last);
        }
    }
    lifetimes
}

fn extend(lifetimes: &mut [Lifetime], id: ValueId, step: usize) {
    if let Some(lifetime) = lifetimes.get_mut(id.index()) {
        lifetime.extend_to(step);
    }
}
