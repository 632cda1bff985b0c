//! Record what a program allocates, and look at it.
//!
//! `cargo run --example 08_look_at_memory --features testing -- [FOLDER]`
//!
//! Prints a report, and writes into the folder `memory.html` for a browser,
//! `memory.json` for Perfetto and `memory.pickle` for PyTorch's viewer.

#![expect(clippy::print_stdout, reason = "an example talks to a person")]

#[path = "support/traces.rs"]
mod traces;

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use device_memory::adaptor::{Recorded, Recorder};
use device_memory::testing::FakeDevice;
use device_memory::{DeviceLayout, DeviceMemoryBuffer, DeviceType, Tag};
use traces::Random;

/// A device of 1 GiB that gives freed addresses again, as drivers do.
fn device() -> FakeDevice {
    FakeDevice::builder(DeviceType::Cuda)
        .capacity(1 << 30)
        .reuse_addresses(true)
        .build()
}

fn main() -> Result<(), Box<dyn Error>> {
    let recorder = Recorder::new(100_000);
    let allocator = Arc::new(Recorded::over(device(), &recorder));
    let create = |size: usize, tag: Tag| {
        let layout = DeviceLayout::from_size(size)?.with_tag(tag);
        DeviceMemoryBuffer::create_with(allocator.clone(), layout, 0)
    };

    recorder.start();
    let mut random = Random::new(8);
    let mut weights = Vec::new();
    for _ in 0..12 {
        weights.push(create(16 << 20, Tag::WEIGHTS)?);
    }
    let mut caches = Vec::new();
    for step in 0..240 {
        if step % 8 == 0 {
            caches.push(create(random.between(4, 24) << 20, Tag::KV_CACHE)?);
        }
        if caches.len() > 12 {
            drop(random.take(&mut caches));
        }
        let hidden = create(random.between(8, 40) << 20, Tag::ACTIVATIONS)?;
        let scratch = create(random.between(1, 8) << 20, Tag::SCRATCH)?;
        let out = create(hidden.size() / 2, Tag::ACTIVATIONS)?;
        drop((hidden, scratch, out));
    }
    let too_much = create(900 << 20, Tag::KV_CACHE).unwrap_err();
    println!("{too_much}\n");

    let recording = recorder.recording();
    println!("{}", recording.report(5));
    if let Some(folder) = std::env::args().nth(1) {
        let folder = Path::new(&folder);
        std::fs::write(folder.join("memory.html"), recording.to_html())?;
        std::fs::write(folder.join("memory.json"), recording.to_chrome_trace())?;
        let snapshot = recording.to_pytorch_snapshot(DeviceType::Cuda);
        std::fs::write(folder.join("memory.pickle"), snapshot)?;
    }
    Ok(())
}
