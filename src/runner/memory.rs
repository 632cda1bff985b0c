//! The memory that a graph runs in: what is planned, and what is given.
//!
//! Rank 9. Part of `runner`.

use std::collections::HashMap;

use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::graph::{CopyCounts, Place, PlannedGraph, ValueId};
use crate::hierarchical::HierarchicalAllocator;
use crate::plan::Placement;
use crate::runner::{access, value_of};
use crate::shape::TensorSpec;
use crate::span::{DeviceSpan, DeviceSpanMut};

/// The buffers of a plan, and memory of others.
#[derive(Debug)]
pub(super) struct Memory<'m> {
    planned: &'m PlannedGraph,
    /// The buffers of the plan, then what was given to be written.
    buffers: HierarchicalAllocator<'m>,
    given: HashMap<ValueId, Given<'m>>,
    pub(super) copies: CopyCounts,
}

/// Memory for a value that is not planned.
#[derive(Clone, Copy, Debug)]
enum Given<'m> {
    ToRead(DeviceSpan<'m>),
    /// A buffer, and its length.
    ToWrite(u32, usize),
}

/// Where a place is found.
#[derive(Clone, Copy)]
enum Found<'m> {
    InBuffer(Placement),
    Elsewhere(DeviceSpan<'m>),
}

/// A tensor that is to be where another one is.
#[derive(Debug)]
pub(super) struct Move {
    pub(super) from: Place,
    pub(super) from_spec: TensorSpec,
    pub(super) to: Place,
    pub(super) to_spec: TensorSpec,
}

/// Whether two places share a byte.
pub(super) fn overlap(a: Place, b: Place) -> bool {
    let (a, b) = match (a, b) {
        (Place::Planned(a), Place::Planned(b)) if a.memory_id == b.memory_id => {
            ((a.offset, Some(a.size)), (b.offset, Some(b.size)))
        }
        (
            Place::Given {
                value: a,
                offset: a_offset,
                size: a_size,
            },
            Place::Given {
                value: b,
                offset: b_offset,
                size: b_size,
            },
        ) if a == b => ((a_offset, a_size), (b_offset, b_size)),
        _ => return false,
    };
    let end = |(offset, size): (usize, Option<usize>)| {
        size.map_or(usize::MAX, |size| offset.saturating_add(size))
    };
    a.0.max(b.0) < end(a).min(end(b))
}

impl<'m> Memory<'m> {
    pub(super) fn new(
        planned: &'m PlannedGraph,
        buffers: HierarchicalAllocator<'m>,
    ) -> Result<Self> {
        let expected = planned.memory().buffers();
        if buffers.len() < expected.len() {
            return Err(ErrorKind::CountMismatch {
                what: "planned buffers",
                expected: expected.len(),
                found: buffers.len(),
            }
            .into());
        }
        for (index, (buffer, device)) in expected.iter().zip(buffers.devices()).enumerate() {
            let memory_id = u32::try_from(index).unwrap_or(u32::MAX);
            let found = if device == buffer.device {
                buffers
                    .span(Placement::new(memory_id, 0, buffer.size))
                    .map(drop)
            } else {
                Err(Error::from(ErrorKind::DeviceMismatch {
                    expected: buffer.device,
                    found: device,
                }))
            };
            found.map_err(|error| error.at("planned buffer", index))?;
        }
        Ok(Self {
            planned,
            buffers,
            given: HashMap::new(),
            copies: CopyCounts::default(),
        })
    }

    pub(super) fn give(&mut self, id: ValueId, bytes: DeviceSpan<'m>) {
        self.given.insert(id, Given::ToRead(bytes));
    }

    pub(super) fn give_mut(&mut self, id: ValueId, bytes: DeviceSpanMut<'m>) {
        let len = bytes.len();
        let before = match self.given.get(&id) {
            Some(&Given::ToWrite(buffer, _)) => Some(buffer),
            _ => None,
        };
        let buffer = self.buffers.put(before, bytes);
        self.given.insert(id, Given::ToWrite(buffer, len));
    }

    pub(super) fn has(&self, id: ValueId) -> bool {
        self.given.contains_key(&id)
    }

    /// Counts a copy of `size` bytes.
    pub(super) fn count(&mut self, from: Device, to: Device, size: usize) {
        if size > 0 {
            self.copies.add(from, to);
        }
    }

    fn find(&self, place: Place) -> Result<Found<'m>> {
        let (value, offset, size) = match place {
            Place::Planned(placement) => return Ok(Found::InBuffer(placement)),
            Place::Given {
                value,
                offset,
                size,
            } => (value, offset, size),
        };
        let rest = |len: usize| size.unwrap_or(len.saturating_sub(offset));
        match self.given.get(&value) {
            Some(&Given::ToRead(span)) => {
                let part = span.subspan(offset, rest(span.len()))?;
                Ok(Found::Elsewhere(part))
            }
            Some(&Given::ToWrite(buffer, len)) => {
                Ok(Found::InBuffer(Placement::new(buffer, offset, rest(len))))
            }
            None => {
                let value = value_of(self.planned.graph(), value)?;
                Err(access(value, "its memory is not planned and was not given"))
            }
        }
    }

    fn find_to_write(&self, place: Place) -> Result<Placement> {
        match (self.find(place)?, place) {
            (Found::InBuffer(placement), _) => Ok(placement),
            (Found::Elsewhere(_), Place::Given { value, .. }) => {
                let value = value_of(self.planned.graph(), value)?;
                Err(access(value, "it is written and was given to be read"))
            }
            (Found::Elsewhere(span), Place::Planned(_)) => Err(ErrorKind::NotHostAccessible {
                device: span.device(),
            }
            .into()),
        }
    }

    /// The first `size` bytes of a place.
    pub(super) fn shared(&self, place: Place, size: usize) -> Result<DeviceSpan<'_>> {
        let span = match self.find(place)? {
            Found::InBuffer(placement) => self.buffers.span(placement)?,
            Found::Elsewhere(span) => span,
        };
        span.subspan(0, size)
    }

    /// The first `size` bytes of a place, to write.
    pub(super) fn exclusive(&mut self, place: Place, size: usize) -> Result<DeviceSpanMut<'_>> {
        let placement = self.find_to_write(place)?;
        self.buffers.span_mut(placement)?.into_subspan(0, size)
    }

    /// The bytes of some places to read and of others to write, at once.
    pub(super) fn split(
        &mut self,
        to_read: &[Place],
        to_write: &[Place],
    ) -> Result<(Vec<DeviceSpan<'_>>, Vec<DeviceSpanMut<'_>>)> {
        let found = to_read.iter().map(|&place| self.find(place));
        let found = found.collect::<Result<Vec<_>>>()?;
        let to_write = to_write.iter().map(|&place| self.find_to_write(place));
        let to_write = to_write.collect::<Result<Vec<_>>>()?;
        let in_buffers = found.iter().filter_map(|found| match *found {
            Found::InBuffer(placement) => Some(placement),
            Found::Elsewhere(_) => None,
        });
        let in_buffers: Vec<Placement> = in_buffers.collect();
        let (shared, exclusive) = self.buffers.split_mut(&in_buffers, &to_write)?;
        let mut shared = shared.into_iter();
        let all = found.into_iter().filter_map(|found| match found {
            Found::InBuffer(_) => shared.next(),
            Found::Elsewhere(span) => Some(span),
        });
        Ok((all.collect(), exclusive))
    }

    /// Copies one tensor, and returns what the other looks like then.
    pub(super) fn copy(&mut self, step: &Move) -> Result<TensorSpec> {
        let spec = check_move(step)?;
        let (from, to) = self.split(&[step.from], &[step.to])?;
        let size = spec.size_in_bytes();
        if let (Some(from), Some(to)) = (from.into_iter().next(), to.into_iter().next()) {
            let (from, to) = (from.subspan(0, size)?, to.into_subspan(0, size)?);
            let devices = (from.device(), to.device());
            transfer(from, to)?;
            self.count(devices.0, devices.1, size);
        }
        Ok(spec)
    }

    /// Copies several tensors as if at the same time, and returns what the others
    /// look like then. What is where it is to be already is not copied.
    pub(super) fn copy_all(&mut self, moves: &[Move]) -> Result<Vec<TensorSpec>> {
        for (index, step) in moves.iter().enumerate() {
            let mut earlier = moves.iter().take(index);
            if let Some(first) = earlier.position(|other| overlap(other.to, step.to)) {
                return Err(ErrorKind::Overlap {
                    first,
                    second: index,
                }
                .into());
            }
        }
        let mut specs = Vec::with_capacity(moves.len());
        // What others are about to overwrite goes by way of the host.
        let mut staged = Vec::new();
        for step in moves {
            let spec = check_move(step)?;
            let overwritten = moves.iter().any(|other| overlap(step.from, other.to));
            staged.push(if step.from != step.to && overwritten {
                let span = self.shared(step.from, spec.size_in_bytes())?;
                let (bytes, device) = (span.to_vec()?, span.device());
                self.count(device, Device::CPU, bytes.len());
                Some(bytes)
            } else {
                None
            });
            specs.push(spec);
        }
        for (step, staged) in moves.iter().zip(&staged) {
            if step.from != step.to && staged.is_none() {
                self.copy(step)?;
            }
        }
        for (step, bytes) in moves.iter().zip(staged) {
            if let Some(bytes) = bytes {
                let mut span = self.exclusive(step.to, bytes.len())?;
                span.copy_from_host(&bytes)?;
                let device = span.device();
                self.count(Device::CPU, device, bytes.len());
            }
        }
        Ok(specs)
    }
}

/// What the destination of a copy looks like after it.
fn check_move(step: &Move) -> Result<TensorSpec> {
    let (from, to) = (&step.from_spec, &step.to_spec);
    if from.scalar_type() != to.scalar_type() || from.dim_order() != to.dim_order() {
        return Err(ErrorKind::InvalidTensor {
            reason: format!(
                "source {} and destination {} differ in type or dim order",
                from.summary(),
                to.summary()
            ),
        }
        .into());
    }
    to.resized(from.sizes())
}

/// Copies bytes in one call of an allocator, where one side is the host's.
fn transfer(from: DeviceSpan<'_>, mut to: DeviceSpanMut<'_>) -> Result<()> {
    if from.device().is_cpu()
        && let Ok(bytes) = from.as_slice()
    {
        return to.copy_from_host(bytes);
    }
    if to.device().is_cpu()
        && let Ok(bytes) = to.as_slice_mut()
    {
        return from.copy_to_host(bytes);
    }
    to.copy_from(from)
}
