//! Every entry point with input that is bad, in one process.
//!
//! Run it with a profile in which a panic aborts: it ends well only if none of
//! this panics. The test `process` does so.
//!
//! ```sh
//! cargo run --profile abort --features testing --example abort_free
//! ```

use std::io::Write as _;

#[cfg(feature = "testing")]
mod walk {
    use std::sync::Arc;

    use device_memory::testing::{FakeDevice, FaultInjector, fail_each_call};
    use device_memory::{
        AllocatorHandle, Device, DeviceAllocator, DeviceAllocatorRegistry, DeviceLayout,
        DeviceMemoryBuffer, DevicePtr, DeviceTensor, DeviceType, Error, HierarchicalAllocator,
        HostAllocator, MemoryPlan, Operation, Placement, PlannedBuffer, PlannedMemory,
        RawDeviceMemory, Result, ScalarType, ShapeDynamism, TensorSpec, TensorView, TensorViewMut,
        set_free_failure_hook,
    };

    const CUDA: DeviceType = DeviceType::Cuda;
    const CUDA_0: Device = Device::new(CUDA, 0);
    const NUMBERS: [usize; 14] = [
        0,
        1,
        2,
        3,
        7,
        8,
        9,
        64,
        65,
        4096,
        isize::MAX.unsigned_abs() - 63,
        isize::MAX.unsigned_abs(),
        usize::MAX - 1,
        usize::MAX,
    ];

    fn devices() -> impl Iterator<Item = Device> {
        let types = [
            DeviceType::Cpu,
            CUDA,
            DeviceType::CudaHost,
            DeviceType::CudaManaged,
            DeviceType::Custom(0),
            DeviceType::Custom(255),
        ];
        types.into_iter().flat_map(|device_type| {
            [0, 1, 2, 255, u16::MAX].map(|index| Device::new(device_type, index))
        })
    }

    pub(crate) fn all() -> Result<()> {
        let fake = FakeDevice::new(CUDA, 2);
        DeviceAllocatorRegistry::global().register(Arc::new(fake.clone()))?;
        words();
        registries()?;
        creation();
        copies()?;
        placements()?;
        tensors()?;
        faults()?;
        fake.assert_clean();
        Ok(())
    }

    fn words() {
        for text in [
            "",
            ":",
            "cpu:",
            ":0",
            "cuda:-1",
            "cuda:65536",
            "cuda:1:2",
            "custom256:0",
            "custom:0",
            "CUDA:0",
            "cuda: 0",
            "\u{0}",
            "ünïcödé:0",
        ] {
            assert!(text.parse::<Device>().is_err(), "{text:?}");
            assert!(text.parse::<DeviceType>().is_err(), "{text:?}");
        }
        for code in i8::MIN..=i8::MAX {
            let _ = DeviceType::from_executorch(code);
            let _ = DeviceType::from_dlpack(i32::from(code));
            let _ = ScalarType::from_code(code);
            let _ = ShapeDynamism::from_code(code);
        }
        for number in NUMBERS {
            for other in NUMBERS {
                let _ = DeviceLayout::new(number, other);
                let ptr = DevicePtr::from_addr(number);
                let _ = ptr.map(|ptr| (ptr.checked_add(other), ptr.is_aligned_to(other)));
            }
            let _ = DeviceLayout::array::<u64>(number);
            let _ = DeviceLayout::array::<()>(number);
            let _ = DeviceLayout::array::<[u64; 1 << 20]>(number);
        }
    }

    fn registries() -> Result<()> {
        let registry = DeviceAllocatorRegistry::new();
        for device in devices() {
            let device_type = device.device_type();
            let _ = registry.try_get(device_type);
            assert!(registry.registered(device_type).is_none());
            assert!(registry.unregister(device_type).is_none());
        }
        let allocator = AllocatorHandle::from(Arc::new(FakeDevice::new(CUDA, 0)));
        assert!(registry.register(allocator.clone()).is_ok());
        assert!(registry.register(allocator.clone()).is_err());
        assert!(registry.replace(allocator)?.is_some());
        let empty = DeviceLayout::from_size(0)?;
        assert!(DeviceMemoryBuffer::create_in(&registry, empty, CUDA_0).is_err());
        Ok(())
    }

    fn creation() {
        let registry = DeviceAllocatorRegistry::global();
        for device in devices() {
            let (device_type, index) = (device.device_type(), device.index());
            // Zeroed memory of any size that the host may have is left out.
            for size in NUMBERS {
                let _ = DeviceMemoryBuffer::create(size, device_type, index);
                let _ = DeviceMemoryBuffer::create_array::<u128>(size, device_type, index);
                for align in NUMBERS {
                    if let Ok(layout) = DeviceLayout::new(size, align) {
                        let _ = DeviceMemoryBuffer::create_in(registry, layout, device);
                        let requests = [(layout, CUDA_0), (layout, device), (layout, device)];
                        let _ = DeviceMemoryBuffer::create_all(registry, &requests);
                        let _ = DeviceMemoryBuffer::create_with(&HostAllocator, layout, index);
                    }
                }
            }
            let _ = DeviceMemoryBuffer::create_zeroed(usize::MAX, device_type, index);
            let _ = DeviceMemoryBuffer::create_zeroed(0, device_type, index);
            let _ = DeviceMemoryBuffer::from_host(&[], device_type, index);
            let _ = DeviceMemoryBuffer::from_host(b"abc", device_type, index);
        }
    }

    fn copies() -> Result<()> {
        let mut buffers = [
            DeviceMemoryBuffer::default(),
            DeviceMemoryBuffer::create(8, DeviceType::Cpu, 0)?,
            DeviceMemoryBuffer::create(8, CUDA, 0)?,
            DeviceMemoryBuffer::create(9, CUDA, 1)?,
            DeviceMemoryBuffer::create(0, CUDA, 1)?,
        ];
        let sources = [
            DeviceMemoryBuffer::create(8, DeviceType::Cpu, 0)?,
            DeviceMemoryBuffer::create(9, CUDA, 0)?,
            DeviceMemoryBuffer::create(0, CUDA, 0)?,
        ];
        for buffer in &mut buffers {
            for size in [0, 1, 7, 8, 9, 10] {
                let mut host = vec![0; size];
                let _ = buffer.copy_from_host(&host);
                let _ = buffer.copy_to_host(&mut host);
                for offset in NUMBERS {
                    let _ = buffer.copy_from_host_at(offset, &host);
                    let _ = buffer.copy_to_host_at(offset, &mut host);
                }
            }
            for source in &sources {
                let _ = buffer.copy_from(source.as_span());
            }
            for offset in NUMBERS {
                for size in NUMBERS {
                    let _ = buffer.as_span().subspan(offset, size);
                    let _ = buffer.as_span_mut().into_subspan(offset, size);
                }
                let _ = buffer.as_span().split_at(offset);
                let _ = buffer.as_span_mut().into_split_at(offset);
            }
            let _ = (buffer.as_slice().is_ok(), buffer.as_slice_mut().is_ok());
            let _ = (buffer.to_vec(), buffer.try_clone(), buffer.fill(1));
            let raw = std::mem::take(buffer).into_raw();
            let _ = (raw.ptr(), raw.layout(), raw.device());
            *buffer = own_again(raw);
        }
        Ok(())
    }

    #[expect(unsafe_code, reason = "taking ownership back is unsafe by contract")]
    fn own_again(raw: RawDeviceMemory) -> DeviceMemoryBuffer {
        // SAFETY: the memory was given up a moment ago, and nothing used it since.
        unsafe { DeviceMemoryBuffer::from_raw(raw) }
    }

    fn placements() -> Result<()> {
        let registry = DeviceAllocatorRegistry::global();
        let mut host = DeviceMemoryBuffer::create(8, DeviceType::Cpu, 0)?;
        for planned in [&[][..], &[CUDA_0], &[Device::CPU; 2]] {
            assert!(HierarchicalAllocator::new(vec![host.as_span_mut()], planned).is_err());
        }
        let mut memory = HierarchicalAllocator::new(vec![host.as_span_mut()], &[Device::CPU])?;
        for id in [0, 1, u32::MAX] {
            for offset in NUMBERS {
                for size in NUMBERS {
                    let placement = Placement::new(id, offset, size);
                    let _ = memory.get_offset_address(id, offset, size);
                    let _ = memory.place_all(&[placement]);
                    let _ = memory.span(placement).is_ok();
                    let _ = memory.span_mut(placement).is_ok();
                    let _ = memory.disjoint_mut(&[placement, placement]).is_ok();
                    let _ = MemoryPlan::new(Vec::new(), vec![placement]);
                }
            }
        }
        for size in NUMBERS {
            for align in NUMBERS {
                let mut buffer = PlannedBuffer::new(CUDA_0, size);
                buffer.align = align;
                let plan = MemoryPlan::new(vec![buffer; 3], Vec::new())?;
                let _ = plan.requirements();
                if let Ok(mut memory) = PlannedMemory::allocate_shared(&[&plan, &plan], registry) {
                    for index in NUMBERS {
                        let _ = memory.view_of(index).is_ok();
                    }
                }
            }
        }
        for device in devices() {
            let plan = MemoryPlan::new(vec![PlannedBuffer::new(device, 1)], Vec::new())?;
            let _ = PlannedMemory::allocate(&plan, registry);
        }
        let _ = PlannedMemory::allocate_shared(&[], registry)?
            .view()
            .is_ok();
        Ok(())
    }

    fn tensors() -> Result<()> {
        for rank in [0, 1, 2, 16, 17, 255, 256, 300] {
            for size in NUMBERS {
                let sizes = vec![size; rank];
                let order = vec![0; rank];
                let _ = TensorSpec::with_dim_order(ScalarType::Long, &sizes, &order, CUDA_0);
                if let Ok(spec) = TensorSpec::contiguous(ScalarType::Long, &sizes, CUDA_0) {
                    let _ = spec.strides();
                    let _ = DeviceTensor::create(spec.clone());
                    let _ = DeviceTensor::from_host(spec, &[1]);
                }
            }
        }
        let mut place = DeviceMemoryBuffer::create(8, CUDA, 1)?;
        for device in devices() {
            for size in [0, 1, 2, 3] {
                let spec = TensorSpec::contiguous(ScalarType::Float, &[size], device)?;
                let _ = TensorView::bind(spec.clone(), place.as_span());
                let _ = TensorViewMut::bind(spec, place.as_span_mut());
            }
            let spec = TensorSpec::contiguous(ScalarType::Float, &[2], CUDA_0)?;
            let _ = DeviceTensor::from_host(spec, &[1; 8])?.to_device(device);
        }
        Ok(())
    }

    /// Every call failing in turn, with frees that fail.
    fn faults() -> Result<()> {
        set_free_failure_hook(Some(Arc::new(|_| {})));
        let fake = FakeDevice::new(DeviceType::Custom(1), 2);
        let round = |allocator: &Arc<FaultInjector<FakeDevice>>| -> Result<()> {
            let registry = DeviceAllocatorRegistry::new();
            registry.register(Arc::clone(allocator))?;
            let device = Device::new(allocator.device_type(), 1);
            let plan = MemoryPlan::new(vec![PlannedBuffer::new(device, 8); 2], Vec::new())?;
            let mut memory = PlannedMemory::allocate(&plan, &registry)?;
            memory.fill(1)?;
            let spec = TensorSpec::contiguous(ScalarType::Float, &[2], device)?;
            let tensor = DeviceTensor::from_host_in(&registry, spec, &[1; 8])?;
            let copy = tensor.to_device_in(&registry, Device::CPU)?;
            let mut buffer = tensor.into_buffer().try_clone()?;
            buffer.copy_from(copy.view()?.span())?;
            let mut bytes = [0; 8];
            buffer.copy_to_host(&mut bytes)?;
            buffer.free().map_err(Error::from)
        };
        assert!(fail_each_call(&fake, round).is_ok());
        let broken = FaultInjector::new(FakeDevice::new(DeviceType::Custom(2), 1));
        broken.fail_all(Operation::Deallocate);
        let layout = DeviceLayout::from_size(8)?;
        let buffer = DeviceMemoryBuffer::create_with(Arc::new(broken), layout, 0)?;
        assert!(buffer.free().is_err());
        set_free_failure_hook(None);
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    #[cfg(feature = "testing")]
    walk::all()?;
    writeln!(std::io::stdout(), "done")?;
    Ok(())
}
