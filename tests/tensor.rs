//! Descriptions of tensors, and tensors in memory.

#![cfg(feature = "testing")]

use std::sync::Arc;

use device_memory::testing::{FakeDevice, FaultInjector, fail_each_call, panic_each_call};
use device_memory::{
    Device, DeviceAllocatorRegistry, DeviceLayout, DeviceMemoryBuffer, DeviceTensor, DeviceType,
    Error, ErrorKind, HostAllocator, MemoryPlan, Operation, Placement, PlannedBuffer,
    PlannedMemory, Result, ScalarType, ShapeDynamism, TensorSpec, TensorView, TensorViewMut,
};
use proptest::prelude::*;

const CUDA: DeviceType = DeviceType::Cuda;
const CUDA_0: Device = Device::new(CUDA, 0);
const CUDA_1: Device = Device::new(CUDA, 1);

/// Two devices, and a registry that knows them.
fn rig() -> (FakeDevice, DeviceAllocatorRegistry) {
    let fake = FakeDevice::new(CUDA, 2);
    let registry = DeviceAllocatorRegistry::new();
    registry.register(Arc::new(fake.clone())).unwrap();
    (fake, registry)
}

fn floats(sizes: &[usize], device: Device) -> TensorSpec {
    TensorSpec::contiguous(ScalarType::Float, sizes, device).unwrap()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..=250).cycle().take(len).collect()
}

fn device_buffer(fake: &FakeDevice, size: usize, index: u16) -> DeviceMemoryBuffer {
    let layout = DeviceLayout::from_size(size).unwrap();
    DeviceMemoryBuffer::create_with(Arc::new(fake.clone()), layout, index).unwrap()
}

fn operations(fake: &FakeDevice) -> Vec<Operation> {
    fake.calls().iter().map(|call| call.operation).collect()
}

/// Why a tensor is refused.
fn reason(error: &Error) -> &str {
    assert_eq!(error.code(), 0x12);
    match error.kind() {
        ErrorKind::InvalidTensor { reason } => reason,
        other => panic!("{other:?}"),
    }
}

mod specs {
    use super::*;

    #[test]
    fn one_knows_what_it_was_made_of() {
        let spec =
            TensorSpec::with_dim_order(ScalarType::Half, &[1, 3, 4, 5], &[0, 2, 3, 1], CUDA_1)
                .unwrap()
                .with_dynamism(ShapeDynamism::DynamicBound);

        assert_eq!(spec.scalar_type(), ScalarType::Half);
        assert_eq!(spec.sizes(), [1, 3, 4, 5]);
        assert_eq!(spec.dim_order(), [0, 2, 3, 1]);
        assert_eq!(spec.strides(), [60, 1, 15, 3]);
        assert_eq!(spec.dynamism(), ShapeDynamism::DynamicBound);
        assert_eq!((spec.device(), spec.size_in_bytes()), (CUDA_1, 120));
    }

    #[test]
    fn a_contiguous_one_is_in_row_major_order_and_static() {
        let spec = floats(&[2, 3, 4], Device::CPU);

        assert_eq!(spec.dim_order(), [0, 1, 2]);
        assert_eq!(spec.strides(), [12, 4, 1]);
        assert_eq!(spec.dynamism(), ShapeDynamism::Static);
        assert_eq!(spec.device(), Device::CPU);
    }

    #[test]
    fn another_device_or_dynamism_changes_nothing_else() {
        let spec =
            TensorSpec::with_dim_order(ScalarType::Int, &[2, 3], &[1, 0], Device::CPU).unwrap();

        let moved = spec.clone().with_device(CUDA_1);
        let dynamic = spec.clone().with_dynamism(ShapeDynamism::DynamicUnbound);

        assert_eq!(moved.device(), CUDA_1);
        assert_eq!(moved.with_device(Device::CPU), spec);
        assert_eq!(
            dynamic.clone().with_device(CUDA_1).dynamism(),
            ShapeDynamism::DynamicUnbound
        );
        assert_eq!(dynamic.dynamism(), ShapeDynamism::DynamicUnbound);
        assert_eq!(dynamic.with_dynamism(ShapeDynamism::Static), spec);
    }

    #[test]
    fn sizes_change_as_the_dynamism_allows() {
        let fixed = floats(&[2, 4], CUDA_1);
        let bounded = fixed.clone().with_dynamism(ShapeDynamism::DynamicBound);
        let unbounded = fixed.clone().with_dynamism(ShapeDynamism::DynamicUnbound);
        let why = |result: Result<TensorSpec, Error>| reason(&result.unwrap_err()).to_owned();

        assert_eq!(fixed.resized(&[2, 4]).unwrap(), fixed);
        assert_eq!(
            why(fixed.resized(&[2, 3])),
            "sizes [2, 3] where [2, 4] are planned: they never change"
        );
        let smaller = bounded.resized(&[1, 3]).unwrap();
        assert_eq!(
            (smaller.sizes(), smaller.size_in_bytes()),
            (&[1, 3][..], 12)
        );
        assert_eq!(smaller.device(), CUDA_1);
        // The bound is that of all elements together, as in ExecuTorch.
        assert_eq!(bounded.resized(&[8, 1]).unwrap().strides(), [1, 1]);
        assert_eq!(bounded.resized(&[0, 99]).unwrap().size_in_bytes(), 0);
        assert_eq!(
            why(bounded.resized(&[3, 3])),
            "sizes [3, 3] where [2, 4] are planned: 36 bytes are more than 32"
        );
        assert_eq!(
            why(bounded.resized(&[8])),
            "sizes [8] where [2, 4] are planned: the number of dimensions differs"
        );
        assert_eq!(
            unbounded.resized(&[100, 100]).unwrap().size_in_bytes(),
            40_000
        );
        assert!(unbounded.resized(&[usize::MAX, 2]).is_err());
    }

    #[test]
    fn a_scalar_has_no_dimensions_and_one_element() {
        let spec = floats(&[], CUDA_0);

        assert!(spec.sizes().is_empty() && spec.dim_order().is_empty());
        assert!(spec.strides().is_empty());
        assert_eq!(spec.size_in_bytes(), 4);
    }

    #[test]
    fn one_with_a_size_of_zero_has_no_bytes_whatever_the_others_are() {
        for sizes in [
            &[0][..],
            &[3, 0],
            &[usize::MAX, 0, usize::MAX],
            &[0, usize::MAX],
        ] {
            let spec = floats(sizes, Device::CPU);

            assert_eq!(spec.size_in_bytes(), 0);
            assert_eq!(spec.strides().len(), sizes.len());
        }
        assert_eq!(floats(&[3, 0, 2], Device::CPU).strides(), [2, 2, 1]);
    }

    #[test]
    fn more_bytes_than_can_be_addressed_are_refused() {
        let most = isize::MAX.unsigned_abs();

        for sizes in [
            &[usize::MAX][..],
            &[most / 4 + 1],
            &[usize::MAX / 2, 3],
            &[1 << 32, 1 << 32],
            &[2, usize::MAX],
        ] {
            let error = TensorSpec::contiguous(ScalarType::Float, sizes, CUDA_0).unwrap_err();

            assert_eq!(
                reason(&error),
                format!("FLOAT elements of sizes {sizes:?} are more bytes than can be addressed")
            );
        }
        let largest = TensorSpec::contiguous(ScalarType::Byte, &[most], CUDA_0).unwrap();
        assert_eq!(largest.size_in_bytes(), most);
    }

    #[test]
    fn there_are_at_most_sixteen_dimensions() {
        assert_eq!(TensorSpec::MAX_RANK, 16);
        assert_eq!(floats(&[1; 16], Device::CPU).sizes().len(), 16);
        for rank in [17, 255, 256, 300] {
            let error =
                TensorSpec::contiguous(ScalarType::Byte, &vec![1; rank], Device::CPU).unwrap_err();

            assert_eq!(
                reason(&error),
                format!("{rank} dimensions, at most 16 are supported")
            );
        }
    }

    #[test]
    fn a_dim_order_names_every_dimension_once() {
        let make = |sizes: &[usize], dim_order: &[u8]| {
            TensorSpec::with_dim_order(ScalarType::Byte, sizes, dim_order, Device::CPU)
        };

        for dim_order in [&[][..], &[0], &[0, 1, 2]] {
            let error = make(&[2, 3], dim_order).unwrap_err();
            assert_eq!(
                reason(&error),
                format!("dim order {dim_order:?} and sizes differ in length: expected 2")
            );
        }
        for dim_order in [[0, 0], [1, 1], [0, 2], [2, 1], [255, 0], [15, 0]] {
            let error = make(&[2, 3], &dim_order).unwrap_err();
            assert_eq!(
                reason(&error),
                format!("dim order {dim_order:?} is no permutation of 2 dimensions")
            );
        }
        assert!(make(&[2, 3], &[1, 0]).is_ok());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn strides_of_any_order_reach_every_element_once(
            (sizes, dim_order) in prop::collection::vec(1_usize..5, 0..5).prop_flat_map(|sizes| {
                let dims: Vec<u8> = (0..u8::MAX).take(sizes.len()).collect();
                (Just(sizes), Just(dims).prop_shuffle())
            }),
        ) {
            let spec =
                TensorSpec::with_dim_order(ScalarType::Byte, &sizes, &dim_order, Device::CPU)
                    .unwrap();

            let mut offsets = vec![0];
            for (size, stride) in sizes.iter().zip(spec.strides()) {
                offsets = offsets
                    .iter()
                    .flat_map(|offset| (0..*size).map(move |i| offset + i * stride))
                    .collect();
            }
            offsets.sort_unstable();
            let all: Vec<usize> = (0..spec.size_in_bytes()).collect();
            prop_assert_eq!(offsets, all);
        }

        #[test]
        fn bytes_are_the_product_in_wide_arithmetic(
            sizes in prop::collection::vec(prop_oneof![0_usize..1 << 20, any::<usize>()], 0..4),
            scalar in prop::sample::select(ScalarType::ALL),
        ) {
            let spec = TensorSpec::contiguous(scalar, &sizes, Device::CPU);

            let bytes = match sizes.contains(&0) {
                true => Some(0),
                false => sizes
                    .iter()
                    .try_fold(scalar.size() as u128, |bytes, &size| bytes.checked_mul(size as u128)),
            };
            let bytes = bytes.and_then(|bytes| isize::try_from(bytes).ok());
            prop_assert_eq!(
                spec.ok().map(|spec| spec.size_in_bytes()),
                bytes.map(isize::unsigned_abs)
            );
        }
    }
}

mod binding {
    use super::*;

    #[test]
    fn a_tensor_lies_in_the_first_bytes_of_a_place_on_its_device() {
        let fake = FakeDevice::new(CUDA, 2);
        let mut buffer = device_buffer(&fake, 20, 1);
        let ptr = buffer.ptr();

        let mut tensor =
            TensorViewMut::bind(floats(&[2, 2], CUDA_1), buffer.as_span_mut()).unwrap();
        assert_eq!(
            (tensor.device(), tensor.spec().sizes()),
            (CUDA_1, &[2, 2][..])
        );
        tensor.copy_from_host(&pattern(16)).unwrap();
        let written = tensor.as_view();
        assert_eq!((written.span().ptr(), written.span().len()), (ptr, 16));
        let tensor = TensorView::bind(floats(&[4], CUDA_1), buffer.as_span()).unwrap();

        assert_eq!(tensor.to_vec().unwrap(), pattern(16));
        assert_eq!(fake.contents(ptr, 20).unwrap()[16..], [0xCD; 4]);
    }

    #[test]
    fn another_device_than_the_one_meant_is_refused() {
        let fake = FakeDevice::new(CUDA, 2);
        let mut buffer = device_buffer(&fake, 16, 1);

        for meant in [CUDA_0, Device::CPU, Device::new(DeviceType::CudaHost, 1)] {
            let shared = TensorView::bind(floats(&[4], meant), buffer.as_span()).unwrap_err();
            let exclusive =
                TensorViewMut::bind(floats(&[4], meant), buffer.as_span_mut()).unwrap_err();

            for error in [shared, exclusive] {
                assert_eq!(error.code(), 0x12);
                assert!(matches!(
                    *error.kind(),
                    ErrorKind::DeviceMismatch { expected, found: CUDA_1 } if expected == meant
                ));
            }
        }
    }

    #[test]
    fn a_device_tensor_lies_in_host_memory_only_where_that_is_asked_for() {
        let mut buffer = DeviceMemoryBuffer::create(16, DeviceType::Cpu, 0).unwrap();
        let spec = floats(&[4], CUDA_0);

        let shared = TensorView::bind(spec.clone(), buffer.as_span()).unwrap_err();
        let exclusive = TensorViewMut::bind(spec.clone(), buffer.as_span_mut()).unwrap_err();
        let mut tensor =
            TensorViewMut::bind_in_host_memory(spec.clone(), buffer.as_span_mut()).unwrap();
        tensor.copy_from_host(&pattern(16)).unwrap();

        for error in [shared, exclusive] {
            assert!(error.is_device_mismatch());
            assert_eq!(
                error.to_string(),
                "device mismatch: expected cuda:0, found cpu:0"
            );
        }
        assert_eq!(tensor.device(), Device::CPU);
        assert_eq!(tensor.spec().device(), CUDA_0);
        let tensor = TensorView::bind_in_host_memory(spec, buffer.as_span()).unwrap();
        assert_eq!(tensor.to_vec().unwrap(), pattern(16));
    }

    #[test]
    fn device_memory_is_refused_where_host_memory_is_asked_for() {
        let fake = FakeDevice::new(CUDA, 1);
        let mut buffer = device_buffer(&fake, 16, 0);
        let spec = floats(&[4], CUDA_0);

        let shared = TensorView::bind_in_host_memory(spec.clone(), buffer.as_span()).unwrap_err();
        let exclusive = TensorViewMut::bind_in_host_memory(spec, buffer.as_span_mut()).unwrap_err();

        for error in [shared, exclusive] {
            assert!(error.is_device_mismatch());
            assert_eq!(
                error.to_string(),
                "device mismatch: expected cpu:0, found cuda:0"
            );
        }
    }

    #[test]
    fn a_place_that_is_too_small_is_refused() {
        let mut buffer = DeviceMemoryBuffer::create(15, DeviceType::Cpu, 0).unwrap();
        let spec = floats(&[4], Device::CPU);

        let shared = TensorView::bind(spec.clone(), buffer.as_span()).unwrap_err();
        let exclusive = TensorViewMut::bind(spec, buffer.as_span_mut()).unwrap_err();

        for error in [shared, exclusive] {
            assert!(matches!(
                error.kind(),
                ErrorKind::OutOfBounds {
                    device: Device::CPU,
                    offset: 0,
                    size: 16,
                    len: 15
                }
            ));
        }
    }

    #[test]
    fn a_tensor_of_no_bytes_lies_anywhere_on_its_device() {
        let empty = DeviceMemoryBuffer::default();

        let tensor = TensorView::bind(floats(&[0, 3], Device::CPU), empty.as_span()).unwrap();

        assert!(tensor.to_vec().unwrap().is_empty());
        tensor.copy_to_host(&mut []).unwrap();
        assert!(tensor.copy_to_host(&mut [0]).is_err());
    }

    #[test]
    fn tensors_of_a_plan_with_host_and_device_buffers_lie_where_it_says() {
        let (fake, registry) = rig();
        let placements = vec![
            Placement::new(0, 16, 16),
            Placement::new(1, 32, 16),
            Placement::new(1, 16, 16),
            Placement::new(1, 0, 16),
        ];
        let buffers = vec![
            PlannedBuffer::new(Device::CPU, 32),
            PlannedBuffer::new(CUDA_0, 48),
        ];
        let plan = MemoryPlan::new(buffers, placements).unwrap();
        let mut memory = PlannedMemory::allocate(&plan, &registry).unwrap();
        let [host, device] = memory.buffers() else {
            panic!("{memory:?}");
        };
        let (host, device) = (host.ptr(), device.ptr());
        let view = memory.view().unwrap();

        for (placement, meant) in
            plan.placements()
                .iter()
                .zip([Device::CPU, CUDA_0, CUDA_0, CUDA_0])
        {
            let span = view.span(*placement).unwrap();
            let tensor = TensorView::bind(floats(&[2, 2], meant), span).unwrap();

            let base = if meant.is_cpu() { host } else { device };
            assert_eq!(tensor.device(), meant);
            assert_eq!(tensor.span().ptr().addr(), base.addr() + placement.offset);
        }
        assert_eq!(fake.allocations(), 1);
    }
}

mod copies_between_tensors {
    use super::*;

    fn pair(from: &TensorSpec, to: &TensorSpec) -> Result<Vec<u8>> {
        let (_, registry) = rig();
        let source =
            DeviceTensor::from_host_in(&registry, from.clone(), &pattern(from.size_in_bytes()))?;
        let mut target = DeviceTensor::create_in(&registry, to.clone())?;
        target.view_mut()?.copy_from(&source.view()?)?;
        target.view()?.to_vec()
    }

    #[test]
    fn one_of_the_same_kind_is_copied_between_any_two_devices() {
        for from in [Device::CPU, CUDA_0, CUDA_1] {
            for to in [Device::CPU, CUDA_0, CUDA_1] {
                let copied = pair(&floats(&[2, 3], from), &floats(&[2, 3], to)).unwrap();

                assert_eq!(copied, pattern(24), "{from} to {to}");
            }
        }
    }

    #[test]
    fn one_that_may_change_its_size_is_copied_all_the_same() {
        let dynamic = floats(&[2, 3], CUDA_0).with_dynamism(ShapeDynamism::DynamicBound);

        assert_eq!(
            pair(&dynamic, &floats(&[2, 3], CUDA_1)).unwrap(),
            pattern(24)
        );
    }

    #[test]
    fn one_of_another_type_shape_or_order_is_refused() {
        let target = floats(&[2, 3], CUDA_0);
        let transposed =
            TensorSpec::with_dim_order(ScalarType::Float, &[2, 3], &[1, 0], CUDA_0).unwrap();
        let ints = TensorSpec::contiguous(ScalarType::Int, &[2, 3], CUDA_0).unwrap();

        for source in [
            floats(&[3, 2], CUDA_0),
            floats(&[6], CUDA_0),
            transposed,
            ints,
        ] {
            let error = pair(&source, &target).unwrap_err();

            let found = reason(&error);
            assert!(
                found.starts_with("source ")
                    && found.ends_with(
                        " and destination FLOAT [2, 3] in order [0, 1] differ in type, sizes or \
                         dim order"
                    ),
                "{found}"
            );
        }
    }

    #[test]
    fn a_length_that_differs_is_refused() {
        let (_, registry) = rig();
        let mut tensor = DeviceTensor::create_in(&registry, floats(&[4], CUDA_0)).unwrap();
        let mut view = tensor.view_mut().unwrap();

        for len in [0, 15, 17] {
            assert!(matches!(
                view.copy_from_host(&pattern(len)).unwrap_err().kind(),
                ErrorKind::LengthMismatch { expected: 16, .. }
            ));
        }
        assert_eq!(view.span_mut().len(), 16);
    }
}

mod tensors {
    use super::*;

    #[test]
    fn bytes_of_every_type_go_to_a_device_and_come_back() {
        let (fake, registry) = rig();
        for &scalar in ScalarType::ALL {
            let spec = TensorSpec::contiguous(scalar, &[3, 5], CUDA_1).unwrap();
            let bytes = pattern(15 * scalar.size());

            let tensor = DeviceTensor::from_host_in(&registry, spec.clone(), &bytes).unwrap();
            let back = tensor.to_device_in(&registry, Device::CPU).unwrap();

            assert_eq!(tensor.spec(), &spec);
            assert_eq!(tensor.device(), CUDA_1);
            assert_eq!(back.spec().scalar_type(), scalar);
            assert_eq!(back.view().unwrap().span().as_slice().unwrap(), bytes);
        }
        fake.assert_clean();
    }

    #[test]
    fn there_and_back_again_changes_no_byte() {
        let (fake, registry) = rig();
        let bytes: Vec<u8> = [1.0_f32, -2.5, f32::NAN, f32::INFINITY, 0.0, -0.0]
            .iter()
            .flat_map(|value| value.to_ne_bytes())
            .collect();

        let host =
            DeviceTensor::from_host_in(&registry, floats(&[2, 3], Device::CPU), &bytes).unwrap();
        let device = host.to_device_in(&registry, CUDA_0).unwrap();
        let back = device.to_device_in(&registry, Device::CPU).unwrap();

        assert_eq!(device.view().unwrap().to_vec().unwrap(), bytes);
        assert_eq!(back.view().unwrap().to_vec().unwrap(), bytes);
        assert_eq!((fake.allocations(), fake.live_blocks()), (1, 1));
    }

    #[test]
    fn ten_thousand_elements_make_the_round_trip() {
        let (_, registry) = rig();
        let bytes = pattern(40_000);

        let tensor =
            DeviceTensor::from_host_in(&registry, floats(&[10_000], CUDA_0), &bytes).unwrap();
        let back = tensor.to_device_in(&registry, Device::CPU).unwrap();

        assert_eq!(back.view().unwrap().to_vec().unwrap(), bytes);
    }

    #[test]
    fn many_dimensions_make_the_round_trip() {
        let (_, registry) = rig();
        let sizes = [1, 2, 1, 3, 1, 2, 1, 2, 1, 1, 1, 2, 1, 1, 1, 1];

        let tensor =
            DeviceTensor::from_host_in(&registry, floats(&sizes, CUDA_1), &pattern(192)).unwrap();
        let back = tensor.to_device_in(&registry, Device::CPU).unwrap();

        assert_eq!(back.spec().sizes(), sizes);
        assert_eq!(back.view().unwrap().to_vec().unwrap(), pattern(192));
    }

    #[test]
    fn a_scalar_makes_the_round_trip() {
        let (fake, registry) = rig();

        let tensor =
            DeviceTensor::from_host_in(&registry, floats(&[], CUDA_0), &pattern(4)).unwrap();
        let back = tensor.to_device_in(&registry, Device::CPU).unwrap();

        assert!(back.spec().sizes().is_empty());
        assert_eq!(back.view().unwrap().to_vec().unwrap(), pattern(4));
        assert_eq!(fake.calls()[0].size, 4);
    }

    #[test]
    fn an_empty_one_makes_the_round_trip_without_a_call() {
        let (fake, registry) = rig();

        let tensor = DeviceTensor::from_host_in(&registry, floats(&[0, 3], CUDA_1), &[]).unwrap();
        let back = tensor.to_device_in(&registry, Device::CPU).unwrap();
        let clone = tensor.to_device_in(&registry, CUDA_0).unwrap();

        assert_eq!((tensor.device(), clone.device()), (CUDA_1, CUDA_0));
        assert_eq!(back.spec().sizes(), [0, 3]);
        assert!(back.view().unwrap().to_vec().unwrap().is_empty());
        assert_eq!(fake.calls(), []);
    }

    #[test]
    fn order_and_dynamism_are_kept_on_the_way() {
        let (_, registry) = rig();
        let spec = TensorSpec::with_dim_order(ScalarType::Short, &[2, 3, 4], &[2, 0, 1], CUDA_0)
            .unwrap()
            .with_dynamism(ShapeDynamism::DynamicBound);

        let tensor = DeviceTensor::from_host_in(&registry, spec.clone(), &pattern(48)).unwrap();
        let moved = tensor.to_device_in(&registry, CUDA_1).unwrap();
        let back = moved.to_device_in(&registry, Device::CPU).unwrap();

        for (copy, device) in [(&moved, CUDA_1), (&back, Device::CPU)] {
            let found = copy.spec();
            assert_eq!(found.scalar_type(), ScalarType::Short);
            assert_eq!(found.sizes(), [2, 3, 4]);
            assert_eq!(found.dim_order(), [2, 0, 1]);
            assert_eq!(found.strides(), [3, 1, 6]);
            assert_eq!(found.dynamism(), ShapeDynamism::DynamicBound);
            assert_eq!((found.device(), copy.device()), (device, device));
            assert_eq!(copy.view().unwrap().to_vec().unwrap(), pattern(48));
        }
    }

    #[test]
    fn from_device_to_device_no_byte_goes_through_the_host() {
        let (fake, registry) = rig();
        let tensor =
            DeviceTensor::from_host_in(&registry, floats(&[4], CUDA_0), &pattern(16)).unwrap();
        fake.clear_calls();

        let other = tensor.to_device_in(&registry, CUDA_1).unwrap();
        let same = tensor.to_device_in(&registry, CUDA_0).unwrap();

        assert_eq!(
            operations(&fake),
            [
                Operation::Allocate,
                Operation::CopyDeviceToDevice,
                Operation::Allocate,
                Operation::CopyDeviceToDevice
            ]
        );
        for copy in [&other, &same] {
            assert_eq!(copy.view().unwrap().to_vec().unwrap(), pattern(16));
        }
        assert_eq!((other.device(), same.device()), (CUDA_1, CUDA_0));
    }

    #[test]
    fn from_host_to_host_is_a_copy_of_its_own() {
        let registry = DeviceAllocatorRegistry::new();
        let mut first =
            DeviceTensor::from_host_in(&registry, floats(&[2], Device::CPU), &pattern(8)).unwrap();

        let second = first.to_device_in(&registry, Device::CPU).unwrap();
        first.view_mut().unwrap().span_mut().fill(9).unwrap();

        assert_eq!(second.view().unwrap().to_vec().unwrap(), pattern(8));
    }

    #[test]
    fn copies_of_one_source_share_nothing() {
        let (fake, registry) = rig();
        let source =
            DeviceTensor::from_host_in(&registry, floats(&[2], Device::CPU), &pattern(8)).unwrap();

        let mut copies: Vec<_> = [CUDA_0, CUDA_0, CUDA_1]
            .map(|device| source.to_device_in(&registry, device).unwrap())
            .into();
        for (byte, copy) in (1..).zip(&mut copies) {
            copy.view_mut().unwrap().copy_from_host(&[byte; 8]).unwrap();
        }

        assert_eq!(source.view().unwrap().to_vec().unwrap(), pattern(8));
        for (byte, copy) in (1..).zip(&copies) {
            assert_eq!(copy.view().unwrap().to_vec().unwrap(), [byte; 8]);
        }
        drop(copies);
        assert_eq!((fake.allocations(), fake.deallocations()), (3, 3));
        fake.assert_clean();
    }

    #[test]
    fn memory_is_freed_on_its_device_when_the_tensor_is_dropped() {
        let (fake, registry) = rig();
        let tensor = DeviceTensor::create_in(&registry, floats(&[4], CUDA_1)).unwrap();
        assert_eq!(fake.live_blocks(), 1);

        drop(tensor);

        let freed = fake.calls().pop().unwrap();
        assert_eq!((freed.operation, freed.index), (Operation::Deallocate, 1));
        fake.assert_clean();
    }

    #[test]
    fn the_buffer_outlives_the_description() {
        let (fake, registry) = rig();
        let tensor = DeviceTensor::from_host_in(&registry, floats(&[1], CUDA_1), b"data").unwrap();

        let buffer = tensor.into_buffer();

        assert_eq!((buffer.size(), buffer.device()), (4, CUDA_1));
        assert_eq!(buffer.to_vec().unwrap(), b"data");
        drop(buffer);
        fake.assert_clean();
    }

    #[test]
    fn a_number_of_bytes_that_differs_is_refused_and_nothing_is_left() {
        let (fake, registry) = rig();

        for len in [0, 15, 17] {
            let error = DeviceTensor::from_host_in(&registry, floats(&[4], CUDA_0), &pattern(len))
                .unwrap_err();

            assert!(matches!(
                error.kind(),
                ErrorKind::LengthMismatch { device: CUDA_0, expected: 16, found } if *found == len
            ));
        }
        fake.assert_clean();
    }

    #[test]
    fn a_device_that_nobody_serves_is_not_found() {
        let (_, registry) = rig();
        let nowhere = Device::new(DeviceType::Custom(250), 0);
        let tensor = DeviceTensor::create_in(&registry, floats(&[4], CUDA_0)).unwrap();

        for error in [
            DeviceTensor::create_in(&registry, floats(&[4], nowhere)).unwrap_err(),
            DeviceTensor::create(floats(&[4], nowhere)).unwrap_err(),
            DeviceTensor::from_host(floats(&[0], nowhere), &[]).unwrap_err(),
            tensor.to_device_in(&registry, nowhere).unwrap_err(),
            tensor.to_device(nowhere).unwrap_err(),
        ] {
            assert!(error.is_not_registered());
            assert_eq!(error.code(), 0x20);
        }
    }

    #[test]
    fn more_bytes_than_a_device_has_are_out_of_memory() {
        let (fake, registry) = rig();
        let spec = floats(&[1 << 45], CUDA_0);

        let error = DeviceTensor::create_in(&registry, spec).unwrap_err();

        assert!(error.is_out_of_memory());
        assert_eq!(error.out_of_memory().unwrap().requested, 1 << 47);
        fake.assert_clean();
    }

    #[test]
    fn a_tensor_as_large_as_a_layout_is_not_reaches_no_allocator() {
        let (fake, registry) = rig();
        let most = isize::MAX.unsigned_abs();
        let spec = TensorSpec::contiguous(ScalarType::Byte, &[most], CUDA_0).unwrap();

        let error = DeviceTensor::create_in(&registry, spec).unwrap_err();

        assert!(matches!(error.kind(), ErrorKind::Layout(_)));
        assert_eq!(fake.calls(), []);
    }

    #[test]
    fn the_global_registry_serves_the_short_forms() {
        let fake = FakeDevice::new(DeviceType::Custom(251), 1);
        let device = Device::new(DeviceType::Custom(251), 0);
        let registry = DeviceAllocatorRegistry::global();
        registry.register(Arc::new(fake.clone())).unwrap();

        let host = DeviceTensor::from_host(floats(&[2], Device::CPU), &pattern(8)).unwrap();
        let there = host.to_device(device).unwrap();
        let created = DeviceTensor::create(floats(&[2], device)).unwrap();

        assert_eq!(there.view().unwrap().to_vec().unwrap(), pattern(8));
        assert_eq!(fake.live_blocks(), 2);
        drop((there, created));
        fake.assert_clean();
    }
}

#[test]
fn no_constructor_leaks_when_each_call_fails_or_panics_in_turn() {
    type Round = fn(&Arc<FaultInjector<FakeDevice>>) -> Result<()>;
    fn registry(allocator: &Arc<FaultInjector<FakeDevice>>) -> Result<DeviceAllocatorRegistry> {
        let registry = DeviceAllocatorRegistry::new();
        registry.register(Arc::clone(allocator))?;
        registry.register(Arc::new(HostAllocator))?;
        Ok(registry)
    }
    let rounds: [(u64, Round); 4] = [
        (2, |a| {
            DeviceTensor::create_in(&registry(a)?, floats(&[4], CUDA_0)).map(drop)
        }),
        (3, |a| {
            DeviceTensor::from_host_in(&registry(a)?, floats(&[4], CUDA_0), &[1; 16]).map(drop)
        }),
        (6, |a| {
            let registry = registry(a)?;
            let tensor = DeviceTensor::from_host_in(&registry, floats(&[4], CUDA_0), &[1; 16])?;
            tensor.to_device_in(&registry, CUDA_1).map(drop)
        }),
        (4, |a| {
            let registry = registry(a)?;
            let tensor = DeviceTensor::from_host_in(&registry, floats(&[4], CUDA_0), &[1; 16])?;
            tensor.to_device_in(&registry, Device::CPU).map(drop)
        }),
    ];

    for (calls, round) in rounds {
        let fake = FakeDevice::new(CUDA, 2);

        assert_eq!(fail_each_call(&fake, round).unwrap().calls, calls);
        let panicked = panic_each_call(&fake, round).unwrap();

        assert_eq!((panicked.calls, panicked.unwound), (calls, 0));
        fake.assert_clean();
    }
}
