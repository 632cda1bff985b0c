//! What the tests of the runner share.

use std::sync::Arc;

use device_memory::graph::{Graph, PlannedGraph, PlanningOptions};
use device_memory::runner::{Call, Runner};
use device_memory::testing::FakeDevice;
use device_memory::{
    Device, DeviceAllocatorRegistry, DeviceType, Operation, PlannedMemory, Result, ScalarType,
    ShapeDynamism, TensorSpec,
};

use crate::interpreter::compute;

/// Two fake GPUs, and a registry that has them beside the host.
pub(crate) fn fake_gpus() -> (FakeDevice, DeviceAllocatorRegistry) {
    let fake = FakeDevice::new(DeviceType::Cuda, 2);
    let registry = DeviceAllocatorRegistry::new();
    registry.register(Arc::new(fake.clone())).unwrap();
    (fake, registry)
}

/// Does what the model does, with the bytes where they are, and checks that they
/// are where the node runs.
pub(crate) fn mix(call: &mut Call<'_>) -> Result<()> {
    let (device, name) = (call.device(), call.name());
    let (inputs, outputs) = call.arguments();
    let mut bytes = Vec::new();
    for input in inputs {
        assert_eq!(
            input.span().device(),
            device,
            "{name} reads {}",
            input.name()
        );
        bytes.push(input.span().to_vec()?);
    }
    let mut starts = Vec::new();
    let mut sizes = Vec::new();
    for output in outputs.iter_mut() {
        let span = output.span_mut()?;
        assert_eq!(span.device(), device, "{name}");
        sizes.push(span.len());
        starts.push(span.as_span().to_vec()?);
    }
    for (output, bytes) in outputs
        .iter_mut()
        .zip(compute(name, &bytes, &starts, &sizes))
    {
        output.span_mut()?.copy_from_host(&bytes)?;
    }
    Ok(())
}

/// Runs a test on a graph whose memory is on two fake GPUs and the host.
pub(crate) fn on_fake<T>(
    graph: &Graph,
    options: &PlanningOptions,
    test: impl FnOnce(&mut Runner<'_>, &FakeDevice) -> T,
) -> T {
    let planned = PlannedGraph::new(graph.clone(), options).unwrap();
    let (fake, registry) = fake_gpus();
    let mut memory = PlannedMemory::allocate(planned.memory(), &registry).unwrap();
    fake.clear_calls();
    let mut runner = Runner::new(&planned, memory.view().unwrap()).unwrap();
    let result = test(&mut runner, &fake);
    drop(runner);
    drop(memory);
    assert!(fake.violations().is_empty(), "{:?}", fake.violations());
    assert_eq!(fake.outstanding(), 0);
    result
}

/// The copies that a device was asked for: what, of how many bytes, on which index.
pub(crate) fn device_copies(fake: &FakeDevice) -> Vec<(Operation, usize, u16)> {
    let calls = fake.calls().into_iter();
    calls
        .filter(|call| call.operation != Operation::Deallocate)
        .map(|call| (call.operation, call.size, call.index))
        .collect()
}

/// No kernel or delegate is to be called.
pub(crate) fn none(call: &mut Call<'_>) -> Result<()> {
    panic!("{} was called", call.name())
}

/// Each output gets the bytes of the first input, one more each; what is in place of
/// another value gets its own.
pub(crate) fn increment(call: &mut Call<'_>) -> Result<()> {
    let (inputs, outputs) = call.arguments();
    for output in outputs {
        let mut bytes = match inputs.first() {
            Some(input) => input.span().to_vec()?,
            None => output.span_mut()?.as_span().to_vec()?,
        };
        bytes
            .iter_mut()
            .for_each(|byte| *byte = byte.wrapping_add(1));
        output.span_mut()?.copy_from_host(&bytes)?;
    }
    Ok(())
}

pub(crate) fn dynamic(spec: TensorSpec) -> TensorSpec {
    spec.with_dynamism(ShapeDynamism::DynamicBound)
}

pub(crate) fn floats(sizes: &[usize], device: Device) -> TensorSpec {
    TensorSpec::contiguous(ScalarType::Float, sizes, device).unwrap()
}

pub(crate) fn truth() -> TensorSpec {
    TensorSpec::contiguous(ScalarType::Bool, &[1], Device::CPU).unwrap()
}
