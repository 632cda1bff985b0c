//! What reading takes is bounded by a small multiple of the file.

use device_memory::pte::Program;

use crate::heap::peak_of;
use crate::patched::one_method_many_times;
use crate::support::{bytes, json, programs};

/// The most bytes in use while `bytes` are read.
fn peak(bytes: &[u8]) -> usize {
    peak_of(|| drop(Program::parse(bytes)))
}

#[test]
fn reading_a_real_program_takes_less_than_the_program() {
    for name in programs() {
        let bytes = bytes(&format!("{name}.pte"));

        let peak = peak(&bytes);

        assert!(peak < bytes.len(), "{name}: {peak} for {}", bytes.len());
    }
}

#[test]
fn reading_a_malformed_program_takes_a_small_multiple_of_it() {
    let bad = json("bad/INDEX.json");
    let names = bad
        .as_array()
        .unwrap()
        .iter()
        .map(|case| case["name"].as_str().unwrap());
    let bad = names.map(|name| bytes(&format!("bad/{name}.pte")));
    let many = [1, 2, 10, 100, 10_000].map(one_method_many_times);
    for bytes in bad.chain(many) {
        let peak = peak(&bytes);

        assert!(peak < 1024 + 16 * bytes.len(), "{peak} for {}", bytes.len());
    }
}
