//! From a model's files to what runs: graph, plan, weights.

use std::path::{Path, PathBuf};

use device_memory::graph::{
    CopyCounts, MethodOptions, Op, PlannedGraph, PlanningOptions, PropagateOptions, Skip, propagate,
};
use device_memory::weights::{Weights, WeightsLoader};
use device_memory::{
    BlockPool, Device, DeviceAllocatorRegistry, DeviceLayout, DeviceMemoryBuffer, Result, Tag,
};

use crate::config::Config;
use crate::model::{Cache, Model};

/// The names of a model's files begin with this.
pub(crate) struct Stem(pub(crate) PathBuf);

impl Stem {
    /// The file of this kind.
    pub(crate) fn file(&self, kind: &str) -> PathBuf {
        let mut name = self.0.clone().into_os_string();
        name.push(kind);
        name.into()
    }

    /// The model's name.
    pub(crate) fn name(&self) -> String {
        let name = self.0.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }
}

/// Whether values cross to the host between steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crossing {
    /// Only the token that was chosen.
    TokenOnly,
    /// Everything that a step is given or leaves: the host is in the loop.
    All,
}

/// The copies of a step of which only the token crosses, and its bytes to a device and
/// from it.
const TOKEN_ONLY: (CopyCounts, (usize, usize)) = (
    CopyCounts {
        host_to_device: 0,
        device_to_host: 1,
        device_to_device: 0,
        host_to_host: 0,
    },
    (0, size_of::<i64>()),
);

/// A model that is ready to run.
pub(crate) struct Ready {
    pub(crate) config: Config,
    pub(crate) model: Model,
    pub(crate) planned: PlannedGraph,
    pub(crate) crossing: Crossing,
}

impl Ready {
    /// Reads the config, builds the graph of the decode step, puts its values on
    /// their devices and places them.
    pub(crate) fn new(
        config: &Path,
        cache: Cache,
        device: Device,
        crossing: Crossing,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let config = Config::read(config)?;
        let model = Model::new(&config, cache, device)?;
        let options = match crossing {
            Crossing::TokenOnly => MethodOptions {
                resident_buffers: Skip::All,
                resident_outputs: Skip::only(["lm_head"]),
                ..MethodOptions::default()
            },
            Crossing::All => MethodOptions::default(),
        };
        let graph = propagate(&model.graph, &PropagateOptions::all(options))?;
        let planned = PlannedGraph::new(graph, &PlanningOptions::default())?;
        Ok(Self {
            config,
            model,
            planned,
            crossing,
        })
    }

    /// A pool with the blocks of so many sequences.
    pub(crate) fn pool(
        &self,
        sequences: usize,
        device: Device,
        registry: &DeviceAllocatorRegistry,
    ) -> Result<BlockPool> {
        let cache = self.model.cache;
        let block = DeviceLayout::array::<f32>(cache.block_len(&self.config))?;
        let count = sequences * cache.blocks;
        let all = DeviceLayout::array::<f32>(count * cache.block_len(&self.config))?;
        let all = all.with_tag(Tag::KV_CACHE);
        let buffer = DeviceMemoryBuffer::create_in(registry, all, device)?;
        BlockPool::new(buffer, block.size())
    }

    /// The bytes that the copies of one step bring to a device, and from it.
    pub(crate) fn copied_bytes(&self) -> (usize, usize) {
        let graph = self.planned.graph();
        let (mut to, mut from) = (0, 0);
        for node in graph.nodes() {
            if matches!(node.op(), Op::Copy) {
                for value in node.outputs().iter().filter_map(|&id| graph.value(id)) {
                    let size = value.spec().size_in_bytes();
                    if value.spec().device() == Device::CPU {
                        from += size;
                    } else {
                        to += size;
                    }
                }
            }
        }
        (to, from)
    }

    /// Checks that each of these steps made the copies that the graph has, and that they
    /// are one of 8 bytes to the host where only the token may cross. Returns the copies
    /// of a step.
    pub(crate) fn check_copies(&self, steps: &[CopyCounts]) -> Result<CopyCounts, String> {
        let copies = self.planned.graph().count_copies();
        let bytes = self.copied_bytes();
        if self.crossing == Crossing::TokenOnly && (copies, bytes) != TOKEN_ONLY {
            return Err(format!(
                "more than a token crosses: {copies:?}, {bytes:?} bytes"
            ));
        }
        match steps.iter().position(|step| *step != copies) {
            None => Ok(copies),
            Some(number) => Err(format!(
                "copies of step {number}: {:?}, planned {copies:?}",
                steps[number]
            )),
        }
    }

    /// The bytes of the plan, and those of all its values without any sharing.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        let buffers = self.planned.memory().buffers().iter();
        let values = self.planned.request().values().iter();
        (
            buffers.map(|buffer| buffer.size).sum(),
            values.map(|value| value.size).sum(),
        )
    }
}

/// Loads the weights of a model to `device`.
pub(crate) fn load_weights(
    stem: &Stem,
    device: Device,
    registry: &DeviceAllocatorRegistry,
) -> Result<Weights> {
    WeightsLoader::new(registry).load_file(stem.file(".safetensors"), device)
}
