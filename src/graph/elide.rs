//! Copies that lead back to where a value came from.
//!
//! Rank 4. Part of `graph`.

use std::collections::HashMap;

use crate::device::Device;
use crate::error::Result;
use crate::graph::lifetime::{Clock, lifetimes_on};
use crate::graph::{Base, Graph, Lifetime, Node, Op, Role, Value, ValueId};

/// Removes copies of copies where the first value, or a copy between, is already on
/// the device, in the graphs inside this one too; then removes copies that nothing
/// uses.
///
/// With `direct`, a value that goes from one device to another through the host
/// goes directly instead.
///
/// A copy that is written in place, or whose source is overwritten while the copy
/// is needed, stays; so does a copy that is an output. Values after a removed one
/// change their numbers, and keep their names.
///
/// # Errors
///
/// None that a graph can cause.
///
/// # Examples
///
/// ```
/// use device_memory::graph::{GraphBuilder, elide_copies};
/// use device_memory::{Device, ScalarType, TensorSpec};
///
/// let gpu: Device = "cuda:0".parse()?;
/// let on_host = TensorSpec::contiguous(ScalarType::Float, &[2, 2], Device::CPU)?;
/// let on_gpu = on_host.clone().with_device(gpu);
/// let mut builder = GraphBuilder::new("forward");
/// let a = builder.input("a", on_gpu.clone());
/// let down = builder.copy("down", a, on_host);
/// let up = builder.copy("up", down, on_gpu.clone());
/// let [b] = builder.delegate("double", Some(gpu), &[up], [on_gpu.into()]);
/// let graph = elide_copies(&builder.finish(&[b])?, false)?;
///
/// assert_eq!(graph.nodes().len(), 1);
/// assert_eq!(graph.nodes()[0].inputs(), [a]);
/// # Ok::<(), device_memory::Error>(())
/// ```
pub fn elide_copies(graph: &Graph, direct: bool) -> Result<Graph> {
    let mut elider = Elider::new(graph);
    let mut nodes = Vec::with_capacity(graph.nodes().len());
    for (index, node) in graph.nodes().iter().enumerate() {
        let mut node = Node {
            op: node.op().map_graphs(|inner| elide_copies(inner, direct))?,
            ..node.clone()
        };
        for input in &mut node.inputs {
            *input = elider.current(*input);
        }
        if let (Op::Copy, &[source], &[copy]) = (&node.op, &node.inputs[..], &node.outputs[..]) {
            let step = elider.clock.start(index);
            match elider.shorten(source, copy, step, direct) {
                Shortened::Removed => continue,
                Shortened::From(source) => node.inputs = vec![source],
            }
        }
        nodes.push(node);
    }
    elider.finish(nodes)
}

/// What becomes of a copy.
enum Shortened {
    /// Its source is used instead.
    Removed,
    /// It stays, and copies this.
    From(ValueId),
}

struct Elider<'g> {
    graph: &'g Graph,
    clock: Clock,
    lifetimes: Vec<Lifetime>,
    /// At which steps the bytes of a value are written in place.
    writes: HashMap<ValueId, Vec<usize>>,
    /// What each copy that stays was made of, and when.
    sources: HashMap<ValueId, (ValueId, usize)>,
    /// What is used in place of a removed copy.
    replaced: HashMap<ValueId, ValueId>,
}

impl<'g> Elider<'g> {
    fn new(graph: &'g Graph) -> Self {
        let clock = Clock::of(graph);
        let mut writes: HashMap<ValueId, Vec<usize>> = HashMap::new();
        for (index, node) in graph.nodes().iter().enumerate() {
            for &output in node.outputs() {
                let in_place = graph
                    .value(output)
                    .is_some_and(|value| value.base.is_some());
                let root = graph.root(output);
                if let (true, true, Some(root)) = (in_place, node.writes_bases(), root) {
                    let steps = writes.entry(root.value).or_default();
                    steps.push(clock.start(index));
                }
            }
        }
        Self {
            lifetimes: lifetimes_on(graph, &clock),
            clock,
            writes,
            sources: HashMap::new(),
            replaced: HashMap::new(),
            graph,
        }
    }

    fn current(&self, id: ValueId) -> ValueId {
        self.replaced.get(&id).copied().unwrap_or(id)
    }

    /// Looks for a better source of `copy`, made of `source` at `step`, among what
    /// the source was copied from.
    fn shorten(&mut self, source: ValueId, copy: ValueId, step: usize, direct: bool) -> Shortened {
        let mut best = source;
        let mut at = source;
        while let Some(&(earlier, copied)) = self.sources.get(&at) {
            at = earlier;
            if self.can_stand_for(at, copy, copied) {
                self.replaced.insert(copy, at);
                return Shortened::Removed;
            }
            let by_way_of_host = self.device_of(best) == Device::CPU;
            let usable = self.is_direct(at, copy) && self.keeps_bytes(at, copied, step);
            if direct && by_way_of_host && usable {
                best = at;
            }
        }
        let own = self
            .graph
            .value(copy)
            .is_some_and(|value| value.base.is_none());
        if own && !self.is_written(copy) {
            self.sources.insert(copy, (best, step));
        }
        Shortened::From(best)
    }

    /// Whether `source`, copied at step `from`, can be used wherever `copy` is.
    fn can_stand_for(&self, source: ValueId, copy: ValueId, from: usize) -> bool {
        let last = self.lifetimes.get(copy.index()).map_or(0, |of| of.last);
        self.graph
            .value(source)
            .zip(self.graph.value(copy))
            .is_some_and(|(a, b)| a.spec == b.spec && b.base.is_none())
            && !self.graph.outputs().contains(&copy)
            && !self.is_written(copy)
            && self.keeps_bytes(source, from, last)
    }

    /// Whether copying `source` to `copy` goes from one device to another.
    fn is_direct(&self, source: ValueId, copy: ValueId) -> bool {
        let values = self.graph.value(source).zip(self.graph.value(copy));
        values.is_some_and(|(from, to)| {
            from.device() != Device::CPU
                && to.device() != Device::CPU
                && from.spec.is_alike(&to.spec)
        })
    }

    fn device_of(&self, id: ValueId) -> Device {
        self.graph.value(id).map_or(Device::CPU, Value::device)
    }

    fn is_written(&self, id: ValueId) -> bool {
        self.writes.contains_key(&id)
    }

    /// Whether nothing is written in place of `id` after step `from` up to `to`.
    fn keeps_bytes(&self, id: ValueId, from: usize, to: usize) -> bool {
        let root = self.graph.root(id).map_or(id, |root| root.value);
        let writes = self.writes.get(&root).map_or(&[][..], Vec::as_slice);
        let next = writes.partition_point(|&write| write <= from);
        writes.get(next).is_none_or(|&write| write > to)
    }

    /// The graph of these nodes, without copies that nothing uses.
    fn finish(self, nodes: Vec<Node>) -> Result<Graph> {
        let graph = self.graph;
        let mut values: Vec<Value> = graph.values().to_vec();
        for value in &mut values {
            if let Some(base) = &mut value.base {
                base.value = self.current(base.value);
            }
        }
        let mut used = vec![false; values.len()];
        for &output in graph.outputs() {
            mark(&mut used, output);
        }
        let mut kept = Vec::with_capacity(nodes.len());
        for node in nodes.into_iter().rev() {
            let own = |id: ValueId| values.get(id.index()).is_some_and(|v| v.base.is_none());
            let is_used = |id: ValueId| used.get(id.index()).copied().unwrap_or(true);
            let mut outputs = node.outputs.iter().copied();
            if matches!(node.op, Op::Copy) && outputs.all(|id| own(id) && !is_used(id)) {
                continue;
            }
            for &id in node.inputs.iter().chain(&node.outputs) {
                mark(&mut used, id);
            }
            for &output in &node.outputs {
                if let Some(base) = values.get(output.index()).and_then(|value| value.base) {
                    mark(&mut used, base.value);
                }
            }
            kept.push(node);
        }
        kept.reverse();
        let stays = |index: usize, value: &Value| {
            let made = used.get(index).copied().unwrap_or(true);
            made || value.role != Role::Computed
        };
        let mut numbers = Vec::with_capacity(values.len());
        let mut next = 0_usize;
        for (index, value) in values.iter().enumerate() {
            numbers.push(ValueId::at(next));
            if stays(index, value) {
                next = next.saturating_add(1);
            }
        }
        let renumber = |id: &mut ValueId| {
            if let Some(&number) = numbers.get(id.index()) {
                *id = number;
            }
        };
        let mut index = 0_usize;
        values.retain(|value| {
            let keep = stays(index, value);
            index = index.saturating_add(1);
            keep
        });
        for value in &mut values {
            if let Some(Base { value, .. }) = &mut value.base {
                renumber(value);
            }
        }
        for node in &mut kept {
            node.inputs.iter_mut().for_each(renumber);
            node.outputs.iter_mut().for_each(renumber);
        }
        let (mut inputs, mut outputs) = (graph.inputs().to_vec(), graph.outputs().to_vec());
        inputs.iter_mut().for_each(renumber);
        outputs.iter_mut().for_each(renumber);
        Ok(Graph::new(
            graph.name().to_owned(),
            values,
            kept,
            inputs,
            outputs,
        )?)
    }
}

fn mark(used: &mut [bool], id: ValueId) {
    if let Some(used) = used.get_mut(id.index()) {
        *used = true;
    }
}
