//! The device that a delegate's settings name.

use device_memory::Device;
use device_memory::graph::{parse_target_device, target_device};

use crate::support::{CUDA_0, CUDA_1, spec};

#[test]
fn a_target_is_a_type_and_perhaps_an_index() {
    assert_eq!(parse_target_device("cuda:0"), Ok(CUDA_0));
    assert_eq!(parse_target_device("cuda:1"), Ok(CUDA_1));
    assert_eq!(parse_target_device("cuda"), Ok(CUDA_0));
    assert_eq!(parse_target_device("cpu"), Ok(Device::CPU));
}

#[test]
fn space_and_the_case_of_letters_do_not_matter() {
    assert_eq!(parse_target_device(" CUDA:1 "), Ok(CUDA_1));
    assert_eq!(parse_target_device("Cpu\n"), Ok(Device::CPU));
}

#[test]
fn what_is_no_device_is_refused_with_its_text() {
    for text in ["", "mps:0", "cuda:", "cuda:0:1", "cuda:x", "cuda: 1"] {
        assert!(parse_target_device(text).is_err(), "{text:?}");
    }
    assert_eq!(
        parse_target_device("MPS:0").unwrap_err().to_string(),
        "unknown device type \"mps\": expected cpu, cuda, cuda_host, cuda_managed or customN (N up to 255)"
    );
}

#[test]
fn there_is_no_index_below_0_and_none_that_can_not_be_written() {
    // The original takes -1 for "the current device", and fails at 999 only when
    // the program is written.
    for text in ["cuda:-1", "cuda:65536"] {
        assert!(parse_target_device(text).is_err(), "{text:?}");
    }
    assert_eq!(parse_target_device("cuda:999").unwrap().index(), 999);
}

#[test]
fn the_first_setting_of_that_name_counts() {
    let settings = [
        ("max_value", &b"4"[..]),
        ("target_device", b"cuda:1"),
        ("target_device", b"cuda:0"),
    ];

    assert_eq!(target_device(settings), Ok(Some(CUDA_1)));
    assert_eq!(target_device([("max_value", &b"4"[..])]), Ok(None));
    assert_eq!(target_device([]), Ok(None));
    assert!(target_device([("target_device", &b"\xff"[..])]).is_err());
}

#[test]
fn a_tensor_shows_its_device() {
    let shown = format!("{:?}", spec().with_device(CUDA_1));

    assert!(shown.contains("cuda:1"), "{shown}");
}
