//! `gpu-alloc`: chunks of device memory, with a list of free blocks or as buddies;
//! large requests go to the device. It is generic over the device.

use std::borrow::Cow;
use std::ptr::NonNull;

use device_memory::testing::FakeDevice;
use gpu_alloc::{
    AllocationFlags, Config, DeviceMapError, DeviceProperties, GpuAllocator, MappedMemoryRange,
    MemoryBlock, MemoryDevice, MemoryHeap, MemoryPropertyFlags, MemoryType, OutOfMemory, Request,
    UsageFlags,
};

use crate::peer::{Peer, Room, Segment, UNIT};

/// A device as the crate sees one.
struct Device(FakeDevice);

#[expect(unsafe_code, reason = "declared unsafe to call")]
impl MemoryDevice<Segment> for Device {
    unsafe fn allocate_memory(
        &self,
        size: u64,
        _: u32,
        _: AllocationFlags,
    ) -> Result<Segment, OutOfMemory> {
        Segment::take(&self.0, size as usize).ok_or(OutOfMemory::OutOfDeviceMemory)
    }

    unsafe fn deallocate_memory(&self, memory: Segment) {
        drop(memory);
    }

    unsafe fn map_memory(
        &self,
        _: &mut Segment,
        _: u64,
        _: u64,
    ) -> Result<NonNull<u8>, DeviceMapError> {
        Err(DeviceMapError::MapFailed)
    }

    unsafe fn unmap_memory(&self, _: &mut Segment) {}

    unsafe fn invalidate_memory_ranges(
        &self,
        _: &[MappedMemoryRange<'_, Segment>],
    ) -> Result<(), OutOfMemory> {
        Ok(())
    }

    unsafe fn flush_memory_ranges(
        &self,
        _: &[MappedMemoryRange<'_, Segment>],
    ) -> Result<(), OutOfMemory> {
        Ok(())
    }
}

/// The crate's allocator, for memory that is said to be transient or not, which
/// decides between the list and the buddies.
pub(crate) struct GpuAlloc<const TRANSIENT: bool> {
    allocator: GpuAllocator<Segment>,
    device: Device,
}

impl<const TRANSIENT: bool> Drop for GpuAlloc<TRANSIENT> {
    #[expect(unsafe_code, reason = "gives unused chunks back")]
    fn drop(&mut self) {
        // SAFETY: the device is the one that all calls got.
        unsafe { self.allocator.cleanup(&self.device) }
    }
}

impl<const TRANSIENT: bool> Peer for GpuAlloc<TRANSIENT> {
    type Block = MemoryBlock<Segment>;
    const NAME: &'static str = match TRANSIENT {
        true => "gpu-alloc, free list",
        false => "gpu-alloc, buddies",
    };
    const GROWS: bool = true;

    fn over(room: &Room) -> Self {
        let properties = DeviceProperties {
            memory_types: Cow::Owned(vec![MemoryType {
                heap: 0,
                props: MemoryPropertyFlags::DEVICE_LOCAL,
            }]),
            memory_heaps: Cow::Owned(vec![MemoryHeap {
                size: room.bytes as u64,
            }]),
            max_memory_allocation_count: u32::MAX,
            max_memory_allocation_size: u64::MAX,
            non_coherent_atom_size: UNIT as u64,
            buffer_device_address: false,
        };
        Self {
            allocator: GpuAllocator::new(Config::i_am_prototyping(), properties),
            device: Device(room.device.clone()),
        }
    }

    #[inline]
    #[expect(unsafe_code, reason = "declared unsafe to call")]
    fn allocate(&mut self, size: usize) -> Option<Self::Block> {
        let request = Request {
            size: size as u64,
            align_mask: UNIT as u64 - 1,
            usage: match TRANSIENT {
                true => UsageFlags::FAST_DEVICE_ACCESS | UsageFlags::TRANSIENT,
                false => UsageFlags::FAST_DEVICE_ACCESS,
            },
            memory_types: 1,
        };
        // SAFETY: the device is the one whose properties the allocator has.
        unsafe { self.allocator.alloc(&self.device, request) }.ok()
    }

    fn address(&mut self, block: &Self::Block) -> usize {
        block.memory().address() + block.offset() as usize
    }

    #[inline]
    #[expect(unsafe_code, reason = "declared unsafe to call")]
    fn free(&mut self, block: Self::Block) {
        // SAFETY: the block is one of this allocator's and device's.
        unsafe { self.allocator.dealloc(&self.device, block) }
    }
}
