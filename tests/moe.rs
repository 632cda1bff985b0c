//! The mixture of experts of `examples/moe` gives the numbers of its reference.

#![cfg(all(feature = "testing", feature = "safetensors"))]
#![expect(dead_code, reason = "the example uses more of its modules")]

#[path = "../examples/moe/config.rs"]
mod config;
#[path = "../examples/moe/device.rs"]
mod device;
#[path = "../examples/moe/kernel.rs"]
mod kernel;
#[path = "../examples/moe/kernels.rs"]
mod kernels;
#[path = "../examples/moe/model.rs"]
mod model;
#[path = "../examples/moe/sequence.rs"]
mod sequence;
#[path = "../examples/moe/setup.rs"]
mod setup;

use std::path::Path;
use std::sync::Arc;

use device_memory::graph::CopyCounts;
use device_memory::testing::FakeDevice;
use device_memory::{
    Device, DeviceAllocatorRegistry, DeviceLayout, DeviceMemoryBuffer, DeviceType,
};
use serde_json::Value;

use model::Cache;
use sequence::{Engine, Sequence};
use setup::{Crossing, Ready, Stem, load_weights};

const CUDA: Device = Device::new(DeviceType::Cuda, 0);
const CACHE: Cache = Cache {
    positions: 4,
    blocks: 7,
};

fn check(name: &str) {
    let stem = Stem(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/data/moe")
            .join(name),
    );
    let expected: Value =
        serde_json::from_slice(&std::fs::read(stem.file(".expect.json")).unwrap()).unwrap();
    let fake = FakeDevice::new(DeviceType::Cuda, 1);
    let registry = DeviceAllocatorRegistry::new();
    registry.register(Arc::new(fake.clone())).unwrap();
    let ready = Ready::new(&stem.file(".config.json"), CACHE, CUDA, Crossing::TokenOnly).unwrap();
    let weights = load_weights(&stem, CUDA, &registry).unwrap();
    let engine = Engine {
        model: &ready.model,
        planned: &ready.planned,
        weights: &weights,
        accelerator: &fake,
    };
    let layout = DeviceLayout::array::<f32>(7 * CACHE.block_len(&ready.config)).unwrap();
    let mut pool = DeviceMemoryBuffer::create_in(&registry, layout, CUDA).unwrap();
    let mut sequence = Sequence::new(&engine, &[6, 5, 4, 3, 2, 1, 0], &registry).unwrap();
    println!("{:?} arenas {:?}", ready.sizes(), ready.planned.arenas());

    let mut logits = Vec::new();
    let mut next = 0;
    for (token, expected) in expected["prompt"]
        .as_array()
        .unwrap()
        .iter()
        .zip(expected["prompt_logits"].as_array().unwrap())
    {
        sequence
            .set_token(&engine, token.as_i64().unwrap())
            .unwrap();
        next = sequence
            .step(&engine, &mut pool, Some(&mut logits))
            .unwrap()
            .next;
        close(&logits, expected);
    }
    for (greedy, expected) in expected["greedy"]
        .as_array()
        .unwrap()
        .iter()
        .zip(expected["step_logits"].as_array().unwrap())
    {
        close(&logits, expected);
        assert_eq!(next, greedy.as_i64().unwrap());
        let step = sequence
            .step(&engine, &mut pool, Some(&mut logits))
            .unwrap();
        let once = CopyCounts {
            device_to_host: 1,
            ..CopyCounts::default()
        };
        assert_eq!(step.copies, once);
        next = step.next;
    }
}

fn close(logits: &[f32], expected: &Value) {
    for (found, expected) in logits.iter().zip(expected.as_array().unwrap()) {
        let expected = expected.as_f64().unwrap() as f32;
        assert!((found - expected).abs() <= 2e-4, "{found} {expected}");
    }
}

#[test]
fn the_plain_model_gives_the_tokens_and_logits_of_its_reference() {
    check("qwen3_moe_tiny");
}

#[test]
fn the_hybrid_model_gives_the_tokens_and_logits_of_its_reference() {
    check("qwen3_5_moe_tiny");
}
