//! What devices there are, and two of them.

#![expect(unsafe_code, reason = "calls the driver")]

use device_memory::backend::cuda::cudarc::driver::sys::CUdevice_attribute;
use device_memory::backend::cuda::cudarc::driver::{result, sys};
use device_memory::{DeviceAllocator, DeviceIndex, DeviceMemoryBuffer, DeviceType, ErrorKind};

use crate::support::{
    Gpu, MIB, assert_same, bytes, empty, enqueue_fill, filled, layout, note, skip, stream,
};

#[test]
fn a_first_line_says_what_the_devices_are() {
    let Some(gpu) = Gpu::open() else { return };
    let mut version = 0;
    // SAFETY: the variable is ours.
    let code = unsafe { sys::cuDriverGetVersion(&mut version) };
    assert_eq!(code as u32, 0);
    note(&format!(
        "driver {}.{}",
        version / 1000,
        version % 1000 / 10
    ));

    for index in (0..gpu.count()).map_while(|index| DeviceIndex::try_from(index).ok()) {
        let device = result::device::get(i32::from(index)).unwrap();
        let name = result::device::get_name(device).unwrap();
        let info = gpu.allocator.memory_info(index).unwrap().unwrap();
        let managed = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS;
        note(&format!(
            "device {index}: {name}, {} bytes, {} free, memory pools: {}, concurrent managed: {}",
            info.total,
            info.free,
            gpu.has_pools(index),
            gpu.has(index, managed),
        ));
        assert!(0 < info.free && info.free <= info.total);
    }
}

#[test]
fn an_index_that_no_device_has_is_refused() {
    let Some(gpu) = Gpu::open() else { return };
    let index = DeviceIndex::try_from(gpu.count()).unwrap();

    let error = gpu.allocator.allocate(layout(64), index).unwrap_err();

    let count = gpu.count();
    assert!(
        matches!(error.kind(), ErrorKind::InvalidDevice { count: found, .. } if *found == count),
        "{error}"
    );
}

#[test]
fn two_devices_have_memory_of_their_own_and_copy_between_them() {
    let Some(gpu) = Gpu::open() else { return };
    if gpu.count() < 2 {
        return skip("one device only");
    }
    for size in [1, 4097, 16 * MIB + 1] {
        let [sent, other] = [bytes(size, 1), bytes(size, 2)];
        let zero = filled(&gpu.allocator, &sent, 0);
        let mut one = filled(&gpu.allocator, &other, 1);

        let mut back = empty(&gpu.allocator, size, 0);
        back.copy_from(one.as_span()).unwrap();
        one.copy_from(zero.as_span()).unwrap();

        assert_same(&one.to_vec().unwrap(), &sent, "from 0 to 1");
        assert_same(&back.to_vec().unwrap(), &other, "from 1 to 0");
        assert_same(&zero.to_vec().unwrap(), &sent, "the source");
    }
}

#[test]
fn a_handle_on_a_stream_serves_the_device_of_the_stream_only() {
    let Some(gpu) = Gpu::open() else { return };
    if gpu.count() < 2 {
        return skip("one device only");
    }
    let stream = stream(1);
    let handle = gpu.allocator.on_stream(&stream).unwrap();

    let buffer = empty(&handle, MIB, 1);
    enqueue_fill(&stream, &buffer, 3);
    let refused = handle.allocate(layout(64), 0).unwrap_err();

    assert_same(&buffer.to_vec().unwrap(), &vec![3; MIB], "on device 1");
    assert!(refused.is_device_mismatch(), "{refused}");
    drop(buffer);
    let buffer = DeviceMemoryBuffer::from_host(&[4; 64], DeviceType::Cuda, 1).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [4; 64]);
}
