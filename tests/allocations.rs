//! What the hot paths take from the heap, which is nothing.

#![expect(unsafe_code, reason = "counts through an allocator of its own")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use device_memory::{
    Device, DeviceAllocator, DeviceAllocatorRegistry, DeviceIndex, DeviceLayout,
    DeviceMemoryBuffer, DevicePtr, DeviceType, HierarchicalAllocator, Placement, Result,
};

/// The system's heap, counting what each thread takes.
struct Counting;

thread_local! {
    static TAKEN: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is the system allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        TAKEN.with(|taken| taken.set(taken.get() + 1));
        // SAFETY: the caller's promises are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are the same.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static HEAP: Counting = Counting;

/// How often `action` takes from the heap.
fn taken_by(action: impl FnOnce()) -> usize {
    let before = TAKEN.with(Cell::get);
    action();
    TAKEN.with(Cell::get) - before
}

/// An allocator that hands out addresses and no memory.
#[derive(Debug)]
struct Addresses;

// SAFETY: not a real allocator: blocks are not disjoint. Nothing here reads or
// writes them.
unsafe impl DeviceAllocator for Addresses {
    fn device_type(&self) -> DeviceType {
        DeviceType::Custom(200)
    }

    fn device_count(&self) -> usize {
        1
    }

    fn allocate(&self, _: DeviceLayout, _: DeviceIndex) -> Result<DevicePtr> {
        Ok(DevicePtr::from_addr(1 << 20).unwrap())
    }

    unsafe fn deallocate(&self, _: DevicePtr, _: DeviceLayout, _: DeviceIndex) -> Result<()> {
        Ok(())
    }

    unsafe fn copy_host_to_device(
        &self,
        _: DevicePtr,
        _: *const u8,
        _: usize,
        _: DeviceIndex,
    ) -> Result<()> {
        Ok(())
    }

    unsafe fn copy_device_to_host(
        &self,
        _: *mut u8,
        _: DevicePtr,
        _: usize,
        _: DeviceIndex,
    ) -> Result<()> {
        Ok(())
    }
}

#[test]
fn the_count_counts() {
    assert_eq!(taken_by(|| drop(Box::new(7))), 1);
}

#[test]
fn creating_copying_and_dropping_takes_nothing_from_the_heap() {
    DeviceAllocatorRegistry::global()
        .register(&Addresses)
        .unwrap();
    let local = DeviceAllocatorRegistry::new();
    local.register(Arc::new(Addresses)).unwrap();
    let layout = DeviceLayout::from_size(64).unwrap();
    let device = Device::new(DeviceType::Custom(200), 0);

    let taken = taken_by(|| {
        let mut global = DeviceMemoryBuffer::create(64, DeviceType::Custom(200), 0).unwrap();
        let counted = DeviceMemoryBuffer::create_in(&local, layout, device).unwrap();
        let bare = DeviceMemoryBuffer::create_with(&Addresses, layout, 0).unwrap();
        global.copy_from_host(&[7; 64]).unwrap();
        global.copy_from(counted.as_span()).unwrap_or_default();
        drop((global, counted, bare));
        drop(DeviceMemoryBuffer::default());
    });

    // The copy between devices stages through the host: one piece.
    assert_eq!(taken, 1);
}

#[test]
fn looking_up_and_refusing_offsets_takes_nothing_from_the_heap() {
    let mut arena = DeviceMemoryBuffer::create(64, DeviceType::Cpu, 0).unwrap();
    let spans = vec![arena.as_span_mut()];
    let planned = HierarchicalAllocator::new(spans, &[Device::CPU]).unwrap();

    let taken = taken_by(|| {
        assert!(planned.get_offset_address(0, 16, 16).is_ok());
        assert!(planned.get_offset_address(0, 60, 16).is_err());
        assert!(planned.get_offset_address(1, 0, 0).is_err());
        assert!(planned.get_offset_address(0, usize::MAX, 2).is_err());
        assert!(planned.span(Placement::new(0, 0, 64)).is_ok());
    });

    assert_eq!(taken, 0);
}
