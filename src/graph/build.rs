//! Making graphs by hand.
//!
//! Rank 4. Part of `graph`.

use std::collections::{HashMap, HashSet};

use crate::device::Device;
use crate::error::Result;
use crate::graph::{Base, Graph, Node, Op, Role, Value, ValueId};
use crate::shape::TensorSpec;

/// What a node is to make, before it has a number.
///
/// # Examples
///
/// ```
/// use device_memory::graph::{GraphBuilder, Output};
/// use device_memory::{Device, ScalarType, TensorSpec};
///
/// let spec = TensorSpec::contiguous(ScalarType::Long, &[1], Device::CPU)?;
/// let mut builder = GraphBuilder::new("forward");
/// let counter = builder.mutable_buffer("counter", spec.clone());
/// let next = Output::new(spec).named("next").in_place_of(counter, 0);
/// let [next] = builder.kernel("increment", &[], [next]);
/// let graph = builder.finish(&[next])?;
///
/// assert_eq!(graph.storage(next), Some((counter, 0)));
/// # Ok::<(), device_memory::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Output {
    spec: TensorSpec,
    name: Option<String>,
    base: Option<Base>,
}

impl Output {
    /// A tensor with bytes of its own, named after its node.
    #[must_use]
    pub fn new(spec: TensorSpec) -> Self {
        Self {
            spec,
            name: None,
            base: None,
        }
    }

    /// The same with a name of its own.
    #[must_use]
    pub fn named(self, name: impl Into<String>) -> Self {
        let name = Some(name.into());
        Self { name, ..self }
    }

    /// The same, written over the bytes of `base` from `offset` on. The value
    /// `base` and all that lie in the same bytes end with that.
    #[must_use]
    pub fn in_place_of(self, base: ValueId, offset: usize) -> Self {
        let base = Some(Base {
            value: base,
            offset,
        });
        Self { base, ..self }
    }
}

impl From<TensorSpec> for Output {
    fn from(spec: TensorSpec) -> Self {
        Self::new(spec)
    }
}

/// Makes a [`Graph`] value by value and node by node.
///
/// Nothing is checked before [`finish`](Self::finish). Nodes run in the order in
/// which they are added.
///
/// # Examples
///
/// A part that runs on a device, between two that run on the host:
///
/// ```
/// use device_memory::graph::GraphBuilder;
/// use device_memory::{Device, ScalarType, TensorSpec};
///
/// let spec = TensorSpec::contiguous(ScalarType::Float, &[2, 2], Device::CPU)?;
/// let gpu: Device = "cuda:0".parse()?;
///
/// let mut builder = GraphBuilder::new("forward");
/// let a = builder.input("a", spec.clone());
/// let [b] = builder.kernel("relu", &[a], [spec.clone().into()]);
/// let [c] = builder.delegate("attention", Some(gpu), &[a, b], [spec.into()]);
/// let graph = builder.finish(&[c])?;
///
/// assert_eq!(graph.reads(&graph.nodes()[1]).collect::<Vec<_>>(), [a, b]);
/// # Ok::<(), device_memory::Error>(())
/// ```
#[derive(Debug)]
pub struct GraphBuilder {
    name: String,
    values: Vec<Value>,
    nodes: Vec<Node>,
    inputs: Vec<ValueId>,
    names: Names,
}

impl GraphBuilder {
    /// Starts a graph for the method `name`.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            values: Vec::new(),
            nodes: Vec::new(),
            inputs: Vec::new(),
            names: Names::default(),
        }
    }

    /// Starts with the values of a graph, and without its nodes.
    pub(super) fn from_values(graph: &Graph) -> Self {
        Self {
            name: graph.name.clone(),
            values: graph.values.clone(),
            nodes: Vec::with_capacity(graph.nodes.len()),
            inputs: graph.inputs.clone(),
            names: Names::of(&graph.values),
        }
    }

    /// Adds a tensor that the caller gives before each step.
    pub fn input(&mut self, name: impl Into<String>, spec: TensorSpec) -> ValueId {
        let id = self.add(name.into(), spec, Role::Input, None);
        self.inputs.push(id);
        id
    }

    /// Adds a tensor that never changes. Its bytes are given when the graph runs.
    pub fn constant(&mut self, name: impl Into<String>, spec: TensorSpec) -> ValueId {
        self.add(name.into(), spec, Role::Constant, None)
    }

    /// Adds a tensor that keeps its bytes from one step to the next.
    pub fn mutable_buffer(&mut self, name: impl Into<String>, spec: TensorSpec) -> ValueId {
        self.add(name.into(), spec, Role::MutableBuffer, None)
    }

    /// Adds an operator that runs on the host.
    pub fn kernel<const N: usize>(
        &mut self,
        name: &str,
        inputs: &[ValueId],
        outputs: [Output; N],
    ) -> [ValueId; N] {
        self.node(name, Op::Kernel, inputs, outputs)
    }

    /// Adds a part that a back end runs on `target`; on the host if there is none.
    pub fn delegate<const N: usize>(
        &mut self,
        name: &str,
        target: Option<Device>,
        inputs: &[ValueId],
        outputs: [Output; N],
    ) -> [ValueId; N] {
        self.node(name, Op::Delegate { target }, inputs, outputs)
    }

    /// Adds a view of the bytes of `base` from `offset` on.
    pub fn view(&mut self, name: &str, base: ValueId, offset: usize, spec: TensorSpec) -> ValueId {
        let output = Output::new(spec).in_place_of(base, offset);
        let [view] = self.node(name, Op::View, &[], [output]);
        view
    }

    /// Adds a copy of `source` that `output` says the device of.
    pub fn copy(&mut self, name: &str, source: ValueId, output: impl Into<Output>) -> ValueId {
        let [copy] = self.node(name, Op::Copy, &[source], [output.into()]);
        copy
    }

    /// Adds a choice between two graphs; see [`Op::Branch`].
    pub fn branch<const N: usize>(
        &mut self,
        name: &str,
        inputs: &[ValueId],
        graphs: (Graph, Graph),
        outputs: [Output; N],
    ) -> [ValueId; N] {
        let (then, otherwise) = (Box::new(graphs.0), Box::new(graphs.1));
        self.node(name, Op::Branch { then, otherwise }, inputs, outputs)
    }

    /// Adds a graph that runs again and again; see [`Op::Loop`].
    pub fn repeat<const N: usize>(
        &mut self,
        name: &str,
        inputs: &[ValueId],
        condition: Graph,
        body: Graph,
        outputs: [Output; N],
    ) -> [ValueId; N] {
        let (condition, body) = (Box::new(condition), Box::new(body));
        self.node(name, Op::Loop { condition, body }, inputs, outputs)
    }

    /// Adds a node of any kind.
    pub fn node<const N: usize>(
        &mut self,
        name: &str,
        op: Op,
        inputs: &[ValueId],
        outputs: [Output; N],
    ) -> [ValueId; N] {
        let outputs = outputs.map(|output| {
            let Output {
                spec,
                name: own,
                base,
            } = output;
            let name_of_value = own.unwrap_or_else(|| self.names.fresh(name));
            self.add(name_of_value, spec, Role::Computed, base)
        });
        self.nodes.push(Node {
            name: name.to_owned(),
            op,
            inputs: inputs.to_vec(),
            outputs: outputs.to_vec(),
        });
        outputs
    }

    /// The graph, with the values that the caller gets.
    ///
    /// # Errors
    ///
    /// - [`InvalidGraph`](crate::ErrorKind::InvalidGraph): the graph contradicts
    ///   itself; [`GraphFault`](crate::GraphFault) says how.
    pub fn finish(self, outputs: &[ValueId]) -> Result<Graph> {
        Ok(Graph::new(
            self.name,
            self.values,
            self.nodes,
            self.inputs,
            outputs.to_vec(),
        )?)
    }

    /// A value by its number, if there is one.
    pub(super) fn value_mut(&mut self, id: ValueId) -> Option<&mut Value> {
        self.values.get_mut(id.index())
    }

    /// The device of a value.
    pub(super) fn device_of(&self, id: ValueId) -> Device {
        self.values
            .get(id.index())
            .map_or(Device::CPU, Value::device)
    }

    /// Adds a node whose outputs are values already.
    pub(super) fn push(&mut self, node: Node) {
        self.nodes.push(node);
    }

    /// Adds a copy of `source` on `device`, named after it.
    pub(super) fn copy_to(&mut self, source: ValueId, device: Device) -> ValueId {
        let Some(value) = self.values.get(source.index()) else {
            return source;
        };
        let name = self.names.fresh(&format!("{}@{device}", value.name));
        let spec = value.spec.clone().with_device(device);
        let copy = self.add(name, spec, Role::Computed, None);
        self.push_copy(source, copy);
        copy
    }

    /// Adds a copy of `source` over the bytes of `base`, and what they are then.
    pub(super) fn copy_back(&mut self, source: ValueId, base: ValueId, offset: usize) -> ValueId {
        let Some(value) = self.values.get(source.index()) else {
            return source;
        };
        let device = self.device_of(base);
        let name = self.names.fresh(&format!("{}@{device}", value.name));
        let spec = value.spec.clone().with_device(device);
        let base = Base {
            value: base,
            offset,
        };
        let copy = self.add(name, spec, Role::Computed, Some(base));
        self.push_copy(source, copy);
        copy
    }

    fn push_copy(&mut self, source: ValueId, copy: ValueId) {
        self.nodes.push(Node {
            name: "copy".to_owned(),
            op: Op::Copy,
            inputs: vec![source],
            outputs: vec![copy],
        });
    }

    fn add(&mut self, name: String, spec: TensorSpec, role: Role, base: Option<Base>) -> ValueId {
        let id = ValueId::at(self.values.len());
        self.names.taken.insert(name.clone());
        self.values.push(Value {
            name,
            spec,
            role,
            base,
        });
        id
    }
}

/// The names in use.
#[derive(Debug, Default)]
struct Names {
    taken: HashSet<String>,
    /// How often each was asked for, so that finding a fresh one stays cheap.
    asked: HashMap<String, u64>,
}

impl Names {
    fn of(values: &[Value]) -> Self {
        Self {
            taken: values.iter().map(|value| value.name.clone()).collect(),
            asked: HashMap::new(),
        }
    }

    /// `wish`, or `wish.N` if that is taken.
    fn fresh(&mut self, wish: &str) -> String {
        let asked = self.asked.entry(wish.to_owned()).or_insert(0);
        let mut name = wish.to_owned();
        while self.taken.contains(&name) {
            *asked = asked.saturating_add(1);
            name = format!("{wish}.{asked}");
        }
        name
    }
}
