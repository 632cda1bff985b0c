//! What the tests of the runner share.

use std::sync::Arc;

use device_memory::graph::{Graph, Op};
use device_memory::runner::Call;
use device_memory::testing::FakeDevice;
use device_memory::{DeviceAllocatorRegistry, DeviceType, Result};

use crate::graphs::compute;

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

/// The graph and all inside it.
pub(crate) fn all_graphs(graph: &Graph) -> Vec<&Graph> {
    let inner = graph.nodes().iter().flat_map(|node| Op::graphs(node.op()));
    [graph]
        .into_iter()
        .chain(inner.flat_map(all_graphs))
        .collect()
}
