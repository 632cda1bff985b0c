//! Values that stay on a device from step to step.

use device_memory::graph::{
    Graph, GraphBuilder, MethodOptions, Output, PlannedGraph, PlanningOptions, PropagateOptions,
    Skip, propagate,
};
use device_memory::runner::{Call, Runner};
use device_memory::{
    Device, DeviceLayout, DeviceMemoryBuffer, PlannedMemory, Result, ScalarType, TensorSpec,
};

use crate::graphs::{CUDA_0, bytes};
use crate::support::{device_copies, fake_gpus, increment, on_fake};

fn token() -> TensorSpec {
    TensorSpec::contiguous(ScalarType::Long, &[1], Device::CPU).unwrap()
}

fn all_resident() -> PropagateOptions {
    PropagateOptions::all(MethodOptions {
        resident_inputs: Skip::All,
        resident_outputs: Skip::All,
        resident_buffers: Skip::All,
        ..MethodOptions::default()
    })
}

/// A decoder in small: a cache and a token that stay on the device; each step the
/// cache changes and the next token is chosen there.
fn decoder() -> Graph {
    let mut builder = GraphBuilder::new("decode");
    let weights = builder.constant("weights", bytes(64, CUDA_0));
    let cache = builder.mutable_buffer("cache", bytes(64, Device::CPU));
    let current = builder.mutable_buffer("current", token());
    let [logits, _] = builder.delegate(
        "attend",
        Some(CUDA_0),
        &[current, weights],
        [
            Output::new(bytes(32, Device::CPU)).named("logits"),
            Output::new(bytes(64, Device::CPU)).in_place_of(cache, 0),
        ],
    );
    let next = Output::new(token()).in_place_of(current, 0).named("next");
    let [next] = builder.delegate("sample", Some(CUDA_0), &[logits], [next]);
    builder.finish(&[next]).unwrap()
}

#[test]
fn a_decoder_copies_eight_bytes_a_step_and_none_to_the_device() {
    let graph = propagate(&decoder(), &all_resident()).unwrap();
    assert_eq!(graph.count_copies().total(), 0);
    let [current, cache, next] = ["current", "cache", "next"].map(|name| graph.find(name).unwrap());
    let weights = graph.find("weights").unwrap();
    let (fake, registry) = fake_gpus();
    let planned = PlannedGraph::new(graph, &PlanningOptions::default()).unwrap();
    let mut memory = PlannedMemory::allocate(planned.memory(), &registry).unwrap();
    let layout = DeviceLayout::from_size(64).unwrap();
    let mut loaded = DeviceMemoryBuffer::create_in(&registry, layout, CUDA_0).unwrap();
    loaded.fill(3).unwrap();
    let mut runner = Runner::new(&planned, memory.view().unwrap()).unwrap();
    runner.give(weights, loaded.as_span()).unwrap();
    runner.write(current, &5_u64.to_le_bytes()).unwrap();
    runner.input_mut(cache).unwrap().fill(0).unwrap();
    runner.take_copies();

    let mut tokens = Vec::new();
    for _ in 0..4 {
        let mut seen = Vec::new();
        runner
            .run(|call: &mut Call<'_>| -> Result<()> {
                let name = call.name();
                let (inputs, outputs) = call.arguments();
                seen.push(name.to_owned());
                if name == "attend" {
                    let [logits, cache] = outputs else {
                        unreachable!()
                    };
                    let mut kept = cache.span_mut()?.as_span().to_vec()?;
                    kept[0] += inputs[0].span().to_vec()?[0];
                    cache.span_mut()?.copy_from_host(&kept)?;
                    logits.span_mut()?.fill(kept[0])?;
                } else {
                    let chosen = inputs[0].span().to_vec()?[0];
                    let chosen = u64::from(chosen).to_le_bytes();
                    outputs[0].span_mut()?.copy_from_host(&chosen)?;
                }
                Ok(())
            })
            .unwrap();
        assert_eq!(seen, ["attend", "sample"]);
        assert_eq!(runner.copies().total(), 0);

        let mut read = [0; 8];
        runner.read_into(next, &mut read).unwrap();
        tokens.push(u64::from_le_bytes(read));

        let copies = runner.take_copies();
        assert_eq!((copies.host_to_device, copies.device_to_host), (0, 1));
    }

    assert_eq!(tokens, [5, 10, 20, 40]);
    assert_eq!(runner.read(cache).unwrap()[0], 40);
    drop(memory);
    drop(loaded);
    assert!(fake.violations().is_empty());
    assert_eq!(fake.outstanding(), 0);
}

#[test]
fn a_buffer_on_the_host_makes_the_way_there_and_back_at_each_step() {
    let mut builder = GraphBuilder::new("decode");
    let state = builder.mutable_buffer("state", bytes(8, Device::CPU));
    let next = Output::new(bytes(8, Device::CPU)).in_place_of(state, 0);
    let [next] = builder.delegate("update", Some(CUDA_0), &[], [next]);
    let graph = builder.finish(&[next]).unwrap();
    let graph = propagate(&graph, &PropagateOptions::default()).unwrap();
    let state = graph.find("state").unwrap();

    on_fake(&graph, &PlanningOptions::default(), |runner, _| {
        runner.write(state, &[0; 8]).unwrap();
        runner.take_copies();
        for step in 1..=3 {
            runner.run(increment).unwrap();

            let copies = runner.take_copies();
            assert_eq!((copies.host_to_device, copies.device_to_host), (1, 1));
            assert_eq!(runner.read(state).unwrap(), [step; 8]);
            runner.take_copies();
        }
    });
}

#[test]
fn an_output_feeds_an_input_of_the_next_step_on_the_device() {
    let mut builder = GraphBuilder::new("decode");
    let current = builder.input("current", token());
    let [next] = builder.delegate("step", Some(CUDA_0), &[current], [token().into()]);
    let graph = propagate(&builder.finish(&[next]).unwrap(), &all_resident()).unwrap();
    let (current, next) = (graph.inputs()[0], graph.outputs()[0]);

    on_fake(&graph, &PlanningOptions::default(), |runner, fake| {
        runner.write(current, &[1; 8]).unwrap();
        runner.run(increment).unwrap();
        for step in 3..6 {
            fake.clear_calls();
            runner.take_copies();

            runner.feed(&[(next, current)]).unwrap();

            let copies = runner.take_copies();
            assert_eq!(copies.host_to_device + copies.device_to_host, 0);
            assert!(device_copies(fake).iter().all(|copy| copy.1 == 8));
            runner.run(increment).unwrap();
            assert_eq!(runner.read(next).unwrap(), [step; 8]);
        }
    });
}

#[test]
fn outputs_that_change_places_are_fed_all_at_once() {
    let mut builder = GraphBuilder::new("swap");
    let [a, b] = ["a", "b"].map(|name| builder.input(name, bytes(4, Device::CPU)));
    let [x] = builder.delegate("x", Some(CUDA_0), &[a], [bytes(4, Device::CPU).into()]);
    let [y] = builder.delegate("y", Some(CUDA_0), &[b], [bytes(4, Device::CPU).into()]);
    let graph = builder.finish(&[x, y, a]).unwrap();
    let graph = propagate(&graph, &all_resident()).unwrap();
    let [a, b] = [graph.inputs()[0], graph.inputs()[1]];
    let [x, y] = [graph.outputs()[0], graph.outputs()[1]];

    on_fake(&graph, &PlanningOptions::default(), |runner, _| {
        runner.write(a, &[10; 4]).unwrap();
        runner.write(b, &[20; 4]).unwrap();
        runner.run(increment).unwrap();

        runner.feed(&[(x, b), (y, a)]).unwrap();
        runner.run(increment).unwrap();

        assert_eq!(runner.read(x).unwrap(), [22; 4]);
        assert_eq!(runner.read(y).unwrap(), [12; 4]);
        // An input that is an output too is overwritten while it is read.
        runner.feed(&[(a, b), (x, a)]).unwrap();
        runner.run(increment).unwrap();
        assert_eq!(runner.read(x).unwrap(), [23; 4]);
        assert_eq!(runner.read(y).unwrap(), [22; 4]);
    });
}

#[test]
fn resident_inputs_can_be_filled_where_they_are() {
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", bytes(4, Device::CPU));
    let [b] = builder.delegate("b", Some(CUDA_0), &[a], [bytes(4, Device::CPU).into()]);
    let graph = propagate(&builder.finish(&[b]).unwrap(), &all_resident()).unwrap();
    let (a, b) = (graph.inputs()[0], graph.outputs()[0]);

    on_fake(&graph, &PlanningOptions::default(), |runner, _| {
        let mut input = runner.input_mut(a).unwrap();
        assert_eq!(input.device(), CUDA_0);
        input.fill(7).unwrap();

        runner.run(increment).unwrap();

        assert_eq!(runner.copies().total(), 0);
        let output = runner.output(b).unwrap();
        assert_eq!(output.device(), CUDA_0);
        assert_eq!(output.to_vec().unwrap(), [8; 4]);
    });
}

#[test]
fn a_method_goes_on_where_another_has_stopped() {
    // The original can not share mutable buffers once any tensor is on a device.
    let method = |name: &str, more: usize| {
        let mut builder = GraphBuilder::new(name);
        let states = ["x", "y"].map(|name| builder.mutable_buffer(name, bytes(4, Device::CPU)));
        let a = builder.input("a", bytes(4 * more, Device::CPU));
        let outputs = states.map(|state| Output::new(bytes(4, Device::CPU)).in_place_of(state, 0));
        builder.delegate(
            "use",
            Some(CUDA_0),
            &[a],
            [bytes(4 * more, Device::CPU).into()],
        );
        let [x, y] = builder.delegate("update", Some(CUDA_0), &[], outputs);
        let graph = builder.finish(&[x, y]).unwrap();
        propagate(&graph, &all_resident()).unwrap()
    };
    let options = PlanningOptions {
        buffer_pool: 1,
        ..PlanningOptions::default()
    };
    let plan = |graph: Graph| PlannedGraph::new(graph, &options).unwrap();
    let methods = [plan(method("prefill", 5)), plan(method("decode", 1))];
    let (_fake, registry) = fake_gpus();
    let plans = [methods[0].memory(), methods[1].memory()];
    let mut memory = PlannedMemory::allocate_shared(&plans, &registry).unwrap();

    for (run, index) in [0, 1, 1, 0].into_iter().enumerate() {
        let planned = &methods[index];
        let mut runner = Runner::new(planned, memory.view_of(index).unwrap()).unwrap();
        let graph = planned.graph();
        let [x, y] = ["x", "y"].map(|name| graph.find(name).unwrap());
        if run == 0 {
            runner.write(x, &[10; 4]).unwrap();
            runner.write(y, &[20; 4]).unwrap();
        }
        let input = graph.inputs()[0];
        runner.input_mut(input).unwrap().fill(0).unwrap();
        runner.run(increment).unwrap();
    }

    let mut runner = Runner::new(&methods[1], memory.view_of(1).unwrap()).unwrap();
    let graph = methods[1].graph();
    assert_eq!(runner.read(graph.find("x").unwrap()).unwrap(), [14; 4]);
    assert_eq!(runner.read(graph.find("y").unwrap()).unwrap(), [24; 4]);
}
