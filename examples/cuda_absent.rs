//! Every entry point of the CUDA back end on a machine without a driver.
//!
//! Run it with a profile in which a panic aborts: it ends well only if none of
//! this panics. The test `cuda_absent` does so.
//!
//! ```sh
//! cargo run --profile abort --example cuda_absent
//! ```

use std::io::Write as _;

#[cfg(feature = "cuda")]
mod walk {
    use device_memory::backend::cuda::{CudaAllocator, CudaHostAllocator, CudaManagedAllocator};
    use device_memory::{
        Device, DeviceAllocatorRegistry, DeviceLayout, DeviceMemoryBuffer, DeviceTensor,
        DeviceType, Error, ErrorKind, MemoryPlan, PlannedBuffer, PlannedMemory, Result, ScalarType,
        TensorSpec,
    };

    /// Checks that a driver was looked for and not found, and that the text says
    /// under which names.
    fn is_absent<T>(outcome: Result<T>, device_type: DeviceType) -> Result<(), String> {
        let error = match outcome {
            Ok(_) => return Err(String::from("there is a driver")),
            Err(error) => error,
        };
        match error.root() {
            ErrorKind::DriverNotFound {
                device_type: of,
                tried,
            } if *of == device_type && !tried.is_empty() => {}
            _ => return Err(format!("{error:?}")),
        }
        let text = format!("{error} {error:?}");
        let said = text.contains("no driver found") && text.contains("cuda");
        if said { Ok(()) } else { Err(text) }
    }

    fn in_one_type(device_type: DeviceType) -> Result<(), String> {
        let registry = DeviceAllocatorRegistry::global();
        let own = DeviceAllocatorRegistry::new();
        let device = Device::new(device_type, 0);
        let layout = DeviceLayout::from_size(64).map_err(|error| error.to_string())?;
        let plan = MemoryPlan::new(vec![PlannedBuffer::new(device, 64)], Vec::new());
        let plan = plan.map_err(|error| error.to_string())?;
        let spec = TensorSpec::contiguous(ScalarType::Float, &[2], device);
        let spec = spec.map_err(|error| error.to_string())?;
        let outcomes: Vec<Result<(), Error>> = vec![
            DeviceMemoryBuffer::create(64, device_type, 0).map(drop),
            DeviceMemoryBuffer::create(64, device_type, u16::MAX).map(drop),
            DeviceMemoryBuffer::create(0, device_type, 0).map(drop),
            DeviceMemoryBuffer::create_array::<u64>(8, device_type, 0).map(drop),
            DeviceMemoryBuffer::create_zeroed(64, device_type, 0).map(drop),
            DeviceMemoryBuffer::from_host(&[1], device_type, 0).map(drop),
            DeviceMemoryBuffer::create_in(registry, layout, device).map(drop),
            DeviceMemoryBuffer::create_in(&own, layout, device).map(drop),
            DeviceMemoryBuffer::create_all(registry, &[(layout, device)]).map(drop),
            registry.try_get(device_type).map(drop),
            own.try_get(device_type).map(drop),
            PlannedMemory::allocate(&plan, registry).map(drop),
            DeviceTensor::create(spec.clone()).map(drop),
            DeviceTensor::from_host(spec, &[0; 8]).map(drop),
        ];
        for outcome in outcomes {
            is_absent(outcome, device_type)?;
        }
        match registry.get(device_type) {
            None => Ok(()),
            Some(found) => Err(format!("{found:?}")),
        }
    }

    /// Tries everything once.
    pub(super) fn everywhere() -> Result<(), String> {
        for device_type in [
            DeviceType::Cuda,
            DeviceType::CudaHost,
            DeviceType::CudaManaged,
        ] {
            in_one_type(device_type)?;
        }
        is_absent(CudaAllocator::open(), DeviceType::Cuda)?;
        let builder = CudaAllocator::builder().release_threshold(1);
        is_absent(builder.open(), DeviceType::Cuda)?;
        is_absent(CudaHostAllocator::open(), DeviceType::CudaHost)?;
        is_absent(CudaManagedAllocator::open(), DeviceType::CudaManaged)
    }
}

#[cfg(not(feature = "cuda"))]
mod walk {
    pub(super) fn everywhere() -> Result<(), String> {
        Ok(())
    }
}

fn main() -> Result<(), String> {
    for _ in 0..3 {
        walk::everywhere()?;
    }
    std::thread::scope(|scope| {
        let threads = [(); 8].map(|()| scope.spawn(walk::everywhere));
        for thread in threads {
            thread.join().map_err(|_| String::from("a panic"))??;
        }
        Ok::<(), String>(())
    })?;
    let told = writeln!(std::io::stdout(), "done");
    told.map_err(|error| error.to_string())
}
