//! Every call failing or panicking in turn.

#![expect(unsafe_code, reason = "plays the other side of the interface")]

use std::sync::Arc;

use device_memory::dlpack::{ExportedTensor, ImportedTensor};
use device_memory::testing::{FakeDevice, fail_each_call, panic_each_call};
use device_memory::{
    Device, DeviceAllocator, DeviceAllocatorRegistry, DeviceTensor, DeviceType, Error, ScalarType,
    TensorSpec,
};

const GPU: Device = Device::new(DeviceType::Cuda, 0);

/// A copy goes out, comes back, and is written and read.
fn round(allocator: Arc<impl DeviceAllocator + 'static>) -> Result<(), Error> {
    let registry = DeviceAllocatorRegistry::new();
    registry.register(allocator)?;
    let spec = TensorSpec::contiguous(ScalarType::Int, &[2, 2], GPU)?;
    let tensor = DeviceTensor::from_host_in(&registry, spec, &[1; 16])?;
    let copy = ExportedTensor::copy_of(&tensor.view()?, &registry, GPU)?;
    let moved = ExportedTensor::from_tensor(tensor)?;
    // SAFETY: the tensor is sound, and the registry's allocator made its memory.
    let mut back = unsafe { ImportedTensor::from_raw(copy.into_raw(), &registry) }?;
    // SAFETY: nothing else accesses the memory.
    unsafe { back.view_mut() }?.copy_from_host(&[2; 16])?;
    assert_eq!(back.view()?.to_vec()?, [2; 16]);
    drop(moved);
    Ok(())
}

#[test]
fn nothing_leaks_whichever_call_fails() {
    let fake = FakeDevice::new(DeviceType::Cuda, 1);

    let failed = fail_each_call(&fake, |allocator| round(Arc::clone(allocator))).unwrap();
    let panicked = panic_each_call(&fake, |allocator| round(Arc::clone(allocator))).unwrap();

    assert!(failed.calls >= 8, "{failed:?}");
    assert_eq!(panicked.unwound, 0);
    fake.assert_clean();
}
