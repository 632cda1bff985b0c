//! The generated traces are what their descriptions say, on every platform.
#![cfg(target_pointer_width = "64")]

#[path = "../examples/support/traces.rs"]
mod traces;

use std::collections::BTreeSet;

use traces::{NAMES, Random, SEED, Step, Trace};

/// A sum over all bytes of the log, which any change of the trace changes.
fn fingerprint(trace: &Trace) -> u64 {
    trace
        .to_string()
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
}

#[test]
fn a_seed_gives_the_same_trace_on_every_platform() {
    let found = NAMES.map(|name| {
        let trace = Trace::named(name, SEED).unwrap();
        let counts = (trace.steps().len(), trace.blocks(), trace.peak_bytes());
        (name, counts, format!("{:#018x}", fingerprint(&trace)))
    });

    assert_eq!(
        found
            .each_ref()
            .map(|(name, counts, print)| (*name, *counts, print.as_str())),
        [
            (
                "llm_serving",
                (144_566, 72_283, 20_677_468_160),
                "0x8e5b881e8a6139de"
            ),
            (
                "cnn_inference",
                (101_334, 50_667, 644_341_408),
                "0xd5837af18fa9029c"
            ),
            (
                "fragmentation",
                (165_350, 82_675, 1_073_740_577),
                "0xa82972465bd436ce"
            ),
        ]
    );
}

#[test]
fn another_seed_gives_another_trace() {
    for name in NAMES {
        let one = Trace::named(name, SEED).unwrap();
        let other = Trace::named(name, SEED + 1).unwrap();

        assert_ne!(one.steps(), other.steps(), "{name}");
    }
}

#[test]
fn every_block_is_freed_once_and_after_its_allocation() {
    for name in NAMES {
        let trace = Trace::named(name, SEED).unwrap();

        let mut allocated = 0;
        let mut live = BTreeSet::new();
        for step in trace.steps() {
            match *step {
                Step::Allocate { size, .. } => {
                    assert_ne!(size, 0, "{name}");
                    live.insert(allocated);
                    allocated += 1;
                }
                Step::Free { block } => assert!(live.remove(&block), "{name}: {block}"),
            }
        }
        assert_eq!(live.len(), 0, "{name}");
        assert_eq!(allocated, trace.blocks(), "{name}");
        assert_eq!(trace.live_bytes(), 0, "{name}");
    }
}

#[test]
fn the_random_numbers_are_those_of_splitmix64() {
    let mut random = Random::new(1_234_567);

    assert_eq!(
        [random.any(), random.any(), random.any()],
        [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423
        ]
    );
}
