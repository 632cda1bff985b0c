//! What the hot paths take from the heap, which is nothing.

#![expect(unsafe_code, reason = "an allocator that hands out no memory")]

#[path = "support/constant_address.rs"]
mod constant_address;
#[path = "support/heap.rs"]
mod heap;

use std::sync::Arc;

use constant_address::ConstantAddress;
use device_memory::{
    Device, DeviceAllocatorRegistry, DeviceLayout, DeviceMemoryBuffer, DeviceType,
    HierarchicalAllocator, Placement,
};
use heap::taken_by;

/// Where all memory is.
const AT: usize = 0x10_0000;

#[test]
fn the_count_counts() {
    assert_eq!(taken_by(|| drop(Box::new(7))), 1);
}

#[test]
fn creating_copying_and_dropping_takes_nothing_from_the_heap() {
    DeviceAllocatorRegistry::global()
        .register(&ConstantAddress::<AT>)
        .unwrap();
    let local = DeviceAllocatorRegistry::new();
    local.register(Arc::new(ConstantAddress::<AT>)).unwrap();
    let layout = DeviceLayout::from_size(64).unwrap();
    let device = Device::new(DeviceType::Cuda, 0);

    let taken = taken_by(|| {
        let mut global = DeviceMemoryBuffer::create(64, DeviceType::Cuda, 0).unwrap();
        let counted = DeviceMemoryBuffer::create_in(&local, layout, device).unwrap();
        let bare = DeviceMemoryBuffer::create_with(&ConstantAddress::<AT>, layout, 0).unwrap();
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
