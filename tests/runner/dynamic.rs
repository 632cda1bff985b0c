//! Sizes that are found when the graph runs.

use device_memory::graph::{
    GraphBuilder, Output, PlannedGraph, PlanningOptions, PropagateOptions, propagate,
};
use device_memory::runner::{Call, Runner};
use device_memory::{Device, DeviceMemoryBuffer, DeviceType, PlannedMemory, Result, ShapeDynamism};

use crate::graphs::{CUDA_0, bytes};
use crate::support::{dynamic, fake_gpus, floats, increment, on_fake, truth};

/// The bytes of the input that are not zero, as many as there are.
fn nonzero(call: &mut Call<'_>) -> Result<()> {
    let (inputs, outputs) = call.arguments();
    let kept = inputs[0].span().to_vec()?;
    let kept: Vec<u8> = kept.into_iter().filter(|&byte| byte != 0).collect();
    outputs[0].resize(&[kept.len()])?;
    outputs[0].span_mut()?.copy_from_host(&kept)
}

#[test]
fn a_node_says_how_large_its_output_is_and_copies_follow() {
    let spec = dynamic(bytes(8, Device::CPU));
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", spec.clone());
    let [b] = builder.delegate("nonzero", Some(CUDA_0), &[a], [spec.into()]);
    let graph = builder.finish(&[b]).unwrap();
    let graph = propagate(&graph, &PropagateOptions::default()).unwrap();
    let output = graph.outputs()[0];

    on_fake(&graph, &PlanningOptions::default(), |runner, _| {
        runner.write_sized(a, &[5], &[0, 3, 0, 4, 5]).unwrap();
        runner.run(nonzero).unwrap();
        assert_eq!(runner.read(output).unwrap(), [3, 4, 5]);
        assert_eq!(runner.spec(output).unwrap().sizes(), [3]);

        // The next run begins with the planned sizes.
        runner.write(a, &[1; 8]).unwrap();
        runner.run(nonzero).unwrap();
        assert_eq!(runner.read(output).unwrap(), [1; 8]);

        // Nothing is left to copy.
        runner.write_sized(a, &[2], &[0, 0]).unwrap();
        runner.take_copies();
        runner.run(nonzero).unwrap();
        assert_eq!(runner.copies().device_to_host, 0);
        assert!(runner.read(output).unwrap().is_empty());
    });
}

#[test]
fn an_output_is_not_made_larger_than_planned() {
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", bytes(1, Device::CPU));
    let outputs = [
        Output::new(dynamic(bytes(4, Device::CPU))),
        Output::new(bytes(4, Device::CPU)),
    ];
    let [b, c] = builder.kernel("b", &[a], outputs);
    let graph = builder.finish(&[b, c]).unwrap();

    on_fake(&graph, &PlanningOptions::default(), |runner, _| {
        runner.write(a, &[1]).unwrap();
        runner
            .run(|call: &mut Call<'_>| -> Result<()> {
                let (_, outputs) = call.arguments();
                let [bounded, fixed] = outputs else {
                    unreachable!()
                };
                assert!(bounded.resize(&[5]).is_err());
                assert!(bounded.resize(&[2, 2]).is_err());
                assert!(bounded.resize(&[usize::MAX]).is_err());
                assert_eq!(bounded.spec().sizes(), [4]);
                assert!(fixed.resize(&[3]).is_err());
                fixed.resize(&[4])?;
                bounded.resize(&[1])?;
                assert_eq!(bounded.span_mut()?.len(), 1);
                Ok(())
            })
            .unwrap();
        assert_eq!(runner.read(b).unwrap().len(), 1);
        assert_eq!(runner.read(c).unwrap().len(), 4);
    });
}

#[test]
fn what_lies_in_another_value_has_its_sizes() {
    let spec = dynamic(bytes(8, Device::CPU));
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", spec.clone());
    let [b] = builder.kernel("copy", &[a], [spec.clone().into()]);
    let view = builder.view("view", b, 0, spec.clone());
    let over = Output::new(spec).in_place_of(view, 0);
    let [over] = builder.kernel("over", &[], [over]);
    let graph = builder.finish(&[over]).unwrap();

    on_fake(&graph, &PlanningOptions::default(), |runner, _| {
        runner.write_sized(a, &[3], &[1, 2, 3]).unwrap();

        runner
            .run(|call: &mut Call<'_>| match call.name() {
                "copy" => nonzero(call),
                _ => increment(call),
            })
            .unwrap();

        assert_eq!(runner.read(over).unwrap(), [2, 3, 4]);
    });
}

#[test]
fn sizes_go_into_and_out_of_graphs_inside() {
    let spec = dynamic(bytes(8, Device::CPU));
    let mut inner = GraphBuilder::new("inner");
    let x = inner.input("x", spec.clone());
    let [y] = inner.delegate("nonzero", Some(CUDA_0), &[x], [spec.clone().into()]);
    let inner = inner.finish(&[y]).unwrap();
    let mut builder = GraphBuilder::new("forward");
    let choice = builder.input("choice", truth());
    let a = builder.input("a", spec.clone());
    let [out] = builder.branch("if", &[choice, a], (inner.clone(), inner), [spec.into()]);
    let graph = builder.finish(&[out]).unwrap();
    let graph = propagate(&graph, &PropagateOptions::default()).unwrap();

    on_fake(&graph, &PlanningOptions::default(), |runner, _| {
        runner.write(choice, &[1]).unwrap();
        runner.write_sized(a, &[4], &[0, 8, 0, 9]).unwrap();

        runner.run(nonzero).unwrap();

        assert_eq!(runner.read(out).unwrap(), [8, 9]);
        assert_eq!(runner.spec(out).unwrap().sizes(), [2]);
    });
}

#[test]
fn a_tensor_without_bounds_is_as_large_as_the_memory_given_for_it() {
    let unbounded = bytes(2, Device::CPU).with_dynamism(ShapeDynamism::DynamicUnbound);
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", bytes(1, Device::CPU));
    let [b] = builder.kernel("b", &[a], [unbounded.into()]);
    let graph = builder.finish(&[b]).unwrap();
    let options = PlanningOptions {
        plan_outputs: false,
        ..PlanningOptions::default()
    };
    let planned = PlannedGraph::new(graph, &options).unwrap();
    let (_fake, registry) = fake_gpus();
    let mut memory = PlannedMemory::allocate(planned.memory(), &registry).unwrap();
    let mut large = DeviceMemoryBuffer::create(6, DeviceType::Cpu, 0).unwrap();
    let mut runner = Runner::new(&planned, memory.view().unwrap()).unwrap();
    runner.give_mut(b, large.as_span_mut()).unwrap();
    runner.write(a, &[1]).unwrap();

    runner
        .run(|call: &mut Call<'_>| -> Result<()> {
            let (_, outputs) = call.arguments();
            let error = outputs[0].resize(&[7]).unwrap_err();
            assert_eq!(
                error.to_string(),
                "out of bounds on cpu:0: 7 bytes at offset 0 of 6"
            );
            outputs[0].resize(&[6])?;
            outputs[0].span_mut()?.fill(9)
        })
        .unwrap();

    assert_eq!(runner.read(b).unwrap(), [9; 6]);
}

#[test]
fn feeding_keeps_the_sizes() {
    let spec = dynamic(floats(&[4], Device::CPU));
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", spec.clone());
    let b = builder.copy("b", a, spec);
    let graph = builder.finish(&[b]).unwrap();

    on_fake(&graph, &PlanningOptions::default(), |runner, _| {
        runner.write_sized(a, &[2], &[1; 8]).unwrap();
        runner.run(increment).unwrap();

        runner.feed(&[(b, a)]).unwrap();

        assert_eq!(runner.spec(a).unwrap().sizes(), [2]);
        runner.run(increment).unwrap();
        assert_eq!(runner.read(b).unwrap(), [1; 8]);
    });
}
