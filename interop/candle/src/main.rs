//! A tensor of candle from memory of this workspace's crate, and back.
//!
//! On the host a buffer becomes a tensor, and a tensor a buffer, at the same address.
//! A view of planned memory is a part of a block, which candle can not own, so that is
//! copied. On a CUDA device (feature `cuda`) a buffer becomes a `CudaSlice`, and that
//! the storage of a tensor, without a copy; on the way back candle only lends its
//! slice, so a copy on the device is adopted. That form was checked by the compiler,
//! with a stand-in for nvcc, and not run yet: it needs nvcc and a GPU.

use std::error::Error;
use std::io::Write as _;

use candle_core::{Device, Tensor};
use device_memory::weights::{WeightsHeader, WeightsLoader};
use device_memory::{DeviceAllocatorRegistry, DeviceMemoryBuffer, HostAllocator, TensorView};
use device_memory_candle::{into_buffer, into_tensor, layout_of_floats};

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

    let weight = from_view(&weights.view("weight")?)?;
    writeln!(out, "a copy of planned memory: {weight}")?;

    // A buffer of their size becomes a tensor, which candle writes, and a buffer again.
    let layout = layout_of_floats(weight.elem_count())?;
    let mut buffer = DeviceMemoryBuffer::create_with(&HostAllocator, layout, 0)?;
    buffer.copy_from(weights.span("weight")?)?;
    let address = buffer.ptr();

    let tensor = into_tensor(buffer, (2, 3))?;
    writeln!(out, "our memory itself: {tensor}")?;
    tensor.slice_set(&(weight * 2.0)?, 0, 0)?;

    let buffer = into_buffer(tensor)?;
    writeln!(out, "and back: {:?} in {buffer:?}", floats(&buffer)?)?;
    assert_eq!(buffer.ptr(), address);
    assert_eq!(floats(&buffer)?, [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);

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

/// The floats in a buffer.
fn floats(buffer: &DeviceMemoryBuffer) -> Result<Vec<f32>, Box<dyn Error>> {
    let (floats, _) = buffer.as_slice()?.as_chunks();
    Ok(floats.iter().copied().map(f32::from_ne_bytes).collect())
}
