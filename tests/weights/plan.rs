//! What is known before anything is allocated.

use std::io;

use device_memory::weights::{WeightsHeader, WeightsLoader};
use device_memory::{
    Device, ErrorKind, InvalidWeights, LayoutError, Placement, PlannedBuffer, ScalarType,
};

use crate::support::{GPU, SMALL, file, rig};

#[test]
fn a_header_lists_the_tensors_in_the_order_of_their_bytes() {
    let file = file(SMALL, 17);

    let (header, data) = WeightsHeader::parse(&file).unwrap();

    let names: Vec<_> = header.tensors().iter().map(|t| t.name()).collect();
    assert_eq!(names, ["head", "none", "tail"]);
    assert_eq!(header.data_size(), 17);
    assert_eq!(header.size(), 8 + SMALL.len() as u64);
    assert_eq!(header.file_size(), file.len() as u64);
    assert_eq!(data.len(), 17);
    assert_eq!(header.metadata()["format"], "pt");
}

#[test]
fn a_tensor_is_found_by_its_name_with_its_type_and_shape() {
    let file = file(SMALL, 17);
    let (header, _) = WeightsHeader::parse(&file).unwrap();

    let head = header.tensor("head").unwrap();

    assert_eq!((head.dtype().as_str(), head.shape()), ("BF16", &[2, 3][..]));
    assert_eq!((head.offset(), head.size()), (0, 12));
    let spec = head.spec(GPU).unwrap();
    assert_eq!(spec.scalar_type(), ScalarType::BFloat16);
    assert_eq!((spec.sizes(), spec.device()), (&[2, 3][..], GPU));
    assert_eq!(header.position("tail"), Some(2));
    assert_eq!(header.tensor("middle"), None);
    assert_eq!(header.tensor(""), None);
}

#[test]
fn every_type_of_the_format_has_the_size_of_its_scalar_type() {
    let types = [
        ("BOOL", ScalarType::Bool),
        ("U8", ScalarType::Byte),
        ("I8", ScalarType::Char),
        ("F8_E5M2", ScalarType::Float8E5M2),
        ("F8_E4M3", ScalarType::Float8E4M3Fn),
        ("F8_E4M3FNUZ", ScalarType::Float8E4M3Fnuz),
        ("F8_E5M2FNUZ", ScalarType::Float8E5M2Fnuz),
        ("I16", ScalarType::Short),
        ("U16", ScalarType::UInt16),
        ("F16", ScalarType::Half),
        ("BF16", ScalarType::BFloat16),
        ("I32", ScalarType::Int),
        ("U32", ScalarType::UInt32),
        ("F32", ScalarType::Float),
        ("C64", ScalarType::ComplexFloat),
        ("F64", ScalarType::Double),
        ("I64", ScalarType::Long),
        ("U64", ScalarType::UInt64),
    ];
    for (name, scalar_type) in types {
        let size = 3 * scalar_type.size();
        let json = format!(r#"{{"t":{{"dtype":"{name}","shape":[3],"data_offsets":[0,{size}]}}}}"#);

        let file = file(&json, size);
        let (header, _) = WeightsHeader::parse(&file).unwrap();

        let tensor = &header.tensors()[0];
        assert_eq!(tensor.scalar_type(), Some(scalar_type), "{name}");
        assert_eq!(tensor.dtype(), name);
        assert_eq!(tensor.spec(GPU).unwrap().size_in_bytes(), size, "{name}");
    }
}

#[test]
fn types_without_a_scalar_type_are_kept_as_bytes() {
    for (name, len, size) in [("F4", 6, 3), ("F6_E2M3", 4, 3), ("F8_E8M0", 3, 3)] {
        let json =
            format!(r#"{{"t":{{"dtype":"{name}","shape":[{len}],"data_offsets":[0,{size}]}}}}"#);

        let file = file(&json, size);
        let (header, _) = WeightsHeader::parse(&file).unwrap();

        let tensor = &header.tensors()[0];
        assert_eq!((tensor.scalar_type(), tensor.size()), (None, size));
        let error = tensor.spec(Device::CPU).unwrap_err();
        assert!(
            matches!(
                error.kind(),
                ErrorKind::InvalidWeights(InvalidWeights::NoScalarType { .. })
            ),
            "{error}"
        );
        assert_eq!(
            error.to_string(),
            format!("tensor \"t\" is of {name}, which has no scalar type")
        );
    }
}

#[test]
fn an_arena_places_each_tensor_at_the_alignment() {
    let file = file(SMALL, 17);
    let (header, _) = WeightsHeader::parse(&file).unwrap();

    let plan = header.arena(GPU, 8).unwrap();

    let buffer = PlannedBuffer {
        device: GPU,
        size: 21,
        align: 8,
    };
    assert_eq!(plan.buffers(), [buffer]);
    assert_eq!(
        plan.placements(),
        [
            Placement::new(0, 0, 12),
            Placement::new(0, 16, 0),
            Placement::new(0, 16, 5)
        ]
    );
}

#[test]
fn separate_buffers_are_one_for_each_tensor() {
    let file = file(SMALL, 17);
    let (header, _) = WeightsHeader::parse(&file).unwrap();

    let plan = header.separate(GPU, 256).unwrap();

    let sizes: Vec<_> = plan.buffers().iter().map(|b| (b.size, b.align)).collect();
    assert_eq!(sizes, [(12, 256), (0, 256), (5, 256)]);
    assert_eq!(plan.placements()[2], Placement::new(2, 0, 5));
}

#[test]
fn an_alignment_that_is_none_is_refused() {
    let file = file(SMALL, 17);
    let (header, _) = WeightsHeader::parse(&file).unwrap();

    for align in [0, 3, 48] {
        for plan in [header.arena(GPU, align), header.separate(GPU, align)] {
            let error = plan.unwrap_err();
            assert!(
                matches!(
                    error.kind(),
                    ErrorKind::Layout(LayoutError::InvalidAlignment { .. })
                ),
                "{error}"
            );
        }
    }
}

/// Tensors that are as long as one can be, and then as many bytes as are left.
fn huge() -> String {
    const LONGEST: u64 = u64::MAX / 8;
    let mut entries = Vec::new();
    let mut begin = 0;
    while begin < u64::MAX {
        let len = LONGEST.min(u64::MAX - begin);
        let (number, end) = (entries.len(), begin + len);
        entries.push(format!(
            r#""t{number}":{{"dtype":"U8","shape":[{len}],"data_offsets":[{begin},{end}]}}"#
        ));
        begin = end;
    }
    format!("{{{}}}", entries.join(","))
}

#[test]
fn more_bytes_than_can_be_addressed_are_a_plan_too_large() {
    let header = WeightsHeader::read(file(&huge(), 0).as_slice()).unwrap();

    let error = header.arena(GPU, 64).unwrap_err();

    assert!(
        matches!(error.kind(), ErrorKind::PlanTooLarge { device } if *device == GPU),
        "{error}"
    );
    assert_eq!(header.file_size(), u64::MAX, "it does not wrap");
}

#[test]
fn a_plan_that_no_allocation_can_have_fails_before_anything_is_allocated() {
    let (fake, registry) = rig();
    let header = WeightsHeader::read(file(&huge(), 0).as_slice()).unwrap();
    let plan = header.arena(GPU, 1).unwrap();

    let error = WeightsLoader::new(&registry)
        .load(header, plan, io::empty())
        .unwrap_err();

    assert!(matches!(error.root(), ErrorKind::Layout(_)), "{error}");
    assert_eq!(fake.allocations(), 0);
}
