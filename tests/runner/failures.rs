//! Calls of allocators that fail, each in turn.

use std::sync::Arc;

use device_memory::graph::{
    Graph, GraphBuilder, MethodOptions, Output, PlannedGraph, PlanningOptions, PropagateOptions,
    Skip, propagate,
};
use device_memory::runner::Runner;
use device_memory::testing::{FakeDevice, fail_each_call, panic_each_call};
use device_memory::{Device, DeviceAllocatorRegistry, DeviceType, PlannedMemory};

use crate::graphs::{CUDA_0, CUDA_1, bytes};
use crate::support::increment;

fn graph(direct_copies: bool) -> Graph {
    let spec = bytes(4, Device::CPU);
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", spec.clone());
    let state = builder.mutable_buffer("state", spec.clone());
    let [x] = builder.delegate("x", Some(CUDA_0), &[a], [spec.clone().into()]);
    let [y] = builder.delegate("y", Some(CUDA_1), &[x], [spec.clone().into()]);
    let next = Output::new(spec).in_place_of(state, 0);
    builder.delegate("next", Some(CUDA_0), &[], [next]);
    let options = MethodOptions {
        resident_buffers: Skip::All,
        direct_copies,
        ..MethodOptions::default()
    };
    propagate(
        &builder.finish(&[y]).unwrap(),
        &PropagateOptions::all(options),
    )
    .unwrap()
}

#[test]
fn a_call_that_fails_ends_the_run_and_leaks_nothing() {
    for direct in [false, true] {
        let planned = PlannedGraph::new(graph(direct), &PlanningOptions::default()).unwrap();
        let fake = FakeDevice::new(DeviceType::Cuda, 2);
        let (input, state) = (
            planned.graph().inputs()[0],
            planned.graph().find("state").unwrap(),
        );
        let output = planned.graph().outputs()[0];
        let round = |allocator: &Arc<_>| -> Result<(), device_memory::Error> {
            let registry = DeviceAllocatorRegistry::new();
            registry.register(Arc::clone(allocator))?;
            let mut memory = PlannedMemory::allocate(planned.memory(), &registry)?;
            let mut runner = Runner::new(&planned, memory.view()?)?;
            runner.input_mut(state)?.fill(0)?;
            for step in 1..3 {
                runner.write(input, &[step; 4])?;
                if let Err(error) = runner.run(increment) {
                    // The state after a failure: no output, and the inputs are due.
                    assert!(runner.read(output).is_err());
                    assert!(runner.run(increment).is_err());
                    return Err(error);
                }
                assert_eq!(runner.read(output)?, [step + 2; 4]);
                assert_eq!(runner.read(state)?, [step; 4]);
            }
            Ok(())
        };

        let exhaustion = fail_each_call(&fake, round).unwrap();
        assert!(exhaustion.calls > 20, "{exhaustion:?}");
        panic_each_call(&fake, round).unwrap();
    }
}
