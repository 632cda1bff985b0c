//! Weights on a device.
//!
//! Rank 9. Part of `weights`.

use crate::error::{InvalidWeights, Result};
use crate::plan::{MemoryPlan, Placement};
use crate::planned::PlannedMemory;
use crate::span::DeviceSpan;
use crate::tensor::TensorView;
use crate::weights::header::{WeightTensor, WeightsHeader};

/// All tensors of a file in memory that this owns, to read.
///
/// Shared between threads as it is; addresses stay the same until it is dropped.
#[derive(Debug)]
pub struct Weights {
    header: WeightsHeader,
    plan: MemoryPlan,
    memory: PlannedMemory,
}

impl Weights {
    pub(super) fn new(header: WeightsHeader, plan: MemoryPlan, memory: PlannedMemory) -> Self {
        Self {
            header,
            plan,
            memory,
        }
    }

    /// What the file says of its tensors.
    #[must_use]
    pub fn header(&self) -> &WeightsHeader {
        &self.header
    }

    /// Where the tensors lie, in the order of [`WeightsHeader::tensors`].
    #[must_use]
    pub fn plan(&self) -> &MemoryPlan {
        &self.plan
    }

    /// The memory.
    #[must_use]
    pub fn memory(&self) -> &PlannedMemory {
        &self.memory
    }

    /// A tensor, by name.
    ///
    /// # Errors
    ///
    /// - [`InvalidWeights`](crate::ErrorKind::InvalidWeights): there is no such
    ///   tensor, or the type of its elements has no [`ScalarType`](crate::ScalarType).
    /// - [`InvalidTensor`](crate::ErrorKind::InvalidTensor): it has more dimensions
    ///   than a [`TensorSpec`](crate::TensorSpec) can have.
    pub fn view(&self, name: &str) -> Result<TensorView<'_>> {
        let (tensor, placement) = self.find(name)?;
        let span = self.at(placement)?;
        TensorView::bind(tensor.spec(span.device())?, span)
    }

    /// The bytes of a tensor, by name, whatever its type.
    ///
    /// # Errors
    ///
    /// - [`InvalidWeights`](crate::ErrorKind::InvalidWeights): there is no such tensor.
    pub fn span(&self, name: &str) -> Result<DeviceSpan<'_>> {
        self.at(self.find(name)?.1)
    }

    fn find(&self, name: &str) -> Result<(&WeightTensor, Placement), InvalidWeights> {
        let found = self.header.position(name).and_then(|position| {
            let placement = self.plan.placements().get(position)?;
            Some((self.header.tensors().get(position)?, *placement))
        });
        found.ok_or_else(|| InvalidWeights::NoSuchTensor {
            name: name.to_owned(),
        })
    }

    fn at(&self, placement: Placement) -> Result<DeviceSpan<'_>> {
        let buffers = self.memory.buffers();
        let buffer = placement.check(buffers.len(), |id| {
            let buffer = buffers.get(id)?;
            Some((buffer, buffer.size()))
        })?;
        buffer.as_span().subspan(placement.offset, placement.size)
    }
}
