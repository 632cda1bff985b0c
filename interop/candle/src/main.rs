//! A tensor of candle from memory of this workspace's crate, and back.
//!
//! On the host, candle's storage is a `Vec` that it frees itself, so there is one
//! copy each way. On a CUDA device (feature `cuda`) a buffer becomes a `CudaSlice`,
//! and that the storage of a tensor, without a copy; on the way back candle only lends
//! its slice, so a copy on the device is adopted. That form was checked by the
//! compiler, with a stand-in for nvcc, and not run yet: it needs nvcc and a GPU.

use std::error::Error;
use std::io::Write as _;

use candle_core::{CpuStorage, Device, Storage, Tensor};
use device_memory::weights::{WeightsHeader, WeightsLoader};
use device_memory::{DeviceAllocatorRegistry, DeviceMemoryBuffer, DeviceType, TensorView};

#[cfg(feature = "cuda")]
mod cuda;

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout();
    let tensor = Tensor::arange(0f32, 6f32, &Device::Cpu)?.reshape((2, 3))?;
    let name = format!("device-memory-candle-{}.safetensors", std::process::id());
    let path = std::env::temp_dir().join(name);
    candle_core::safetensors::save(&[("weight", tensor)].into(), &path)?;
    let bytes = std::fs::read(&path)?;
    std::fs::remove_file(&path)?;

    // Weights that candle wrote, in one planned buffer.
    let (header, data) = WeightsHeader::parse(&bytes)?;
    let plan = header.arena(device_memory::Device::CPU, 64)?;
    let loader = WeightsLoader::new(DeviceAllocatorRegistry::global());
    let weights = loader.load(header, plan, data)?;

    let tensor = from_view(&weights.view("weight")?)?;
    writeln!(out, "a copy of our memory: {tensor}")?;
    let doubled = (tensor * 2.0)?;

    let buffer = into_buffer(&doubled)?;
    let floats: Vec<f32> = buffer
        .as_slice()?
        .chunks_exact(4)
        .map(|bytes| bytes.try_into().map(f32::from_le_bytes))
        .collect::<Result<_, _>>()?;
    writeln!(out, "and back: {floats:?} in {buffer:?}")?;
    assert_eq!(floats, [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);

    #[cfg(feature = "cuda")]
    cuda::there_and_back()?;
    Ok(())
}

/// A tensor of candle with the elements of a row-major tensor of floats on the host.
fn from_view(view: &TensorView<'_>) -> Result<Tensor, Box<dyn Error>> {
    let spec = view.spec();
    if spec.scalar_type() != device_memory::ScalarType::Float {
        return Err(format!("{} is not read here", spec.scalar_type()).into());
    }
    let bytes = view.span().as_slice()?;
    Ok(Tensor::from_raw_buffer(
        bytes,
        candle_core::DType::F32,
        spec.sizes(),
        &Device::Cpu,
    )?)
}

/// A buffer with the elements of a tensor of floats on the host.
fn into_buffer(tensor: &Tensor) -> Result<DeviceMemoryBuffer, Box<dyn Error>> {
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(CpuStorage::F32(floats)) = &*storage else {
        return Err("not floats on the host".into());
    };
    let floats = layout
        .contiguous_offsets()
        .and_then(|(from, to)| floats.get(from..to))
        .ok_or("not contiguous")?;
    let mut buffer = DeviceMemoryBuffer::create_array::<f32>(floats.len(), DeviceType::Cpu, 0)?;
    for (bytes, float) in buffer.as_slice_mut()?.chunks_exact_mut(4).zip(floats) {
        bytes.copy_from_slice(&float.to_le_bytes());
    }
    Ok(buffer)
}
