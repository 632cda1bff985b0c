//! What other libraries give, sound or not.

#![expect(unsafe_code, reason = "plays the other side of the interface")]

use std::ptr;
use std::sync::atomic::Ordering;
use std::thread;

use device_memory::dlpack::ImportedTensor;
use device_memory::{Device, DeviceAllocatorRegistry, ErrorKind, ScalarType};
use dlpack_ffi::DLDeviceType;

use crate::support::{Foreign, delete, reason};

#[test]
fn a_tensor_is_read_where_it_lies_and_deleted_once() {
    let foreign = Foreign::new();
    let address = foreign.data.as_ptr().addr();

    let (imported, deleted) = foreign.import();

    let imported = imported.unwrap();
    assert_eq!(imported.spec().scalar_type(), ScalarType::Float);
    assert_eq!(imported.spec().sizes(), [2, 3]);
    assert_eq!(imported.device(), Device::CPU);
    assert!(!imported.is_read_only() && !imported.is_copied());
    let view = imported.view().unwrap();
    assert_eq!(view.span().ptr().addr(), address);
    assert_eq!(view.to_vec().unwrap(), (0..24).collect::<Vec<u8>>());
    thread::spawn(move || drop(imported)).join().unwrap();
    assert_eq!(deleted.load(Ordering::Relaxed), 1);
}

#[test]
fn a_tensor_is_written_where_it_lies_unless_it_is_read_only() {
    let (imported, _) = Foreign::new().import();
    let mut imported = imported.unwrap();
    // SAFETY: nothing else accesses the memory.
    let mut view = unsafe { imported.view_mut() }.unwrap();
    view.copy_from_host(&[9; 24]).unwrap();
    assert_eq!(imported.view().unwrap().to_vec().unwrap(), [9; 24]);

    let mut foreign = Foreign::new();
    foreign.tensor.flags = 0b11;
    let (imported, deleted) = foreign.import();
    let mut imported = imported.unwrap();
    assert!(imported.is_read_only() && imported.is_copied());
    // SAFETY: nothing else accesses the memory.
    let error = unsafe { imported.view_mut() }.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ReadOnly { .. }));
    assert_eq!(error.code(), 0x10);
    drop(imported);
    assert_eq!(deleted.load(Ordering::Relaxed), 1);
}

#[test]
fn another_major_version_is_refused_after_its_deleter_was_called() {
    for major in [0, 2, u32::MAX] {
        let mut foreign = Foreign::new();
        foreign.tensor.version.major = major;
        foreign.tensor.version.minor = 7;
        // What follows has another meaning there.
        foreign.tensor.dl_tensor.ndim = -1;

        let error = foreign.refusal();

        assert_eq!(
            error.to_string(),
            format!("tensor of version {major}.7, only 1.x is understood")
        );
        assert!(matches!(error.kind(), ErrorKind::ForeignVersion { .. }));
        assert_eq!(error.code(), 0x10);
    }
}

#[test]
fn another_minor_version_is_taken() {
    let mut foreign = Foreign::new();
    foreign.tensor.version.minor = 99;

    assert!(foreign.import().0.is_ok());
}

#[test]
fn a_tensor_without_a_deleter_is_left_alone() {
    let mut foreign = Foreign::new();
    foreign.tensor.deleter = None;
    let (raw, deleted) = foreign.into_raw();
    let registry = DeviceAllocatorRegistry::new();

    // SAFETY: the tensor is as it says.
    let imported = unsafe { ImportedTensor::from_raw(raw, &registry) }.unwrap();
    drop(imported);

    assert_eq!(deleted.load(Ordering::Relaxed), 0);
    // SAFETY: the tensor is live, and nobody else frees it.
    unsafe { delete(raw.cast().as_ptr()) };
    assert_eq!(deleted.load(Ordering::Relaxed), 1);
}

#[test]
fn missing_strides_mean_row_major_order() {
    let mut foreign = Foreign::new();
    foreign.strides = None;

    let imported = foreign.import().0.unwrap();

    assert_eq!(imported.spec().strides(), [3, 1]);
}

#[test]
fn strides_tell_the_memory_order() {
    for (shape, strides, dim_order) in [
        (vec![2, 3], vec![1, 2], vec![1, 0]),
        (vec![1, 3, 1, 2], vec![6, 1, 6, 3], vec![0, 2, 3, 1]),
        // What a dimension of one element says does not matter.
        (vec![2, 1, 3], vec![3, 77, 1], vec![0, 1, 2]),
        (vec![1, 6], vec![-5, 1], vec![0, 1]),
    ] {
        let mut foreign = Foreign::new();
        foreign.tensor.dl_tensor.ndim = i32::try_from(shape.len()).unwrap();
        foreign.shape = shape;
        foreign.strides = Some(strides.clone());

        let imported = foreign.import().0.unwrap();

        assert_eq!(imported.spec().dim_order(), dim_order, "{strides:?}");
    }
}

#[test]
fn strides_that_leave_gaps_overlap_or_go_backwards_are_refused() {
    for strides in [
        [4, 1],
        [0, 1],
        [3, 0],
        [1, 1],
        [-3, 1],
        [3, 2],
        [i64::MAX, 1],
    ] {
        let mut foreign = Foreign::new();
        foreign.strides = Some(strides.to_vec());

        let reason = reason(foreign.refusal());

        assert_eq!(
            reason,
            format!("strides {strides:?} of sizes [2, 3] are not those of a dense tensor")
        );
    }
}

#[test]
fn an_offset_counts_from_the_address() {
    let mut foreign = Foreign::new();
    foreign.shape = vec![1, 3];
    foreign.tensor.dl_tensor.byte_offset = 12;

    let imported = foreign.import().0.unwrap();

    let bytes = imported.view().unwrap().to_vec().unwrap();
    assert_eq!(bytes, (12..24).collect::<Vec<u8>>());
}

#[test]
fn a_tensor_without_elements_needs_no_address() {
    let mut foreign = Foreign::new();
    foreign.shape = vec![0, 3];
    foreign.tensor.dl_tensor.data = ptr::null_mut();
    foreign.tensor.dl_tensor.byte_offset = u64::MAX;

    let imported = foreign.import().0.unwrap();

    assert_eq!(imported.view().unwrap().to_vec().unwrap(), Vec::<u8>::new());
}

#[test]
fn what_contradicts_itself_is_refused() {
    type Break = fn(&mut Foreign);
    let cases: [(Break, &str); 14] = [
        (
            |f| f.tensor.dl_tensor.ndim = -1,
            "-1 dimensions, at most 16",
        ),
        (
            |f| f.tensor.dl_tensor.ndim = 17,
            "17 dimensions, at most 16",
        ),
        (|f| f.tensor.dl_tensor.ndim = i32::MIN, "dimensions"),
        (|f| f.shape = Vec::new(), "2 dimensions without sizes"),
        (|f| f.shape = vec![-2, 3], "negative sizes [-2, 3]"),
        (
            |f| f.shape = vec![i64::MAX, 3],
            "more bytes than can be addressed",
        ),
        (
            |f| f.tensor.dl_tensor.dtype.lanes = 4,
            "type 2 of 32 bits and 4 lanes",
        ),
        (|f| f.tensor.dl_tensor.dtype.lanes = 0, "no scalar type"),
        (
            |f| f.tensor.dl_tensor.dtype.bits = 24,
            "type 2 of 24 bits and 1 lanes",
        ),
        (|f| f.tensor.dl_tensor.dtype.code = 250, "type 250"),
        (
            |f| f.tensor.dl_tensor.data = ptr::null_mut(),
            "24 bytes without an address",
        ),
        (
            |f| f.tensor.dl_tensor.byte_offset = u64::MAX,
            "pass the last address",
        ),
        (
            |f| f.tensor.dl_tensor.device.device_type = DLDeviceType::kDLMetal,
            "no type of device for DLPack's code 8",
        ),
        (
            |f| f.tensor.dl_tensor.device.device_id = -1,
            "no device of type cpu has the number -1",
        ),
    ];
    for (break_it, expected) in cases {
        let mut foreign = Foreign::new();
        break_it(&mut foreign);

        let reason = reason(foreign.refusal());

        assert!(reason.contains(expected), "{reason}, not {expected}");
    }
}

#[test]
fn a_device_that_nothing_serves_is_refused() {
    let mut foreign = Foreign::new();
    foreign.tensor.dl_tensor.device.device_id = 1;
    let error = foreign.refusal();
    assert!(
        matches!(error.kind(), ErrorKind::InvalidDevice { .. }),
        "{error}"
    );

    let mut foreign = Foreign::new();
    foreign.tensor.dl_tensor.device.device_type = DLDeviceType::kDLCUDA;
    let error = foreign.refusal();
    assert_eq!(error.code(), 0x20, "{error}");
}
