//! Lend a planned span to cudarc, which writes and reads it and never frees it.
//!
//! `cargo run --example lend_to_cudarc`
//!
//! It needs a GPU, and says so where there is none. The tests run it on a fake
//! driver (`tests/cuda_transfers/example.rs`), which is a simulation.

#![expect(clippy::print_stdout, reason = "an example talks to a person")]

use std::error::Error;

use device_memory::backend::cuda::cudarc::driver::CudaContext;
use device_memory::backend::cuda::{CudaAllocator, lend, lend_mut};
use device_memory::{
    Device, DeviceAllocatorRegistry, DeviceType, MemoryPlan, Placement, PlannedBuffer,
    PlannedMemory,
};

fn main() -> Result<(), Box<dyn Error>> {
    if let Err(error) = CudaAllocator::open() {
        println!("skipped: {error}");
        return Ok(());
    }
    println!("{:?}", run(DeviceAllocatorRegistry::global())?);
    Ok(())
}

/// Plans two values in one buffer, lends the second to cudarc to be set to 1, and
/// returns both as cudarc reads them.
pub(crate) fn run(registry: &DeviceAllocatorRegistry) -> Result<[Vec<u32>; 2], Box<dyn Error>> {
    let device = Device::new(DeviceType::Cuda, 0);
    let (first, second) = (Placement::new(0, 0, 16), Placement::new(0, 64, 16));
    let plan = MemoryPlan::new(vec![PlannedBuffer::new(device, 80)], vec![first, second])?;
    let mut memory = PlannedMemory::allocate(&plan, registry)?;
    memory.fill(0)?;
    let stream = CudaContext::new(0)?.new_stream()?;

    let mut view = memory.view()?;
    lend_mut::<u32, _>(view.span_mut(second)?, &stream, |slice| {
        stream.memcpy_htod(&[1_u32; 4], &mut slice.as_view_mut())
    })??;

    let read = |placement| -> Result<Vec<u32>, Box<dyn Error>> {
        Ok(lend::<u32, _>(view.span(placement)?, &stream, |slice| {
            stream.clone_dtoh(slice)
        })??)
    };
    Ok([read(first)?, read(second)?])
}
