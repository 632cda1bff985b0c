//! Any graph, however it is placed and copied, computes what the model does.

use proptest::prelude::{ProptestConfig, any, prop, proptest};

use device_memory::PlannedMemory;
use device_memory::graph::{
    Graph, MethodOptions, PlannedGraph, PlanningOptions, PropagateOptions, propagate,
};
use device_memory::plan::{self, Algorithm, DeviceOptions, PlanOptions};
use device_memory::runner::Runner;

use crate::graphs::{Choices, options, random};
use crate::interpreter::Model;
use crate::support::{fake_gpus, mix};

/// Bytes to begin with, different for each value and step.
fn fresh(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + salt * 13 + 1) as u8).collect()
}

fn check(graph: &Graph, method: MethodOptions, algorithm: Algorithm) {
    let placed = propagate(graph, &PropagateOptions::all(method)).unwrap();
    let planning = PlanningOptions {
        default: DeviceOptions::aligned(1),
        planner: PlanOptions::new(algorithm),
        ..PlanningOptions::default()
    };
    let planned = PlannedGraph::new(placed, &planning).unwrap();
    plan::check(planned.request(), planned.memory()).unwrap();
    let (fake, registry) = fake_gpus();
    let mut memory = PlannedMemory::allocate(planned.memory(), &registry).unwrap();
    let mut runner = Runner::new(&planned, memory.view().unwrap()).unwrap();
    let mut model = Model::default();
    let size = |id| graph.value(id).unwrap().spec().size_in_bytes();
    // Values may have changed their numbers; names stay.
    let same = |id| {
        let name = graph.value(id).unwrap().name();
        planned.graph().find(name).unwrap()
    };

    for (salt, buffer) in graph.mutable_buffers().enumerate() {
        let bytes = fresh(size(buffer), 100 + salt);
        runner.write(same(buffer), &bytes).unwrap();
        model.state.insert(buffer, bytes);
    }
    for step in 0..2 {
        let inputs = graph.inputs().iter().enumerate();
        let inputs: Vec<Vec<u8>> = inputs
            .map(|(index, &id)| fresh(size(id), step * 10 + index))
            .collect();
        for (&id, bytes) in graph.inputs().iter().zip(&inputs) {
            runner.write(same(id), bytes).unwrap();
        }

        runner.run(mix).unwrap();

        let expected = model.run(graph, &inputs);
        for (&output, expected) in planned.graph().outputs().iter().zip(expected) {
            assert_eq!(runner.read(output).unwrap(), expected, "step {step}");
        }
        for (&buffer, expected) in &model.state {
            assert_eq!(&runner.read(same(buffer)).unwrap(), expected, "step {step}");
        }
    }
    drop(memory);
    assert!(fake.violations().is_empty(), "{:?}", fake.violations());
    assert_eq!(fake.outstanding(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_graph_computes_what_the_model_does(
        numbers in prop::collection::vec(any::<u16>(), 0..160),
        bits in any::<u8>(),
        algorithm in prop::sample::select(Algorithm::ALL.to_vec()),
    ) {
        let graph = random(&mut Choices::new(&numbers));

        check(&graph, options(bits), algorithm);
    }
}
