//! From graphs to plans: what is planned, on which devices, and how large.

use device_memory::graph::{
    Graph, GraphBuilder, MethodOptions, Output, Place, PlannedGraph, PlanningOptions, Skip,
};
use device_memory::plan::{self, Algorithm, DeviceOptions, PlanOptions};
use device_memory::{Device, DeviceType};

use crate::support::{
    CUDA_0, CUDA_1, add, add_on, chain_on, floats, placed, placed_with, spec, truth,
};

/// As the original plans: its algorithm, its alignment.
fn as_the_original() -> PlanningOptions {
    PlanningOptions {
        default: DeviceOptions::aligned(16),
        planner: PlanOptions::new(Algorithm::ExecutorchGreedy),
        ..PlanningOptions::default()
    }
}

fn planned(graph: Graph, options: &PlanningOptions) -> PlannedGraph {
    let planned = PlannedGraph::new(graph, options).unwrap();
    plan::check(planned.request(), planned.memory()).unwrap();
    planned
}

fn sizes(planned: &PlannedGraph) -> Vec<(Device, usize)> {
    let buffers = planned.memory().buffers().iter();
    buffers.map(|buffer| (buffer.device, buffer.size)).collect()
}

/// The buffer and the offset of each value.
fn offsets<const N: usize>(planned: &PlannedGraph, names: [&str; N]) -> [(u32, usize); N] {
    names.map(
        |name| match planned.place(planned.graph().find(name).unwrap()) {
            Some(Place::Planned(placement)) => (placement.memory_id, placement.offset),
            other => panic!("{name}: {other:?}"),
        },
    )
}

// The figures of the next tests are those of ExecuTorch's own exporter, for the same
// models. Memory ids are one less here.

#[test]
fn the_sum_of_two_is_placed_as_the_original_places_it() {
    let planned = planned(placed(&add_on(Some(CUDA_0))), &as_the_original());

    assert_eq!(sizes(&planned), [(Device::CPU, 32), (CUDA_0, 48)]);
    let names = ["a", "b", "a@cuda:0", "b@cuda:0", "sum", "sum@cpu:0"];
    let expected = [(0, 16), (0, 0), (1, 32), (1, 16), (1, 0), (0, 0)];
    assert_eq!(offsets(&planned, names), expected);
}

#[test]
fn a_chain_on_one_device_is_placed_as_the_original_places_it() {
    let planned = planned(placed(&chain_on(CUDA_0, CUDA_0)), &as_the_original());

    assert_eq!(sizes(&planned), [(Device::CPU, 48), (CUDA_0, 48)]);
    let names = [
        "a",
        "b",
        "c",
        "a@cuda:0",
        "b@cuda:0",
        "add",
        "c@cuda:0",
        "add.1",
        "add.1@cpu:0",
    ];
    let expected = [
        (0, 32),
        (0, 16),
        (0, 0),
        (1, 16),
        (1, 0),
        (1, 32),
        (1, 16),
        (1, 0),
        (0, 0),
    ];
    assert_eq!(offsets(&planned, names), expected);
}

#[test]
fn a_chain_over_two_devices_is_placed_as_the_original_places_it() {
    let planned = planned(placed(&chain_on(CUDA_0, CUDA_1)), &as_the_original());

    assert_eq!(
        sizes(&planned),
        [(Device::CPU, 48), (CUDA_0, 48), (CUDA_1, 48)]
    );
    let names = [
        "a",
        "b",
        "c",
        "a@cuda:0",
        "b@cuda:0",
        "add",
        "add@cpu:0",
        "add@cpu:0@cuda:1",
        "c@cuda:1",
        "add.1",
        "add.1@cpu:0",
    ];
    let expected = [
        (0, 32),
        (0, 0),
        (0, 16),
        (1, 32),
        (1, 16),
        (1, 0),
        (0, 0),
        (2, 32),
        (2, 16),
        (2, 0),
        (0, 0),
    ];
    assert_eq!(offsets(&planned, names), expected);
}

#[test]
fn a_value_for_a_delegate_and_the_host_is_placed_as_the_original_places_it() {
    let mut builder = GraphBuilder::new("forward");
    let [a, b] = ["a", "b"].map(|name| builder.input(name, spec()));
    let t = add(&mut builder, CUDA_0, a, b);
    let [w] = builder.kernel("relu", &[t], [spec().into()]);
    let u = add(&mut builder, CUDA_0, t, a);
    let graph = placed(&builder.finish(&[u, w]).unwrap());

    let planned = planned(graph, &as_the_original());

    assert_eq!(sizes(&planned), [(Device::CPU, 48), (CUDA_0, 48)]);
    let names = [
        "a",
        "b",
        "a@cuda:0",
        "b@cuda:0",
        "add",
        "add@cpu:0",
        "relu",
        "a@cuda:0.1",
        "add.1",
        "add.1@cpu:0",
    ];
    let expected = [
        (0, 32),
        (0, 0),
        (1, 16),
        (1, 0),
        (1, 32),
        (0, 0),
        (0, 16),
        (1, 16),
        (1, 0),
        (0, 0),
    ];
    assert_eq!(offsets(&planned, names), expected);
}

#[test]
fn sizes_are_rounded_up_as_the_original_rounds_them() {
    let tensor = floats(&[5, 3]);
    let mut builder = GraphBuilder::new("forward");
    let [a, b] = ["a", "b"].map(|name| builder.input(name, tensor.clone()));
    let on = |builder: &mut GraphBuilder, a, b| {
        let [sum] = builder.delegate("add", Some(CUDA_0), &[a, b], [tensor.clone().into()]);
        sum
    };
    let t = on(&mut builder, a, b);
    let [sin] = builder.kernel("sin", &[t], [tensor.clone().into()]);
    let u = on(&mut builder, sin, b);
    let graph = placed(&builder.finish(&[u]).unwrap());

    let planned = planned(graph, &as_the_original());

    assert_eq!(sizes(&planned), [(Device::CPU, 192), (CUDA_0, 192)]);
    let names = [
        "a",
        "b",
        "a@cuda:0",
        "b@cuda:0",
        "add",
        "add@cpu:0",
        "sin",
        "sin@cuda:0",
        "b@cuda:0.1",
        "add.1",
        "add.1@cpu:0",
    ];
    let expected = [
        (0, 0),
        (0, 128),
        (1, 128),
        (1, 64),
        (1, 0),
        (0, 64),
        (0, 0),
        (1, 128),
        (1, 64),
        (1, 0),
        (0, 0),
    ];
    assert_eq!(offsets(&planned, names), expected);
}

#[test]
fn with_everything_resident_there_is_no_memory_on_the_host() {
    let resident = MethodOptions {
        resident_inputs: Skip::All,
        resident_outputs: Skip::All,
        ..MethodOptions::default()
    };

    let planned = planned(
        placed_with(&add_on(Some(CUDA_0)), resident),
        &as_the_original(),
    );

    assert_eq!(sizes(&planned), [(CUDA_0, 48)]);
}

#[test]
fn a_device_is_never_given_memory_of_another() {
    let graph = placed(&chain_on(CUDA_0, CUDA_1));
    let planned = planned(graph, &as_the_original());

    for (index, value) in planned.graph().values().iter().enumerate() {
        let id = planned.graph().find(value.name()).unwrap();
        assert_eq!(id.number() as usize, index);
        let Some(Place::Planned(placement)) = planned.place(id) else {
            panic!("{} is not planned", value.name());
        };
        let buffer = planned.memory().buffers()[placement.memory_id as usize];
        assert_eq!(buffer.device, value.device());
    }
}

#[test]
fn three_values_are_on_the_device_and_three_on_the_host() {
    let planned = planned(placed(&add_on(Some(CUDA_1))), &as_the_original());

    let devices = planned.graph().values().iter().map(|value| value.device());
    let (on_host, on_device): (Vec<Device>, _) = devices.partition(|device| device.is_cpu());
    assert_eq!((on_host.len(), on_device), (3, vec![CUDA_1; 3]));
}

#[test]
fn host_memory_only_puts_everything_on_the_host() {
    let options = PlanningOptions {
        host_memory_only: true,
        ..as_the_original()
    };

    let planned = planned(add_on(Some(CUDA_0)), &options);

    assert_eq!(sizes(&planned), [(Device::CPU, 48)]);
}

#[test]
fn each_device_has_the_alignment_and_padding_that_it_is_given() {
    let mut options = as_the_original();
    let aligned = DeviceOptions::aligned(256).padding(64);
    options.devices.insert(CUDA_0, aligned);

    let planned = planned(placed(&add_on(Some(CUDA_0))), &options);

    assert_eq!(sizes(&planned)[0], (Device::CPU, 32));
    let (_, size) = sizes(&planned)[1];
    assert!((592..=832).contains(&size), "{size}");
    for name in ["a@cuda:0", "b@cuda:0", "sum"] {
        assert_eq!(offsets(&planned, [name])[0].1 % 256, 0);
    }
}

#[test]
fn a_capacity_that_can_not_be_met_is_said() {
    let mut options = as_the_original();
    options
        .devices
        .insert(CUDA_0, DeviceOptions::aligned(16).capacity(47));

    let error = PlannedGraph::new(placed(&add_on(Some(CUDA_0))), &options).unwrap_err();

    assert!(error.to_string().contains("cuda:0"), "{error}");
}

#[test]
fn inputs_outputs_and_buffers_may_each_be_left_to_the_caller() {
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", spec());
    let state = builder.mutable_buffer("state", spec());
    let weight = builder.constant("weight", spec());
    let [t] = builder.kernel("add", &[a, weight], [spec().into()]);
    let [out] = builder.kernel("add", &[t, state], [spec().into()]);
    let graph = builder.finish(&[out]).unwrap();
    let given = |change: &dyn Fn(&mut PlanningOptions)| {
        let mut options = as_the_original();
        change(&mut options);
        planned(graph.clone(), &options).given().to_vec()
    };

    assert_eq!(given(&|_| ()), [weight]);
    assert_eq!(given(&|o| o.plan_inputs = false), [a, weight]);
    assert_eq!(given(&|o| o.plan_outputs = false), [weight, out]);
    assert_eq!(given(&|o| o.plan_buffers = false), [state, weight]);
}

#[test]
fn an_output_that_is_a_view_leaves_the_whole_value_to_the_caller() {
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", spec());
    let [t] = builder.kernel("relu", &[a], [spec().into()]);
    let row = builder.view("row", t, 8, floats(&[2]));
    let graph = builder.finish(&[row]).unwrap();

    let planned = planned(graph, &PlanningOptions::unplanned_io());

    assert_eq!(planned.given(), [a, t]);
    let expected = Place::Given {
        value: t,
        offset: 8,
        size: Some(8),
    };
    assert_eq!(planned.place(row), Some(expected));
}

#[test]
fn what_lies_in_another_value_is_placed_in_it() {
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", spec());
    let [t] = builder.kernel("relu", &[a], [spec().into()]);
    let row = builder.view("row", t, 8, floats(&[2]));
    let over = Output::new(floats(&[1])).in_place_of(row, 4);
    let [over] = builder.kernel("relu_", &[], [over]);
    let graph = builder.finish(&[over]).unwrap();

    let planned = planned(graph, &as_the_original());

    let [(id, at)] = offsets(&planned, ["relu"]);
    assert_eq!(
        offsets(&planned, ["row", "relu_"]),
        [(id, at + 8), (id, at + 12)]
    );
    // Only what has bytes of its own is asked of the planner.
    assert_eq!(planned.request().values().len(), 2);
}

#[test]
fn the_graphs_of_a_branch_share_memory_with_each_other_and_with_what_is_over() {
    let inner = |name: &str| {
        let mut builder = GraphBuilder::new(name);
        let x = builder.input("x", floats(&[256]));
        let [y] = builder.kernel("sin", &[x], [floats(&[256]).into()]);
        let [z] = builder.kernel("cos", &[y], [floats(&[256]).into()]);
        builder.finish(&[z]).unwrap()
    };
    let mut builder = GraphBuilder::new("forward");
    let choice = builder.input("choice", truth());
    let x = builder.input("x", floats(&[256]));
    let [before] = builder.kernel("sin", &[x], [floats(&[256]).into()]);
    let [now] = builder.kernel("cos", &[before], [floats(&[256]).into()]);
    let graphs = (inner("then"), inner("otherwise"));
    let [out] = builder.branch("if", &[choice, now], graphs, [floats(&[256]).into()]);
    let graph = builder.finish(&[out]).unwrap();

    let planned = planned(graph, &as_the_original());

    // What goes in, what comes out, and two values inside: four of 1 KiB, beside
    // the choice.
    assert_eq!(sizes(&planned), [(Device::CPU, 4 * 1024 + 16)]);
    assert_eq!(planned.request().values().len(), 9);
}

#[test]
fn a_graph_inside_may_use_devices() {
    // The original plans what is inside a branch or a loop on the host only.
    let mut builder = GraphBuilder::new("forward");
    let choice = builder.input("choice", truth());
    let [a, b] = ["a", "b"].map(|name| builder.input(name, spec()));
    let graphs = (add_on(Some(CUDA_0)), add_on(Some(CUDA_1)));
    let [out] = builder.branch("if", &[choice, a, b], graphs, [spec().into()]);
    let graph = placed(&builder.finish(&[out]).unwrap());

    let planned = planned(graph, &as_the_original());

    let devices: Vec<Device> = sizes(&planned).iter().map(|&(device, _)| device).collect();
    assert_eq!(devices, [Device::CPU, CUDA_0, CUDA_1]);
}

#[test]
fn devices_are_in_the_order_of_the_original() {
    let custom = Device::new(DeviceType::Custom(1), 0);
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", spec());
    let mut last = a;
    for device in [custom, CUDA_1, CUDA_0] {
        last = add(&mut builder, device, last, last);
    }
    let graph = placed(&builder.finish(&[last]).unwrap());

    let planned = planned(graph, &as_the_original());

    let devices: Vec<Device> = sizes(&planned).iter().map(|&(device, _)| device).collect();
    assert_eq!(devices, [Device::CPU, CUDA_0, CUDA_1, custom]);
}

#[test]
fn an_empty_graph_needs_no_memory() {
    let graph = GraphBuilder::new("forward").finish(&[]).unwrap();

    assert_eq!(sizes(&planned(graph, &as_the_original())), []);
}

#[test]
fn mutable_buffers_may_have_a_pool_of_their_own() {
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", spec());
    let states = ["x", "y"].map(|name| builder.mutable_buffer(name, spec()));
    let [b] = builder.kernel("mix", &[a, states[0], states[1]], [spec().into()]);
    let graph = builder.finish(&[b]).unwrap();
    let options = PlanningOptions {
        buffer_pool: 1,
        ..as_the_original()
    };

    let planned = planned(graph, &options);

    assert_eq!(sizes(&planned), [(Device::CPU, 32), (Device::CPU, 32)]);
    let places = offsets(&planned, ["a", "x", "y", "mix"]);
    assert_eq!(places.map(|(buffer, _)| buffer), [0, 1, 1, 0]);
}

#[test]
fn a_long_graph_is_placed() {
    let mut builder = GraphBuilder::new("forward");
    let mut last = builder.input("a", spec());
    for step in 0..20_000 {
        let target = [Some(CUDA_0), Some(CUDA_0), None, Some(CUDA_1)][step % 4];
        let [next] = builder.delegate("add", target, &[last], [spec().into()]);
        last = builder.view("view", next, 0, spec());
    }
    let graph = placed(&builder.finish(&[last]).unwrap());
    let options = PlanningOptions {
        planner: PlanOptions::new(Algorithm::ExecutorchGreedy),
        ..PlanningOptions::default()
    };

    let planned = planned(graph, &options);

    assert_eq!(planned.memory().buffers().len(), 3);
}
