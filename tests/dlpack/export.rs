//! What other libraries get.

#![expect(unsafe_code, reason = "plays the other side of the interface")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use device_memory::dlpack::{ExportedTensor, ImportedTensor};
use device_memory::{
    Device, DeviceLayout, DeviceMemoryBuffer, DeviceTensor, DeviceType, ErrorKind, MemoryPlan,
    PlannedBuffer, PlannedMemory, ScalarType, TensorSpec, TensorView, TensorViewMut,
};
use dlpack_ffi::DLDeviceType;

use crate::support::{numbers, reason, rig, seen};

const GPU: Device = Device::new(DeviceType::Cuda, 1);

/// A tensor whose memory order is not that of its dimensions.
fn spec(device: Device) -> TensorSpec {
    TensorSpec::with_dim_order(ScalarType::Half, &[1, 3, 2, 2], &[0, 2, 3, 1], device).unwrap()
}

#[test]
fn a_tensor_is_described_as_it_is() {
    let (fake, registry) = rig();
    let tensor = DeviceTensor::create_in(&registry, spec(GPU)).unwrap();
    let address = tensor.buffer().ptr().addr();

    let (raw, taken) = seen(ExportedTensor::from_tensor(tensor).unwrap());

    let tensor = raw.dl_tensor;
    assert_eq!((raw.version.major, raw.flags), (1, 0));
    assert_eq!(tensor.data.addr(), address);
    assert_eq!((tensor.ndim, tensor.byte_offset), (4, 0));
    assert_eq!(
        (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes),
        (2, 16, 1)
    );
    assert_eq!(tensor.device.device_type, DLDeviceType::kDLCUDA);
    assert_eq!(tensor.device.device_id, 1);
    assert_eq!(numbers(tensor.shape, 4), [1, 3, 2, 2]);
    assert_eq!(numbers(tensor.strides, 4), [12, 1, 6, 3]);
    assert_eq!(fake.live_blocks(), 1, "the tensor keeps its memory");
    drop(taken);
    fake.assert_clean();
    assert_eq!(fake.deallocations(), 1);
}

#[test]
fn a_buffer_is_a_row_of_bytes() {
    let (fake, registry) = rig();
    let layout = DeviceLayout::from_size(40).unwrap();
    let buffer = DeviceMemoryBuffer::create_in(&registry, layout, GPU).unwrap();

    let (raw, taken) = seen(ExportedTensor::from_buffer(buffer).unwrap());

    let tensor = raw.dl_tensor;
    assert_eq!((tensor.dtype.code, tensor.dtype.bits), (1, 8));
    assert_eq!(numbers(tensor.shape, tensor.ndim), [40]);
    assert_eq!(numbers(tensor.strides, tensor.ndim), [1]);
    drop(taken);
    fake.assert_clean();
}

#[test]
fn a_scalar_and_a_tensor_without_elements_have_nothing_to_point_at() {
    let scalar = TensorSpec::contiguous(ScalarType::Long, &[], Device::CPU).unwrap();
    let empty = TensorSpec::contiguous(ScalarType::Long, &[3, 0], Device::CPU).unwrap();
    let export = |spec| ExportedTensor::from_tensor(DeviceTensor::create(spec).unwrap()).unwrap();

    let (scalar, _scalar) = seen(export(scalar));
    let (empty, _empty) = seen(export(empty));

    assert_eq!(scalar.dl_tensor.ndim, 0);
    assert!(scalar.dl_tensor.shape.is_null());
    assert!(scalar.dl_tensor.strides.is_null());
    assert!(!scalar.dl_tensor.data.is_null());
    assert!(empty.dl_tensor.data.is_null());
    assert_eq!(numbers(empty.dl_tensor.shape, 2), [3, 0]);
}

#[test]
fn a_span_of_planned_memory_is_lent_and_its_owner_kept_alive() {
    let (fake, registry) = rig();
    let plan = MemoryPlan::new(vec![PlannedBuffer::new(GPU, 256)], Vec::new()).unwrap();
    let mut memory = PlannedMemory::allocate(&plan, &registry).unwrap();
    memory.fill(7).unwrap();
    let memory = Arc::new(memory);
    let lend = |offset| {
        ExportedTensor::lend(Arc::clone(&memory), |memory| {
            let spec = TensorSpec::contiguous(ScalarType::Float, &[4], GPU)?;
            TensorView::bind(spec, memory.buffers()[0].as_span().subspan(offset, 16)?)
        })
    };

    let (first, first_taken) = seen(lend(0).unwrap());
    let (second, second_taken) = seen(lend(64).unwrap());
    drop(memory);

    assert_eq!(first.flags, 1, "read-only");
    assert_eq!(
        second.dl_tensor.data.addr() - first.dl_tensor.data.addr(),
        64
    );
    drop(first_taken);
    assert_eq!(fake.live_blocks(), 1);
    let raw = second_taken.0;
    std::mem::forget(second_taken);
    // SAFETY: the tensor is sound, and the registry's fake allocated its memory.
    let back = unsafe { ImportedTensor::from_raw(raw, &registry) }.unwrap();
    assert_eq!(back.view().unwrap().to_vec().unwrap(), [7; 16]);
    drop(back);
    fake.assert_clean();
}

#[test]
fn what_is_lent_to_be_written_is_not_read_only() {
    let buffer = DeviceMemoryBuffer::create(64, DeviceType::Cpu, 0).unwrap();

    let lent = ExportedTensor::lend_mut(buffer, |buffer| {
        let spec = TensorSpec::contiguous(ScalarType::Int, &[2], Device::CPU)?;
        TensorViewMut::bind(spec, buffer.as_span_mut().into_subspan(8, 8)?)
    });

    let (raw, _taken) = seen(lent.unwrap());
    assert_eq!(raw.flags, 0);
}

#[test]
fn a_copy_is_flagged_and_is_its_own_memory() {
    let (fake, registry) = rig();
    let bytes: Vec<u8> = (0..24).collect();
    let tensor = DeviceTensor::from_host_in(&registry, spec(GPU), &bytes).unwrap();

    let view = tensor.view().unwrap();
    let copy = ExportedTensor::copy_of(&view, &registry, Device::CPU).unwrap();
    drop(tensor);

    fake.assert_clean();
    // SAFETY: the tensor is sound, and its memory is the host's.
    let back = unsafe { ImportedTensor::from_raw(copy.into_raw(), &registry) }.unwrap();
    assert!(back.is_copied());
    assert!(!back.is_read_only());
    assert_eq!(back.device(), Device::CPU);
    assert_eq!(back.spec().dim_order(), [0, 2, 3, 1]);
    assert_eq!(back.view().unwrap().to_vec().unwrap(), bytes);
}

#[test]
fn types_and_devices_that_dlpack_lacks_are_refused_and_the_owner_dropped() {
    let quantized = TensorSpec::contiguous(ScalarType::QInt8, &[4], Device::CPU).unwrap();
    let refused = ExportedTensor::from_tensor(DeviceTensor::create(quantized).unwrap());
    assert_eq!(
        reason(refused.map(drop).unwrap_err()),
        "DLPack has no type for QINT8"
    );

    let fake = device_memory::testing::FakeDevice::new(DeviceType::Custom(3), 1);
    let layout = DeviceLayout::from_size(8).unwrap();
    let buffer = DeviceMemoryBuffer::create_with(Arc::new(fake.clone()), layout, 0).unwrap();
    let refused = ExportedTensor::from_buffer(buffer);
    assert_eq!(
        reason(refused.map(drop).unwrap_err()),
        "DLPack has no type of device for custom3:0"
    );
    fake.assert_clean();
}

#[test]
fn host_memory_has_the_number_0_as_the_format_wants() {
    let fake = device_memory::testing::FakeDevice::new(DeviceType::CudaManaged, 3);
    let layout = DeviceLayout::from_size(8).unwrap();
    let buffer = DeviceMemoryBuffer::create_with(Arc::new(fake), layout, 2).unwrap();

    let (raw, _taken) = seen(ExportedTensor::from_buffer(buffer).unwrap());

    assert_eq!(
        raw.dl_tensor.device.device_type,
        DLDeviceType::kDLCUDAManaged
    );
    assert_eq!(raw.dl_tensor.device.device_id, 0);
}

/// Counts its drops, and panics then if it is told to.
struct Owner {
    buffer: DeviceMemoryBuffer,
    dropped: Arc<AtomicUsize>,
    panics: bool,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
        assert!(!self.panics, "the owner panics");
    }
}

fn owner(panics: bool) -> (Owner, Arc<AtomicUsize>) {
    let dropped = Arc::new(AtomicUsize::new(0));
    let owner = Owner {
        buffer: DeviceMemoryBuffer::create(8, DeviceType::Cpu, 0).unwrap(),
        dropped: Arc::clone(&dropped),
        panics,
    };
    (owner, dropped)
}

fn view(owner: &Owner) -> device_memory::Result<TensorView<'_>> {
    let spec = TensorSpec::contiguous(ScalarType::Byte, &[8], Device::CPU)?;
    TensorView::bind(spec, owner.buffer.as_span())
}

#[test]
fn an_owner_is_dropped_once_by_whoever_is_last() {
    let (kept, dropped) = owner(false);
    let exported = ExportedTensor::lend(kept, view).unwrap();
    assert_eq!(dropped.load(Ordering::Relaxed), 0);
    drop(exported);
    assert_eq!(dropped.load(Ordering::Relaxed), 1, "nobody took it");

    let (kept, dropped) = owner(false);
    let (_, taken) = seen(ExportedTensor::lend(kept, view).unwrap());
    assert_eq!(dropped.load(Ordering::Relaxed), 0);
    thread::spawn(move || drop(taken)).join().unwrap();
    assert_eq!(dropped.load(Ordering::Relaxed), 1, "on another thread");
}

#[test]
fn an_owner_is_dropped_once_if_its_view_fails_or_panics() {
    let (failing, dropped) = owner(false);
    let error = ExportedTensor::lend(failing, |_| {
        Err(ErrorKind::ReadOnly {
            device: Device::CPU,
        }
        .into())
    });
    assert_eq!(
        error.unwrap_err().to_string(),
        "memory of cpu:0 is read-only"
    );
    assert_eq!(dropped.load(Ordering::Relaxed), 1);

    let (panicking, dropped) = owner(false);
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        ExportedTensor::lend(panicking, |_| panic!("the view panics")).map(drop)
    }));
    assert!(unwound.is_err());
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
}

#[test]
fn an_owner_that_panics_when_dropped_does_not_unwind_into_the_caller() {
    let (panicking, dropped) = owner(true);
    let (_, taken) = seen(ExportedTensor::lend(panicking, view).unwrap());

    drop(taken);

    assert_eq!(dropped.load(Ordering::Relaxed), 1);
}

#[test]
fn an_owner_may_hold_the_bytes_itself() {
    let bytes: [u8; 4] = [1, 2, 3, 4];
    let exported = ExportedTensor::lend(bytes, |bytes| {
        let spec = TensorSpec::contiguous(ScalarType::Byte, &[4], Device::CPU)?;
        TensorView::bind(spec, device_memory::HostAllocator::span(bytes))
    });

    let (_, registry) = rig();
    let raw = exported.unwrap().into_raw();
    // SAFETY: the tensor is sound, and its memory is the host's.
    let back = unsafe { ImportedTensor::from_raw(raw, &registry) }.unwrap();

    assert_eq!(back.view().unwrap().span().as_slice().unwrap(), bytes);
}
