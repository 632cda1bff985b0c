//! Running a planned graph, node by node.
//!
//! Rank 9. Imports `graph`, `hierarchical`, `plan`, `shape`, `span` and the words.
//!
//! Copies, views, branches and loops are done here. Kernels and delegates are the
//! caller's: each is called with views of what it reads and writes, on the device
//! where they are. Nothing is allocated on a device, and a step counts the copies
//! that it makes.

mod call;
mod exchange;
mod frame;
mod memory;
mod step;

use std::fmt;

use crate::error::{Error, GraphFault, Result};
use crate::graph::{CopyCounts, Graph, Place, PlannedGraph, Value, ValueId};
use crate::hierarchical::HierarchicalAllocator;
use crate::shape::TensorSpec;

pub use call::{Argument, ArgumentMut, Call};

use frame::Frame;
use memory::Memory;

/// Runs one planned graph in its memory, as often as one likes.
///
/// A step is: give every input its bytes, [`run`](Self::run), read the outputs.
/// Mutable buffers keep theirs from step to step. Inputs and outputs that are
/// resident on a device never pass the host: [`input_mut`](Self::input_mut),
/// [`output`](Self::output) and [`feed`](Self::feed) reach them there.
///
/// Inputs are to be given before each run, since their memory is used for other
/// values once they are not needed any more. For the same reason, giving an input
/// may end an output of the last run; reading that is an error then.
///
/// # Examples
///
/// ```
/// use device_memory::graph::{GraphBuilder, PlannedGraph, PlanningOptions};
/// use device_memory::runner::Runner;
/// use device_memory::{
///     Device, DeviceAllocatorRegistry, Error, PlannedMemory, ScalarType, TensorSpec,
/// };
///
/// let spec = TensorSpec::contiguous(ScalarType::Byte, &[4], Device::CPU)?;
/// let mut builder = GraphBuilder::new("forward");
/// let a = builder.input("a", spec.clone());
/// let [b] = builder.kernel("double", &[a], [spec.into()]);
/// let planned = PlannedGraph::new(builder.finish(&[b])?, &PlanningOptions::default())?;
///
/// let registry = DeviceAllocatorRegistry::global();
/// let mut memory = PlannedMemory::allocate(planned.memory(), registry)?;
/// let mut runner = Runner::new(&planned, memory.view()?)?;
/// runner.write(a, &[1, 2, 3, 4])?;
/// runner.run(|call| -> Result<(), Error> {
///     let (inputs, outputs) = call.arguments();
///     let doubled = outputs[0].as_slice_mut()?;
///     for (to, from) in doubled.iter_mut().zip(inputs[0].as_slice()?) {
///         *to = from * 2;
///     }
///     Ok(())
/// })?;
///
/// assert_eq!(runner.read(b)?, [2, 4, 6, 8]);
/// # Ok::<(), Error>(())
/// ```
pub struct Runner<'m> {
    planned: &'m PlannedGraph,
    memory: Memory<'m>,
    frame: Frame,
    /// For each value, whether it is an input that has its bytes for the next run.
    ready: Vec<bool>,
    /// For each value, whether it is an output that has its bytes since the last run.
    done: Vec<bool>,
}

impl<'m> Runner<'m> {
    /// Runs `planned` in buffers of its plan.
    ///
    /// # Errors
    ///
    /// - [`CountMismatch`](crate::ErrorKind::CountMismatch): there are fewer buffers
    ///   than planned.
    /// - [`AtIndex`](crate::ErrorKind::AtIndex): a buffer is on another device than
    ///   planned, or smaller.
    pub fn new(planned: &'m PlannedGraph, memory: HierarchicalAllocator<'m>) -> Result<Self> {
        let count = planned.graph().values().len();
        Ok(Self {
            memory: Memory::new(planned, memory)?,
            frame: Frame::new(planned.graph()),
            ready: vec![false; count],
            done: vec![false; count],
            planned,
        })
    }

    /// The graph.
    #[must_use]
    pub fn planned(&self) -> &'m PlannedGraph {
        self.planned
    }

    /// The copies made so far: those of nodes, and those of [`write`](Self::write),
    /// [`read`](Self::read) and [`feed`](Self::feed). Copies of no bytes do not
    /// count.
    #[must_use]
    pub fn copies(&self) -> CopyCounts {
        self.memory.copies
    }

    /// The copies made so far, which are counted from 0 again.
    pub fn take_copies(&mut self) -> CopyCounts {
        std::mem::take(&mut self.memory.copies)
    }

    /// What a value looks like now; its sizes may be below the planned ones.
    ///
    /// # Errors
    ///
    /// - [`UnknownValue`](GraphFault::UnknownValue): the graph has no such value.
    pub fn spec(&self, id: ValueId) -> Result<&TensorSpec> {
        self.value(id)?;
        self.frame.spec(self.planned.graph(), id)
    }

    /// Runs all nodes in order, `each` for every kernel and delegate.
    /// A loop ends when its condition says so, and not before.
    ///
    /// An error of one ends the run. Mutable buffers may have been written to by
    /// then; outputs can not be read, and inputs are to be given again.
    ///
    /// # Errors
    ///
    /// - [`Access`](GraphFault::Access): an input was not given for this run, or a
    ///   value that is not planned has no memory.
    /// - [`AtIndex`](crate::ErrorKind::AtIndex): a node failed, of a graph inside
    ///   another one by its position there; for a copy with
    ///   [`InvalidTensor`](crate::ErrorKind::InvalidTensor) if the two differ in type or
    ///   order, or if there are more bytes than planned.
    /// - what `each` returns.
    pub fn run<E: From<Error>>(
        &mut self,
        mut each: impl FnMut(&mut Call<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.check_ready()?;
        let graph = self.planned.graph();
        self.done.fill(false);
        for &input in graph.inputs() {
            if matches!(self.planned.place(input), Some(Place::Planned(_))) {
                self.set(input, false);
            }
        }
        let scope = self.planned.scope();
        step::run(&mut self.memory, graph, scope, &mut self.frame, &mut each)?;
        for &output in graph.outputs() {
            if let Some(done) = self.done.get_mut(output.index()) {
                *done = true;
            }
        }
        Ok(())
    }

    fn check_ready(&self) -> Result<()> {
        let graph = self.planned.graph();
        for &id in graph.inputs() {
            if !self.ready.get(id.index()).copied().unwrap_or(false) {
                return Err(access(self.value(id)?, "it was not given for this run"));
            }
        }
        for &id in self.planned.given() {
            if !self.memory.has(id) {
                return Err(access(
                    self.value(id)?,
                    "its memory is not planned and was not given",
                ));
            }
        }
        Ok(())
    }

    fn value(&self, id: ValueId) -> Result<&'m Value> {
        value_of(self.planned.graph(), id)
    }

    fn set_ready(&mut self, id: ValueId) {
        self.set(id, true);
    }

    fn set(&mut self, id: ValueId, ready: bool) {
        if let Some(slot) = self.ready.get_mut(id.index()) {
            *slot = ready;
        }
    }
}

impl fmt::Debug for Runner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner")
            .field("graph", &self.planned.graph().name())
            .field("copies", &self.memory.copies)
            .finish_non_exhaustive()
    }
}

fn value_of(graph: &Graph, id: ValueId) -> Result<&Value> {
    graph.value(id).ok_or_else(|| {
        GraphFault::UnknownValue {
            user: "the caller".to_owned(),
            value: id.number(),
            count: graph.values().len(),
        }
        .into()
    })
}

#[cold]
fn access(value: &Value, reason: &str) -> Error {
    GraphFault::Access {
        value: value.name().to_owned(),
        reason: reason.to_owned(),
    }
    .into()
}
