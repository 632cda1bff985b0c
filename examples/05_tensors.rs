//! Bind a description to memory, and move a tensor between devices.
//!
//! `cargo run --example 05_tensors --features testing`

#![expect(clippy::print_stdout, reason = "an example talks to a person")]

use std::sync::Arc;

use device_memory::testing::FakeDevice;
use device_memory::{
    Device, DeviceAllocatorRegistry, DeviceTensor, DeviceType, Result, ScalarType, TensorSpec,
};

fn main() -> Result<()> {
    let registry = DeviceAllocatorRegistry::new();
    registry.register(Arc::new(FakeDevice::new(DeviceType::Cuda, 1)))?;

    let spec = TensorSpec::contiguous(ScalarType::Float, &[2, 3], Device::CPU)?;
    let bytes: Vec<u8> = (0..6_u8).flat_map(|n| f32::from(n).to_le_bytes()).collect();
    let on_host = DeviceTensor::from_host_in(&registry, spec, &bytes)?;
    let on_device = on_host.to_device_in(&registry, "cuda:0".parse()?)?;
    let back = on_device.to_device_in(&registry, Device::CPU)?;

    println!(
        "{} on {}",
        on_device.spec().scalar_type(),
        on_device.device()
    );
    println!("strides {:?}", on_device.spec().strides());
    println!(
        "equal after the round trip: {}",
        back.view()?.to_vec()? == bytes
    );
    Ok(())
}
