//! `gpu-allocator`: blocks of 256 MiB, each with a list of free chunks that is
//! searched for the best fit; larger requests go to the device.
//!
//! The list is private to the crate, so it is reached as users reach it, through a
//! Vulkan device. This one has the four functions that are called, and its memory
//! is that of the fake device.

use std::ffi::{CStr, c_void};
use std::ptr;

use ash::vk::{self, Handle};
use device_memory::testing::FakeDevice;
use gpu_allocator::vulkan::{
    Allocation, AllocationCreateDesc, AllocationScheme, Allocator, AllocatorCreateDesc,
};
use gpu_allocator::{AllocationSizes, AllocatorDebugSettings, MemoryLocation};

use crate::peer::{Peer, Room, Segment, UNIT};

/// What the handles of the Vulkan device are the address of.
struct Driver {
    device: FakeDevice,
    bytes: usize,
}

#[expect(unsafe_code, reason = "called through Vulkan's tables")]
unsafe extern "system" fn memory_properties(
    physical: vk::PhysicalDevice,
    out: *mut vk::PhysicalDeviceMemoryProperties,
) {
    let driver = ptr::with_exposed_provenance::<Driver>(physical.as_raw() as usize);
    // SAFETY: the handle is the address of a driver that outlives the allocator.
    let bytes = unsafe { &*driver }.bytes;
    let mut properties = vk::PhysicalDeviceMemoryProperties {
        memory_type_count: 1,
        memory_heap_count: 1,
        ..Default::default()
    };
    properties.memory_types[0].property_flags = vk::MemoryPropertyFlags::DEVICE_LOCAL;
    properties.memory_heaps[0].size = bytes as u64;
    // SAFETY: the caller gives a place for the answer.
    unsafe { out.write(properties) }
}

#[expect(unsafe_code, reason = "called through Vulkan's tables")]
unsafe extern "system" fn properties(
    _: vk::PhysicalDevice,
    out: *mut vk::PhysicalDeviceProperties,
) {
    let mut properties = vk::PhysicalDeviceProperties::default();
    properties.limits.buffer_image_granularity = 1;
    // SAFETY: the caller gives a place for the answer.
    unsafe { out.write(properties) }
}

#[expect(unsafe_code, reason = "called through Vulkan's tables")]
unsafe extern "system" fn allocate_memory(
    device: vk::Device,
    request: *const vk::MemoryAllocateInfo<'_>,
    _: *const vk::AllocationCallbacks<'_>,
    out: *mut vk::DeviceMemory,
) -> vk::Result {
    let driver = ptr::with_exposed_provenance::<Driver>(device.as_raw() as usize);
    // SAFETY: the handle is the address of a driver that outlives the allocator.
    let driver = unsafe { &*driver };
    // SAFETY: the caller gives a request.
    let size = unsafe { &*request }.allocation_size as usize;
    let Some(segment) = Segment::take(&driver.device, size) else {
        return vk::Result::ERROR_OUT_OF_DEVICE_MEMORY;
    };
    let memory = Box::into_raw(Box::new(segment)).expose_provenance();
    // SAFETY: the caller gives a place for the answer.
    unsafe { out.write(vk::DeviceMemory::from_raw(memory as u64)) };
    vk::Result::SUCCESS
}

#[expect(unsafe_code, reason = "called through Vulkan's tables")]
unsafe extern "system" fn free_memory(
    _: vk::Device,
    memory: vk::DeviceMemory,
    _: *const vk::AllocationCallbacks<'_>,
) {
    let segment = ptr::with_exposed_provenance_mut::<Segment>(memory.as_raw() as usize);
    // SAFETY: the handle is a box that `allocate_memory` gave away, given back once.
    drop(unsafe { Box::from_raw(segment) });
}

/// The functions that the allocator calls, by name; others are null, which makes a
/// call of them a panic.
fn function(name: &CStr) -> *const c_void {
    match name.to_bytes() {
        b"vkGetPhysicalDeviceMemoryProperties" => memory_properties as *const c_void,
        b"vkGetPhysicalDeviceProperties" => properties as *const c_void,
        b"vkAllocateMemory" => allocate_memory as *const c_void,
        b"vkFreeMemory" => free_memory as *const c_void,
        _ => ptr::null(),
    }
}

/// The allocator, and the driver below it, which is dropped after it.
pub(crate) struct GpuAllocator {
    allocator: Allocator,
    _driver: Box<Driver>,
}

impl Peer for GpuAllocator {
    type Block = Allocation;
    const NAME: &'static str = "gpu-allocator";
    const GROWS: bool = true;

    #[expect(unsafe_code, reason = "makes tables of functions")]
    fn over(room: &Room) -> Self {
        let driver = Box::new(Driver {
            device: room.device.clone(),
            bytes: room.bytes,
        });
        let handle = ptr::from_ref(&*driver).expose_provenance() as u64;
        // SAFETY: the functions have the types of their names.
        let instance =
            unsafe { ash::Instance::load_with(function, vk::Instance::from_raw(handle)) };
        // SAFETY: the same.
        let device = unsafe { ash::Device::load_with(function, vk::Device::from_raw(handle)) };
        let options = AllocatorCreateDesc {
            instance,
            device,
            physical_device: vk::PhysicalDevice::from_raw(handle),
            debug_settings: AllocatorDebugSettings::default(),
            buffer_device_address: false,
            allocation_sizes: AllocationSizes::default(),
        };
        Self {
            allocator: Allocator::new(&options).expect("a device"),
            _driver: driver,
        }
    }

    #[inline]
    fn allocate(&mut self, size: usize) -> Option<Allocation> {
        let request = AllocationCreateDesc {
            name: "",
            requirements: vk::MemoryRequirements {
                size: size.next_multiple_of(UNIT) as u64,
                alignment: UNIT as u64,
                memory_type_bits: 1,
            },
            location: MemoryLocation::GpuOnly,
            linear: true,
            allocation_scheme: AllocationScheme::GpuAllocatorManaged,
        };
        self.allocator.allocate(&request).ok()
    }

    #[expect(unsafe_code, reason = "follows a handle")]
    fn address(&mut self, block: &Allocation) -> usize {
        // SAFETY: the block is live, and its memory with it.
        let memory = unsafe { block.memory() };
        let segment = ptr::with_exposed_provenance::<Segment>(memory.as_raw() as usize);
        // SAFETY: the handle is a box that `allocate_memory` gave away.
        let segment = unsafe { &*segment };
        segment.address() + block.offset() as usize
    }

    #[inline]
    fn free(&mut self, block: Allocation) {
        self.allocator.free(block).expect("a block");
    }
}
