//! Plans, the buffers they need, and the addresses in them.

#![cfg(feature = "testing")]

use std::sync::Arc;
use std::thread;

use device_memory::testing::{FakeDevice, FaultInjector, fail_each_call, panic_each_call};
use device_memory::{
    Device, DeviceAddress, DeviceAllocatorRegistry, DeviceLayout, DeviceMemoryBuffer, DevicePtr,
    DeviceType, Error, ErrorKind, HierarchicalAllocator, HostAllocator, LayoutError, MemoryPlan,
    Operation, Placement, PlacementError, PlannedBuffer, PlannedMemory, Result,
};
use proptest::prelude::*;

const CUDA: DeviceType = DeviceType::Cuda;
const CUDA_0: Device = Device::new(CUDA, 0);
const CUDA_1: Device = Device::new(CUDA, 1);

fn layout(size: usize) -> DeviceLayout {
    DeviceLayout::from_size(size).unwrap()
}

/// Two devices, and a registry that knows them.
fn rig() -> (FakeDevice, DeviceAllocatorRegistry) {
    let fake = FakeDevice::new(CUDA, 2);
    (fake.clone(), registry_of(fake))
}

/// Two devices of `capacity` bytes each, and a registry that knows them.
fn limited_rig(capacity: usize) -> (FakeDevice, DeviceAllocatorRegistry) {
    let fake = FakeDevice::builder(CUDA)
        .devices(2)
        .capacity(capacity)
        .build();
    (fake.clone(), registry_of(fake))
}

fn registry_of(fake: FakeDevice) -> DeviceAllocatorRegistry {
    let registry = DeviceAllocatorRegistry::new();
    registry.register(Arc::new(fake)).unwrap();
    registry
}

fn plan(buffers: &[(Device, usize)]) -> MemoryPlan {
    let buffers = buffers
        .iter()
        .map(|&(device, size)| PlannedBuffer::new(device, size));
    MemoryPlan::new(buffers.collect(), Vec::new()).unwrap()
}

fn aligned(device: Device, size: usize, align: usize) -> PlannedBuffer {
    let mut buffer = PlannedBuffer::new(device, size);
    buffer.align = align;
    buffer
}

fn host_buffer(size: usize) -> DeviceMemoryBuffer {
    DeviceMemoryBuffer::create(size, DeviceType::Cpu, 0).unwrap()
}

fn device_buffer(fake: &FakeDevice, size: usize, index: u16) -> DeviceMemoryBuffer {
    DeviceMemoryBuffer::create_with(Arc::new(fake.clone()), layout(size), index).unwrap()
}

/// The operations on a fake with their sizes, without questions for free memory.
fn changes(fake: &FakeDevice) -> Vec<(Operation, usize)> {
    let calls = fake.calls();
    let changes = calls
        .iter()
        .filter(|call| call.operation != Operation::MemoryInfo);
    changes.map(|call| (call.operation, call.size)).collect()
}

/// What an error says of which of several failed, and why.
fn at(error: &Error) -> (&'static str, usize, &ErrorKind) {
    match error.kind() {
        ErrorKind::AtIndex {
            what,
            index,
            source,
        } => (what, *index, source.kind()),
        other => panic!("{other:?}"),
    }
}

mod construction {
    use super::*;

    // https://github.com/pytorch/executorch/issues/21682
    #[test]
    fn a_view_on_another_device_than_planned_is_refused_with_its_memory_id() {
        let fake = FakeDevice::new(CUDA, 2);
        let mut host = host_buffer(32);
        let mut first = device_buffer(&fake, 48, 0);
        let mut second = device_buffer(&fake, 48, 1);
        let mut refusal = |devices: [Device; 3]| {
            let spans = vec![
                host.as_span_mut(),
                first.as_span_mut(),
                second.as_span_mut(),
            ];
            HierarchicalAllocator::new(spans, &devices).unwrap_err()
        };

        let host_for_device = refusal([CUDA_0, CUDA_0, CUDA_1]);
        let device_for_host = refusal([Device::CPU, Device::CPU, CUDA_1]);
        let other_index = refusal([Device::CPU, CUDA_0, CUDA_0]);

        assert_eq!(
            host_for_device.to_string(),
            "memory id 0: device mismatch: expected cuda:0, found cpu:0"
        );
        assert_eq!(
            device_for_host.to_string(),
            "memory id 1: device mismatch: expected cpu:0, found cuda:0"
        );
        assert_eq!(
            other_index.to_string(),
            "memory id 2: device mismatch: expected cuda:0, found cuda:1"
        );
        assert_eq!(host_for_device.code(), 0x12);
        assert_eq!(fake.calls().len(), 2);
    }

    #[test]
    fn a_number_of_views_that_differs_is_refused() {
        let mut buffers = [host_buffer(1), host_buffer(2)];
        let mut refusal = |devices: &[Device]| {
            let spans = buffers.iter_mut().map(DeviceMemoryBuffer::as_span_mut);
            HierarchicalAllocator::new(spans.collect(), devices).unwrap_err()
        };

        for devices in [&[][..], &[Device::CPU], &[CUDA_0], &[Device::CPU; 3]] {
            let error = refusal(devices);

            assert!(matches!(
                error.kind(),
                ErrorKind::CountMismatch { what: "planned buffers", expected, found: 2 }
                    if *expected == devices.len()
            ));
            assert_eq!(error.code(), 0x12);
        }
    }

    #[test]
    fn the_devices_are_known_by_memory_id() {
        let fake = FakeDevice::new(CUDA, 2);
        let mut buffers = [
            host_buffer(4),
            device_buffer(&fake, 8, 0),
            device_buffer(&fake, 8, 1),
        ];
        let planned = [Device::CPU, CUDA_0, CUDA_1];

        let spans = buffers.iter_mut().map(DeviceMemoryBuffer::as_span_mut);
        let memory = HierarchicalAllocator::new(spans.collect(), &planned).unwrap();

        assert_eq!(memory.devices().collect::<Vec<_>>(), planned);
        assert_eq!((memory.len(), memory.is_empty()), (3, false));
        assert!(memory.has_device_memory());
    }

    #[test]
    fn host_buffers_alone_are_no_device_memory() {
        let mut buffers = [host_buffer(4), host_buffer(8)];

        let spans = buffers.iter_mut().map(DeviceMemoryBuffer::as_span_mut);
        let memory = HierarchicalAllocator::new(spans.collect(), &[Device::CPU; 2]).unwrap();

        assert!(!memory.has_device_memory());
    }

    #[test]
    fn of_no_buffers_there_is_an_empty_one() {
        let mut memory = HierarchicalAllocator::new(Vec::new(), &[]).unwrap();

        assert!(memory.is_empty() && !memory.has_device_memory());
        assert_eq!(
            memory.get_offset_address(0, 0, 0),
            Err(PlacementError::UnknownMemoryId {
                memory_id: 0,
                count: 0
            })
        );
        assert!(memory.span_mut(Placement::new(0, 0, 0)).is_err());
        assert!(memory.disjoint_mut(&[]).unwrap().is_empty());
        assert!(memory.place_all(&[]).unwrap().is_empty());
    }
}

mod addresses {
    use super::*;

    // https://github.com/pytorch/executorch/pull/12699
    #[test]
    fn the_checks_are_made_in_their_order() {
        let mut buffers = [host_buffer(4), host_buffer(8)];
        let spans = buffers.iter_mut().map(DeviceMemoryBuffer::as_span_mut);
        let memory = HierarchicalAllocator::new(spans.collect(), &[Device::CPU; 2]).unwrap();
        let refusal = |id, offset, size| memory.get_offset_address(id, offset, size).unwrap_err();
        let overflow = |memory_id, offset, size| PlacementError::Overflow {
            memory_id,
            offset,
            size,
        };
        let unknown = |memory_id| PlacementError::UnknownMemoryId {
            memory_id,
            count: 2,
        };
        let beyond = |memory_id, offset, size, len| PlacementError::OutOfBounds {
            memory_id,
            offset,
            size,
            len,
        };

        for (found, expected, code) in [
            (refusal(0, usize::MAX, 2), overflow(0, usize::MAX, 2), 0x12),
            (
                refusal(0, usize::MAX, usize::MAX),
                overflow(0, usize::MAX, usize::MAX),
                0x12,
            ),
            (refusal(2, usize::MAX, 1), overflow(2, usize::MAX, 1), 0x12),
            (refusal(2, 0, 0), unknown(2), 0x12),
            (refusal(2, 100, 100), unknown(2), 0x12),
            (refusal(u32::MAX, 0, 0), unknown(u32::MAX), 0x12),
            (refusal(0, 4, 1), beyond(0, 4, 1, 4), 0x21),
            (refusal(0, 4, 5), beyond(0, 4, 5, 4), 0x21),
            (refusal(0, 5, 0), beyond(0, 5, 0, 4), 0x21),
            (refusal(1, 8, 1), beyond(1, 8, 1, 8), 0x21),
            (refusal(1, usize::MAX, 0), beyond(1, usize::MAX, 0, 8), 0x21),
        ] {
            assert_eq!(found, expected);
            assert_eq!(found.code(), code, "{found}");
            assert_eq!(Error::from(found).code(), code, "{found}");
        }
    }

    #[test]
    fn no_bytes_at_the_very_end_are_in_bounds() {
        let mut buffer = host_buffer(8);
        let end = buffer.ptr().checked_add(8).unwrap();
        let spans = vec![buffer.as_span_mut()];
        let mut memory = HierarchicalAllocator::new(spans, &[Device::CPU]).unwrap();

        let address = memory.get_offset_address(0, 8, 0).unwrap();
        let span = memory.span_mut(Placement::new(0, 8, 0)).unwrap();

        assert_eq!(address.ptr, end);
        assert_eq!((span.ptr(), span.len()), (end, 0));
    }

    #[test]
    fn an_address_is_base_and_offset_and_carries_the_device() {
        let fake = FakeDevice::new(CUDA, 2);
        let mut host = host_buffer(32);
        let mut device = device_buffer(&fake, 48, 1);
        let bases = [host.ptr(), device.ptr()];
        let spans = vec![host.as_span_mut(), device.as_span_mut()];
        let memory = HierarchicalAllocator::new(spans, &[Device::CPU, CUDA_1]).unwrap();
        let place = |address: Result<DeviceAddress, PlacementError>| {
            let address = address.unwrap();
            (address.device, address.ptr)
        };
        let at = |id: usize, offset| bases[id].checked_add(offset).unwrap();

        for (found, expected) in [
            (memory.get_offset_address(0, 0, 32), (Device::CPU, at(0, 0))),
            (
                memory.get_offset_address(0, 16, 16),
                (Device::CPU, at(0, 16)),
            ),
            (memory.get_offset_address(1, 32, 16), (CUDA_1, at(1, 32))),
            (
                memory.address(Placement::new(1, 47, 1)),
                (CUDA_1, at(1, 47)),
            ),
        ] {
            assert_eq!(place(found), expected);
        }
        assert_eq!(fake.calls().len(), 1);
    }

    #[test]
    fn a_table_is_placed_at_once_and_in_its_order() {
        let fake = FakeDevice::new(CUDA, 1);
        let mut host = host_buffer(32);
        let mut device = device_buffer(&fake, 48, 0);
        let spans = vec![host.as_span_mut(), device.as_span_mut()];
        let memory = HierarchicalAllocator::new(spans, &[Device::CPU, CUDA_0]).unwrap();
        let table: Vec<_> = [
            (0, 16, 16),
            (0, 0, 16),
            (1, 32, 16),
            (1, 16, 16),
            (1, 0, 16),
            (0, 0, 16),
        ]
        .map(|(id, offset, size)| Placement::new(id, offset, size))
        .into();

        let addresses = memory.place_all(&table).unwrap();

        let one_by_one: Vec<_> = table.iter().map(|&p| memory.address(p).unwrap()).collect();
        assert_eq!(addresses, one_by_one);
        assert_eq!(addresses[1], addresses[5]);
        assert_eq!(fake.calls().len(), 1);
    }

    #[test]
    fn the_first_of_a_table_that_has_no_address_is_named() {
        let mut buffer = host_buffer(8);
        let spans = vec![buffer.as_span_mut()];
        let memory = HierarchicalAllocator::new(spans, &[Device::CPU]).unwrap();
        let table = [
            Placement::new(0, 0, 8),
            Placement::new(0, 4, 5),
            Placement::new(1, 0, 0),
        ];

        let error = memory.place_all(&table).unwrap_err();

        assert_eq!(
            error.to_string(),
            "placement 1: placement passes the end of memory id 0: 5 bytes at offset 4 of 8"
        );
        assert_eq!(error.code(), 0x21);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_range_has_an_address_if_and_only_if_it_lies_within(
            lens in prop::collection::vec(0_usize..200, 1..4),
            id in 0_u32..5,
            offset in prop_oneof![0_usize..220, any::<usize>(), usize::MAX - 200..=usize::MAX],
            size in prop_oneof![0_usize..220, any::<usize>(), usize::MAX - 200..=usize::MAX],
        ) {
            let mut buffers: Vec<_> = lens.iter().map(|&len| host_buffer(len)).collect();
            let bases: Vec<_> = buffers.iter().map(|buffer| buffer.ptr().addr()).collect();
            let devices = vec![Device::CPU; lens.len()];
            let spans = buffers.iter_mut().map(DeviceMemoryBuffer::as_span_mut);
            let mut memory = HierarchicalAllocator::new(spans.collect(), &devices).unwrap();
            let placement = Placement::new(id, offset, size);

            let address = memory.get_offset_address(id, offset, size);
            let shared = memory.span(placement).map(|span| (span.ptr(), span.len()));
            let exclusive = memory.span_mut(placement).map(|span| (span.ptr(), span.len()));
            let table = memory.place_all(&[placement]);
            let planned = MemoryPlan::new(
                lens.iter().map(|&len| PlannedBuffer::new(Device::CPU, len)).collect(),
                vec![placement],
            );

            let end = offset as u128 + size as u128;
            let len = usize::try_from(id).ok().and_then(|id| lens.get(id));
            let within = len.is_some_and(|&len| end <= len as u128);
            prop_assert_eq!(address.is_ok(), within);
            prop_assert_eq!(shared.is_ok(), within);
            prop_assert_eq!(exclusive.is_ok(), within);
            prop_assert_eq!(table.is_ok(), within);
            prop_assert_eq!(planned.is_ok(), within);
            match address {
                Ok(address) => {
                    let base = bases[usize::try_from(id).unwrap()];
                    prop_assert_eq!(address.ptr.addr(), base + offset);
                    prop_assert_eq!(shared.unwrap(), (address.ptr, size));
                    prop_assert_eq!(exclusive.unwrap(), (address.ptr, size));
                    prop_assert_eq!(table.unwrap(), vec![address]);
                }
                Err(error) => {
                    let class = if end > usize::MAX as u128 || len.is_none() { 0x12 } else { 0x21 };
                    prop_assert_eq!(error.code(), class);
                    prop_assert_eq!(shared.unwrap_err().code(), class);
                    prop_assert_eq!(exclusive.unwrap_err().code(), class);
                    prop_assert_eq!(table.unwrap_err().code(), class);
                    prop_assert_eq!(planned.unwrap_err().code(), class);
                }
            }
        }
    }
}

mod views {
    use super::*;

    #[test]
    fn what_is_written_to_a_placement_is_read_from_every_placement_that_overlaps() {
        let fake = FakeDevice::new(CUDA, 1);
        let mut buffer = device_buffer(&fake, 8, 0);
        let spans = vec![buffer.as_span_mut()];
        let mut memory = HierarchicalAllocator::new(spans, &[CUDA_0]).unwrap();

        let mut all = memory.span_mut(Placement::new(0, 0, 8)).unwrap();
        all.fill(0).unwrap();
        let mut part = memory.span_mut(Placement::new(0, 2, 4)).unwrap();
        part.copy_from_host(&[1, 2, 3, 4]).unwrap();

        let overlapping = memory.span(Placement::new(0, 4, 4)).unwrap();
        assert_eq!(overlapping.device(), CUDA_0);
        assert_eq!(overlapping.to_vec().unwrap(), [3, 4, 0, 0]);
    }

    #[test]
    fn placements_that_share_no_byte_are_exclusive_at_once() {
        let fake = FakeDevice::new(CUDA, 1);
        let mut host = host_buffer(8);
        let mut device = device_buffer(&fake, 8, 0);
        let spans = vec![host.as_span_mut(), device.as_span_mut()];
        let mut memory = HierarchicalAllocator::new(spans, &[Device::CPU, CUDA_0]).unwrap();
        memory
            .span_mut(Placement::new(0, 0, 8))
            .unwrap()
            .fill(9)
            .unwrap();

        let mut views = memory
            .disjoint_mut(&[
                Placement::new(1, 4, 4),
                Placement::new(0, 0, 4),
                Placement::new(1, 0, 4),
                Placement::new(0, 2, 0),
                Placement::new(0, 4, 4),
            ])
            .unwrap();
        assert_eq!(
            views.iter().map(|view| view.len()).collect::<Vec<_>>(),
            [4, 4, 4, 0, 4]
        );
        thread::scope(|scope| {
            for (byte, view) in (0..).zip(&mut views) {
                scope.spawn(move || view.fill(byte).unwrap());
            }
        });

        let read = |id| {
            memory
                .span(Placement::new(id, 0, 8))
                .unwrap()
                .to_vec()
                .unwrap()
        };
        assert_eq!(read(0), [1, 1, 1, 1, 4, 4, 4, 4]);
        assert_eq!(read(1), [2, 2, 2, 2, 0, 0, 0, 0]);
    }

    #[test]
    fn placements_that_share_a_byte_are_refused_by_their_positions() {
        let mut buffer = host_buffer(16);
        let spans = vec![buffer.as_span_mut()];
        let mut memory = HierarchicalAllocator::new(spans, &[Device::CPU]).unwrap();
        let mut refused = |placements: &[(usize, usize)]| {
            let placements: Vec<_> = placements
                .iter()
                .map(|&(offset, size)| Placement::new(0, offset, size))
                .collect();
            let error = memory.disjoint_mut(&placements).unwrap_err();
            assert_eq!(error.code(), 0x12);
            match *error.kind() {
                ErrorKind::Overlap { first, second } => (first, second),
                ref other => panic!("{other:?}"),
            }
        };

        assert_eq!(refused(&[(0, 4), (3, 4)]), (0, 1));
        assert_eq!(refused(&[(3, 4), (8, 2), (0, 4)]), (0, 2));
        assert_eq!(refused(&[(0, 16), (4, 1)]), (0, 1));
        assert_eq!(refused(&[(4, 4), (4, 4)]), (0, 1));
        assert_eq!(refused(&[(0, 1), (1, 1), (15, 1), (2, 14)]), (2, 3));
    }

    #[test]
    fn placements_of_no_bytes_share_none() {
        let mut buffer = host_buffer(8);
        let spans = vec![buffer.as_span_mut()];
        let mut memory = HierarchicalAllocator::new(spans, &[Device::CPU]).unwrap();
        let empty = Placement::new(0, 4, 0);

        let views = memory.disjoint_mut(&[empty, Placement::new(0, 0, 8), empty, empty]);

        assert_eq!(views.unwrap().len(), 4);
    }

    #[test]
    fn one_that_lies_outside_is_named() {
        let mut buffer = host_buffer(8);
        let spans = vec![buffer.as_span_mut()];
        let mut memory = HierarchicalAllocator::new(spans, &[Device::CPU]).unwrap();

        for (bad, code) in [
            (Placement::new(0, 8, 1), 0x21),
            (Placement::new(1, 0, 1), 0x12),
            (Placement::new(0, usize::MAX, 2), 0x12),
            (Placement::new(0, 9, 0), 0x21),
        ] {
            let error = memory
                .disjoint_mut(&[Placement::new(0, 0, 8), bad])
                .unwrap_err();

            assert!(matches!(
                at(&error),
                ("placement", 1, ErrorKind::Placement(_))
            ));
            assert_eq!(error.code(), code);
        }
    }

    fn any_placements() -> impl Strategy<Value = Vec<Placement>> {
        let placement = (0_u32..3, 0_usize..40, 0_usize..12)
            .prop_map(|(id, offset, size)| Placement::new(id, offset, size));
        prop::collection::vec(placement, 0..8)
    }

    /// Whether two placements share a byte, counted byte by byte.
    fn share_a_byte(a: Placement, b: Placement) -> bool {
        a.memory_id == b.memory_id
            && (a.offset..a.offset + a.size).any(|at| (b.offset..b.offset + b.size).contains(&at))
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn exclusive_views_exist_if_and_only_if_no_byte_is_shared(placements in any_placements()) {
            const LENS: [usize; 2] = [48, 30];
            let mut buffers = LENS.map(host_buffer);
            let spans = buffers.iter_mut().map(DeviceMemoryBuffer::as_span_mut);
            let mut memory =
                HierarchicalAllocator::new(spans.collect(), &[Device::CPU; 2]).unwrap();
            let shared = |first: usize, second: usize| {
                first < second && share_a_byte(placements[first], placements[second])
            };
            let count = placements.len();
            let overlap = (0..count).any(|a| (0..count).any(|b| shared(a, b)));
            let outside = placements.iter().position(|placement| {
                let len = LENS.get(usize::try_from(placement.memory_id).unwrap());
                len.is_none_or(|&len| placement.offset + placement.size > len)
            });

            match memory.disjoint_mut(&placements) {
                Ok(views) => {
                    prop_assert!(!overlap && outside.is_none());
                    let mut model = LENS.map(|len| vec![0; len]);
                    for ((byte, mut view), placement) in (1..).zip(views).zip(&placements) {
                        view.fill(byte).unwrap();
                        let bytes = &mut model[usize::try_from(placement.memory_id).unwrap()];
                        bytes[placement.offset..placement.offset + placement.size].fill(byte);
                    }
                    for (buffer, bytes) in buffers.iter().zip(&model) {
                        prop_assert_eq!(buffer.as_slice().unwrap(), &bytes[..]);
                    }
                }
                Err(error) => match *error.kind() {
                    ErrorKind::Overlap { first, second } => {
                        prop_assert!(shared(first, second));
                        prop_assert_eq!(outside, None);
                    }
                    ErrorKind::AtIndex { index, .. } => prop_assert_eq!(Some(index), outside),
                    ref other => prop_assert!(false, "{:?}", other),
                },
            }
        }

        #[test]
        fn shared_views_may_share_bytes_with_each_other_only(
            shared in any_placements(),
            exclusive in any_placements(),
        ) {
            const LENS: [usize; 2] = [48, 30];
            let mut buffers = LENS.map(host_buffer);
            let spans = buffers.iter_mut().map(DeviceMemoryBuffer::as_span_mut);
            let mut memory =
                HierarchicalAllocator::new(spans.collect(), &[Device::CPU; 2]).unwrap();
            let all: Vec<Placement> = shared.iter().chain(&exclusive).copied().collect();
            let clash = |first: usize, second: usize| {
                first < second
                    && second >= shared.len()
                    && share_a_byte(all[first], all[second])
            };
            let overlap = (0..all.len()).any(|a| (0..all.len()).any(|b| clash(a, b)));
            let outside = all.iter().position(|placement| {
                let len = LENS.get(usize::try_from(placement.memory_id).unwrap());
                len.is_none_or(|&len| placement.offset + placement.size > len)
            });

            match memory.split_mut(&shared, &exclusive) {
                Ok((views, mut views_mut)) => {
                    prop_assert!(!overlap && outside.is_none());
                    let before: Vec<Vec<u8>> =
                        views.iter().map(|view| view.to_vec().unwrap()).collect();
                    for view in &mut views_mut {
                        view.fill(9).unwrap();
                    }
                    for (view, (before, placement)) in views.iter().zip(before.iter().zip(&shared)) {
                        prop_assert_eq!(&view.to_vec().unwrap(), before);
                        prop_assert_eq!(view.len(), placement.size);
                    }
                    for (view, placement) in views_mut.iter().zip(&exclusive) {
                        prop_assert_eq!(view.len(), placement.size);
                    }
                }
                Err(error) => match *error.kind() {
                    ErrorKind::Overlap { first, second } => {
                        prop_assert!(clash(first, second), "{} {}", first, second);
                        prop_assert_eq!(outside, None);
                    }
                    ErrorKind::AtIndex { index, .. } => prop_assert_eq!(Some(index), outside),
                    ref other => prop_assert!(false, "{:?}", other),
                },
            }
        }
    }
}

mod plans {
    use super::*;

    #[test]
    fn a_placement_outside_its_buffer_is_named() {
        let buffers = vec![PlannedBuffer::new(Device::CPU, 32)];
        let inside = Placement::new(0, 32, 0);

        for (bad, code) in [
            (Placement::new(0, 32, 1), 0x21),
            (Placement::new(1, 0, 0), 0x12),
            (Placement::new(0, usize::MAX, 1), 0x12),
        ] {
            let error = MemoryPlan::new(buffers.clone(), vec![inside, bad]).unwrap_err();

            assert!(matches!(
                at(&error),
                ("placement", 1, ErrorKind::Placement(_))
            ));
            assert_eq!(error.code(), code);
        }
        assert!(MemoryPlan::new(buffers, vec![inside]).is_ok());
    }

    #[test]
    fn requirements_are_summed_by_device() {
        let plan = plan(&[
            (CUDA_1, 5),
            (Device::CPU, 7),
            (CUDA_0, 1),
            (CUDA_1, 6),
            (CUDA_0, 0),
        ]);

        assert_eq!(
            plan.requirements().unwrap(),
            [(Device::CPU, 7), (CUDA_0, 1), (CUDA_1, 11)]
        );
        assert!(MemoryPlan::default().requirements().unwrap().is_empty());
    }

    #[test]
    fn a_sum_that_overflows_is_an_error() {
        let most = isize::MAX.unsigned_abs() - 63;

        let error = plan(&[(CUDA_0, most), (CUDA_0, most), (CUDA_0, most)])
            .requirements()
            .unwrap_err();

        assert!(matches!(
            error.kind(),
            ErrorKind::PlanTooLarge { device: CUDA_0 }
        ));
        assert_eq!(error.code(), 0x12);
    }

    #[test]
    fn the_layout_of_a_buffer_is_checked_when_it_is_asked_for() {
        let buffer = aligned(CUDA_0, 100, 512);

        assert_eq!(
            buffer.layout().unwrap(),
            DeviceLayout::new(100, 512).unwrap()
        );
        assert_eq!(PlannedBuffer::new(CUDA_0, 1).layout().unwrap().align(), 64);
        assert!(aligned(CUDA_0, 1, 3).layout().is_err());
        assert!(PlannedBuffer::new(CUDA_0, usize::MAX).layout().is_err());
    }
}

mod planned_memory {
    use super::*;

    /// The plan of an addition on one device: host inputs, device copies.
    fn addition() -> MemoryPlan {
        MemoryPlan::new(
            vec![
                PlannedBuffer::new(Device::CPU, 32),
                PlannedBuffer::new(CUDA_0, 48),
            ],
            vec![
                Placement::new(0, 16, 16),
                Placement::new(0, 0, 16),
                Placement::new(1, 32, 16),
                Placement::new(1, 16, 16),
                Placement::new(1, 0, 16),
            ],
        )
        .unwrap()
    }

    #[test]
    fn host_and_device_buffers_are_made_each_on_its_device_and_freed_once() {
        let (fake, registry) = rig();
        let plan = addition();

        let mut memory = PlannedMemory::allocate(&plan, &registry).unwrap();
        let view = memory.view().unwrap();
        assert_eq!(view.devices().collect::<Vec<_>>(), [Device::CPU, CUDA_0]);
        assert!(view.has_device_memory());
        assert_eq!(view.place_all(plan.placements()).unwrap().len(), 5);
        assert_eq!(memory.size_in_bytes(), 80);
        let sizes: Vec<_> = memory
            .buffers()
            .iter()
            .map(DeviceMemoryBuffer::size)
            .collect();
        assert_eq!(sizes, [32, 48]);
        assert_eq!(changes(&fake), [(Operation::Allocate, 48)]);
        drop(memory);

        assert_eq!(
            changes(&fake),
            [(Operation::Allocate, 48), (Operation::Deallocate, 48)]
        );
        fake.assert_clean();
    }

    #[test]
    fn values_go_from_the_host_to_the_device_and_back() {
        let (_, registry) = rig();
        let plan = addition();
        let [a, b, on_a, on_b, sum] = plan.placements() else {
            panic!("{plan:?}");
        };
        let mut memory = PlannedMemory::allocate(&plan, &registry).unwrap();
        let mut view = memory.view().unwrap();
        view.span_mut(*a).unwrap().copy_from_host(&[1; 16]).unwrap();
        view.span_mut(*b).unwrap().copy_from_host(&[2; 16]).unwrap();

        for (from, to) in [(a, on_a), (b, on_b)] {
            let mut both = view.disjoint_mut(&[*from, *to]).unwrap();
            let mut to = both.pop().unwrap();
            to.copy_from(both[0].as_span()).unwrap();
        }
        let inputs = [on_a, on_b].map(|on| view.span(*on).unwrap().to_vec().unwrap());
        let added: Vec<u8> = inputs[0]
            .iter()
            .zip(&inputs[1])
            .map(|(x, y)| x + y)
            .collect();
        view.span_mut(*sum).unwrap().copy_from_host(&added).unwrap();
        let mut ends = view.disjoint_mut(&[*b, *sum]).unwrap();
        let sum = ends.pop().unwrap();
        ends[0].copy_from(sum.as_span()).unwrap();

        assert_eq!(view.span(*b).unwrap().as_slice().unwrap(), [3; 16]);
        assert_eq!(view.span(*a).unwrap().as_slice().unwrap(), [1; 16]);
    }

    #[test]
    fn a_plan_of_host_memory_touches_no_device() {
        let (fake, registry) = rig();

        let mut memory =
            PlannedMemory::allocate(&plan(&[(Device::CPU, 32), (Device::CPU, 0)]), &registry)
                .unwrap();

        assert!(!memory.view().unwrap().has_device_memory());
        assert_eq!(memory.buffers()[0].as_slice().unwrap(), [0; 32]);
        assert_eq!(fake.calls(), []);
    }

    #[test]
    fn the_alignment_of_each_buffer_is_that_of_the_plan() {
        let (fake, registry) = rig();
        let buffers = vec![
            aligned(CUDA_0, 8, 1),
            aligned(CUDA_0, 8, 4096),
            aligned(Device::CPU, 8, 1 << 16),
            PlannedBuffer::new(CUDA_0, 8),
        ];

        let plan = MemoryPlan::new(buffers, Vec::new()).unwrap();
        let memory = PlannedMemory::allocate(&plan, &registry).unwrap();

        let aligns: Vec<_> = memory
            .buffers()
            .iter()
            .map(|b| b.layout().align())
            .collect();
        assert_eq!(aligns, [1, 4096, 1 << 16, 64]);
        assert!(memory.buffers()[1].ptr().is_aligned_to(4096));
        assert!(memory.buffers()[2].ptr().is_aligned_to(1 << 16));
        let asked: Vec<_> = fake.calls().iter().filter_map(|call| call.align).collect();
        assert_eq!(asked, [1, 4096, 64]);
    }

    #[test]
    fn buffers_are_freed_in_reverse() {
        let (fake, registry) = rig();

        drop(PlannedMemory::allocate(
            &plan(&[(CUDA_0, 1), (CUDA_1, 2), (CUDA_0, 3)]),
            &registry,
        ));

        assert_eq!(
            changes(&fake),
            [
                (Operation::Allocate, 1),
                (Operation::Allocate, 2),
                (Operation::Allocate, 3),
                (Operation::Deallocate, 3),
                (Operation::Deallocate, 2),
                (Operation::Deallocate, 1),
            ]
        );
    }

    #[test]
    fn one_buffer_that_fails_is_named_and_no_other_is_left() {
        let (fake, _) = rig();
        let injector = FaultInjector::new(fake.clone());
        injector.fail_nth(Operation::Allocate, 2);
        let registry = DeviceAllocatorRegistry::new();
        registry.register(Arc::new(injector)).unwrap();
        let plan = plan(&[(CUDA_0, 1), (Device::CPU, 2), (CUDA_1, 3), (CUDA_0, 4)]);

        let error = PlannedMemory::allocate(&plan, &registry).unwrap_err();

        assert_eq!(
            error.to_string(),
            "planned buffer 2: out of memory on cuda:1: 3 bytes requested (align 64)"
        );
        assert_eq!(error.code(), 0x21);
        assert!(error.is_out_of_memory());
        assert_eq!(
            changes(&fake),
            [(Operation::Allocate, 1), (Operation::Deallocate, 1)]
        );
        fake.assert_clean();
    }

    // https://github.com/pytorch/executorch/issues/21682
    #[test]
    fn a_device_that_nobody_serves_is_an_error_that_names_the_buffer() {
        let registry = DeviceAllocatorRegistry::new();

        let nobodys = Device::new(DeviceType::Custom(9), 0);
        let error = PlannedMemory::allocate(&plan(&[(Device::CPU, 32), (nobodys, 48)]), &registry)
            .unwrap_err();

        assert!(error.is_not_registered());
        assert_eq!(error.code(), 0x20);
        assert_eq!(
            error.to_string(),
            "planned buffer 1: no allocator is registered for device type custom9"
        );
    }

    #[test]
    fn a_device_that_does_not_exist_is_an_error_that_names_the_buffer() {
        let (fake, registry) = rig();
        let nowhere = Device::new(CUDA, 2);

        let error =
            PlannedMemory::allocate(&plan(&[(CUDA_0, 32), (nowhere, 0)]), &registry).unwrap_err();

        assert_eq!(error.code(), 0x12);
        assert_eq!(
            error.to_string(),
            "planned buffer 1: invalid device cuda:2: 2 device(s) of type cuda present"
        );
        assert_eq!(fake.allocations(), 0);
    }

    #[test]
    fn what_a_device_needs_is_held_against_what_it_has_free_before_anything_is_made() {
        let (fake, registry) = limited_rig(100);
        let held = DeviceMemoryBuffer::create_in(&registry, layout(40), CUDA_1).unwrap();
        let plan = plan(&[(CUDA_0, 50), (CUDA_1, 30), (CUDA_0, 50), (CUDA_1, 31)]);

        let error = PlannedMemory::allocate(&plan, &registry).unwrap_err();

        let report = error.out_of_memory().unwrap();
        assert_eq!((report.device, report.requested), (CUDA_1, 61));
        assert_eq!(
            (report.device_free, report.device_total),
            (Some(60), Some(100))
        );
        let text = error.to_string();
        assert!(text.contains("61 bytes requested"), "{text}");
        assert!(text.contains("60 of 100 free on the device"), "{text}");
        assert_eq!(error.code(), 0x21);
        assert_eq!((fake.allocations(), fake.live_bytes()), (1, 40));
        drop(held);
        assert!(PlannedMemory::allocate(&plan, &registry).is_ok());
        fake.assert_clean();
    }

    #[test]
    fn a_need_of_exactly_what_is_free_is_met() {
        let (fake, registry) = limited_rig(100);

        let memory = PlannedMemory::allocate(&plan(&[(CUDA_0, 60), (CUDA_0, 40)]), &registry);

        assert_eq!(memory.unwrap().size_in_bytes(), 100);
        fake.assert_clean();
    }

    #[test]
    fn an_error_over_free_memory_is_an_error_before_anything_is_made() {
        let (fake, _) = rig();
        let injector = FaultInjector::new(fake.clone());
        injector.fail_all(Operation::MemoryInfo);
        let registry = DeviceAllocatorRegistry::new();
        registry.register(Arc::new(injector)).unwrap();

        let error = PlannedMemory::allocate(&plan(&[(CUDA_0, 1)]), &registry).unwrap_err();

        assert!(matches!(
            error.root(),
            ErrorKind::Backend {
                operation: Operation::MemoryInfo,
                ..
            }
        ));
        assert_eq!(fake.calls(), []);
    }

    #[test]
    fn a_buffer_that_no_allocation_can_be_is_named_before_anything_is_made() {
        let (fake, registry) = rig();

        for bad in [
            PlannedBuffer::new(CUDA_0, usize::MAX),
            PlannedBuffer::new(CUDA_0, isize::MAX.unsigned_abs()),
            aligned(CUDA_0, 8, 0),
            aligned(CUDA_0, 8, 48),
        ] {
            let buffers = vec![PlannedBuffer::new(CUDA_0, 8), bad];
            let plan = MemoryPlan::new(buffers, Vec::new()).unwrap();

            let error = PlannedMemory::allocate(&plan, &registry).unwrap_err();

            assert!(matches!(
                at(&error),
                ("planned buffer", 1, ErrorKind::Layout(_))
            ));
            assert_eq!(error.code(), 0x12);
        }
        assert_eq!(fake.allocations(), 0);
    }

    #[test]
    fn sums_that_overflow_are_an_error_before_anything_is_made() {
        let (fake, registry) = limited_rig(1 << 40);
        let most = isize::MAX.unsigned_abs() - 63;

        for count in [2, 3, 5] {
            let error = PlannedMemory::allocate(&plan(&vec![(CUDA_0, most); count]), &registry)
                .unwrap_err();

            assert!(error.is_out_of_memory());
        }
        assert_eq!(fake.allocations(), 0);
    }

    #[test]
    fn addresses_are_stable_and_nothing_is_allocated_after_it_is_built() {
        let (fake, registry) = rig();
        let plan = addition();
        let mut memory = PlannedMemory::allocate(&plan, &registry).unwrap();
        let place = |memory: &mut PlannedMemory| {
            let view = memory.view().unwrap();
            view.place_all(plan.placements()).unwrap()
        };
        let first = place(&mut memory);

        memory.fill(1).unwrap();
        memory
            .view()
            .unwrap()
            .span_mut(plan.placements()[0])
            .unwrap()
            .fill(2)
            .unwrap();
        let second = place(&mut memory);
        let mut moved = Box::new(memory);
        let third = place(&mut moved);
        let fourth = thread::spawn(move || {
            let view = moved.view().unwrap();
            view.place_all(addition().placements()).unwrap()
        });

        assert_eq!(first, second);
        assert_eq!(first, third);
        assert_eq!(first, fourth.join().unwrap());
        assert_eq!(fake.allocations(), 1);
        fake.assert_clean();
    }

    #[test]
    fn fill_sets_every_byte_of_every_buffer() {
        let (_, registry) = rig();
        let mut memory = PlannedMemory::allocate(
            &plan(&[(Device::CPU, 3), (CUDA_0, 4), (CUDA_1, 5)]),
            &registry,
        )
        .unwrap();

        for byte in [0, 7] {
            memory.fill(byte).unwrap();

            for (buffer, len) in memory.buffers().iter().zip([3, 4, 5]) {
                assert_eq!(buffer.to_vec().unwrap(), vec![byte; len]);
            }
        }
    }

    #[test]
    fn a_fill_that_fails_is_an_error_and_the_memory_is_still_owned() {
        let (fake, _) = rig();
        let injector = FaultInjector::new(fake.clone());
        let faults = injector.faults();
        let registry = DeviceAllocatorRegistry::new();
        registry.register(Arc::new(injector)).unwrap();
        let mut memory =
            PlannedMemory::allocate(&plan(&[(CUDA_0, 3), (CUDA_1, 4)]), &registry).unwrap();
        faults.fail_nth(Operation::Fill, 2);

        let error = memory.fill(1).unwrap_err();

        assert!(matches!(error.kind(), ErrorKind::Backend { .. }));
        memory.fill(2).unwrap();
        assert_eq!(memory.buffers()[1].to_vec().unwrap(), [2; 4]);
        drop(memory);
        fake.assert_clean();
    }

    #[test]
    fn an_empty_plan_needs_nothing() {
        let registry = DeviceAllocatorRegistry::new();

        let mut memory = PlannedMemory::allocate(&MemoryPlan::default(), &registry).unwrap();

        assert_eq!(memory.size_in_bytes(), 0);
        assert!(memory.view().unwrap().is_empty());
        memory.fill(1).unwrap();
    }

    #[test]
    fn empty_buffers_keep_their_memory_ids_and_reach_no_allocator() {
        let (fake, registry) = rig();

        let mut memory = PlannedMemory::allocate(
            &plan(&[(CUDA_0, 0), (Device::CPU, 0), (CUDA_1, 4)]),
            &registry,
        )
        .unwrap();

        let view = memory.view().unwrap();
        assert_eq!(view.len(), 3);
        assert!(view.get_offset_address(0, 0, 0).is_ok());
        assert!(view.get_offset_address(0, 0, 1).is_err());
        assert_eq!(changes(&fake), [(Operation::Allocate, 4)]);
    }

    #[test]
    fn the_buffers_outlive_the_registry() {
        let (fake, registry) = rig();
        let mut memory = PlannedMemory::allocate(&addition(), &registry).unwrap();

        drop(registry);
        memory.fill(3).unwrap();
        drop(memory);

        fake.assert_clean();
    }
}

mod shared_arenas {
    use super::*;

    /// What a set of buffers is: device, size and alignment of each.
    fn shapes(memory: &PlannedMemory) -> Vec<(Device, usize, usize)> {
        let buffers = memory.buffers().iter();
        let shape = |b: &DeviceMemoryBuffer| (b.device(), b.size(), b.layout().align());
        buffers.map(shape).collect()
    }

    fn bases(memory: &mut PlannedMemory, plan: usize) -> Vec<(Device, DevicePtr)> {
        let view = memory.view_of(plan).unwrap();
        let count = u32::try_from(view.len()).unwrap();
        let base = |id| view.get_offset_address(id, 0, 0).unwrap();
        (0..count).map(base).map(|a| (a.device, a.ptr)).collect()
    }

    // https://github.com/pytorch/executorch/issues/21958
    #[test]
    fn a_buffer_is_as_large_and_as_aligned_as_the_largest_of_the_plans_needs() {
        let (fake, registry) = rig();
        let prefill = MemoryPlan::new(
            vec![aligned(Device::CPU, 32, 64), aligned(CUDA_0, 48, 512)],
            Vec::new(),
        )
        .unwrap();
        let decode = MemoryPlan::new(
            vec![aligned(Device::CPU, 16, 128), aligned(CUDA_0, 96, 1)],
            Vec::new(),
        )
        .unwrap();

        let mut memory = PlannedMemory::allocate_shared(&[&prefill, &decode], &registry).unwrap();

        assert_eq!(shapes(&memory), [(Device::CPU, 32, 128), (CUDA_0, 96, 512)]);
        assert_eq!(changes(&fake), [(Operation::Allocate, 96)]);
        assert_eq!(bases(&mut memory, 0), bases(&mut memory, 1));
        drop(memory);
        fake.assert_clean();
    }

    #[test]
    fn buffers_of_one_memory_id_on_different_devices_are_not_shared() {
        let (fake, registry) = rig();
        let plans = [
            plan(&[(CUDA_0, 10), (Device::CPU, 20)]),
            plan(&[(CUDA_1, 30), (Device::CPU, 5)]),
            plan(&[(CUDA_0, 7), (CUDA_0, 8), (CUDA_1, 9)]),
            plan(&[(CUDA_1, 40), (CUDA_0, 80)]),
        ];

        let all: Vec<_> = plans.iter().collect();
        let mut memory = PlannedMemory::allocate_shared(&all, &registry).unwrap();

        assert_eq!(
            shapes(&memory),
            [
                (CUDA_0, 10, 64),
                (Device::CPU, 20, 64),
                (CUDA_1, 40, 64),
                (CUDA_0, 80, 64),
                (CUDA_1, 9, 64),
            ]
        );
        let buffers: Vec<_> = memory
            .buffers()
            .iter()
            .map(|b| (b.device(), b.ptr()))
            .collect();
        let of = |positions: &[usize]| positions.iter().map(|&p| buffers[p]).collect::<Vec<_>>();
        assert_eq!(bases(&mut memory, 0), of(&[0, 1]));
        assert_eq!(bases(&mut memory, 1), of(&[2, 1]));
        assert_eq!(bases(&mut memory, 2), of(&[0, 3, 4]));
        assert_eq!(bases(&mut memory, 3), of(&[2, 3]));
        drop(memory);
        fake.assert_clean();
    }

    #[test]
    fn what_one_plan_leaves_in_a_shared_buffer_the_next_finds() {
        let (_, registry) = rig();
        let plans = [plan(&[(CUDA_0, 8)]), plan(&[(CUDA_0, 4)])];
        let mut memory =
            PlannedMemory::allocate_shared(&[&plans[0], &plans[1]], &registry).unwrap();
        let cache = Placement::new(0, 0, 4);

        let mut first = memory.view_of(0).unwrap();
        first
            .span_mut(cache)
            .unwrap()
            .copy_from_host(b"keys")
            .unwrap();
        let second = memory.view_of(1).unwrap();

        assert_eq!(second.span(cache).unwrap().to_vec().unwrap(), b"keys");
    }

    #[test]
    fn the_views_of_a_later_plan_are_exclusive_and_disjoint() {
        let (_, registry) = rig();
        let plans = [
            plan(&[(CUDA_0, 4)]),
            plan(&[(CUDA_0, 4), (CUDA_0, 4), (Device::CPU, 4)]),
        ];
        let mut memory =
            PlannedMemory::allocate_shared(&[&plans[0], &plans[1]], &registry).unwrap();

        let mut view = memory.view_of(1).unwrap();
        let all: Vec<_> = (0..3).map(|id| Placement::new(id, 0, 4)).collect();
        for (byte, mut span) in (1..).zip(view.disjoint_mut(&all).unwrap()) {
            span.fill(byte).unwrap();
        }

        for (byte, placement) in (1..).zip(all) {
            assert_eq!(view.span(placement).unwrap().to_vec().unwrap(), [byte; 4]);
        }
    }

    #[test]
    fn a_plan_that_is_not_there_has_no_view() {
        let (_, registry) = rig();
        let plans = [plan(&[(CUDA_0, 4)]), plan(&[(CUDA_0, 4)])];
        let mut memory =
            PlannedMemory::allocate_shared(&[&plans[0], &plans[1]], &registry).unwrap();

        for index in [2, 3, usize::MAX - 1] {
            let error = memory.view_of(index).unwrap_err();

            assert!(matches!(
                error.kind(),
                ErrorKind::CountMismatch { what: "plans", expected, found: 2 }
                    if *expected == index + 1
            ));
        }
        assert!(memory.view_of(usize::MAX).is_err());
        assert_eq!(memory.view_of(1).unwrap().len(), 1);
    }

    #[test]
    fn of_no_plans_there_is_no_view() {
        let registry = DeviceAllocatorRegistry::new();
        let mut memory = PlannedMemory::allocate_shared(&[], &registry).unwrap();

        assert_eq!(memory.size_in_bytes(), 0);
        for (index, error) in [memory.view().err(), memory.view_of(1).err()]
            .iter()
            .enumerate()
        {
            assert!(matches!(
                error.as_ref().map(Error::kind),
                Some(ErrorKind::CountMismatch { what: "plans", expected, found: 0 })
                    if *expected == index + 1
            ));
        }
    }

    #[test]
    fn what_is_needed_together_is_held_against_what_is_free() {
        let (fake, registry) = limited_rig(100);
        let plans = [plan(&[(CUDA_0, 60)]), plan(&[(CUDA_0, 10), (CUDA_0, 41)])];

        let error = PlannedMemory::allocate_shared(&[&plans[0], &plans[1]], &registry).unwrap_err();
        let fits = plan(&[(CUDA_0, 10), (CUDA_0, 40)]);
        let memory = PlannedMemory::allocate_shared(&[&plans[0], &fits], &registry).unwrap();

        assert_eq!(error.out_of_memory().unwrap().requested, 101);
        assert_eq!(memory.size_in_bytes(), 100);
        assert_eq!(fake.allocations(), 2);
    }

    #[test]
    fn an_alignment_that_is_none_is_refused_in_every_plan() {
        let (fake, registry) = rig();
        let good = plan(&[(CUDA_0, 4)]);

        for align in [0, 3, 48, 96] {
            let bad = MemoryPlan::new(vec![aligned(CUDA_0, 4, align)], Vec::new()).unwrap();
            for plans in [[&good, &bad], [&bad, &good]] {
                let error = PlannedMemory::allocate_shared(&plans, &registry)
                    .map(|memory| memory.size_in_bytes())
                    .expect_err(&format!("alignment {align}"));

                assert!(matches!(
                    error.root(),
                    ErrorKind::Layout(LayoutError::InvalidAlignment { align: found })
                        if *found == align
                ));
            }
        }
        assert_eq!(fake.allocations(), 0);
    }

    fn any_plans() -> impl Strategy<Value = Vec<Vec<(Device, usize)>>> {
        let device = prop::sample::select(vec![Device::CPU, CUDA_0, CUDA_1]);
        let buffers = prop::collection::vec((device, 0_usize..64), 0..5);
        prop::collection::vec(buffers, 1..5)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_plans_share_by_memory_id_and_device_and_by_nothing_else(
            sizes in any_plans(),
        ) {
            let (fake, registry) = rig();
            let plans: Vec<_> = sizes.iter().map(|buffers| plan(buffers)).collect();
            let all: Vec<_> = plans.iter().collect();

            let mut memory = PlannedMemory::allocate_shared(&all, &registry).unwrap();

            let mut model = std::collections::BTreeMap::<_, usize>::new();
            for buffers in &sizes {
                for (id, &(device, size)) in buffers.iter().enumerate() {
                    let largest = model.entry((id, device)).or_default();
                    *largest = size.max(*largest);
                }
            }
            prop_assert_eq!(memory.buffers().len(), model.len());
            prop_assert_eq!(memory.size_in_bytes(), model.values().sum::<usize>());
            let mut homes = std::collections::BTreeMap::new();
            for (index, buffers) in sizes.iter().enumerate() {
                let view = memory.view_of(index).unwrap();
                prop_assert_eq!(view.len(), buffers.len());
                for (id, &(device, _)) in buffers.iter().enumerate() {
                    let len = model[&(id, device)];
                    let memory_id = u32::try_from(id).unwrap();
                    let address = view.get_offset_address(memory_id, 0, len).unwrap();
                    prop_assert!(view.get_offset_address(memory_id, 0, len + 1).is_err());
                    prop_assert_eq!(address.device, device);
                    let home = homes.entry((id, device)).or_insert(address.ptr);
                    prop_assert_eq!(*home, address.ptr);
                }
            }
            drop(memory);
            fake.assert_clean();
        }
    }
}

mod no_error_path_leaks {
    use super::*;

    fn allocate(allocator: &Arc<FaultInjector<FakeDevice>>) -> Result<PlannedMemory> {
        let registry = DeviceAllocatorRegistry::new();
        registry.register(Arc::clone(allocator))?;
        registry.register(Arc::new(HostAllocator))?;
        PlannedMemory::allocate(
            &plan(&[(CUDA_0, 1), (Device::CPU, 2), (CUDA_1, 3), (CUDA_0, 4)]),
            &registry,
        )
    }

    fn share(allocator: &Arc<FaultInjector<FakeDevice>>) -> Result<PlannedMemory> {
        let registry = DeviceAllocatorRegistry::new();
        registry.register(Arc::clone(allocator))?;
        let plans = [
            plan(&[(CUDA_0, 1), (CUDA_1, 2)]),
            plan(&[(CUDA_1, 3), (CUDA_1, 4)]),
        ];
        PlannedMemory::allocate_shared(&[&plans[0], &plans[1]], &registry)
    }

    #[test]
    fn when_each_call_fails_in_turn() {
        for round in [allocate, share] {
            let fake = FakeDevice::new(CUDA, 2);

            let done = fail_each_call(&fake, round).unwrap();

            // For each of two devices one question, for three buffers two calls.
            assert_eq!(done.calls, 2 + 3 * 2);
            fake.assert_clean();
        }
    }

    #[test]
    fn when_each_call_panics_in_turn_and_no_panic_comes_through() {
        for round in [allocate, share] {
            let fake = FakeDevice::new(CUDA, 2);

            let done = panic_each_call(&fake, round).unwrap();

            assert_eq!((done.calls, done.unwound), (8, 0));
            fake.assert_clean();
        }
    }

    #[test]
    fn when_a_fill_fails_or_panics() {
        let fake = FakeDevice::new(CUDA, 2);
        let round = |allocator: &Arc<FaultInjector<FakeDevice>>| {
            let registry = DeviceAllocatorRegistry::new();
            registry.register(Arc::clone(allocator))?;
            let plan = plan(&[(CUDA_0, 1), (CUDA_1, 3)]);
            PlannedMemory::allocate(&plan, &registry)?.fill(0)
        };

        assert_eq!(fail_each_call(&fake, round).unwrap().calls, 8);
        assert_eq!(panic_each_call(&fake, round).unwrap().calls, 8);
        fake.assert_clean();
    }
}
