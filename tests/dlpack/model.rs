//! Any tensor that goes out and comes back.

#![expect(unsafe_code, reason = "plays the other side of the interface")]

use device_memory::dlpack::{ExportedTensor, ImportedTensor};
use device_memory::{Device, DeviceTensor, DeviceType, ScalarType, TensorSpec};
use proptest::prelude::*;

use crate::support::rig;

fn types() -> impl Strategy<Value = ScalarType> {
    let with_dlpack = |scalar_type: &ScalarType| {
        !scalar_type.name().contains('Q') && !scalar_type.name().starts_with("BITS")
    };
    prop::sample::select(
        ScalarType::ALL
            .iter()
            .copied()
            .filter(with_dlpack)
            .collect::<Vec<_>>(),
    )
}

/// Sizes and an order of the dimensions.
fn shapes() -> impl Strategy<Value = (Vec<usize>, Vec<u8>)> {
    prop::collection::vec(0..4_usize, 0..5).prop_flat_map(|sizes| {
        let order: Vec<u8> = (0..).take(sizes.len()).collect();
        (Just(sizes), Just(order).prop_shuffle())
    })
}

proptest! {
    #[test]
    fn a_tensor_comes_back_as_it_went_out(
        scalar_type in types(),
        (sizes, order) in shapes(),
        on_device in any::<bool>(),
    ) {
        let (fake, registry) = rig();
        let device = if on_device { Device::new(DeviceType::Cuda, 1) } else { Device::CPU };
        let spec = TensorSpec::with_dim_order(scalar_type, &sizes, &order, device).unwrap();
        let bytes: Vec<u8> = (0..spec.size_in_bytes()).map(|at| (at % 251) as u8).collect();
        let tensor = DeviceTensor::from_host_in(&registry, spec.clone(), &bytes).unwrap();

        let raw = ExportedTensor::from_tensor(tensor).unwrap().into_raw();
        // SAFETY: the tensor is sound, and the registry's allocators made its memory.
        let back = unsafe { ImportedTensor::from_raw(raw, &registry) }.unwrap();

        prop_assert_eq!(back.spec().scalar_type(), scalar_type);
        prop_assert_eq!(back.spec().sizes(), spec.sizes());
        prop_assert_eq!(back.device(), device);
        if !sizes.contains(&0) {
            let strides = back.spec().strides().into_iter().zip(spec.strides());
            for ((back, out), size) in strides.zip(&sizes) {
                prop_assert!(back == out || *size == 1);
            }
        }
        prop_assert_eq!(back.view().unwrap().to_vec().unwrap(), bytes);
        drop(back);
        fake.assert_clean();
    }
}
