//! Values told their device without being put there.
//!
//! Rank 4. Part of `graph`.

use crate::device::Device;
use crate::error::Result;
use crate::graph::{Graph, GraphBuilder, Node, Op, ValueId};

/// Tells each value that a delegate with a target device uses or makes that it is
/// meant for that device, in the graphs inside this one too. No copy is inserted.
///
/// This is for programs whose memory is all on the host, and whose delegates take
/// it from there: [`PlanningOptions::host_memory_only`]. The last delegate that
/// uses a value decides.
///
/// [`PlanningOptions::host_memory_only`]: crate::graph::PlanningOptions::host_memory_only
///
/// # Errors
///
/// None that a graph can cause.
pub fn tag_devices(graph: &Graph) -> Result<Graph> {
    let mut builder = GraphBuilder::from_values(graph);
    for node in graph.nodes() {
        if let Op::Delegate {
            target: Some(device),
        } = *node.op()
        {
            for id in graph.reads(node).chain(node.outputs().iter().copied()) {
                tag(&mut builder, id, device);
            }
        }
        builder.push(Node {
            op: node.op().map_graphs(tag_devices)?,
            ..node.clone()
        });
    }
    builder.finish(graph.outputs())
}

fn tag(builder: &mut GraphBuilder, id: ValueId, device: Device) {
    if let Some(value) = builder.value_mut(id) {
        value.spec = value.spec.clone().with_device(device);
    }
}
