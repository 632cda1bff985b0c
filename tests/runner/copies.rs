//! Copy nodes, case by case as ExecuTorch's own tests have them
//! (`kernels/test/op__device_copy_test.cpp`).

use device_memory::graph::{Graph, GraphBuilder, PlannedGraph, PlanningOptions};
use device_memory::runner::Runner;
use device_memory::{
    Device, DeviceType, ErrorKind, GraphFault, Operation, PlannedMemory, ScalarType, TensorSpec,
};

use crate::graphs::{CUDA_0, CUDA_1};
use crate::support::{device_copies, dynamic, fake_gpus, floats, none, on_fake};

/// `from`, an input, copied to `to`, the output.
fn copy(from: TensorSpec, to: TensorSpec) -> Graph {
    let mut builder = GraphBuilder::new("forward");
    let from = builder.input("from", from);
    let to = builder.copy("to", from, to);
    builder.finish(&[to]).unwrap()
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| at as u8 + 1).collect()
}

const H2D: Operation = Operation::CopyHostToDevice;
const D2H: Operation = Operation::CopyDeviceToHost;
const D2D: Operation = Operation::CopyDeviceToDevice;

/// Copies full tensors, and returns what the devices were asked for.
fn copied(graph: &Graph) -> Vec<(Operation, usize, u16)> {
    let (from, to) = (graph.inputs()[0], graph.outputs()[0]);
    let size = graph.value(from).unwrap().spec().size_in_bytes();
    on_fake(graph, &PlanningOptions::default(), |runner, fake| {
        runner.write(from, &bytes(size)).unwrap();
        fake.clear_calls();
        runner.take_copies();

        runner.run(none).unwrap();

        let asked = device_copies(fake);
        assert_eq!(runner.copies().total(), u64::from(size > 0));
        assert_eq!(runner.read(to).unwrap(), bytes(size));
        asked
    })
}

#[test]
fn a_copy_to_a_device_is_one_call_of_its_allocator() {
    let graph = copy(floats(&[4], Device::CPU), floats(&[4], CUDA_0));

    assert_eq!(copied(&graph), [(H2D, 16, 0)]);
}

#[test]
fn a_copy_from_a_device_is_one_call_of_its_allocator() {
    let graph = copy(floats(&[4], CUDA_0), floats(&[4], Device::CPU));

    assert_eq!(copied(&graph), [(D2H, 16, 0)]);
}

#[test]
fn a_copy_is_made_on_the_index_of_the_device() {
    let up = copy(floats(&[4], Device::CPU), floats(&[4], CUDA_1));
    let down = copy(floats(&[4], CUDA_1), floats(&[4], Device::CPU));

    assert_eq!(copied(&up), [(H2D, 16, 1)]);
    assert_eq!(copied(&down), [(D2H, 16, 1)]);
}

#[test]
fn a_copy_from_device_to_device_does_not_pass_the_host() {
    let across = copy(floats(&[4], CUDA_0), floats(&[4], CUDA_1));
    let within = copy(floats(&[4], CUDA_0), floats(&[4], CUDA_0));

    assert_eq!(copied(&across), [(D2D, 16, 1)]);
    assert_eq!(copied(&within), [(D2D, 16, 0)]);
}

#[test]
fn a_copy_on_the_host_asks_no_device() {
    let graph = copy(floats(&[4], Device::CPU), floats(&[4], Device::CPU));

    assert_eq!(copied(&graph), []);
}

#[test]
fn a_tensor_of_many_dimensions_is_copied_whole() {
    let sizes = [2, 3, 4, 2];
    let graph = copy(floats(&sizes, Device::CPU), floats(&sizes, CUDA_0));

    assert_eq!(copied(&graph), [(H2D, 192, 0)]);
}

#[test]
fn every_type_of_element_is_copied() {
    for &scalar_type in ScalarType::ALL {
        let spec = |device| TensorSpec::contiguous(scalar_type, &[3], device).unwrap();
        let graph = copy(spec(Device::CPU), spec(CUDA_0));

        assert_eq!(copied(&graph), [(H2D, 3 * scalar_type.size(), 0)]);
        let to = graph.value(graph.outputs()[0]).unwrap().spec();
        assert_eq!(to.scalar_type(), scalar_type);
    }
}

#[test]
fn a_scalar_is_copied() {
    let graph = copy(floats(&[], CUDA_0), floats(&[], Device::CPU));

    assert_eq!(copied(&graph), [(D2H, 4, 0)]);
}

#[test]
fn a_copy_has_bytes_of_its_own() {
    let mut builder = GraphBuilder::new("forward");
    let from = builder.mutable_buffer("from", floats(&[2], Device::CPU));
    let to = builder.copy("to", from, floats(&[2], Device::CPU));
    let graph = builder.finish(&[to]).unwrap();
    on_fake(&graph, &PlanningOptions::default(), |runner, _| {
        runner.write(from, &bytes(8)).unwrap();
        runner.run(none).unwrap();

        runner.write(from, &[0; 8]).unwrap();

        assert_eq!(runner.read(to).unwrap(), bytes(8));
    });
}

#[test]
fn a_tensor_without_bytes_is_copied_without_a_call() {
    for (from, to) in [
        (Device::CPU, CUDA_0),
        (CUDA_0, Device::CPU),
        (CUDA_0, CUDA_1),
    ] {
        let graph = copy(floats(&[0, 3], from), floats(&[0, 3], to));

        assert_eq!(copied(&graph), []);
    }
}

#[test]
fn a_smaller_tensor_makes_the_copy_smaller() {
    for (from, to, operation) in [(Device::CPU, CUDA_0, H2D), (CUDA_0, Device::CPU, D2H)] {
        let graph = copy(dynamic(floats(&[4, 2], from)), dynamic(floats(&[4, 2], to)));
        let [from, to] = [graph.inputs()[0], graph.outputs()[0]];
        on_fake(&graph, &PlanningOptions::default(), |runner, fake| {
            runner.write_sized(from, &[3, 2], &bytes(24)).unwrap();
            fake.clear_calls();

            runner.run(none).unwrap();

            assert_eq!(device_copies(fake), [(operation, 24, 0)]);
            assert_eq!(runner.spec(to).unwrap().sizes(), [3, 2]);
            assert_eq!(runner.read(to).unwrap(), bytes(24));
        });
    }
}

#[test]
fn a_bounded_tensor_of_its_full_size_is_copied_whole() {
    let graph = copy(
        dynamic(floats(&[4, 2], Device::CPU)),
        dynamic(floats(&[4, 2], CUDA_0)),
    );

    assert_eq!(copied(&graph), [(H2D, 32, 0)]);
}

#[test]
fn a_tensor_that_passes_the_capacity_of_the_copy_is_refused_and_nothing_is_copied() {
    for (from, to) in [(Device::CPU, CUDA_0), (CUDA_0, Device::CPU)] {
        let graph = copy(dynamic(floats(&[4, 2], from)), dynamic(floats(&[2, 2], to)));
        let from = graph.inputs()[0];
        on_fake(&graph, &PlanningOptions::default(), |runner, fake| {
            runner.write(from, &bytes(32)).unwrap();
            fake.clear_calls();
            runner.take_copies();

            let error = runner.run(none).unwrap_err();

            assert_eq!(
                error.to_string(),
                "node 0: invalid tensor: sizes [4, 2] where [2, 2] are planned: \
                 32 bytes are more than 16"
            );
            assert_eq!(error.code(), 0x12);
            assert_eq!(device_copies(fake), []);
            assert_eq!(runner.copies().total(), 0);
        });
    }
}

#[test]
fn a_copy_whose_sizes_never_change_refuses_others() {
    let graph = copy(
        dynamic(floats(&[4, 2], Device::CPU)),
        floats(&[4, 2], CUDA_0),
    );
    let from = graph.inputs()[0];
    on_fake(&graph, &PlanningOptions::default(), |runner, _| {
        runner.write_sized(from, &[2, 2], &bytes(16)).unwrap();

        let error = runner.run(none).unwrap_err();

        assert_eq!(
            error.to_string(),
            "node 0: invalid tensor: sizes [2, 2] where [4, 2] are planned: they never change"
        );
    });
}

#[test]
fn a_copy_to_another_type_or_order_or_number_of_dimensions_is_no_graph() {
    let long = TensorSpec::contiguous(ScalarType::Long, &[2], CUDA_0).unwrap();
    let order = TensorSpec::with_dim_order(ScalarType::Float, &[2, 2], &[1, 0], CUDA_0).unwrap();
    for (from, to) in [
        (floats(&[2], Device::CPU), long),
        (floats(&[2, 2], Device::CPU), order),
        (
            dynamic(floats(&[4], Device::CPU)),
            dynamic(floats(&[2, 2], CUDA_0)),
        ),
    ] {
        let mut builder = GraphBuilder::new("forward");
        let from = builder.input("from", from);
        let to = builder.copy("to", from, to);

        let error = builder.finish(&[to]).unwrap_err();

        let ErrorKind::InvalidGraph(GraphFault::Arguments { reason, .. }) = error.kind() else {
            panic!("{error}");
        };
        assert!(reason.contains("can not be copied to"), "{reason}");
    }
}

#[test]
fn without_an_allocator_for_the_device_there_is_no_memory_to_run_in() {
    let unknown = Device::new(DeviceType::Custom(9), 0);
    let graph = copy(floats(&[4], Device::CPU), floats(&[4], unknown));
    let planned = PlannedGraph::new(graph, &PlanningOptions::default()).unwrap();
    let (_fake, registry) = fake_gpus();

    let error = PlannedMemory::allocate(planned.memory(), &registry).unwrap_err();

    assert!(error.is_not_registered());
    assert_eq!(error.code(), 0x20);
}

#[test]
fn bytes_of_a_layout_that_is_not_row_major_are_copied_as_they_are() {
    let order = |device| {
        TensorSpec::with_dim_order(ScalarType::Byte, &[1, 2, 2, 2], &[0, 2, 3, 1], device).unwrap()
    };
    let graph = copy(order(Device::CPU), order(CUDA_0));

    assert_eq!(copied(&graph), [(H2D, 8, 0)]);
}

#[test]
fn buffers_of_another_plan_are_refused() {
    let graph = copy(floats(&[64], Device::CPU), floats(&[64], CUDA_0));
    let planned = PlannedGraph::new(graph, &PlanningOptions::default()).unwrap();
    let small = copy(floats(&[1], Device::CPU), floats(&[1], CUDA_0));
    let small = PlannedGraph::new(small, &PlanningOptions::default()).unwrap();
    let other = copy(floats(&[64], Device::CPU), floats(&[64], CUDA_1));
    let other = PlannedGraph::new(other, &PlanningOptions::default()).unwrap();
    let host = copy(floats(&[64], Device::CPU), floats(&[64], Device::CPU));
    let host = PlannedGraph::new(host, &PlanningOptions::default()).unwrap();
    let (_fake, registry) = fake_gpus();
    let refused = |plan: &PlannedGraph| {
        let mut memory = PlannedMemory::allocate(plan.memory(), &registry).unwrap();
        let view = memory.view().unwrap();
        Runner::new(&planned, view).unwrap_err().to_string()
    };

    assert_eq!(
        refused(&small),
        "planned buffer 0: placement passes the end of memory id 0: 256 bytes at offset 0 of 64"
    );
    assert_eq!(
        refused(&other),
        "planned buffer 1: device mismatch: expected cuda:0, found cuda:1"
    );
    assert_eq!(
        refused(&host),
        "count mismatch: expected 2 planned buffers, found 1"
    );
}
