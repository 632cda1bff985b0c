//! Copies that are skipped, per method and per input and output.

use device_memory::graph::{
    GraphBuilder, MethodOptions, PlannedGraph, PlanningOptions, PropagateOptions, Skip, propagate,
};
use device_memory::plan::DeviceOptions;
use device_memory::{Device, GraphFault};

use crate::support::{
    CUDA_0, CUDA_1, add, add_on, copies, device, fault, placed, placed_with, spec,
};

fn skip(inputs: Skip, outputs: Skip) -> MethodOptions {
    MethodOptions {
        resident_inputs: inputs,
        resident_outputs: outputs,
        ..MethodOptions::default()
    }
}

/// The bytes of each buffer, aligned as in ExecuTorch.
fn sizes(planned: &PlannedGraph) -> Vec<(Device, usize)> {
    let buffers = planned.memory().buffers().iter();
    buffers.map(|buffer| (buffer.device, buffer.size)).collect()
}

fn planned_io() -> PlanningOptions {
    PlanningOptions {
        default: DeviceOptions::aligned(16),
        ..PlanningOptions::default()
    }
}

fn unplanned_io() -> PlanningOptions {
    PlanningOptions {
        default: DeviceOptions::aligned(16),
        ..PlanningOptions::unplanned_io()
    }
}

#[test]
fn resident_inputs_are_on_the_device_and_not_copied() {
    let graph = placed_with(&add_on(Some(CUDA_0)), skip(Skip::All, Skip::None));

    assert_eq!(copies(&graph), (0, 1));
    assert_eq!(["a", "b"].map(|name| device(&graph, name)), [CUDA_0; 2]);
    let planned = PlannedGraph::new(graph, &planned_io()).unwrap();
    assert_eq!(sizes(&planned), [(Device::CPU, 16), (CUDA_0, 48)]);
}

#[test]
fn resident_outputs_stay_on_the_device() {
    let graph = placed_with(&add_on(Some(CUDA_0)), skip(Skip::None, Skip::All));

    assert_eq!(copies(&graph), (2, 0));
    assert_eq!(graph.outputs(), [graph.find("sum").unwrap()]);
    assert_eq!(device(&graph, "sum"), CUDA_0);
}

#[test]
fn with_both_skipped_nothing_is_copied() {
    let graph = placed_with(&add_on(Some(CUDA_0)), skip(Skip::All, Skip::All));

    assert_eq!(copies(&graph), (0, 0));
    assert_eq!(graph.nodes().len(), 1);
    let planned = PlannedGraph::new(graph, &planned_io()).unwrap();
    assert_eq!(sizes(&planned), [(CUDA_0, 48)]);
}

#[test]
fn a_value_from_the_host_between_is_still_copied_to_the_device() {
    let mut builder = GraphBuilder::new("forward");
    let [a, b] = ["a", "b"].map(|name| builder.input(name, spec()));
    let [relu] = builder.kernel("relu", &[b], [spec().into()]);
    let sum = add(&mut builder, CUDA_0, a, relu);
    let graph = builder.finish(&[sum]).unwrap();

    let graph = placed_with(&graph, skip(Skip::All, Skip::None));

    assert_eq!(copies(&graph), (1, 1));
    assert_eq!(device(&graph, "a"), CUDA_0);
    assert_eq!(device(&graph, "b"), Device::CPU);
}

#[test]
fn what_is_skipped_works_with_planned_and_with_unplanned_inputs_and_outputs() {
    // The original needs unplanned ones:
    // https://github.com/pytorch/executorch/pull/21577
    let graph = placed_with(&add_on(Some(CUDA_0)), skip(Skip::All, Skip::All));

    let planned = PlannedGraph::new(graph.clone(), &planned_io()).unwrap();
    let unplanned = PlannedGraph::new(graph, &unplanned_io()).unwrap();

    assert_eq!(sizes(&planned), [(CUDA_0, 48)]);
    assert_eq!(sizes(&unplanned), []);
    assert_eq!(planned.given(), []);
    assert_eq!(unplanned.given().len(), 3);
}

#[test]
fn inputs_and_outputs_are_skipped_one_by_one() {
    let graph = add_on(Some(CUDA_0));

    let some = placed_with(&graph, skip(Skip::only(["b"]), Skip::None));

    assert_eq!(copies(&some), (1, 1));
    assert_eq!(device(&some, "a"), Device::CPU);
    assert_eq!(device(&some, "b"), CUDA_0);
    let by_name = [("a", true), ("b", false)];
    let some = placed_with(&graph, skip(Skip::by_name(by_name), Skip::only(["sum"])));
    assert_eq!(copies(&some), (1, 0));
    assert_eq!(device(&some, "a"), CUDA_0);
}

#[test]
fn a_method_that_is_not_named_skips_nothing() {
    let options = PropagateOptions::default().with_method("decode", skip(Skip::All, Skip::All));

    let graph = propagate(&add_on(Some(CUDA_0)), &options).unwrap();

    assert_eq!(graph, placed(&add_on(Some(CUDA_0))));
}

#[test]
fn each_method_has_options_of_its_own() {
    let options = PropagateOptions::default()
        .with_method("decode", skip(Skip::All, Skip::All))
        .with_method("forward", skip(Skip::None, Skip::All));

    let graph = propagate(&add_on(Some(CUDA_0)), &options).unwrap();

    assert_eq!(copies(&graph), (2, 0));
}

#[test]
fn a_resident_input_may_have_several_users() {
    // The original allows one user only.
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", spec());
    let t = add(&mut builder, CUDA_0, a, a);
    let u = add(&mut builder, CUDA_0, t, a);
    let [relu] = builder.kernel("relu", &[a], [spec().into()]);
    let w = add(&mut builder, CUDA_1, a, relu);
    let graph = builder.finish(&[u, w]).unwrap();

    let graph = placed_with(&graph, skip(Skip::All, Skip::None));

    // It is on the device of its first delegate; the host and the other device get
    // copies.
    assert_eq!(device(&graph, "a"), CUDA_0);
    assert_eq!(copies(&graph), (2, 3));
    graph.check_devices().unwrap();
}

#[test]
fn a_resident_output_that_the_host_uses_too_is_copied_for_the_host_only() {
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", spec());
    let t = add(&mut builder, CUDA_0, a, a);
    let [relu] = builder.kernel("relu", &[t], [spec().into()]);
    let graph = builder.finish(&[t, relu]).unwrap();

    let graph = placed_with(&graph, skip(Skip::None, Skip::All));

    assert_eq!(copies(&graph), (1, 1));
    let devices = graph
        .outputs()
        .iter()
        .map(|&id| graph.value(id).unwrap().device());
    assert_eq!(devices.collect::<Vec<_>>(), [CUDA_0, Device::CPU]);
}

#[test]
fn an_input_that_no_delegate_uses_remains_on_the_host_even_if_skipped() {
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", spec());
    let [relu] = builder.kernel("relu", &[a], [spec().into()]);
    let graph = builder.finish(&[relu]).unwrap();

    let skipped = placed_with(&graph, skip(Skip::All, Skip::All));

    assert_eq!(skipped, graph);
}

#[test]
fn skipping_what_the_graph_does_not_have_is_refused() {
    let options = PropagateOptions::all(skip(Skip::by_name([("c", false)]), Skip::None));

    let error = propagate(&add_on(Some(CUDA_0)), &options).unwrap_err();

    assert_eq!(
        error.to_string(),
        "no input is named \"c\": the graph has a, b"
    );
}

#[test]
fn skipping_without_memory_of_devices_is_refused() {
    for (method, refused) in [
        (skip(Skip::All, Skip::None), true),
        (skip(Skip::None, Skip::only(["sum"])), true),
        (skip(Skip::by_name([("a", false)]), Skip::None), false),
        (skip(Skip::None, Skip::None), false),
    ] {
        let options = PropagateOptions {
            others: method,
            host_memory_only: true,
            ..PropagateOptions::default()
        };

        let result = propagate(&add_on(Some(CUDA_0)), &options);

        if refused {
            assert_eq!(fault(result), GraphFault::SkipWithoutPlanning);
        } else {
            assert!(result.is_ok());
        }
    }
    assert_eq!(
        GraphFault::SkipWithoutPlanning.to_string(),
        "copies can not be skipped: memory of devices is not planned"
    );
}
