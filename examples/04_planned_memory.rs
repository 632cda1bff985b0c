//! Allocate every buffer of a plan, and place its values.
//!
//! `cargo run --example 04_planned_memory`

#![expect(clippy::print_stdout, reason = "an example talks to a person")]

use device_memory::{
    Device, DeviceAllocatorRegistry, MemoryPlan, Placement, PlannedBuffer, PlannedMemory, Result,
};

fn main() -> Result<()> {
    // Two methods that are never in use at the same time share one arena.
    let input = Placement::new(0, 0, 64);
    let output = Placement::new(0, 64, 32);
    let prefill = MemoryPlan::new(
        vec![PlannedBuffer::new(Device::CPU, 96)],
        vec![input, output],
    )?;
    let decode = MemoryPlan::new(vec![PlannedBuffer::new(Device::CPU, 64)], vec![input])?;
    let registry = DeviceAllocatorRegistry::global();
    let mut memory = PlannedMemory::allocate_shared(&[&prefill, &decode], registry)?;
    println!("{} bytes for two methods", memory.size_in_bytes());

    // The addresses stay the same, so a runtime resolves them once.
    let view = memory.view_of(0)?;
    for address in view.place_all(prefill.placements())? {
        println!("{} on {}", address.ptr, address.device);
    }
    Ok(())
}
