//! A model, ready on a fake device.

use std::path::Path;
use std::sync::Arc;

use device_memory::testing::FakeDevice;
use device_memory::weights::Weights;
use device_memory::{BlockPool, Device, DeviceAllocatorRegistry, DeviceType};

use crate::device::Accelerator;
use crate::model::Cache;
use crate::reference::Reference;
use crate::sequence::Engine;
use crate::setup::{Crossing, Ready, Stem, load_weights};

/// Both models: one with attention only, and one with the delta rule and a shared
/// expert too.
pub(crate) const MODELS: [&str; 2] = ["qwen3_moe_tiny", "qwen3_5_moe_tiny"];

/// As many positions as prompt and steps of the references have.
pub(crate) const CACHE: Cache = Cache {
    positions: 4,
    blocks: 7,
};

const CUDA: Device = Device::new(DeviceType::Cuda, 0);

pub(crate) struct Rig {
    pub(crate) fake: FakeDevice,
    pub(crate) ready: Ready,
    pub(crate) reference: Reference,
    pub(crate) pool: BlockPool,
    weights: Weights,
    registry: DeviceAllocatorRegistry,
}

impl Rig {
    /// The model `name`, with blocks for so many sequences.
    pub(crate) fn new(name: &str, sequences: usize, cache: Cache, crossing: Crossing) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/moe");
        let stem = Stem(folder.join(name));
        let fake = FakeDevice::new(DeviceType::Cuda, 1);
        let registry = DeviceAllocatorRegistry::new();
        registry.register(Arc::new(fake.clone())).unwrap();
        let ready = Ready::new(&stem.file(".config.json"), cache, CUDA, crossing).unwrap();
        Self {
            reference: Reference::read(&stem.file(".expect.json")).unwrap(),
            weights: load_weights(&stem, CUDA, &registry).unwrap(),
            pool: ready.pool(sequences, CUDA, &registry).unwrap(),
            fake,
            ready,
            registry,
        }
    }

    /// What sequences are made from, with kernels in plain Rust.
    pub(crate) fn engine(&self) -> Engine<'_> {
        self.engine_on(&self.fake)
    }

    /// The same with other kernels.
    pub(crate) fn engine_on<'a>(&'a self, accelerator: &'a dyn Accelerator) -> Engine<'a> {
        Engine {
            model: &self.ready.model,
            planned: &self.ready.planned,
            weights: &self.weights,
            pool: &self.pool,
            registry: &self.registry,
            accelerator,
        }
    }

    /// Frees everything, and checks that nothing is left and nothing was done wrong.
    pub(crate) fn end(self) {
        assert_eq!(self.pool.free_blocks(), self.pool.blocks());
        let Self {
            fake,
            pool,
            weights,
            registry,
            ..
        } = self;
        drop((pool, weights, registry));
        assert_eq!(fake.live_blocks(), 0);
        fake.assert_clean();
    }
}
