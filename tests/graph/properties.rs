//! What holds of any graph after the passes.

use proptest::prelude::{ProptestConfig, any, prop, proptest};

use device_memory::Device;
use device_memory::graph::{
    Graph, MethodOptions, Op, PlannedGraph, PlanningOptions, PropagateOptions, lifetimes,
    propagate, tag_devices,
};
use device_memory::plan;

use crate::graphs::{Choices, options, random};
use crate::support::has_bounce;

/// Every argument of a delegate is on its device, here and inside.
fn assert_on_devices(graph: &Graph) {
    for node in graph.nodes() {
        let arguments = graph.reads(node).chain(node.outputs().iter().copied());
        if let Op::Delegate { target } = *node.op() {
            for id in arguments {
                let value = graph.value(id).unwrap();
                assert_eq!(
                    value.device(),
                    target.unwrap_or(Device::CPU),
                    "{}",
                    value.name()
                );
            }
        }
        node.op().graphs().for_each(assert_on_devices);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_argument_of_a_delegate_is_on_its_device(
        numbers in prop::collection::vec(any::<u16>(), 0..160),
        bits in any::<u8>(),
    ) {
        let graph = random(&mut Choices::new(&numbers));

        let placed = propagate(&graph, &PropagateOptions::all(options(bits))).unwrap();

        assert_on_devices(&placed);
        placed.check_devices().unwrap();
        assert_eq!(placed.inputs().len(), graph.inputs().len());
        assert_eq!(placed.outputs().len(), graph.outputs().len());
        if bits & 2 == 0 {
            let of = |id| placed.value(id).unwrap().device();
            assert!(placed.outputs().iter().all(|&id| of(id) == Device::CPU));
        }
    }

    #[test]
    fn a_graph_that_is_on_its_devices_already_is_left_as_it_is(
        numbers in prop::collection::vec(any::<u16>(), 0..160),
        bits in any::<u8>(),
    ) {
        let graph = random(&mut Choices::new(&numbers));
        let options = PropagateOptions::all(options(bits));
        let once = propagate(&graph, &options).unwrap();

        let twice = propagate(&once, &options).unwrap();

        assert_eq!(twice, once);
    }

    #[test]
    fn every_plan_passes_the_check(
        numbers in prop::collection::vec(any::<u16>(), 0..160),
        bits in any::<u8>(),
        unplanned in any::<[bool; 3]>(),
    ) {
        let graph = random(&mut Choices::new(&numbers));
        let graph = propagate(&graph, &PropagateOptions::all(options(bits))).unwrap();
        let [inputs, outputs, buffers] = unplanned;
        let options = PlanningOptions {
            plan_inputs: !inputs,
            plan_outputs: !outputs,
            plan_buffers: !buffers,
            ..PlanningOptions::default()
        };

        let planned = PlannedGraph::new(graph, &options).unwrap();

        plan::check(planned.request(), planned.memory()).unwrap();
        for life in lifetimes(planned.graph()) {
            assert!(life.first <= life.last);
        }
    }

    #[test]
    fn telling_values_their_device_inserts_nothing(
        numbers in prop::collection::vec(any::<u16>(), 0..160),
    ) {
        let graph = random(&mut Choices::new(&numbers));

        let tagged = tag_devices(&graph).unwrap();

        assert_eq!(tagged.nodes().len(), graph.nodes().len());
        assert_eq!(tagged.values().len(), graph.values().len());
        let options = PlanningOptions { host_memory_only: true, ..PlanningOptions::default() };
        let planned = PlannedGraph::new(tagged, &options).unwrap();
        assert!(planned.memory().buffers().iter().all(|buffer| buffer.device == Device::CPU));
    }

    #[test]
    fn no_value_of_a_graph_without_writes_in_place_comes_back_to_where_it_was(
        targets in prop::collection::vec(0_usize..4, 1..12),
        direct in any::<bool>(),
    ) {
        let graph = crate::support::sums_on(&targets);
        let options = MethodOptions { direct_copies: direct, ..MethodOptions::default() };

        let placed = propagate(&graph, &PropagateOptions::all(options)).unwrap();

        let counts = placed.count_copies();
        if direct {
            assert!(!has_bounce(&placed));
        } else {
            assert_eq!(counts.device_to_device, 0);
        }
    }
}
