//! Values on the devices of the nodes that make and use them.
//!
//! Rank 4. Part of `graph`.
//!
//! Each node runs on one device. Its outputs are there; whatever it reads that is
//! elsewhere is copied: to the host once, right after the value is made, and from
//! the host for each node, right before it. A value that is already where it is
//! needed is never copied.

use std::collections::HashMap;

use crate::device::Device;
use crate::error::{GraphFault, Result};
use crate::graph::{
    Base, Graph, GraphBuilder, MethodOptions, Node, Op, PropagateOptions, Role, ValueId,
    elide_copies, tag_devices,
};

/// Puts the values of a graph on the devices of the nodes that make and use them,
/// and inserts the copies that this takes, in the graphs inside it too.
///
/// - What a node makes is on its device; views are where their bases are. Inputs,
///   constants and mutable buffers are where the graph says, unless `options` make
///   them resident on the device of the first delegate that uses them.
/// - Values go through the host from one device to another, unless `options` say
///   that they go directly.
/// - A mutable buffer that is overwritten on another device is copied back.
/// - Copies of the graph's own that lead back to where a value came from are
///   elided; see [`elide_copies`].
///
/// Values keep their numbers, unless such a copy is elided, and their names; new
/// ones are named `value@device`. With
/// [`host_memory_only`](PropagateOptions::host_memory_only) this is
/// [`tag_devices`].
///
/// # Errors
///
/// - [`SkipWithoutPlanning`](GraphFault::SkipWithoutPlanning): something is to be
///   resident on a device whose memory is not planned.
/// - [`UnknownName`](GraphFault::UnknownName): something is to be resident that the
///   graph does not have.
///
/// # Examples
///
/// ```
/// use device_memory::graph::{GraphBuilder, PropagateOptions, propagate};
/// use device_memory::{Device, ScalarType, TensorSpec};
///
/// let spec = TensorSpec::contiguous(ScalarType::Float, &[2, 2], Device::CPU)?;
/// let gpu: Device = "cuda:0".parse()?;
/// let mut builder = GraphBuilder::new("forward");
/// let a = builder.input("a", spec.clone());
/// let b = builder.input("b", spec.clone());
/// let [sum] = builder.delegate("add", Some(gpu), &[a, b], [spec.into()]);
/// let graph = propagate(&builder.finish(&[sum])?, &PropagateOptions::default())?;
///
/// let copies = graph.count_copies();
/// assert_eq!((copies.host_to_device, copies.device_to_host), (2, 1));
/// graph.check_devices()?;
/// # Ok::<(), device_memory::Error>(())
/// ```
pub fn propagate(graph: &Graph, options: &PropagateOptions) -> Result<Graph> {
    let method = options.method(graph.name());
    check_options(graph, method)?;
    if options.host_memory_only {
        let skips = [
            &method.resident_inputs,
            &method.resident_outputs,
            &method.resident_buffers,
        ];
        if skips.into_iter().any(|skip| skip.is_any()) {
            return Err(GraphFault::SkipWithoutPlanning.into());
        }
        return tag_devices(graph);
    }
    elide_copies(&insert(graph, method)?, method.direct_copies)
}

/// All names that options give are those of values that they may be given for.
fn check_options(graph: &Graph, options: &MethodOptions) -> Result<()> {
    let names = |ids: Vec<ValueId>| {
        let values = ids.into_iter().filter_map(|id| graph.value(id));
        values.map(|value| value.name().to_owned())
    };
    let inputs = names(graph.inputs().to_vec());
    options.resident_inputs.check("input", inputs)?;
    let outputs = names(graph.outputs().to_vec());
    options.resident_outputs.check("output", outputs)?;
    let buffers = names(graph.mutable_buffers().collect());
    options.resident_buffers.check("mutable buffer", buffers)?;
    Ok(())
}

/// Inserts copies wherever a node and what it reads are apart.
fn insert(graph: &Graph, options: &MethodOptions) -> Result<Graph> {
    let devices = devices(graph, options);
    let mut inserter = Inserter {
        needed_on_host: needed_on_host(graph, options, &devices),
        builder: GraphBuilder::from_values(graph),
        on_host: HashMap::new(),
        shared: options.shared_copies.then(HashMap::new),
        in_buffer: HashMap::new(),
        tips: HashMap::new(),
        graph,
    };
    for (index, &device) in devices.iter().enumerate() {
        let id = ValueId::at(index);
        if let Some(value) = inserter.builder.value_mut(id) {
            value.spec = value.spec.clone().with_device(device);
        }
    }
    for buffer in graph.mutable_buffers() {
        inserter.in_buffer.insert(buffer, (buffer, 0));
        inserter.tips.insert(buffer, (buffer, 0));
    }
    for node in graph.nodes() {
        inserter.add(node, options)?;
    }
    let mut outputs = Vec::with_capacity(graph.outputs().len());
    for &output in graph.outputs() {
        let stays = is_resident_output(graph, options, output);
        outputs.push(if stays {
            output
        } else {
            inserter.on_host(output)
        });
    }
    inserter.builder.finish(&outputs)
}

fn is_resident_output(graph: &Graph, options: &MethodOptions, output: ValueId) -> bool {
    let value = graph.value(output);
    value.is_some_and(|value| options.resident_outputs.contains(value.name()))
}

/// The device of each value.
fn devices(graph: &Graph, options: &MethodOptions) -> Vec<Device> {
    let declared = graph.values().iter().map(|value| value.device());
    let mut devices: Vec<Device> = declared.collect();
    let mut placed = vec![false; devices.len()];
    for node in graph.nodes() {
        let Some(device) = node.op().device() else {
            continue;
        };
        if device == Device::CPU {
            continue;
        }
        for read in graph.reads(node) {
            let root = graph.root(read).map_or(read, |root| root.value);
            let resident = graph.value(root).is_some_and(|value| match value.role() {
                Role::Input => options.resident_inputs.contains(value.name()),
                Role::MutableBuffer => options.resident_buffers.contains(value.name()),
                Role::Constant | Role::Computed => false,
            });
            let slots = devices
                .get_mut(root.index())
                .zip(placed.get_mut(root.index()));
            if let (true, Some((of_root, placed @ false))) = (resident, slots) {
                *of_root = device;
                *placed = true;
            }
        }
    }
    for node in graph.nodes() {
        for &output in node.outputs() {
            let base = graph.value(output).and_then(|value| value.base());
            let of_base = base.and_then(|base| devices.get(base.value.index()).copied());
            if let Some(device) = devices.get_mut(output.index()) {
                *device = node.op().device().or(of_base).unwrap_or(*device);
            }
        }
    }
    devices
}

/// The values that are read, or given to the caller, elsewhere than where they
/// are, so that there must be a copy of them on the host.
fn needed_on_host(graph: &Graph, options: &MethodOptions, devices: &[Device]) -> Vec<bool> {
    let mut needed = vec![false; devices.len()];
    let mut need = |id: ValueId, reader: Device| {
        let device = devices.get(id.index()).copied();
        if let (Some(device), Some(needed)) = (device, needed.get_mut(id.index())) {
            *needed |= device != Device::CPU && device != reader;
        }
    };
    for node in graph.nodes() {
        if let Some(device) = node.op().device() {
            for read in graph.reads(node) {
                need(read, device);
            }
        }
    }
    for &output in graph.outputs() {
        if !is_resident_output(graph, options, output) {
            need(output, Device::CPU);
        }
    }
    needed
}

struct Inserter<'g> {
    graph: &'g Graph,
    builder: GraphBuilder,
    needed_on_host: Vec<bool>,
    /// The copies on the host of values elsewhere.
    on_host: HashMap<ValueId, ValueId>,
    /// The copies on devices, where delegates share them.
    shared: Option<HashMap<(ValueId, Device), ValueId>>,
    /// The values that lie in mutable buffers, and where in which.
    in_buffer: HashMap<ValueId, (ValueId, usize)>,
    /// What each mutable buffer holds now, and where in it.
    tips: HashMap<ValueId, (ValueId, usize)>,
}

impl Inserter<'_> {
    fn add(&mut self, node: &Node, options: &MethodOptions) -> Result<()> {
        // Copies that are not shared are for this node only.
        let mut copies = HashMap::new();
        let device = node.op().device();
        let inputs = node.inputs().iter();
        let inputs = inputs.map(|&input| match device {
            Some(device) => self.on_device(input, device, &mut copies),
            None => input,
        });
        let inputs = inputs.collect();
        for &output in node.outputs() {
            let Some(base) = self.graph.value(output).and_then(|value| value.base()) else {
                continue;
            };
            let value = match device {
                Some(device) => self.on_device(base.value, device, &mut copies),
                None => base.value,
            };
            if let Some(&(buffer, offset)) = self.in_buffer.get(&value) {
                let place = (buffer, offset.saturating_add(base.offset));
                self.in_buffer.insert(output, place);
            }
            if let Some(output) = self.builder.value_mut(output) {
                output.base = Some(Base { value, ..base });
            }
        }
        let inner = MethodOptions {
            direct_copies: options.direct_copies,
            shared_copies: options.shared_copies,
            ..MethodOptions::default()
        };
        let op = node.op().map_graphs(|graph| insert(graph, &inner))?;
        self.builder.push(Node {
            name: node.name.clone(),
            op,
            inputs,
            outputs: node.outputs.clone(),
        });
        for &output in node.outputs() {
            if !matches!(node.op(), Op::View) {
                self.keep_in_buffer(output);
            }
            let needed = self.needed_on_host.get(output.index());
            if needed.copied().unwrap_or(false) {
                self.on_host(output);
            }
        }
        Ok(())
    }

    /// A value on `device`: itself or a copy.
    fn on_device(
        &mut self,
        id: ValueId,
        device: Device,
        copies: &mut HashMap<(ValueId, Device), ValueId>,
    ) -> ValueId {
        if self.builder.device_of(id) == device {
            return id;
        }
        let host = self.on_host(id);
        if device == Device::CPU {
            return host;
        }
        let builder = &mut self.builder;
        let copies = self.shared.as_mut().unwrap_or(copies);
        let copy = copies.entry((id, device));
        *copy.or_insert_with(|| builder.copy_to(host, device))
    }

    /// A value on the host: itself or a copy.
    fn on_host(&mut self, id: ValueId) -> ValueId {
        if self.builder.device_of(id) == Device::CPU {
            return id;
        }
        let builder = &mut self.builder;
        let copy = self.on_host.entry(id);
        *copy.or_insert_with(|| builder.copy_to(id, Device::CPU))
    }

    /// Sees to it that what is written in place of a mutable buffer's contents ends
    /// up in the buffer.
    fn keep_in_buffer(&mut self, output: ValueId) {
        let base = self.graph.value(output).and_then(|value| value.base());
        let root = self.graph.root(output);
        let (Some(_), Some(root)) = (base, root) else {
            return;
        };
        let Some(&(tip, tip_offset)) = self.tips.get(&root.value) else {
            return;
        };
        if self.in_buffer.contains_key(&output) {
            self.tips.insert(root.value, (output, root.offset));
            return;
        }
        let offset = root.offset.saturating_sub(tip_offset);
        let kept = self.builder.copy_back(output, tip, offset);
        self.in_buffer.insert(kept, (root.value, root.offset));
        self.tips.insert(root.value, (kept, root.offset));
        if self.builder.device_of(kept) == Device::CPU {
            self.on_host.insert(output, kept);
        }
    }
}
