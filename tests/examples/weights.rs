//! The examples of weights and of blocks: what they print, and with which exit code.

use std::fs;

use device_memory::weights::WeightsHeader;
use sha2::{Digest, Sha256};

use crate::{devices_of_the_driver, run};

const MODEL: &str = "tests/data/moe/qwen3_moe_tiny.safetensors";

/// The hash of what follows the header, in hexadecimal.
fn hash_of_data(bytes: &[u8]) -> String {
    let length: [u8; 8] = bytes[..8].try_into().unwrap();
    let begin = 8 + usize::try_from(u64::from_le_bytes(length)).unwrap();
    let digest = Sha256::digest(&bytes[begin..]);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn nested_cargo_weights_are_read_back_as_the_file_has_them() {
    let bytes = fs::read(MODEL).unwrap();
    let tensors = WeightsHeader::parse(&bytes).unwrap().0.tensors().len();
    let hash = hash_of_data(&bytes);
    let simulated = match devices_of_the_driver() {
        0 => " (simulated)",
        _ => "",
    };
    for (flags, memory) in [
        (&[][..], "cpu:0  1 buffers, ".to_owned()),
        (&["--separate"], format!("cpu:0  {tensors} buffers, ")),
        (
            &["--device", "cuda:0"],
            format!("cuda:0{simulated}  1 buffers, "),
        ),
    ] {
        let output = run("load_weights", &[&[MODEL], flags].concat());

        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{flags:?}: {:?}", output.stderr);
        assert!(text.contains(&memory), "{flags:?}: {text}");
        let hashes: Vec<_> = text
            .lines()
            .filter_map(|line| line.strip_prefix("sha256  "))
            .filter_map(|line| line.split_whitespace().next())
            .collect();
        assert_eq!(hashes, [&hash, &hash], "{flags:?}");
    }
}

#[test]
fn nested_cargo_a_file_that_is_no_whole_model_is_one_line_of_error() {
    let bytes = fs::read(MODEL).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("part.safetensors");
    for length in [0, 7, 100, bytes.len() - 1] {
        fs::write(&path, &bytes[..length]).unwrap();

        let output = run("load_weights", &[path.to_str().unwrap()]);

        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{length}: {stderr}");
        assert!(stderr.starts_with("error: "), "{length}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{length}: {stderr}");
        assert!(output.stdout.is_empty(), "{length}");
    }
}

#[test]
fn nested_cargo_blocks_of_keys_and_values_are_shared_until_one_is_written() {
    let output = run("kv_cache", &[]);

    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{:?}", output.stderr);
    assert_eq!(
        text,
        "prompt: blocks [0, 1, 2]\nanswer: blocks [0, 1, 3]\n4 of 8 blocks free\n"
    );
}
