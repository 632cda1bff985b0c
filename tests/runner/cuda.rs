//! The runner on the CUDA back end, on the fake driver, a simulation.

use std::sync::Arc;

use device_memory::backend::cuda::CudaAllocator;
use device_memory::graph::{
    GraphBuilder, MethodOptions, Output, PlannedGraph, PlanningOptions, PropagateOptions, Skip,
    propagate,
};
use device_memory::runner::Runner;
use device_memory::{Device, DeviceAllocatorRegistry, PlannedMemory};
use fakecuda::{FakeCuda, Run};

use crate::graphs::{CUDA_0, CUDA_1, bytes};
use crate::support::increment;

#[test]
fn a_graph_over_two_gpus_runs_and_gives_everything_back() {
    let fake = FakeCuda::install().unwrap().lock();
    for (direct, pools) in [(false, true), (true, true), (true, false)] {
        fake.reset();
        fake.set_devices(2);
        for device in 0..2 {
            fake.set_pools(device, pools);
        }
        let spec = bytes(4, Device::CPU);
        let mut builder = GraphBuilder::new("forward");
        let a = builder.input("a", spec.clone());
        let state = builder.mutable_buffer("state", spec.clone());
        let [x] = builder.delegate("x", Some(CUDA_0), &[a], [spec.clone().into()]);
        let [y] = builder.delegate("y", Some(CUDA_1), &[x], [spec.clone().into()]);
        let next = Output::new(spec).in_place_of(state, 0);
        builder.delegate("next", Some(CUDA_0), &[], [next]);
        let graph = builder.finish(&[y]).unwrap();
        let options = MethodOptions {
            resident_buffers: Skip::All,
            direct_copies: direct,
            ..MethodOptions::default()
        };
        let graph = propagate(&graph, &PropagateOptions::all(options)).unwrap();
        let output = graph.outputs()[0];
        let planned = PlannedGraph::new(graph, &PlanningOptions::default()).unwrap();
        let registry = DeviceAllocatorRegistry::new();
        registry
            .register(Arc::new(CudaAllocator::open().unwrap()))
            .unwrap();
        let mut memory = PlannedMemory::allocate(planned.memory(), &registry).unwrap();
        let mut runner = Runner::new(&planned, memory.view().unwrap()).unwrap();

        runner.write(state, &[0; 4]).unwrap();
        for step in 1..4 {
            runner.write(a, &[step; 4]).unwrap();
            runner.run(increment).unwrap();

            assert_eq!(runner.read(output).unwrap(), [step + 2; 4]);
            assert_eq!(runner.read(state).unwrap(), [step; 4]);
        }

        let copies = runner.copies();
        assert_eq!(copies.device_to_device, if direct { 3 } else { 0 });
        drop(runner);
        drop(memory);
        drop(registry);
        fake.run_schedule(Run::All);
        assert_eq!(fake.violations(), Vec::<String>::new());
        assert_eq!(fake.live().device_blocks(), 0);
    }
}
