//! The example that lends a planned span, on the simulated driver.

use std::sync::Arc;

use device_memory::DeviceAllocatorRegistry;

use crate::support::Rig;

#[expect(dead_code, reason = "the example's own entry point")]
#[path = "../../examples/lend_to_cudarc.rs"]
mod lend_to_cudarc;

#[test]
fn the_example_lends_a_planned_span_and_leaves_nothing() {
    let rig = Rig::new();
    let registry = DeviceAllocatorRegistry::new();
    registry.register(Arc::clone(&rig.cuda)).unwrap();
    let before = rig.alive();

    let [first, second] = lend_to_cudarc::run(&registry).unwrap();

    assert_eq!(first, [0; 4]);
    assert_eq!(second, [1; 4]);
    assert_eq!(rig.alive(), before);
    rig.check();
}
