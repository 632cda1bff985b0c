//! Tensors of a method, as their users see them.
//!
//! Rank 4. Part of `pte`.
//!
//! Everything was checked when the program was read, so nothing here fails.

use std::ops::Deref;

use crate::device::Device;
use crate::error::Result;
use crate::plan::Placement;
use crate::pte::link::Link;
use crate::pte::record::{Location, Record};
use crate::pte::schema;
use crate::pte::vector::Ints;
use crate::scalar::ScalarType;
use crate::shape::{ShapeDynamism, TensorSpec};

/// A tensor of a method.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    program: &'a [u8],
    record: Record,
}

impl<'a> Tensor<'a> {
    #[inline]
    pub(super) fn new(program: &'a [u8], record: Record) -> Self {
        Self { program, record }
    }

    fn table(&self) -> Option<schema::Tensor<'a>> {
        let link = Link {
            program: self.program,
            position: self.record.position,
        };
        link.follow("val").ok()
    }

    fn extra(&self) -> Option<schema::ExtraTensorInfo<'a>> {
        let link = self.table()?.extra_tensor_info().ok()??;
        link.follow("extra_tensor_info").ok()
    }

    fn ints(&self) -> Ints<'a> {
        let sizes = self.table().and_then(|table| table.sizes().ok()?);
        sizes.unwrap_or_default()
    }

    /// The index among the values of the method.
    #[inline]
    #[must_use]
    pub fn value(&self) -> u32 {
        self.record.value
    }

    /// The type of the elements.
    #[must_use]
    pub fn scalar_type(&self) -> ScalarType {
        self.record.scalar_type
    }

    /// The sizes in elements, one per dimension; a scalar has none.
    #[must_use]
    pub fn sizes(&self) -> impl ExactSizeIterator<Item = usize> + use<'a> {
        let sizes = self.ints();
        sizes.iter().map(|size| usize::try_from(size).unwrap_or(0))
    }

    /// The dimensions from the slowest to the fastest changing in memory.
    #[must_use]
    pub fn dim_order(&self) -> &'a [u8] {
        let order = self.table().and_then(|table| table.dim_order().ok()?);
        order.unwrap_or_default()
    }

    /// The bytes of all elements.
    #[inline]
    #[must_use]
    pub fn nbytes(&self) -> usize {
        self.record.nbytes
    }

    /// Whether the sizes may change.
    #[must_use]
    pub fn shape_dynamism(&self) -> ShapeDynamism {
        self.record.dynamism
    }

    /// The device that the tensor is meant for.
    #[inline]
    #[must_use]
    pub fn device(&self) -> Device {
        self.record.device
    }

    /// The name, which few tensors have.
    #[must_use]
    pub fn name(&self) -> Option<&'a str> {
        self.extra()?.fully_qualified_name().ok()?
    }

    /// The position of the data among the constants, 0 if there is none.
    #[must_use]
    pub fn data_buffer_idx(&self) -> u32 {
        let index = self.table().and_then(|table| table.data_buffer_idx().ok());
        index.unwrap_or(0)
    }

    /// Where the data comes from.
    #[must_use]
    pub fn location(&self) -> Location {
        self.record.location
    }

    /// The description of the tensor without its place.
    ///
    /// # Errors
    ///
    /// None for a tensor of a program that was read: it fails only as
    /// [`TensorSpec::with_dim_order`] does, and all of that was checked.
    pub fn spec(&self) -> Result<TensorSpec> {
        let mut sizes = [0; TensorSpec::MAX_RANK];
        let ints = self.sizes();
        let rank = ints.len();
        for (slot, size) in sizes.iter_mut().zip(ints) {
            *slot = size;
        }
        let sizes = sizes.get(..rank).unwrap_or(&sizes);
        let scalar_type = self.record.scalar_type;
        let spec =
            TensorSpec::with_dim_order(scalar_type, sizes, self.dim_order(), self.record.device)?;
        Ok(spec.with_dynamism(self.record.dynamism))
    }
}

/// A tensor that lies in an arena.
#[derive(Clone, Copy, Debug)]
pub struct PlannedTensor<'a>(Tensor<'a>);

impl<'a> PlannedTensor<'a> {
    #[inline]
    pub(super) fn new(program: &'a [u8], record: Record) -> Self {
        Self(Tensor::new(program, record))
    }

    /// The arena as the file counts it, from 1.
    #[must_use]
    pub fn memory_id(&self) -> u32 {
        self.0.record.buffer.saturating_add(1)
    }

    /// The arena, counted from 0.
    #[inline]
    #[must_use]
    pub fn buffer_index(&self) -> u32 {
        self.0.record.buffer
    }

    /// The first byte in the arena.
    #[inline]
    #[must_use]
    pub fn offset(&self) -> usize {
        self.0.record.offset
    }

    /// The range of the arena.
    #[inline]
    #[must_use]
    pub fn placement(&self) -> Placement {
        let record = &self.0.record;
        Placement::new(record.buffer, record.offset, record.nbytes)
    }
}

impl<'a> Deref for PlannedTensor<'a> {
    type Target = Tensor<'a>;

    fn deref(&self) -> &Tensor<'a> {
        &self.0
    }
}
