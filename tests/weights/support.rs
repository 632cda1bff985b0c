//! What these tests share.

use std::sync::Arc;

use device_memory::testing::FakeDevice;
use device_memory::weights::{Weights, WeightsHeader, WeightsLoader};
use device_memory::{Device, DeviceAllocatorRegistry, DeviceType, Result};

/// A device that can not be read by the host.
pub(crate) const GPU: Device = Device::new(DeviceType::Cuda, 0);

/// A file with this text as its header and so many bytes of data.
pub(crate) fn file(json: &str, data: usize) -> Vec<u8> {
    let mut file = (json.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(json.as_bytes());
    file.extend(bytes(data));
    file
}

/// Bytes that differ from their neighbours.
pub(crate) fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from(at % 251).unwrap()).collect()
}

/// Three tensors, of 12, 0 and 5 bytes, not in the order of their bytes.
pub(crate) const SMALL: &str = r#"{
    "tail": {"dtype": "U8", "shape": [5], "data_offsets": [12, 17]},
    "__metadata__": {"format": "pt"},
    "none": {"dtype": "F32", "shape": [3, 0], "data_offsets": [12, 12]},
    "head": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}
}"#;

/// A fake device and a registry in which it serves.
pub(crate) fn rig() -> (FakeDevice, DeviceAllocatorRegistry) {
    let fake = FakeDevice::new(DeviceType::Cuda, 2);
    let registry = DeviceAllocatorRegistry::new();
    registry.register(Arc::new(fake.clone())).unwrap();
    (fake, registry)
}

/// Loads a whole file into one buffer.
pub(crate) fn load(
    registry: &DeviceAllocatorRegistry,
    file: &[u8],
    device: Device,
) -> Result<Weights> {
    let (header, data) = WeightsHeader::parse(file)?;
    let plan = header.arena(device, 64)?;
    WeightsLoader::new(registry).load(header, plan, data)
}

/// Checks that each tensor is on the device as it is in the file.
#[track_caller]
pub(crate) fn check(weights: &Weights, file: &[u8]) {
    let (header, data) = WeightsHeader::parse(file).unwrap();
    for tensor in header.tensors() {
        let expected = &data[tensor.offset()..tensor.offset() + tensor.size()];
        let found = weights.span(tensor.name()).unwrap().to_vec().unwrap();
        assert_eq!(found, expected, "{}", tensor.name());
    }
}
