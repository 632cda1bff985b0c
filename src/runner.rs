//! Running a planned graph, node by node.
//!
//! Rank 9. Imports `graph`, `hierarchical`, `plan`, `shape`, `span` and the words.
//!
//! Copies, views, branches and loops are done here. Kernels and delegates are the
//! caller's: each is called with views of what it reads and writes, on the device
//! where they are. Nothing is allocated on a device, and a step counts the copies
//! that it makes.

mod call;
mod frame;
mod memory;
mod step;

use std::fmt;

use crate::device::Device;
use crate::error::{Error, ErrorKind, GraphFault, Result};
use crate::graph::{CopyCounts, Graph, Place, PlannedGraph, Role, Value, ValueId};
use crate::hierarchical::HierarchicalAllocator;
use crate::shape::TensorSpec;
use crate::span::{DeviceSpan, DeviceSpanMut};

pub use call::{Argument, ArgumentMut, Call};

use frame::Frame;
use memory::{Memory, Move, overlap};

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
    /// - [`CountMismatch`](ErrorKind::CountMismatch): there are fewer buffers than
    ///   planned.
    /// - [`DeviceMismatch`](ErrorKind::DeviceMismatch) or
    ///   [`LengthMismatch`](ErrorKind::LengthMismatch): a buffer is on another device
    ///   than planned, or smaller, as [`AtIndex`](ErrorKind::AtIndex).
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

    /// Gives an input or a constant that is not planned its bytes, to read.
    ///
    /// They stay given until others are.
    ///
    /// # Errors
    ///
    /// - [`Access`](GraphFault::Access): its memory is planned, or is to be written.
    /// - [`DeviceMismatch`](ErrorKind::DeviceMismatch) or
    ///   [`LengthMismatch`](ErrorKind::LengthMismatch): the bytes are on another device
    ///   or fewer.
    pub fn give(&mut self, id: ValueId, bytes: DeviceSpan<'m>) -> Result<()> {
        let root = self.given_root(id, bytes.device(), bytes.len())?;
        let value = self.value(root)?;
        if !matches!(value.role(), Role::Input | Role::Constant) {
            return Err(access(value, "it is written and was given to be read"));
        }
        self.memory.give(root, bytes);
        self.set_ready(root);
        Ok(())
    }

    /// Gives a value that is not planned its memory, to read and write: an output,
    /// a mutable buffer, an input.
    ///
    /// The memory of an output that lies in another value is that value's.
    ///
    /// # Errors
    ///
    /// As [`give`](Self::give).
    pub fn give_mut(&mut self, id: ValueId, bytes: DeviceSpanMut<'m>) -> Result<()> {
        let root = self.given_root(id, bytes.device(), bytes.len())?;
        self.memory.give_mut(root, bytes);
        self.set_ready(root);
        Ok(())
    }

    /// Copies the bytes of an input or a mutable buffer from the host, to whatever
    /// device it is on, in its planned sizes.
    ///
    /// # Errors
    ///
    /// - [`Access`](GraphFault::Access): it is neither, or has no memory.
    /// - [`LengthMismatch`](ErrorKind::LengthMismatch): `bytes` is not as long.
    /// - what its allocator returns.
    pub fn write(&mut self, id: ValueId, bytes: &[u8]) -> Result<()> {
        let sizes = self.value(id)?.spec().sizes();
        self.write_sized(id, sizes, bytes)
    }

    /// [`write`](Self::write) in other sizes than planned, as the tensor allows.
    ///
    /// # Errors
    ///
    /// As there, and [`InvalidTensor`](ErrorKind::InvalidTensor) if it does not.
    pub fn write_sized(&mut self, id: ValueId, sizes: &[usize], bytes: &[u8]) -> Result<()> {
        let place = self.entry(id)?;
        let spec = self.value(id)?.spec().resized(sizes)?;
        let mut span = self.memory.exclusive(place, spec.size_in_bytes())?;
        span.copy_from_host(bytes)?;
        let device = span.device();
        self.memory.count(Device::CPU, device, bytes.len());
        self.frame.set(id, Some(spec));
        self.entered(id, place);
        Ok(())
    }

    /// The memory of an input or a mutable buffer, in its planned sizes, to fill
    /// where it is.
    ///
    /// # Errors
    ///
    /// - [`Access`](GraphFault::Access): it is neither, or has no memory.
    pub fn input_mut(&mut self, id: ValueId) -> Result<DeviceSpanMut<'_>> {
        let place = self.entry(id)?;
        self.frame.set(id, None);
        self.entered(id, place);
        let size = self.value(id)?.spec().size_in_bytes();
        self.memory.exclusive(place, size)
    }

    /// The bytes of an output of the last run, or of a mutable buffer, where they
    /// are.
    ///
    /// # Errors
    ///
    /// - [`Access`](GraphFault::Access): it is neither, or its bytes are gone.
    pub fn output(&self, id: ValueId) -> Result<DeviceSpan<'_>> {
        let place = self.exit(id)?;
        let spec = self.frame.spec(self.planned.graph(), id)?;
        self.memory.shared(place, spec.size_in_bytes())
    }

    /// The bytes of an output of the last run, or of a mutable buffer, copied to the
    /// host.
    ///
    /// # Errors
    ///
    /// As [`output`](Self::output), and as [`DeviceSpan::to_vec`].
    pub fn read(&mut self, id: ValueId) -> Result<Vec<u8>> {
        let span = self.output(id)?;
        let (bytes, device) = (span.to_vec()?, span.device());
        self.memory.count(device, Device::CPU, bytes.len());
        Ok(bytes)
    }

    /// [`read`](Self::read) into memory that is there already.
    ///
    /// # Errors
    ///
    /// As [`output`](Self::output), and as [`DeviceSpan::copy_to_host`].
    pub fn read_into(&mut self, id: ValueId, bytes: &mut [u8]) -> Result<()> {
        let span = self.output(id)?;
        span.copy_to_host(bytes)?;
        let device = span.device();
        self.memory.count(device, Device::CPU, bytes.len());
        Ok(())
    }

    /// Makes outputs of the last run inputs of the next one, each from the first of
    /// a pair to the second, all at once.
    ///
    /// What is on one device stays there. Only where the memory of an output and of
    /// another pair's input overlap do bytes go through the host.
    ///
    /// # Errors
    ///
    /// - [`Access`](GraphFault::Access): one is no output, or no input.
    /// - [`InvalidTensor`](ErrorKind::InvalidTensor): two differ in type, order or sizes.
    /// - [`Overlap`](ErrorKind::Overlap): an input is named twice.
    pub fn feed(&mut self, pairs: &[(ValueId, ValueId)]) -> Result<()> {
        let mut moves = Vec::with_capacity(pairs.len());
        for &(output, input) in pairs {
            moves.push(Move {
                from: self.exit(output)?,
                from_spec: self.spec(output)?.clone(),
                to: self.entry(input)?,
                to_spec: self.value(input)?.spec().clone(),
            });
        }
        let specs = self.memory.copy_all(&moves)?;
        for ((&(_, input), step), spec) in pairs.iter().zip(&moves).zip(specs) {
            self.frame.set(input, Some(spec));
            self.entered(input, step.to);
        }
        Ok(())
    }

    /// Runs all nodes in order, `each` for every kernel and delegate.
    ///
    /// An error of one ends the run. Mutable buffers may have been written to by
    /// then; outputs can not be read, and inputs are to be given again.
    ///
    /// # Errors
    ///
    /// - [`Access`](GraphFault::Access): an input was not given for this run, or a
    ///   value that is not planned has no memory.
    /// - [`AtIndex`](ErrorKind::AtIndex): a node failed; for a copy with
    ///   [`InvalidTensor`](ErrorKind::InvalidTensor) if the two differ in type or
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

    /// The place of a value that the caller writes.
    fn entry(&self, id: ValueId) -> Result<Place> {
        let value = self.value(id)?;
        match (value.role(), self.planned.place(id)) {
            (Role::Input | Role::MutableBuffer, Some(place)) => Ok(place),
            _ => Err(access(value, "it is neither an input nor a mutable buffer")),
        }
    }

    /// The place of a value that the caller reads.
    fn exit(&self, id: ValueId) -> Result<Place> {
        let value = self.value(id)?;
        let done = self.done.get(id.index()).copied().unwrap_or(false);
        match self.planned.place(id) {
            Some(place) if done || value.role() == Role::MutableBuffer => Ok(place),
            _ if self.planned.graph().outputs().contains(&id) => {
                Err(access(value, "it has no bytes of a finished run"))
            }
            _ => Err(access(
                value,
                "it is neither an output nor a mutable buffer",
            )),
        }
    }

    /// Marks an input as given, and the outputs that this overwrites as gone.
    fn entered(&mut self, id: ValueId, place: Place) {
        self.set_ready(id);
        for &output in self.planned.graph().outputs() {
            let other = self.planned.place(output);
            if other.is_some_and(|other| overlap(place, other))
                && let Some(done) = self.done.get_mut(output.index())
            {
                *done = false;
            }
        }
    }

    fn set_ready(&mut self, id: ValueId) {
        self.set(id, true);
    }

    fn set(&mut self, id: ValueId, ready: bool) {
        if let Some(slot) = self.ready.get_mut(id.index()) {
            *slot = ready;
        }
    }

    /// The value whose memory is given where `id`'s is, once the memory is checked.
    fn given_root(&self, id: ValueId, device: Device, len: usize) -> Result<ValueId> {
        let value = self.value(id)?;
        let Some(Place::Given { value: root, .. }) = self.planned.place(id) else {
            return Err(access(value, "its memory is planned"));
        };
        let expected = self.planned.device_of_memory(self.value(root)?);
        if device != expected {
            return Err(ErrorKind::DeviceMismatch {
                expected,
                found: device,
            }
            .into());
        }
        if let Some(Place::Given {
            size: Some(size), ..
        }) = self.planned.place(root)
            && len < size
        {
            return Err(ErrorKind::LengthMismatch {
                device,
                expected: size,
                found: len,
            }
            .into());
        }
        Ok(root)
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
