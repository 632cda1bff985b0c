//! Let an allocator serve a type of device, here one without hardware.
//!
//! `cargo run --example 02_registry --features testing`

#![expect(clippy::print_stdout, reason = "an example talks to a person")]

use std::sync::Arc;

use device_memory::testing::FakeDevice;
use device_memory::{
    DeviceAllocatorRegistry, DeviceLayout, DeviceMemoryBuffer, DeviceType, Result,
};

fn main() -> Result<()> {
    // Two simulated devices of one mebibyte each.
    let fake = FakeDevice::builder(DeviceType::Cuda)
        .devices(2)
        .capacity(1 << 20)
        .build();
    let registry = DeviceAllocatorRegistry::new();
    registry.register(Arc::new(fake.clone()))?;

    let layout = DeviceLayout::new(4096, 512)?;
    let buffer = DeviceMemoryBuffer::create_in(&registry, layout, "cuda:1".parse()?)?;
    println!("{buffer:?}");

    let too_much = DeviceLayout::from_size(2 << 20)?;
    if let Err(error) = DeviceMemoryBuffer::create_in(&registry, too_much, "cuda:0".parse()?) {
        println!("{error}");
    }

    // The buffer keeps its allocator alive, whatever becomes of the registry.
    drop(registry);
    drop(buffer);
    println!("live bytes: {}", fake.live_bytes());
    Ok(())
}
