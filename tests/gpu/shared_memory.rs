//! Page-locked and managed memory.

use device_memory::backend::cuda::{CudaHostAllocator, CudaManagedAllocator};

use crate::support::{Gpu, MIB, assert_same, bytes, empty, enqueue_fill, filled, skip, stream};

#[test]
fn page_locked_memory_is_a_zeroed_slice_that_devices_copy_from_and_to() {
    let Some(gpu) = Gpu::open() else { return };
    let plain = CudaHostAllocator::open().unwrap();
    let sent = bytes(MIB + 3, 1);
    for allocator in [plain.write_combined(), plain] {
        let mut host = empty(&allocator, MIB + 3, 0);
        assert_same(host.as_slice().unwrap(), &vec![0; MIB + 3], "fresh");
        host.as_slice_mut().unwrap().copy_from_slice(&sent);

        let mut device = empty(&gpu.allocator, MIB + 3, 0);
        device.copy_from(host.as_span()).unwrap();
        host.fill(0xEE).unwrap();
        let mut back = empty(&allocator, MIB + 3, 0);
        back.copy_from(device.as_span()).unwrap();

        assert_same(back.as_slice().unwrap(), &sent, "back from the device");
    }
}

#[test]
fn managed_memory_is_a_slice_that_shows_what_the_device_wrote() {
    let Some(gpu) = Gpu::open() else { return };
    let managed = match CudaManagedAllocator::open() {
        Ok(managed) => managed,
        Err(error) if error.is_not_supported() => {
            return skip(&format!("managed memory: {error}"));
        }
        Err(error) => panic!("{error}"),
    };
    let sent = bytes(MIB + 3, 2);
    let stream = stream(0);
    let mut shared = empty(&managed, MIB + 3, 0);
    assert_same(shared.as_slice().unwrap(), &vec![0; MIB + 3], "fresh");

    enqueue_fill(&stream, &shared, 0x5A);
    stream.synchronize().unwrap();
    assert_same(shared.as_slice().unwrap(), &vec![0x5A; MIB + 3], "written");
    shared.as_slice_mut().unwrap().copy_from_slice(&sent);
    let mut device = filled(&gpu.allocator, &[0; MIB + 3], 0);
    device.copy_from(shared.as_span()).unwrap();

    assert_same(&device.to_vec().unwrap(), &sent, "on the device");
}
