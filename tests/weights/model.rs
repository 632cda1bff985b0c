//! The header against the format's own reader, on files that are nearly right.

use std::collections::HashMap;

use device_memory::ErrorKind;
use device_memory::weights::WeightsHeader;
use proptest::prelude::*;
use safetensors::Dtype;
use safetensors::SafeTensors;
use safetensors::tensor::{TensorView, serialize};

use crate::support::{GPU, bytes, check, load, rig};

fn dtypes() -> impl Strategy<Value = Dtype> {
    prop::sample::select(vec![
        Dtype::BOOL,
        Dtype::U8,
        Dtype::F8_E4M3,
        Dtype::F16,
        Dtype::BF16,
        Dtype::F32,
        Dtype::C64,
        Dtype::I64,
        Dtype::F64,
    ])
}

/// Names, types and shapes.
fn tensors() -> impl Strategy<Value = HashMap<String, (Dtype, Vec<usize>)>> {
    let shape = prop::collection::vec(0..5_usize, 0..4);
    prop::collection::hash_map("[a-c\"\u{e9}.]{0,3}", (dtypes(), shape), 0..8)
}

/// A file that the format's own writer made.
fn written(tensors: &HashMap<String, (Dtype, Vec<usize>)>) -> Vec<u8> {
    let data: Vec<_> = tensors
        .iter()
        .map(|(name, (dtype, shape))| {
            let bits = shape.iter().product::<usize>() * dtype.bitsize();
            (name, *dtype, shape.clone(), bytes(bits / 8))
        })
        .collect();
    let views = data.iter().map(|(name, dtype, shape, data)| {
        let view = TensorView::new(*dtype, shape.clone(), data).unwrap();
        (name.as_str(), view)
    });
    serialize(views, None).unwrap()
}

proptest! {
    #[test]
    fn what_the_formats_own_writer_wrote_is_loaded(tensors in tensors()) {
        let file = written(&tensors);
        let (fake, registry) = rig();

        let weights = load(&registry, &file, GPU).unwrap();

        check(&weights, &file);
        let theirs = SafeTensors::deserialize(&file).unwrap();
        prop_assert_eq!(weights.header().tensors().len(), theirs.len());
        for (name, view) in theirs.iter() {
            let tensor = weights.header().tensor(name).unwrap();
            prop_assert_eq!(tensor.dtype(), view.dtype().to_string());
            prop_assert_eq!(tensor.shape(), view.shape());
            let span = weights.span(name).unwrap();
            prop_assert_eq!(span.to_vec().unwrap(), view.data());
        }
        drop(weights);
        fake.assert_clean();
    }

    #[test]
    fn files_with_a_fault_are_judged_as_by_the_formats_own_reader(
        tensors in tensors(),
        at in any::<prop::sample::Index>(),
        byte in prop::sample::select(b"0123456789-,[]{}\":F\x00\xff".to_vec()),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut file = written(&tensors);
        let at = at.index(file.len());
        file[at] = byte;
        if let Some(cut) = cut {
            file.truncate(cut.index(file.len()));
        }

        let ours = WeightsHeader::parse(&file);
        let theirs = SafeTensors::deserialize(&file);

        match (ours, theirs) {
            (Ok((header, _)), Ok(theirs)) => prop_assert_eq!(header.tensors().len(), theirs.len()),
            (Err(error), theirs) => {
                let kind = error.into_kind();
                prop_assert!(matches!(kind, ErrorKind::InvalidWeights(_)));
                if let Ok(theirs) = theirs {
                    // A name that is there twice goes unnoticed there.
                    prop_assert!(theirs.len() < tensors.len(), "{}", kind);
                }
            }
            (Ok(_), Err(theirs)) => prop_assert!(false, "refused there: {theirs}"),
        }
    }

    #[test]
    fn no_bytes_make_it_panic(file in prop::collection::vec(any::<u8>(), 0..64), length in 0..64_u64) {
        let _ = WeightsHeader::parse(&file);
        let mut with_length = length.to_le_bytes().to_vec();
        with_length.extend(file);
        let _ = WeightsHeader::parse(&with_length);
    }
}
