//! Files that are not what they should be. None of them gets anything allocated.

use std::io::{self, Read};

use device_memory::weights::{WeightsHeader, WeightsLoader};
use device_memory::{Device, Error, ErrorKind, InvalidWeights};

use crate::support::{GPU, SMALL, file, load, rig};

/// Why a file is refused, as the loader and as a file on disk.
#[track_caller]
fn refusal(bytes: &[u8]) -> InvalidWeights {
    let (fake, registry) = rig();
    let path = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(path.path(), bytes).unwrap();

    let error = load(&registry, bytes, GPU).unwrap_err();
    let loader = WeightsLoader::new(&registry);
    let of_file = loader.load_file(path.path(), GPU).unwrap_err();

    assert_eq!(fake.calls().len(), 0, "{error}");
    assert_eq!(error.code(), 0x24);
    assert_eq!(error.to_string(), of_file.to_string());
    match error.into_kind() {
        ErrorKind::InvalidWeights(reason) => reason,
        other => panic!("{other}"),
    }
}

/// Why a file with this header and so much data is refused.
#[track_caller]
fn refusal_of(json: &str, data: usize) -> InvalidWeights {
    refusal(&file(json, data))
}

/// The text of a header that is none.
#[track_caller]
fn text(json: &str, data: usize) -> String {
    let refusal = refusal_of(json, data);
    assert!(
        matches!(refusal, InvalidWeights::Header { .. }),
        "{refusal}"
    );
    refusal.to_string()
}

#[test]
fn an_empty_file_lacks_the_length_of_its_header() {
    assert_eq!(
        refusal(&[]).to_string(),
        "invalid weights: 8 bytes needed, the file ends after 0"
    );
    assert_eq!(
        refusal(&[1; 7]),
        InvalidWeights::Truncated {
            needed: 8,
            found: 7
        }
    );
}

#[test]
fn a_header_longer_than_the_file_is_truncated() {
    let mut bytes = file(SMALL, 0);
    bytes.truncate(8 + 40);

    assert_eq!(
        refusal(&bytes),
        InvalidWeights::Truncated {
            needed: 8 + SMALL.len() as u64,
            found: 48
        }
    );
}

#[test]
fn a_header_longer_than_any_may_be_is_refused_unread() {
    for length in [100_000_001, 1 << 63, u64::MAX] {
        let mut bytes = file(SMALL, 17);
        bytes[..8].copy_from_slice(&length.to_le_bytes());

        let refusal = refusal(&bytes);

        assert_eq!(
            refusal.to_string(),
            format!("invalid weights: header of {length} bytes, at most 100000000 are allowed")
        );
    }
}

#[test]
fn a_header_that_is_no_map_is_refused_with_the_place() {
    for json in [
        "",
        "[]",
        "null",
        "{",
        "{} {}",
        "{\"a\":1}",
        "\u{0}",
        "{\"a\":{}}",
    ] {
        text(json, 0);
    }
    let mut deep = String::from("{\"a\":");
    deep.push_str(&"[".repeat(100_000));
    text(&deep, 0);
    let mut not_utf8 = file("{\"a\":{}}", 0);
    not_utf8[10] = 0xFF;
    refusal(&not_utf8);

    assert_eq!(
        text("{\"a\":1}", 0),
        "invalid weights: header: invalid type: integer `1`, expected struct TensorInfo \
         at line 1 column 6"
    );
}

#[test]
fn an_unknown_type_is_refused_by_name() {
    let text = text(
        r#"{"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}}"#,
        4,
    );

    assert!(text.contains("unknown variant `F33`"), "{text}");
}

#[test]
fn numbers_that_are_no_sizes_are_refused() {
    for (shape, offsets) in [
        ("[1]", "[-4,0]"),
        ("[-1]", "[0,4]"),
        ("[1.5]", "[0,4]"),
        ("[18446744073709551616]", "[0,4]"),
        ("[1]", "[0,1e3]"),
        ("[1]", "[0]"),
        ("[1]", "[0,4,8]"),
        ("1", "[0,4]"),
    ] {
        text(
            &format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#),
            4,
        );
    }
}

#[test]
fn a_name_that_is_there_twice_is_refused() {
    let entry = r#"{"dtype":"U8","shape":[2],"data_offsets":[0,2]}"#;
    let empty = r#"{"dtype":"U8","shape":[0],"data_offsets":[2,2]}"#;
    let duplicate = InvalidWeights::DuplicateName {
        name: String::from("a"),
    };

    let json = format!(r#"{{"a":{entry},"b":{empty},"\u0061":{empty}}}"#);
    assert_eq!(refusal_of(&json, 2), duplicate);
    assert_eq!(
        duplicate.to_string(),
        "invalid weights: tensor \"a\" is there twice"
    );
    // With the same bytes they overlap, which is found first.
    let json = format!(r#"{{"a":{entry},"a":{entry}}}"#);
    assert!(matches!(
        refusal_of(&json, 2),
        InvalidWeights::Offsets { .. }
    ));
    text(r#"{"__metadata__":{},"__metadata__":{}}"#, 0);
    text(r#"{"__metadata__":{"a":1}}"#, 0);
}

#[test]
fn tensors_that_overlap_are_refused_with_the_numbers() {
    let json = r#"{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},
                   "b":{"dtype":"U8","shape":[8],"data_offsets":[4,12]}}"#;

    let refusal = refusal_of(json, 12);

    assert_eq!(
        refusal.to_string(),
        "invalid weights: tensor \"b\" has bytes 4 to 12, due from 8"
    );
}

#[test]
fn bytes_of_no_tensor_and_bytes_that_end_before_they_begin_are_refused() {
    for (offsets, due) in [((1, 5), 0), ((4, 0), 0)] {
        let (begin, end) = offsets;
        let json =
            format!(r#"{{"a":{{"dtype":"U8","shape":[4],"data_offsets":[{begin},{end}]}}}}"#);

        assert_eq!(
            refusal_of(&json, 5),
            InvalidWeights::Offsets {
                name: String::from("a"),
                begin,
                end,
                due
            }
        );
    }
}

#[test]
fn a_size_that_is_not_that_of_type_and_shape_is_refused() {
    let json = r#"{"a":{"dtype":"F16","shape":[3,2],"data_offsets":[0,13]}}"#;

    assert_eq!(
        refusal_of(json, 13).to_string(),
        "invalid weights: tensor \"a\" has 13 bytes, F16 of [3, 2] takes 12"
    );
}

#[test]
fn sizes_that_overflow_are_refused() {
    for shape in [
        "[9223372036854775808]",
        "[9223372036854775808,2]",
        "[4294967296,4294967296,4294967296]",
        "[18446744073709551615,18446744073709551615]",
    ] {
        let json = format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":[0,4]}}}}"#);

        let refusal = refusal_of(&json, 4);

        assert!(
            matches!(refusal, InvalidWeights::Uncountable { .. }),
            "{refusal}"
        );
    }
}

#[test]
fn bits_that_fill_no_whole_bytes_are_refused() {
    let json = r#"{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}"#;

    assert_eq!(
        refusal_of(json, 2).to_string(),
        "invalid weights: tensor \"a\", F4 of [3], takes no countable bytes"
    );
}

#[test]
fn data_that_ends_early_or_goes_on_is_refused_before_anything_is_allocated() {
    let size = file(SMALL, 17).len() as u64;

    assert_eq!(
        refusal_of(SMALL, 16),
        InvalidWeights::Truncated {
            needed: size,
            found: size - 1
        }
    );
    assert_eq!(refusal_of(SMALL, 20), InvalidWeights::Trailing { extra: 3 });
    assert_eq!(
        refusal_of(SMALL, 20).to_string(),
        "invalid weights: 3 bytes after the last tensor"
    );
}

#[test]
fn more_than_a_spec_can_describe_is_still_loaded_as_bytes() {
    let ones = "1,".repeat(20);
    let json = format!(
        r#"{{"a":{{"dtype":"U8","shape":[{}],"data_offsets":[0,1]}}}}"#,
        ones.trim_end_matches(',')
    );
    let (_, registry) = rig();

    let weights = load(&registry, &file(&json, 1), GPU).unwrap();

    assert_eq!(weights.span("a").unwrap().to_vec().unwrap(), [0]);
    let error = weights.view("a").unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::InvalidTensor { .. }),
        "{error}"
    );
}

/// A reader that breaks after its bytes.
struct Broken<'a>(&'a [u8]);

impl Read for Broken<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.0.read(into)? {
            0 => Err(io::Error::other("disk on fire")),
            len => Ok(len),
        }
    }
}

#[test]
fn an_error_of_the_reader_is_kept() {
    let bytes = file(SMALL, 17);
    let (fake, registry) = rig();
    let in_header = WeightsHeader::read(Broken(&bytes[..30])).unwrap_err();
    let mut rest = Broken(&bytes[..bytes.len() - 4]);
    let header = WeightsHeader::read(&mut rest).unwrap();
    let plan = header.arena(GPU, 64).unwrap();

    let in_data = WeightsLoader::new(&registry)
        .load(header, plan, rest)
        .unwrap_err();

    assert_eq!(
        in_header.to_string(),
        "host access on cpu:0 failed: disk on fire"
    );
    assert_eq!(
        in_data.to_string(),
        "copy from host to device on cuda:0 failed: disk on fire"
    );
    assert_eq!((fake.allocations(), fake.live_blocks()), (1, 0));
}

#[test]
fn a_source_that_ends_within_the_data_is_truncated() {
    let bytes = file(SMALL, 17);
    for device in [GPU, Device::CPU] {
        let (fake, registry) = rig();
        let mut rest = &bytes[..bytes.len() - 4];
        let header = WeightsHeader::read(&mut rest).unwrap();
        let plan = header.arena(device, 64).unwrap();

        let error: Error = WeightsLoader::new(&registry)
            .load(header, plan, rest)
            .unwrap_err();

        assert_eq!(
            error.to_string(),
            format!(
                "invalid weights: {} bytes needed, the file ends after {}",
                bytes.len(),
                bytes.len() - 4
            )
        );
        assert_eq!(fake.live_blocks(), 0);
    }
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let (_, registry) = rig();

    let error = WeightsLoader::new(&registry)
        .load_file("no/such/file.safetensors", GPU)
        .unwrap_err();

    let text = error.to_string();
    assert!(
        text.starts_with("open on cpu:0 failed: no/such/file.safetensors: "),
        "{text}"
    );
}
