//! What may be given, written and read, and when.

use device_memory::graph::{
    Graph, GraphBuilder, PlanningOptions, PropagateOptions, ValueId, propagate,
};
use device_memory::runner::{Call, Runner};
use device_memory::{Device, DeviceMemoryBuffer, DeviceType, Error, GraphFault};

use crate::graphs::{CUDA_0, bytes};
use crate::support::{increment, on_fake};

/// `a` through two delegates on the device.
fn two_steps() -> Graph {
    let spec = bytes(4, Device::CPU);
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", spec.clone());
    let b = builder.input("b", spec.clone());
    let [x] = builder.delegate("x", Some(CUDA_0), &[a], [spec.clone().into()]);
    let [y] = builder.delegate("y", Some(CUDA_0), &[x, b], [spec.into()]);
    let graph = builder.finish(&[y]).unwrap();
    propagate(&graph, &PropagateOptions::default()).unwrap()
}

fn ready(runner: &mut Runner<'_>) {
    let inputs = runner.planned().graph().inputs().to_vec();
    for input in inputs {
        runner.write(input, &[1; 4]).unwrap();
    }
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, Error>, expected: &str) {
    assert_eq!(result.unwrap_err().to_string(), expected);
}

#[test]
fn each_input_is_to_be_given_before_each_run() {
    let graph = two_steps();
    let [a, b] = [graph.inputs()[0], graph.inputs()[1]];
    on_fake(&graph, &PlanningOptions::default(), |runner, fake| {
        runner.write(a, &[1; 4]).unwrap();
        refused(
            runner.run(increment),
            "value \"b\": it was not given for this run",
        );
        assert!(fake.calls().is_empty());

        runner.write(b, &[1; 4]).unwrap();
        runner.run(increment).unwrap();

        refused(
            runner.run(increment),
            "value \"a\": it was not given for this run",
        );
        // The outputs of the last run are as they were.
        assert_eq!(runner.read(graph.outputs()[0]).unwrap(), [3; 4]);
    });
}

#[test]
fn an_output_is_there_after_a_run_and_not_before() {
    let graph = two_steps();
    let output = graph.outputs()[0];
    on_fake(&graph, &PlanningOptions::default(), |runner, _| {
        let early = "value \"y@cpu:0\": it has no bytes of a finished run";
        refused(runner.read(output), early);
        refused(runner.output(output), early);
        refused(runner.read_into(output, &mut [0; 4]), early);

        ready(runner);
        runner.run(increment).unwrap();

        assert_eq!(runner.read(output).unwrap(), [3; 4]);
        refused(
            runner.read_into(output, &mut [0; 3]),
            "length mismatch on cpu:0: expected 4 bytes, found 3",
        );
    });
}

#[test]
fn a_run_that_fails_leaves_no_outputs_and_wants_its_inputs_again() {
    let graph = two_steps();
    let output = graph.outputs()[0];
    on_fake(&graph, &PlanningOptions::default(), |runner, _| {
        ready(runner);
        runner.run(increment).unwrap();
        ready(runner);

        let mut calls = 0;
        let result = runner.run(
            |call: &mut Call<'_>| -> Result<(), Box<dyn std::error::Error>> {
                calls += 1;
                if call.name() == "y" {
                    return Err("y is broken".into());
                }
                Ok(increment(call)?)
            },
        );

        assert_eq!(result.unwrap_err().to_string(), "y is broken");
        assert_eq!(calls, 2);
        refused(
            runner.read(output),
            "value \"y@cpu:0\": it has no bytes of a finished run",
        );
        assert!(runner.run(increment).is_err());
        ready(runner);
        runner.run(increment).unwrap();
        assert_eq!(runner.read(output).unwrap(), [3; 4]);
    });
}

#[test]
fn an_output_that_an_input_overwrites_is_gone() {
    let spec = bytes(4, Device::CPU);
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", spec.clone());
    let [b] = builder.kernel("b", &[a], [spec.into()]);
    let graph = builder.finish(&[a, b]).unwrap();
    on_fake(&graph, &PlanningOptions::default(), |runner, _| {
        runner.write(a, &[1; 4]).unwrap();
        runner.run(increment).unwrap();
        assert_eq!(runner.read(a).unwrap(), [1; 4]);

        runner.write(a, &[9; 4]).unwrap();

        refused(
            runner.read(a),
            "value \"a\": it has no bytes of a finished run",
        );
        assert_eq!(runner.read(b).unwrap(), [2; 4]);
    });
}

#[test]
fn only_inputs_and_buffers_are_written_and_only_outputs_and_buffers_read() {
    let graph = two_steps();
    let x = graph.find("x").unwrap();
    on_fake(&graph, &PlanningOptions::default(), |runner, _| {
        ready(runner);
        runner.run(increment).unwrap();
        let neither = "value \"x\": it is neither an input nor a mutable buffer";
        refused(runner.write(x, &[1; 4]), neither);
        refused(runner.input_mut(x), neither);
        let neither = "value \"x\": it is neither an output nor a mutable buffer";
        refused(runner.read(x), neither);
        refused(runner.feed(&[(x, graph.inputs()[0])]), neither);
        let unknown = ValueId::new(99);
        let text = "invalid graph: the caller names value 99 of 7";
        refused(runner.write(unknown, &[]), text);
        refused(runner.read(unknown), text);
        refused(runner.spec(unknown), text);
        refused(runner.feed(&[(unknown, unknown)]), text);
    });
}

#[test]
fn what_is_written_has_the_size_of_the_input() {
    let graph = two_steps();
    let a = graph.inputs()[0];
    on_fake(&graph, &PlanningOptions::default(), |runner, _| {
        refused(
            runner.write(a, &[1; 5]),
            "length mismatch on cpu:0: expected 4 bytes, found 5",
        );
        refused(
            runner.write_sized(a, &[3], &[1; 3]),
            "invalid tensor: sizes [3] where [4] are planned: they never change",
        );
        // Neither counts as given.
        assert!(runner.run(increment).is_err());
    });
}

#[test]
fn an_input_named_twice_is_not_fed() {
    let graph = two_steps();
    let (a, y) = (graph.inputs()[0], graph.outputs()[0]);
    on_fake(&graph, &PlanningOptions::default(), |runner, _| {
        ready(runner);
        runner.run(increment).unwrap();

        refused(runner.feed(&[(y, a), (y, a)]), "ranges 0 and 1 overlap");

        assert_eq!(runner.read(y).unwrap(), [3; 4]);
    });
}

#[test]
fn what_is_planned_is_not_given() {
    let graph = two_steps();
    let a = graph.inputs()[0];
    let mut buffer = DeviceMemoryBuffer::create(4, DeviceType::Cpu, 0).unwrap();
    let planned =
        device_memory::graph::PlannedGraph::new(graph, &PlanningOptions::default()).unwrap();
    let (_fake, registry) = crate::support::fake_gpus();
    let mut memory = device_memory::PlannedMemory::allocate(planned.memory(), &registry).unwrap();
    let mut runner = Runner::new(&planned, memory.view().unwrap()).unwrap();

    let text = "value \"a\": its memory is planned";
    let error = runner.give_mut(a, buffer.as_span_mut()).unwrap_err();

    assert_eq!(error.to_string(), text);
    assert!(matches!(
        error.kind(),
        device_memory::ErrorKind::InvalidGraph(GraphFault::Access { .. })
    ));
}
