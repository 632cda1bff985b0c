//! The same on a GPU: without a copy to candle, with one on the device back.

use std::error::Error;
use std::sync::Arc;

use candle_core::cuda_backend::{CudaStorage, CudaStorageSlice};
use candle_core::op::BackpropOp;
use candle_core::{Device, Storage, Tensor};
use device_memory::backend::cuda::{CudaAllocator, cudarc};
use device_memory::{DeviceMemoryBuffer, DeviceType};

/// A buffer of floats becomes a tensor, and the result a buffer again.
pub(crate) fn there_and_back() -> Result<(), Box<dyn Error>> {
    let device = Device::new_cuda_with_stream(0)?;
    let Device::Cuda(cuda) = &device else {
        return Err("not a CUDA device".into());
    };
    let stream: Arc<cudarc::driver::CudaStream> = cuda.cuda_stream();
    let buffer = DeviceMemoryBuffer::create_zeroed(24, DeviceType::Cuda, 0)?;

    let slice = CudaAllocator::into_cuda_slice::<f32>(buffer, &stream)?;
    let storage = CudaStorage::wrap_cuda_slice(slice, cuda.clone());
    let storage = Storage::Cuda(storage);
    let tensor = Tensor::from_storage(storage, (2, 3), BackpropOp::none(), false);
    let ones = (tensor + 1.0)?;

    let (storage, layout) = ones.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else {
        return Err("not on the device".into());
    };
    let CudaStorageSlice::F32(slice) = &storage.slice else {
        return Err("not floats".into());
    };
    assert!(layout.is_contiguous());
    let allocator = CudaAllocator::open()?;
    let back = allocator.adopt(stream.clone_dtod(slice)?)?;
    assert_eq!(back.to_vec()?, 1f32.to_le_bytes().repeat(6));
    Ok(())
}
