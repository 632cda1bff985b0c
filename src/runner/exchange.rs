//! What goes into a graph and comes out of it, between runs.
//!
//! Rank 9. Part of `runner`.

use crate::device::Device;
use crate::error::{ErrorKind, Result};
use crate::graph::{Place, Role, ValueId};
use crate::runner::memory::{Move, overlap};
use crate::runner::{Runner, access};
use crate::span::{DeviceSpan, DeviceSpanMut};

impl<'m> Runner<'m> {
    /// Gives an input or a constant that is not planned its bytes, to read.
    ///
    /// They stay given until others are.
    ///
    /// # Errors
    ///
    /// - [`Access`](crate::GraphFault::Access): its memory is planned, or is to be written.
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
    /// - [`Access`](crate::GraphFault::Access): it is neither, or has no memory.
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
    /// - [`Access`](crate::GraphFault::Access): it is neither, or has no memory.
    pub fn input_mut(&mut self, id: ValueId) -> Result<DeviceSpanMut<'_>> {
        let place = self.entry(id)?;
        let size = self.value(id)?.spec().size_in_bytes();
        // Whatever can be refused is, before the input counts as there.
        self.memory.exclusive(place, size)?;
        self.frame.set(id, None);
        self.entered(id, place);
        self.memory.exclusive(place, size)
    }

    /// The bytes of an output of the last run, or of a mutable buffer, where they
    /// are.
    ///
    /// # Errors
    ///
    /// - [`Access`](crate::GraphFault::Access): it is neither, or its bytes are gone.
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
    /// - [`Access`](crate::GraphFault::Access): one is no output, or no input.
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
