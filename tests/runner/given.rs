//! Memory that the caller gives for what is not planned.

use device_memory::graph::{
    GraphBuilder, MethodOptions, Output, PlannedGraph, PlanningOptions, PropagateOptions, Skip,
    propagate,
};
use device_memory::runner::Runner;
use device_memory::{
    Device, DeviceAllocatorRegistry, DeviceLayout, DeviceMemoryBuffer, Error, PlannedMemory,
};

use crate::graphs::{CUDA_0, CUDA_1, bytes};
use crate::support::{fake_gpus, increment};

fn buffer(registry: &DeviceAllocatorRegistry, len: usize, device: Device) -> DeviceMemoryBuffer {
    let layout = DeviceLayout::from_size(len).unwrap();
    DeviceMemoryBuffer::create_in(registry, layout, device).unwrap()
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, Error>, expected: &str) {
    assert_eq!(result.unwrap_err().to_string(), expected);
}

#[test]
fn inputs_and_outputs_that_are_not_planned_are_used_where_they_are_given() {
    let spec = bytes(4, Device::CPU);
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", spec.clone());
    let [b] = builder.delegate("b", Some(CUDA_0), &[a], [spec.into()]);
    let graph = builder.finish(&[b]).unwrap();
    let resident = MethodOptions {
        resident_inputs: Skip::All,
        resident_outputs: Skip::All,
        ..MethodOptions::default()
    };
    let graph = propagate(&graph, &PropagateOptions::all(resident)).unwrap();
    let planned = PlannedGraph::new(graph, &PlanningOptions::unplanned_io()).unwrap();
    assert!(planned.memory().buffers().is_empty());
    let (fake, registry) = fake_gpus();
    let mut from = buffer(&registry, 4, CUDA_0);
    let mut to = buffer(&registry, 4, CUDA_0);
    from.fill(4).unwrap();
    let mut memory = PlannedMemory::allocate(planned.memory(), &registry).unwrap();

    {
        let mut runner = Runner::new(&planned, memory.view().unwrap()).unwrap();
        runner.give(a, from.as_span()).unwrap();
        runner.give_mut(b, to.as_span_mut()).unwrap();
        // What is given stays given.
        for _ in 0..2 {
            runner.run(increment).unwrap();
        }
        assert_eq!(runner.copies().total(), 0);
        assert_eq!(runner.read(b).unwrap(), [5; 4]);
    }

    assert_eq!(to.to_vec().unwrap(), [5; 4]);
    drop((from, to, memory));
    assert!(fake.violations().is_empty());
}

#[test]
fn other_memory_may_be_given_for_the_next_run() {
    let spec = bytes(2, Device::CPU);
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", spec.clone());
    let [b] = builder.kernel("b", &[a], [spec.into()]);
    let graph = builder.finish(&[b]).unwrap();
    let planned = PlannedGraph::new(graph, &PlanningOptions::unplanned_io()).unwrap();
    let (_fake, registry) = fake_gpus();
    let mut outs = [0, 1, 2].map(|_| buffer(&registry, 2, Device::CPU));
    let mut input = buffer(&registry, 2, Device::CPU);
    let mut memory = PlannedMemory::allocate(planned.memory(), &registry).unwrap();

    {
        let mut runner = Runner::new(&planned, memory.view().unwrap()).unwrap();
        runner.give_mut(a, input.as_span_mut()).unwrap();
        for (step, out) in (1..).zip(&mut outs) {
            runner.give_mut(b, out.as_span_mut()).unwrap();
            runner.write(a, &[step; 2]).unwrap();
            runner.run(increment).unwrap();
        }
    }

    let bytes = outs.map(|out| out.to_vec().unwrap()[0]);
    assert_eq!(bytes, [2, 3, 4]);
}

#[test]
fn a_constant_is_read_where_it_is_given() {
    let spec = bytes(4, Device::CPU);
    let mut builder = GraphBuilder::new("forward");
    let weight = builder.constant("weight", spec.clone());
    let [b] = builder.delegate("b", Some(CUDA_0), &[weight], [spec.into()]);
    let graph = builder.finish(&[b]).unwrap();
    let graph = propagate(&graph, &PropagateOptions::default()).unwrap();
    let output = graph.outputs()[0];
    let planned = PlannedGraph::new(graph, &PlanningOptions::default()).unwrap();
    let (_fake, registry) = fake_gpus();
    let mut weights = buffer(&registry, 16, Device::CPU);
    weights.fill(8).unwrap();
    let mut memory = PlannedMemory::allocate(planned.memory(), &registry).unwrap();
    let mut runner = Runner::new(&planned, memory.view().unwrap()).unwrap();

    refused(
        runner.run(increment),
        "value \"weight\": its memory is not planned and was not given",
    );
    runner.give(weight, weights.as_span()).unwrap();
    runner.run(increment).unwrap();

    assert_eq!(runner.read(output).unwrap(), [9; 4]);
    assert_eq!(runner.copies().host_to_device, 1);
    refused(
        runner.write(weight, &[0; 4]),
        "value \"weight\": it is neither an input nor a mutable buffer",
    );
}

#[test]
fn an_output_that_is_a_part_is_given_the_whole() {
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", bytes(4, Device::CPU));
    let [b] = builder.kernel("b", &[a], [bytes(4, Device::CPU).into()]);
    let part = builder.view("part", b, 1, bytes(2, Device::CPU));
    let graph = builder.finish(&[part]).unwrap();
    let options = PlanningOptions {
        plan_outputs: false,
        ..PlanningOptions::default()
    };
    let planned = PlannedGraph::new(graph, &options).unwrap();
    let (_fake, registry) = fake_gpus();
    let mut whole = buffer(&registry, 4, Device::CPU);
    let mut memory = PlannedMemory::allocate(planned.memory(), &registry).unwrap();
    {
        let mut runner = Runner::new(&planned, memory.view().unwrap()).unwrap();
        runner.give_mut(part, whole.as_span_mut()).unwrap();
        runner.write(a, &[1, 2, 3, 4]).unwrap();
        runner.run(increment).unwrap();
        assert_eq!(runner.read(part).unwrap(), [3, 4]);
    }
    assert_eq!(whole.to_vec().unwrap(), [2, 3, 4, 5]);
}

#[test]
fn what_is_given_is_on_the_right_device_large_enough_and_writable_where_needed() {
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", bytes(4, CUDA_0));
    let state = builder.mutable_buffer("state", bytes(4, CUDA_0));
    let next = Output::new(bytes(4, CUDA_0)).in_place_of(state, 0);
    let [b] = builder.delegate("b", Some(CUDA_0), &[a], [next]);
    let graph = builder.finish(&[b]).unwrap();
    let options = PlanningOptions {
        plan_buffers: false,
        ..PlanningOptions::unplanned_io()
    };
    let planned = PlannedGraph::new(graph, &options).unwrap();
    assert_eq!(planned.given(), [a, state]);
    let (_fake, registry) = fake_gpus();
    let elsewhere = buffer(&registry, 4, CUDA_1);
    let small = buffer(&registry, 3, CUDA_0);
    let to_read = buffer(&registry, 4, CUDA_0);
    let mut right = buffer(&registry, 4, CUDA_0);
    let mut memory = PlannedMemory::allocate(planned.memory(), &registry).unwrap();
    let mut runner = Runner::new(&planned, memory.view().unwrap()).unwrap();

    refused(
        runner.give(a, elsewhere.as_span()),
        "device mismatch: expected cuda:0, found cuda:1",
    );
    refused(
        runner.give(a, small.as_span()),
        "length mismatch on cuda:0: expected 4 bytes, found 3",
    );
    refused(
        runner.give(state, to_read.as_span()),
        "value \"state\": it is written and was given to be read",
    );
    // The output is the buffer's new content: its memory is the buffer's.
    runner.give_mut(b, right.as_span_mut()).unwrap();
    runner.write(state, &[6; 4]).unwrap();
    assert_eq!(runner.read(state).unwrap(), [6; 4]);
    refused(
        runner.write(a, &[0; 4]),
        "value \"a\": its memory is not planned and was not given",
    );
}

#[test]
fn an_input_given_to_be_read_is_not_written() {
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", bytes(4, Device::CPU));
    let graph = builder.finish(&[a]).unwrap();
    let planned = PlannedGraph::new(graph, &PlanningOptions::unplanned_io()).unwrap();
    let (_fake, registry) = fake_gpus();
    let given = buffer(&registry, 4, Device::CPU);
    let mut memory = PlannedMemory::allocate(planned.memory(), &registry).unwrap();
    let mut runner = Runner::new(&planned, memory.view().unwrap()).unwrap();

    runner.give(a, given.as_span()).unwrap();

    refused(
        runner.write(a, &[0; 4]),
        "value \"a\": it is written and was given to be read",
    );
}

#[test]
fn what_can_not_be_written_is_still_what_it_was() {
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", bytes(4, Device::CPU));
    let graph = builder.finish(&[a]).unwrap();
    let planned = PlannedGraph::new(graph, &PlanningOptions::unplanned_io()).unwrap();
    let (_fake, registry) = fake_gpus();
    let mut given = buffer(&registry, 4, Device::CPU);
    given.fill(7).unwrap();
    let mut memory = PlannedMemory::allocate(planned.memory(), &registry).unwrap();
    let mut runner = Runner::new(&planned, memory.view().unwrap()).unwrap();

    refused(
        runner.input_mut(a),
        "value \"a\": its memory is not planned and was not given",
    );
    assert!(runner.run(increment).is_err());
    runner.give(a, given.as_span()).unwrap();
    runner.run(increment).unwrap();
    refused(
        runner.input_mut(a),
        "value \"a\": it is written and was given to be read",
    );

    assert_eq!(runner.read(a).unwrap(), [7; 4]);
}

#[test]
fn delegates_take_host_memory_where_memory_of_devices_is_not_planned() {
    let spec = bytes(4, Device::CPU);
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", spec.clone());
    let weight = builder.constant("weight", spec.clone());
    let [b] = builder.delegate("b", Some(CUDA_0), &[a, weight], [spec.into()]);
    let graph = builder.finish(&[b]).unwrap();
    let host_only = PropagateOptions {
        host_memory_only: true,
        ..PropagateOptions::default()
    };
    let graph = propagate(&graph, &host_only).unwrap();
    let options = PlanningOptions {
        host_memory_only: true,
        ..PlanningOptions::default()
    };
    let planned = PlannedGraph::new(graph, &options).unwrap();
    let (fake, registry) = fake_gpus();
    let weights = buffer(&registry, 4, Device::CPU);
    let mut memory = PlannedMemory::allocate(planned.memory(), &registry).unwrap();
    let mut runner = Runner::new(&planned, memory.view().unwrap()).unwrap();

    runner.give(weight, weights.as_span()).unwrap();
    runner.write(a, &[1; 4]).unwrap();
    runner.run(increment).unwrap();

    assert_eq!(runner.read(b).unwrap(), [2; 4]);
    assert_eq!(planned.graph().value(b).unwrap().device(), CUDA_0);
    assert!(fake.calls().is_empty());
}
