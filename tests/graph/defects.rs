//! Defects of the original that were seen in its releases 1.4.1 and 1.5.1, and are
//! absent here. Each test bears the letter that the defect has in the row notes.

use device_memory::graph::{
    GraphBuilder, MethodOptions, PlannedGraph, PlanningOptions, PropagateOptions, Skip, lifetimes,
    propagate,
};
use device_memory::plan::DeviceOptions;
use device_memory::{Device, DeviceType};

use crate::support::{CUDA_0, add, add_on, copies, device, placed, placed_with, spec};

fn options(planning: PlanningOptions) -> PlanningOptions {
    PlanningOptions {
        default: DeviceOptions::aligned(16),
        ..planning
    }
}

#[test]
fn a_with_unplanned_outputs_the_device_value_is_planned_and_the_host_copy_is_not() {
    // There: the list of outputs still names the device value, which then has no
    // memory, and its copy on the host is planned.
    let graph = placed(&add_on(Some(CUDA_0)));
    let planning = options(PlanningOptions {
        plan_outputs: false,
        ..PlanningOptions::default()
    });

    let planned = PlannedGraph::new(graph, &planning).unwrap();

    assert_eq!(planned.given(), planned.graph().outputs());
    let buffers = planned.memory().buffers().iter();
    let sizes: Vec<(Device, usize)> = buffers.map(|b| (b.device, b.size)).collect();
    assert_eq!(sizes, [(Device::CPU, 32), (CUDA_0, 48)]);
    let names = planned.request().values().iter();
    let names: Vec<&str> = names.filter_map(|value| value.name.as_deref()).collect();
    assert_eq!(names, ["a", "b", "a@cuda:0", "b@cuda:0", "sum"]);
}

#[test]
fn a_the_device_value_of_an_output_ends_with_its_copy() {
    // There: it is kept to the end.
    let graph = placed(&add_on(Some(CUDA_0)));

    let lifetimes = lifetimes(&graph);

    let of = |name: &str| lifetimes[graph.find(name).unwrap().number() as usize];
    assert_eq!((of("sum").first, of("sum").last), (3, 4));
    assert_eq!((of("sum@cpu:0").first, of("sum@cpu:0").last), (4, 5));
}

#[test]
fn b_a_constant_that_feeds_a_delegate_is_copied_like_any_value() {
    // There: "'NoneType' object has no attribute 'nbytes'".
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", spec());
    let weight = builder.constant("weight", spec());
    let sum = add(&mut builder, CUDA_0, a, weight);
    let graph = placed(&builder.finish(&[sum]).unwrap());

    assert_eq!(copies(&graph), (2, 1));
    let planned = PlannedGraph::new(graph, &options(PlanningOptions::default())).unwrap();
    // The copy on the device is planned, the constant itself is the caller's.
    assert_eq!(planned.given(), [weight]);
    assert_eq!(planned.memory().buffers()[1].size, 48);
}

#[test]
fn c_a_constant_is_not_taken_for_a_resident_input() {
    // There: it is told the device, and its bytes stay on the host.
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", spec());
    let weight = builder.constant("weight", spec());
    let sum = add(&mut builder, CUDA_0, a, weight);
    let graph = builder.finish(&[sum]).unwrap();
    let skipping = MethodOptions {
        resident_inputs: Skip::All,
        ..MethodOptions::default()
    };

    let graph = placed_with(&graph, skipping);

    assert_eq!(device(&graph, "a"), CUDA_0);
    assert_eq!(device(&graph, "weight"), Device::CPU);
    assert_eq!(copies(&graph), (1, 1));
}

#[test]
fn d_a_false_for_a_method_or_a_value_is_a_false() {
    // There: a dictionary by method is taken for true, whatever is in it.
    let off = MethodOptions {
        resident_inputs: Skip::by_name([("a", false), ("b", false)]),
        resident_outputs: Skip::by_name([("sum", false)]),
        ..MethodOptions::default()
    };
    let options = PropagateOptions::default().with_method("forward", off);

    let graph = propagate(&add_on(Some(CUDA_0)), &options).unwrap();

    assert_eq!(copies(&graph), (2, 1));
}

#[test]
fn e_a_delegate_whose_target_is_the_host_gets_no_copies() {
    // There: copies are inserted whose destination is on the host, and refused when
    // they run.
    let graph = placed(&add_on(Some(Device::CPU)));

    assert_eq!(graph.nodes().len(), 1);
    graph.check_devices().unwrap();
}

#[test]
fn e_a_target_of_another_index_of_the_host_is_a_device_like_any_other() {
    let cpu_1 = Device::new(DeviceType::Cpu, 1);
    let graph = placed(&add_on(Some(cpu_1)));

    assert_eq!(graph.count_copies().host_to_host, 3);
    graph.check_devices().unwrap();
}

#[test]
fn f_mutable_buffers_and_device_tensors_are_planned_together() {
    // There: sharing mutable buffers refuses any device tensor.
    let mut builder = GraphBuilder::new("decode");
    let state = builder.mutable_buffer("state", spec());
    let a = builder.input("a", spec());
    let next = device_memory::graph::Output::new(spec()).in_place_of(state, 0);
    let [next] = builder.delegate("update", Some(CUDA_0), &[a], [next]);
    let graph = builder.finish(&[next]).unwrap();
    let resident = MethodOptions {
        resident_buffers: Skip::All,
        ..MethodOptions::default()
    };

    for method in [MethodOptions::default(), resident] {
        let graph = placed_with(&graph, method.clone());
        graph.check_devices().unwrap();
        let planned = PlannedGraph::new(graph, &options(PlanningOptions::default())).unwrap();

        let of_state = device(planned.graph(), "state");
        assert_eq!(of_state == CUDA_0, method.resident_buffers == Skip::All);
        assert!(planned.place(state).is_some());
    }
}
