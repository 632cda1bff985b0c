//! What the tests of graphs share.

use device_memory::graph::{
    Graph, GraphBuilder, MethodOptions, Op, Output, PropagateOptions, ValueId, propagate,
};
use device_memory::{Device, ErrorKind, GraphFault, Result, ScalarType, TensorSpec};

pub(crate) use crate::graphs::{CUDA_0, CUDA_1};

/// A tensor as in ExecuTorch's own tests: 2x2 floats, 16 bytes.
pub(crate) fn spec() -> TensorSpec {
    floats(&[2, 2])
}

pub(crate) fn floats(sizes: &[usize]) -> TensorSpec {
    TensorSpec::contiguous(ScalarType::Float, sizes, Device::CPU).unwrap()
}

pub(crate) fn truth() -> TensorSpec {
    TensorSpec::contiguous(ScalarType::Bool, &[1], Device::CPU).unwrap()
}

/// The sum of two values, made by a delegate on `device`.
pub(crate) fn add(builder: &mut GraphBuilder, device: Device, a: ValueId, b: ValueId) -> ValueId {
    let [sum] = builder.delegate("add", Some(device), &[a, b], [spec().into()]);
    sum
}

/// `forward(a, b) = a + b`, the sum on `device`.
pub(crate) fn add_on(device: Option<Device>) -> Graph {
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", spec());
    let b = builder.input("b", spec());
    let sum = Output::new(spec()).named("sum");
    let [sum] = builder.delegate("add", device, &[a, b], [sum]);
    builder.finish(&[sum]).unwrap()
}

/// `(a + b) + c`, the sums on two devices.
pub(crate) fn chain_on(first: Device, second: Device) -> Graph {
    let mut builder = GraphBuilder::new("forward");
    let [a, b, c] = ["a", "b", "c"].map(|name| builder.input(name, spec()));
    let sum = add(&mut builder, first, a, b);
    let total = add(&mut builder, second, sum, c);
    builder.finish(&[total]).unwrap()
}

/// With copies where they are needed, by default options.
pub(crate) fn placed(graph: &Graph) -> Graph {
    propagate(graph, &PropagateOptions::default()).unwrap()
}

pub(crate) fn placed_with(graph: &Graph, options: MethodOptions) -> Graph {
    propagate(graph, &PropagateOptions::all(options)).unwrap()
}

/// Copies to devices, and from devices to the host.
pub(crate) fn copies(graph: &Graph) -> (u64, u64) {
    let counts = graph.count_copies();
    assert_eq!(counts.host_to_host, 0);
    assert_eq!(counts.device_to_device, 0);
    (counts.host_to_device, counts.device_to_host)
}

/// Each node as `name inputs -> outputs`, values as `name:device`.
pub(crate) fn listing(graph: &Graph) -> Vec<String> {
    let named = |id: ValueId| {
        let value = graph.value(id).unwrap();
        format!("{}:{}", value.name(), value.device())
    };
    let list = |ids: &[ValueId]| {
        ids.iter()
            .map(|&id| named(id))
            .collect::<Vec<_>>()
            .join(" ")
    };
    let nodes = graph.nodes().iter();
    nodes
        .map(|node| {
            let (inputs, outputs) = (list(node.inputs()), list(node.outputs()));
            format!("{} {inputs} -> {outputs}", node.name())
        })
        .collect()
}

/// Whether a copy to a device is made of a copy from a device.
pub(crate) fn has_bounce(graph: &Graph) -> bool {
    let is_copy = |id: ValueId| {
        let maker = graph
            .nodes()
            .iter()
            .find(|node| node.outputs().contains(&id));
        maker.is_some_and(|node| matches!(node.op(), Op::Copy))
    };
    let mut copies = graph
        .nodes()
        .iter()
        .filter(|node| matches!(node.op(), Op::Copy));
    copies.any(|node| node.inputs().iter().copied().any(is_copy))
}

pub(crate) fn device(graph: &Graph, name: &str) -> Device {
    graph.value(graph.find(name).unwrap()).unwrap().device()
}

/// What is wrong with a graph.
#[track_caller]
pub(crate) fn fault<T: std::fmt::Debug>(result: Result<T>) -> GraphFault {
    match result.unwrap_err().into_kind() {
        ErrorKind::InvalidGraph(fault) => fault,
        other => panic!("{other}"),
    }
}

/// Sums of the last two values, each on one of two devices or on the host.
pub(crate) fn sums_on(targets: &[usize]) -> Graph {
    let mut builder = GraphBuilder::new("forward");
    let mut last = ["a", "b"].map(|name| builder.input(name, spec()));
    for &target in targets {
        let device = [Some(CUDA_0), Some(CUDA_1), None, Some(CUDA_0)][target];
        let [sum] = builder.delegate("add", device, &last, [spec().into()]);
        last = [last[1], sum];
    }
    builder.finish(&last[1..]).unwrap()
}
