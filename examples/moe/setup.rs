//! From a model's files to what runs: graph, plan, weights.

use std::path::{Path, PathBuf};

use device_memory::graph::{
    MethodOptions, PlannedGraph, PlanningOptions, PropagateOptions, Skip, propagate,
};
use device_memory::weights::{Weights, WeightsLoader};
use device_memory::{Device, DeviceAllocatorRegistry, Result};

use crate::config::Config;
use crate::model::{Cache, Model};

/// The names of a model's files begin with this.
pub(crate) struct Stem(pub PathBuf);

impl Stem {
    /// The file of this kind.
    pub(crate) fn file(&self, kind: &str) -> PathBuf {
        let mut name = self.0.clone().into_os_string();
        name.push(kind);
        name.into()
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

/// A model that is ready to run.
pub(crate) struct Ready {
    pub(crate) config: Config,
    pub(crate) model: Model,
    pub(crate) planned: PlannedGraph,
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
        })
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
