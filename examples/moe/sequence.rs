//! A sequence of tokens: what it remembers on the device, and its steps.

use device_memory::graph::{CopyCounts, PlannedGraph, ValueId};
use device_memory::runner::Runner;
use device_memory::weights::Weights;
use device_memory::{
    Block, BlockPool, DeviceAllocatorRegistry, DeviceSpan, Error, ErrorKind, Operation, Placement,
    PlannedMemory, Result, Tag,
};

use crate::device::{Accelerator, Blocks};
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
    /// Where keys and values are.
    pub(crate) pool: &'a BlockPool,
    /// Where all the rest is allocated.
    pub(crate) registry: &'a DeviceAllocatorRegistry,
    /// What computes.
    pub(crate) accelerator: &'a dyn Accelerator,
}

/// A sequence. Its blocks are had before its first step, so that a step allocates
/// nothing and the table of blocks is brought to the device once.
///
/// # Invariants
///
/// 0. The block of the position `len` and those after it are in no other sequence.
pub(crate) struct Sequence {
    memory: PlannedMemory,
    blocks: Vec<Block>,
    /// The positions that are filled.
    len: usize,
}

/// What a step gave.
pub(crate) struct Step {
    /// The token that was chosen.
    pub(crate) next: i64,
    /// The copies that it took.
    pub(crate) copies: CopyCounts,
}

impl Sequence {
    /// An empty sequence.
    pub(crate) fn new(engine: &Engine<'_>) -> Result<Self> {
        let cache = engine.model.cache;
        let blocks = (0..cache.blocks).map(|_| engine.pool.block());
        let mut memory = engine.allocate()?;
        memory.fill(0)?;
        let mut sequence = Self {
            memory,
            blocks: blocks.collect::<Result<_>>()?,
            len: 0,
        };
        sequence.write_table(engine)?;
        Ok(sequence)
    }

    /// A copy that goes on from here by itself. Full blocks are shared and the one
    /// that is filled in part is copied, as is what the layers remember else; nothing
    /// of it passes the host but the new table.
    pub(crate) fn fork(&self, engine: &Engine<'_>) -> Result<Self> {
        let positions = engine.model.cache.positions;
        let (full, partial) = (self.len / positions, self.len % positions);
        let mut blocks = Vec::with_capacity(self.blocks.len());
        for (number, block) in self.blocks.iter().enumerate() {
            if number < full {
                blocks.push(block.fork());
            } else if number == full && partial != 0 {
                let mut copied = block.fork();
                copied.make_mut()?;
                blocks.push(copied);
            } else {
                blocks.push(engine.pool.block()?);
            }
        }
        let mut memory = engine.allocate()?;
        let mut view = memory.view()?;
        for (id, buffer) in (0..).zip(self.memory.buffers()) {
            let whole = Placement::new(id, 0, buffer.size());
            view.span_mut(whole)?.copy_from(buffer.as_span())?;
        }
        let mut fork = Self {
            memory,
            blocks,
            len: self.len,
        };
        fork.write_table(engine)?;
        Ok(fork)
    }

    /// The positions that are filled.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Where its keys and values are.
    pub(crate) fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Sets the token that the next step is given.
    pub(crate) fn set_token(&mut self, engine: &Engine<'_>, token: i64) -> Result<()> {
        self.write(engine, "token", &[token])
    }

    fn write_table(&mut self, engine: &Engine<'_>) -> Result<()> {
        let numbers = self.blocks.iter().map(|block| i64::from(block.index()));
        let table: Vec<i64> = numbers.collect();
        self.write(engine, "table", &table)
    }

    fn write(&mut self, engine: &Engine<'_>, name: &str, values: &[i64]) -> Result<()> {
        let id = engine.value(name)?;
        let mut runner = Runner::new(engine.planned, self.memory.view()?)?;
        runner.write(id, &long_bytes(values))
    }

    /// One step: the token in its place makes the next one, in the same place.
    ///
    /// `logits` gets the logits, which is one copy more, not counted.
    ///
    /// # Errors
    ///
    /// - [`CountMismatch`](ErrorKind::CountMismatch): all positions are filled.
    /// - those of the accelerator.
    pub(crate) fn step(
        &mut self,
        engine: &Engine<'_>,
        logits: Option<&mut Vec<f32>>,
    ) -> Result<Step> {
        let positions = engine.model.cache.positions;
        let current = self.len / positions;
        if current >= self.blocks.len() {
            return Err(Error::from(ErrorKind::CountMismatch {
                what: "positions at most",
                expected: self.blocks.len() * positions,
                found: self.len + 1,
            }));
        }
        let Self { memory, blocks, .. } = self;
        let mut runner = Runner::new(engine.planned, memory.view()?)?;
        for &id in engine.planned.given() {
            if let Some(weight) = engine.planned.graph().value(id) {
                runner.give(id, engine.weights.span(weight.name())?)?;
            }
        }
        runner.run(|call| {
            let kernel = engine.model.kernels.get(call.name());
            let kernel = kernel.ok_or(ErrorKind::NotSupported {
                device: call.device(),
                operation: Operation::Launch,
            })?;
            let (inputs, outputs) = call.arguments();
            let mut reads: Vec<DeviceSpan<'_>> = inputs.iter().map(|input| input.span()).collect();
            let mut writes = Vec::new();
            for output in outputs {
                writes.push(output.span_mut()?);
            }
            let number = |block: &Block| block.index() as usize;
            let mut numbers = Vec::new();
            if kernel.reads_blocks() {
                let filled = blocks.iter().take(current + 1);
                numbers.extend(filled.clone().map(number));
                reads.extend(filled.map(Block::span));
            } else if kernel.writes_block() {
                // Nothing is copied here: the block is in no other sequence.
                let block = &mut blocks[current];
                numbers.push(number(block));
                writes.push(block.make_mut()?);
            }
            let blocks = Blocks {
                pool: engine.pool.ptr(),
                numbers,
            };
            engine
                .accelerator
                .launch(kernel, &reads, &mut writes, &blocks)
        })?;
        self.len += 1;
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

impl Engine<'_> {
    /// The memory of one sequence.
    fn allocate(&self) -> Result<PlannedMemory> {
        let plan = self.planned.memory();
        PlannedMemory::allocate_tagged(plan, self.registry, Tag::ACTIVATIONS)
    }

    fn value(&self, name: &str) -> Result<ValueId> {
        let found = self.planned.graph().find(name);
        found.ok_or_else(|| missing(name))
    }
}

fn missing(what: &str) -> Error {
    let reason = format!("the graph has no {what}");
    Error::from(ErrorKind::InvalidTensor { reason })
}
