//! Build a graph with parts that run on a device, see the copies that this takes,
//! plan its memory and run it.
//!
//! `cargo run --example 09_graph --features testing`

#![expect(clippy::print_stdout, reason = "an example talks to a person")]

use std::sync::Arc;

use device_memory::graph::{
    Graph, GraphBuilder, MethodOptions, Output, PlannedGraph, PlanningOptions, PropagateOptions,
    Skip, propagate,
};
use device_memory::runner::{Call, Runner};
use device_memory::testing::FakeDevice;
use device_memory::{
    Device, DeviceAllocatorRegistry, DeviceType, Error, PlannedMemory, Result, ScalarType,
    TensorSpec,
};

/// A counter that is kept from step to step, and its square, on a device.
fn method(gpu: Device) -> Result<Graph> {
    let one = TensorSpec::contiguous(ScalarType::Byte, &[1], Device::CPU)?;
    let mut builder = GraphBuilder::new("step");
    let by = builder.input("by", one.clone());
    let counter = builder.mutable_buffer("counter", one.clone());
    let count = Output::new(one.clone())
        .named("count")
        .in_place_of(counter, 0);
    let [count] = builder.delegate("add", Some(gpu), &[by], [count]);
    let [square] = builder.delegate("square", Some(gpu), &[count], [one.into()]);
    builder.finish(&[square])
}

/// What a back end would do on its device; the fake one has only its memory.
fn execute(call: &mut Call<'_>) -> Result<(), Error> {
    let name = call.name();
    let (inputs, outputs) = call.arguments();
    let input = inputs[0].span().to_vec()?[0];
    let result = match name {
        // The output is in place of the counter, and begins with its bytes.
        "add" => outputs[0].span_mut()?.as_span().to_vec()?[0].wrapping_add(input),
        _ => input.wrapping_mul(input),
    };
    outputs[0].span_mut()?.copy_from_host(&[result])
}

fn run(graph: &Graph, options: MethodOptions) -> Result<()> {
    let graph = propagate(graph, &PropagateOptions::all(options))?;
    for node in graph.nodes() {
        let names = |ids: &[_]| {
            let values = ids.iter().filter_map(|&id| graph.value(id));
            values.map(|value| value.name()).collect::<Vec<_>>()
        };
        let (reads, makes) = (names(node.inputs()), names(node.outputs()));
        println!("  {} of {reads:?} makes {makes:?}", node.name());
    }

    let planned = PlannedGraph::new(graph, &PlanningOptions::default())?;
    for buffer in planned.memory().buffers() {
        println!("  {} bytes on {}", buffer.size, buffer.device);
    }

    let registry = DeviceAllocatorRegistry::new();
    registry.register(Arc::new(FakeDevice::new(DeviceType::Cuda, 1)))?;
    let mut memory = PlannedMemory::allocate(planned.memory(), &registry)?;
    let mut runner = Runner::new(&planned, memory.view()?)?;
    let (by, square) = (planned.graph().inputs()[0], planned.graph().outputs()[0]);
    if let Some(counter) = planned.graph().find("counter") {
        runner.input_mut(counter)?.fill(0)?;
    }
    for step in 1..=3 {
        runner.write(by, &[step])?;
        runner.take_copies();
        runner.run(execute)?;
        let copies = runner.take_copies();
        println!(
            "  step {step}: {} copies to the device, {} from it, square {}",
            copies.host_to_device,
            copies.device_to_host,
            runner.read(square)?[0]
        );
    }
    Ok(())
}

fn main() -> Result<()> {
    let graph = method("cuda:0".parse()?)?;
    println!("with copies:");
    run(&graph, MethodOptions::default())?;
    println!("with everything on the device:");
    let resident = MethodOptions {
        resident_inputs: Skip::All,
        resident_outputs: Skip::All,
        resident_buffers: Skip::All,
        ..MethodOptions::default()
    };
    run(&graph, resident)
}
