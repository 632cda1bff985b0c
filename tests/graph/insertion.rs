//! Copies at the boundaries of delegates, case by case as ExecuTorch's own tests
//! have them (`exir/tests/test_propagate_device_pass.py`).

use device_memory::Device;
use device_memory::graph::{
    GraphBuilder, MethodOptions, Op, PlannedGraph, PlanningOptions, PropagateOptions, propagate,
    tag_devices,
};

use crate::support::{
    CUDA_0, CUDA_1, add, add_on, chain_on, copies, device, has_bounce, listing, placed,
    placed_with, spec,
};

#[test]
fn each_argument_is_copied_before_the_delegate_and_each_output_after_it() {
    let graph = placed(&add_on(Some(CUDA_0)));

    assert_eq!(
        listing(&graph),
        [
            "copy a:cpu:0 -> a@cuda:0:cuda:0",
            "copy b:cpu:0 -> b@cuda:0:cuda:0",
            "add a@cuda:0:cuda:0 b@cuda:0:cuda:0 -> sum:cuda:0",
            "copy sum:cuda:0 -> sum@cpu:0:cpu:0",
        ]
    );
    let output = graph.value(graph.outputs()[0]).unwrap();
    assert_eq!((output.name(), output.device()), ("sum@cpu:0", Device::CPU));
}

#[test]
fn copies_are_still_there_and_on_their_devices_once_the_graph_is_planned() {
    let graph = placed(&add_on(Some(CUDA_0)));
    let planned = PlannedGraph::new(graph, &PlanningOptions::default()).unwrap();

    assert_eq!(copies(planned.graph()), (2, 1));
    planned.graph().check_devices().unwrap();
    let devices: Vec<Device> = planned
        .memory()
        .buffers()
        .iter()
        .map(|b| b.device)
        .collect();
    assert_eq!(devices, [Device::CPU, CUDA_0]);
}

#[test]
fn a_delegate_without_a_device_gets_no_copies() {
    let graph = add_on(None);

    assert_eq!(placed(&graph), graph);
}

#[test]
fn nothing_is_copied_where_memory_of_devices_is_not_planned() {
    let options = PropagateOptions {
        host_memory_only: true,
        ..PropagateOptions::default()
    };
    let graph = propagate(&add_on(Some(CUDA_0)), &options).unwrap();

    assert_eq!(copies(&graph), (0, 0));
    assert_eq!(graph, tag_devices(&add_on(Some(CUDA_0))).unwrap());
    // The values are told their device all the same.
    assert_eq!(
        ["a", "b", "sum"].map(|name| device(&graph, name)),
        [CUDA_0; 3]
    );
}

#[test]
fn a_value_that_goes_from_delegate_to_delegate_of_one_device_is_not_copied() {
    let graph = placed(&chain_on(CUDA_0, CUDA_0));

    assert_eq!(copies(&graph), (3, 1));
    assert!(!has_bounce(&graph));
}

#[test]
fn a_value_that_goes_to_another_device_goes_through_the_host() {
    let graph = placed(&chain_on(CUDA_0, CUDA_1));

    assert_eq!(copies(&graph), (4, 2));
    assert_eq!(
        listing(&graph)[3..6],
        [
            "copy add:cuda:0 -> add@cpu:0:cpu:0",
            "copy add@cpu:0:cpu:0 -> add@cpu:0@cuda:1:cuda:1",
            "copy c:cpu:0 -> c@cuda:1:cuda:1",
        ]
    );
}

#[test]
fn a_value_that_goes_to_another_device_goes_there_directly_where_that_is_wanted() {
    let options = MethodOptions {
        direct_copies: true,
        ..MethodOptions::default()
    };
    let graph = placed_with(&chain_on(CUDA_0, CUDA_1), options);

    let counts = graph.count_copies();
    assert_eq!(
        (
            counts.host_to_device,
            counts.device_to_host,
            counts.device_to_device
        ),
        (3, 1, 1)
    );
    graph.check_devices().unwrap();
}

#[test]
fn an_output_that_feeds_several_delegates_of_its_device_is_copied_for_none() {
    let mut builder = GraphBuilder::new("forward");
    let [a, b] = ["a", "b"].map(|name| builder.input(name, spec()));
    let t = add(&mut builder, CUDA_0, a, b);
    let u = add(&mut builder, CUDA_0, t, a);
    let w = add(&mut builder, CUDA_0, t, b);
    let sum = add(&mut builder, CUDA_0, u, w);
    let graph = placed(&builder.finish(&[sum]).unwrap());

    // Inputs are copied for each delegate, as in the original.
    assert_eq!(copies(&graph), (4, 1));
    assert!(!has_bounce(&graph));
}

#[test]
fn delegates_of_one_device_share_copies_where_that_is_wanted() {
    let mut builder = GraphBuilder::new("forward");
    let [a, b] = ["a", "b"].map(|name| builder.input(name, spec()));
    let t = add(&mut builder, CUDA_0, a, b);
    let u = add(&mut builder, CUDA_0, t, a);
    let w = add(&mut builder, CUDA_1, t, b);
    let sum = add(&mut builder, CUDA_0, u, w);
    let graph = builder.finish(&[sum]).unwrap();
    let options = MethodOptions {
        shared_copies: true,
        ..MethodOptions::default()
    };

    // a and b to cuda:0 once each, t and b to cuda:1, w to cuda:0.
    assert_eq!(copies(&placed_with(&graph, options)), (5, 3));
    assert_eq!(copies(&placed(&graph)), (6, 3));
}

#[test]
fn an_output_that_a_kernel_uses_too_is_copied_for_the_kernel_only() {
    let mut builder = GraphBuilder::new("forward");
    let [a, b] = ["a", "b"].map(|name| builder.input(name, spec()));
    let t = add(&mut builder, CUDA_0, a, b);
    let [w] = builder.kernel("relu", &[t], [spec().into()]);
    let u = add(&mut builder, CUDA_0, t, a);
    let graph = placed(&builder.finish(&[u, w]).unwrap());

    assert_eq!(copies(&graph), (3, 2));
    assert!(!has_bounce(&graph));
    let relu = graph
        .nodes()
        .iter()
        .find(|node| node.name() == "relu")
        .unwrap();
    let read = graph.value(relu.inputs()[0]).unwrap();
    assert_eq!((read.name(), read.device()), ("add@cpu:0", Device::CPU));
}

#[test]
fn an_output_that_feeds_delegates_of_its_own_and_another_device_is_copied_for_the_other() {
    let mut builder = GraphBuilder::new("forward");
    let [a, b] = ["a", "b"].map(|name| builder.input(name, spec()));
    let t = add(&mut builder, CUDA_0, a, b);
    let u = add(&mut builder, CUDA_0, t, a);
    let w = add(&mut builder, CUDA_1, t, b);
    let graph = placed(&builder.finish(&[u, w]).unwrap());

    let bounces: Vec<String> = listing(&graph)
        .into_iter()
        .filter(|node| node.starts_with("copy add@cpu:0:"))
        .collect();
    assert_eq!(bounces, ["copy add@cpu:0:cpu:0 -> add@cpu:0@cuda:1:cuda:1"]);
    graph.check_devices().unwrap();
}

#[test]
fn the_index_of_the_device_is_that_of_the_delegate() {
    let graph = placed(&add_on(Some(CUDA_1)));

    let on_device = ["a@cuda:1", "b@cuda:1", "sum"].map(|name| device(&graph, name));
    assert_eq!(on_device, [CUDA_1; 3]);
    let on_host = ["a", "b", "sum@cpu:0"].map(|name| device(&graph, name));
    assert_eq!(on_host, [Device::CPU; 3]);
}

#[test]
fn without_delegates_everything_remains_on_the_host() {
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", spec());
    let [b] = builder.kernel("relu", &[a], [spec().into()]);
    let graph = placed(&builder.finish(&[b]).unwrap());

    assert!(
        graph
            .values()
            .iter()
            .all(|value| value.device() == Device::CPU)
    );
    assert_eq!(copies(&graph), (0, 0));
}

#[test]
fn what_no_delegate_uses_remains_on_the_host_beside_one() {
    let mut builder = GraphBuilder::new("forward");
    let [a, b, c] = ["a", "b", "c"].map(|name| builder.input(name, spec()));
    let sum = add(&mut builder, CUDA_0, a, b);
    let [relu] = builder.kernel("relu", &[c], [spec().into()]);
    let graph = placed(&builder.finish(&[sum, relu]).unwrap());

    assert_eq!(
        ["a", "b", "c", "relu"].map(|name| device(&graph, name)),
        [Device::CPU; 4]
    );
    assert_eq!(copies(&graph), (2, 1));
}

#[test]
fn a_value_given_twice_to_one_delegate_is_copied_once() {
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", spec());
    let sum = add(&mut builder, CUDA_0, a, a);
    let graph = placed(&builder.finish(&[sum]).unwrap());

    assert_eq!(copies(&graph), (1, 1));
}

#[test]
fn each_output_of_a_delegate_is_copied_by_itself_and_only_if_used() {
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", spec());
    let outputs = [spec().into(), spec().into(), spec().into()];
    let [x, y, _] = builder.delegate("split", Some(CUDA_0), &[a], outputs);
    let graph = placed(&builder.finish(&[x, y]).unwrap());

    assert_eq!(copies(&graph), (1, 2));
}

#[test]
fn a_view_of_what_a_delegate_made_stays_on_the_device() {
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", spec());
    let t = add(&mut builder, CUDA_0, a, a);
    let view = builder.view("row", t, 0, spec());
    let u = add(&mut builder, CUDA_0, view, view);
    let graph = placed(&builder.finish(&[u]).unwrap());

    assert_eq!(device(&graph, "row"), CUDA_0);
    assert_eq!(copies(&graph), (1, 1));
}

#[test]
fn a_delegate_inside_a_branch_gets_its_copies_there() {
    let mut builder = GraphBuilder::new("forward");
    let choice = builder.input("choice", crate::support::truth());
    let [a, b] = ["a", "b"].map(|name| builder.input(name, spec()));
    let graphs = (add_on(Some(CUDA_0)), add_on(Some(CUDA_1)));
    let [out] = builder.branch("if", &[choice, a, b], graphs, [spec().into()]);
    let graph = placed(&builder.finish(&[out]).unwrap());

    assert_eq!(copies(&graph), (4, 2));
    graph.check_devices().unwrap();
    let inner: Vec<_> = graph.nodes()[0].op().graphs().map(copies).collect();
    assert_eq!(inner, [(2, 1), (2, 1)]);
}

#[test]
fn every_value_keeps_its_number_and_its_name() {
    let graph = chain_on(CUDA_0, CUDA_1);

    let placed = placed(&graph);

    for (before, after) in graph.values().iter().zip(placed.values()) {
        assert_eq!(before.name(), after.name());
    }
    assert_eq!(placed.inputs(), graph.inputs());
    let is_new = |op: &Op| matches!(op, Op::Copy);
    let kept = placed
        .nodes()
        .iter()
        .filter(|node| !is_new(node.op()))
        .count();
    assert_eq!(kept, graph.nodes().len());
}
