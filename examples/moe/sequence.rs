//! A sequence of tokens: what it remembers on the device, and its steps.

use device_memory::graph::{CopyCounts, PlannedGraph, ValueId};
use device_memory::runner::Runner;
use device_memory::weights::Weights;
use device_memory::{
    DeviceAllocatorRegistry, DeviceMemoryBuffer, Error, ErrorKind, PlannedMemory, Result, Tag,
};

use crate::device::Accelerator;
use crate::kernel::{floats, long_bytes, longs};
use crate::model::Model;

/// What all sequences of a model share.
pub(crate) struct Engine<'a> {
    /// The decode step.
    pub(crate) model: &'a Model,
    /// The same with its copies, placed.
    pub(crate) planned: &'a PlannedGraph,
    /// The weights on the device.
    pub(crate) weights: &'a Weights,
    /// What computes.
    pub(crate) accelerator: &'a dyn Accelerator,
}

/// A sequence.
pub(crate) struct Sequence {
    memory: PlannedMemory,
}

/// What a step gave.
pub(crate) struct Step {
    /// The token that was chosen.
    pub(crate) next: i64,
    /// The copies that it took.
    pub(crate) copies: CopyCounts,
}

impl Sequence {
    /// An empty sequence that keeps its keys and values in the blocks `table`.
    pub(crate) fn new(
        engine: &Engine<'_>,
        table: &[i64],
        registry: &DeviceAllocatorRegistry,
    ) -> Result<Self> {
        let plan = engine.planned.memory();
        let mut memory = PlannedMemory::allocate_tagged(plan, registry, Tag::ACTIVATIONS)?;
        memory.fill(0)?;
        let mut sequence = Self { memory };
        sequence.write(engine, "table", table)?;
        Ok(sequence)
    }

    /// A copy that goes on from here by itself, with other blocks. Nothing of it
    /// passes the host but the table.
    pub(crate) fn fork(
        &self,
        engine: &Engine<'_>,
        table: &[i64],
        registry: &DeviceAllocatorRegistry,
    ) -> Result<Self> {
        let plan = engine.planned.memory();
        let mut memory = PlannedMemory::allocate_tagged(plan, registry, Tag::ACTIVATIONS)?;
        let mut view = memory.view()?;
        for (id, buffer) in (0..).zip(self.memory.buffers()) {
            let placement = device_memory::Placement::new(id, 0, buffer.size());
            view.span_mut(placement)?.copy_from(buffer.as_span())?;
        }
        let mut fork = Self { memory };
        fork.write(engine, "table", table)?;
        Ok(fork)
    }

    /// Sets the token that the next step is given.
    pub(crate) fn set_token(&mut self, engine: &Engine<'_>, token: i64) -> Result<()> {
        self.write(engine, "token", &[token])
    }

    fn write(&mut self, engine: &Engine<'_>, name: &str, values: &[i64]) -> Result<()> {
        let id = value(engine, name)?;
        let mut runner = Runner::new(engine.planned, self.memory.view()?)?;
        runner.write(id, &long_bytes(values))
    }

    /// One step: the token in its place makes the next one, in the same place.
    ///
    /// `logits` gets the logits, which is one copy more, not counted.
    pub(crate) fn step(
        &mut self,
        engine: &Engine<'_>,
        pool: &mut DeviceMemoryBuffer,
        logits: Option<&mut Vec<f32>>,
    ) -> Result<Step> {
        let mut runner = Runner::new(engine.planned, self.memory.view()?)?;
        for &id in engine.planned.given() {
            if let Some(weight) = engine.planned.graph().value(id) {
                runner.give(id, engine.weights.span(weight.name())?)?;
            }
        }
        runner.run(|call| {
            let kernel = engine.model.kernels.get(call.name());
            let kernel = kernel.ok_or(ErrorKind::NotSupported {
                device: call.device(),
                operation: device_memory::Operation::Launch,
            })?;
            let (inputs, outputs) = call.arguments();
            let mut reads: Vec<_> = inputs.iter().map(|input| input.span()).collect();
            let mut writes = Vec::new();
            for output in outputs {
                writes.push(output.span_mut()?);
            }
            if kernel.reads_pool() {
                reads.push(pool.as_span());
            } else if kernel.writes_pool() {
                writes.push(pool.as_span_mut());
            }
            engine.accelerator.launch(kernel, &reads, &mut writes)
        })?;
        let &[next, all] = engine.planned.graph().outputs() else {
            return Err(missing("outputs"));
        };
        // The copy to the host is the graph's; here the host looks at its own memory.
        let token = longs(runner.output(next)?.as_slice()?)[0];
        let copies = runner.take_copies();
        if let Some(logits) = logits {
            *logits = floats(&runner.read(all)?);
        }
        Ok(Step {
            next: token,
            copies,
        })
    }
}

fn value(engine: &Engine<'_>, name: &str) -> Result<ValueId> {
    let found = engine.planned.graph().find(name);
    found.ok_or_else(|| missing(name))
}

fn missing(what: &str) -> Error {
    let reason = format!("the graph has no {what}");
    Error::from(ErrorKind::InvalidTensor { reason })
}
