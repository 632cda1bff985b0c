//! Graphs of values and nodes, and the way from one to placed memory.
//!
//! Rank 4. Imports `plan`, `shape` and the words.
//!
//! Pure data: no memory is touched. A [`Graph`] is one method of a program. It is
//! made with a [`GraphBuilder`], or read from JSON with the feature `serde`, and
//! is checked before it exists, so that what follows need not doubt it:
//!
//! 1. [`propagate`] puts values on the devices of the delegates that make and use
//!    them, and inserts the copies that this takes.
//! 2. [`lifetimes`] says when each value is needed.
//! 3. [`PlannedGraph::new`] places all of them.
//!
//! [`runner`](crate::runner) then runs the result, step by step.
//!
//! Nodes run in the order in which they are listed. A value is made once, and is
//! read only until another value is written in its place.

mod build;
mod check;
mod elide;
mod fit;
mod insert;
mod lifetime;
mod node;
mod options;
mod place;
mod planned;
#[cfg(feature = "serde")]
mod raw;
mod tag;
mod target;
mod value;

use crate::device::Device;
use crate::error::{GraphFault, Result};
use crate::shape::TensorSpec;

pub use build::{GraphBuilder, Output};
pub use elide::elide_copies;
pub use insert::propagate;
pub use lifetime::{Lifetime, lifetimes};
pub use node::{Node, Op};
pub use options::{MethodOptions, PlanningOptions, PropagateOptions, Skip};
pub use place::Place;
pub(crate) use place::Scope;
pub use planned::PlannedGraph;
pub use tag::tag_devices;
pub use target::{parse_target_device, target_device};
pub use value::{Base, Role, Value, ValueId};

/// A method: values, and the nodes that make them, in order.
///
/// # Examples
///
/// ```
/// use device_memory::graph::{Graph, GraphBuilder};
/// use device_memory::{Device, ScalarType, TensorSpec};
///
/// let spec = TensorSpec::contiguous(ScalarType::Float, &[2, 2], Device::CPU)?;
/// let mut builder = GraphBuilder::new("forward");
/// let a = builder.input("a", spec.clone());
/// let b = builder.input("b", spec.clone());
/// let [sum] = builder.kernel("add", &[a, b], [spec.into()]);
/// let graph: Graph = builder.finish(&[sum])?;
///
/// assert_eq!(graph.nodes().len(), 1);
/// assert_eq!(graph.value(sum).map(|value| value.name()), Some("add"));
/// # Ok::<(), device_memory::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    name: String,
    values: Vec<Value>,
    nodes: Vec<Node>,
    inputs: Vec<ValueId>,
    outputs: Vec<ValueId>,
    /// Where the bytes of each value are.
    roots: Vec<Root>,
    /// How deep graphs are nested, this one counted.
    depth: usize,
}

/// Where the bytes of a value are: at `offset` in those of `value`, which has its
/// own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Root {
    pub(crate) value: ValueId,
    pub(crate) offset: usize,
}

impl Graph {
    /// The deepest nesting of graphs that is supported.
    pub const MAX_DEPTH: usize = 32;

    /// Checks the parts of a graph and puts them together.
    fn new(
        name: String,
        values: Vec<Value>,
        nodes: Vec<Node>,
        inputs: Vec<ValueId>,
        outputs: Vec<ValueId>,
    ) -> Result<Self, GraphFault> {
        let (roots, depth) = check::check(&values, &nodes, &inputs, &outputs)?;
        Ok(Self {
            name,
            values,
            nodes,
            inputs,
            outputs,
            roots,
            depth,
        })
    }

    /// The name of the method.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All values, by their numbers.
    #[must_use]
    pub fn values(&self) -> &[Value] {
        &self.values
    }

    /// A value.
    #[must_use]
    pub fn value(&self, id: ValueId) -> Option<&Value> {
        self.values.get(id.index())
    }

    /// The value of this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<ValueId> {
        let position = self.values.iter().position(|value| value.name == name);
        position.map(ValueId::at)
    }

    /// The nodes, in the order in which they run.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The values that the caller gives, in order.
    #[must_use]
    pub fn inputs(&self) -> &[ValueId] {
        &self.inputs
    }

    /// The values that the caller gets, in order.
    #[must_use]
    pub fn outputs(&self) -> &[ValueId] {
        &self.outputs
    }

    /// The values that keep their bytes from step to step.
    pub fn mutable_buffers(&self) -> impl Iterator<Item = ValueId> + '_ {
        let buffers = self.values.iter().enumerate();
        buffers
            .filter(|(_, value)| value.role == Role::MutableBuffer)
            .map(|(index, _)| ValueId::at(index))
    }

    /// The value that has the bytes of a value, which is itself if it lies in no
    /// other one, and where in it they begin.
    #[must_use]
    pub fn storage(&self, id: ValueId) -> Option<(ValueId, usize)> {
        self.root(id).map(|root| (root.value, root.offset))
    }

    /// The values that a node reads: its inputs, and the bases that its outputs
    /// start from.
    pub fn reads<'a>(&'a self, node: &'a Node) -> impl Iterator<Item = ValueId> + 'a {
        let bases = node.outputs.iter().filter_map(|&output| {
            let base = self.value(output)?.base?;
            Some(base.value)
        });
        node.inputs.iter().copied().chain(bases)
    }

    /// Checks that every value that a node reads or makes is on the node's device,
    /// in this graph and in those inside it.
    ///
    /// [`propagate`] brings this about.
    ///
    /// # Errors
    ///
    /// - [`WrongDevice`](GraphFault::WrongDevice): the first one that is not.
    pub fn check_devices(&self) -> Result<()> {
        Ok(self.find_wrong_device()?)
    }

    /// How many copies there are, in this graph and in those inside it.
    #[must_use]
    pub fn count_copies(&self) -> CopyCounts {
        let mut counts = CopyCounts::default();
        for node in &self.nodes {
            if let (Op::Copy, &[from], &[to]) = (&node.op, &node.inputs[..], &node.outputs[..]) {
                counts.add(self.device_of(from), self.device_of(to));
            }
            for inner in node.op.graphs() {
                counts.add_all(inner.count_copies());
            }
        }
        counts
    }

    pub(crate) fn root(&self, id: ValueId) -> Option<Root> {
        self.roots.get(id.index()).copied()
    }

    /// The descriptions of some of its values.
    fn specs(&self, ids: &[ValueId]) -> Vec<&TensorSpec> {
        let values = ids.iter().filter_map(|&id| self.value(id));
        values.map(Value::spec).collect()
    }

    /// The device of a value of this graph.
    fn device_of(&self, id: ValueId) -> Device {
        self.value(id).map_or(Device::CPU, Value::device)
    }

    fn find_wrong_device(&self) -> Result<(), GraphFault> {
        for (index, node) in self.nodes.iter().enumerate() {
            for inner in node.op.graphs() {
                inner.find_wrong_device()?;
                let ends = inner.inputs.iter().chain(&inner.outputs);
                let values = ends.filter_map(|&id| inner.value(id));
                if let Some(value) = values
                    .into_iter()
                    .find(|value| value.device() != Device::CPU)
                {
                    return Err(GraphFault::WrongDevice {
                        node: check::describe(index, node),
                        value: value.name.clone(),
                        expected: Device::CPU,
                        found: value.device(),
                    });
                }
            }
            let device = match (&node.op, node.outputs.first()) {
                (Op::Copy | Op::View, Some(&output)) => self.device_of(output),
                (op, _) => op.device().unwrap_or(Device::CPU),
            };
            let reads = match node.op {
                // It may come from anywhere.
                Op::Copy => node.inputs.len(),
                _ => 0,
            };
            let read = self.reads(node).skip(reads);
            for id in read.chain(node.outputs.iter().copied()) {
                let found = self.device_of(id);
                if found != device {
                    return Err(GraphFault::WrongDevice {
                        node: check::describe(index, node),
                        value: self
                            .value(id)
                            .map(|value| value.name.clone())
                            .unwrap_or_default(),
                        expected: device,
                        found,
                    });
                }
            }
        }
        Ok(())
    }
}

/// How many copies there are, or were made, by their direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyCounts {
    /// From the host to a device.
    pub host_to_device: u64,
    /// From a device to the host.
    pub device_to_host: u64,
    /// From a device to a device, the same one or another.
    pub device_to_device: u64,
    /// On the host.
    pub host_to_host: u64,
}

impl CopyCounts {
    /// All of them.
    #[must_use]
    pub fn total(self) -> u64 {
        self.host_to_device
            .saturating_add(self.device_to_host)
            .saturating_add(self.device_to_device)
            .saturating_add(self.host_to_host)
    }

    /// Counts one copy more.
    pub(crate) fn add(&mut self, from: Device, to: Device) {
        let count = match (from.is_cpu(), to.is_cpu()) {
            (true, false) => &mut self.host_to_device,
            (false, true) => &mut self.device_to_host,
            (false, false) => &mut self.device_to_device,
            (true, true) => &mut self.host_to_host,
        };
        *count = count.saturating_add(1);
    }

    fn add_all(&mut self, other: Self) {
        for (count, more) in [
            (&mut self.host_to_device, other.host_to_device),
            (&mut self.device_to_host, other.device_to_host),
            (&mut self.device_to_device, other.device_to_device),
            (&mut self.host_to_host, other.host_to_host),
        ] {
            *count = count.saturating_add(more);
        }
    }
}
