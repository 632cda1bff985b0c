//! What a kernel or a delegate is called with.
//!
//! Rank 9. Part of `runner`.

use crate::device::Device;
use crate::error::Result;
use crate::graph::Node;
use crate::shape::TensorSpec;
use crate::span::{DeviceSpan, DeviceSpanMut};

/// A kernel or a delegate that is to be run now.
#[derive(Debug)]
pub struct Call<'c> {
    pub(super) index: usize,
    pub(super) node: &'c Node,
    pub(super) inputs: Vec<Argument<'c>>,
    pub(super) outputs: Vec<ArgumentMut<'c>>,
}

/// A tensor that a call reads.
#[derive(Clone, Copy, Debug)]
pub struct Argument<'c> {
    pub(super) name: &'c str,
    pub(super) spec: &'c TensorSpec,
    pub(super) span: DeviceSpan<'c>,
}

/// A tensor that a call makes. One that is written in place of another starts with
/// the other's bytes, and others with unspecified ones.
#[derive(Debug)]
pub struct ArgumentMut<'c> {
    pub(super) name: &'c str,
    pub(super) planned: &'c TensorSpec,
    pub(super) found: Option<TensorSpec>,
    pub(super) span: DeviceSpanMut<'c>,
}

impl<'c> Call<'c> {
    /// The position of the node in its graph.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// The node.
    #[must_use]
    pub fn node(&self) -> &'c Node {
        self.node
    }

    /// The name of the node, as that of an operator.
    #[must_use]
    pub fn name(&self) -> &'c str {
        self.node.name()
    }

    /// The device that the node is meant to run on.
    #[must_use]
    pub fn device(&self) -> Device {
        self.node.op().device().unwrap_or(Device::CPU)
    }

    /// What it reads and what it makes, in the order of the node.
    #[must_use]
    pub fn arguments(&mut self) -> (&[Argument<'c>], &mut [ArgumentMut<'c>]) {
        (&self.inputs, &mut self.outputs)
    }
}

impl<'c> Argument<'c> {
    /// The name of the value.
    #[must_use]
    pub fn name(&self) -> &'c str {
        self.name
    }

    /// What it looks like, in its sizes of now.
    #[must_use]
    pub fn spec(&self) -> &'c TensorSpec {
        self.spec
    }

    /// The bytes, where they are.
    #[must_use]
    pub fn span(&self) -> DeviceSpan<'c> {
        self.span
    }

    /// The bytes as a slice, where the host can read them.
    ///
    /// # Errors
    ///
    /// As [`DeviceSpan::as_slice`].
    pub fn as_slice(&self) -> Result<&'c [u8]> {
        self.span.as_slice()
    }
}

impl ArgumentMut<'_> {
    /// The name of the value.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name
    }

    /// What it looks like, in the sizes that it has so far.
    #[must_use]
    pub fn spec(&self) -> &TensorSpec {
        self.found.as_ref().unwrap_or(self.planned)
    }

    /// Gives it other sizes than planned.
    ///
    /// # Errors
    ///
    /// - [`InvalidTensor`](crate::ErrorKind::InvalidTensor): the tensor does not allow
    ///   them; it is as it was.
    /// - [`OutOfBounds`](crate::ErrorKind::OutOfBounds): a tensor without bounds passes
    ///   the end of the memory that was given for it; it is as it was.
    pub fn resize(&mut self, sizes: &[usize]) -> Result<()> {
        let found = self.planned.resized(sizes)?;
        self.span.as_span().subspan(0, found.size_in_bytes())?;
        self.found = Some(found);
        Ok(())
    }

    /// The bytes, where they are, in the sizes that it has so far.
    ///
    /// # Errors
    ///
    /// - [`OutOfBounds`](crate::ErrorKind::OutOfBounds): a tensor without bounds passes
    ///   the end of the memory that was given for it, and was not resized.
    pub fn span_mut(&mut self) -> Result<DeviceSpanMut<'_>> {
        let size = self.spec().size_in_bytes();
        self.span.subspan_mut(0, size)
    }

    /// The bytes as a slice, where the host can write them.
    ///
    /// # Errors
    ///
    /// As [`span_mut`](Self::span_mut) and [`DeviceSpanMut::into_slice_mut`].
    pub fn as_slice_mut(&mut self) -> Result<&mut [u8]> {
        self.span_mut()?.into_slice_mut()
    }
}
