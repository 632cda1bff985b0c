//! A tensor's description bound to a place.
//!
//! Rank 7. Imports `buffer`, `span`, `registry`, `shape` and the words.
//!
//! The place decides where the bytes are; the description says where they were
//! meant to be. The two must agree. Programs that were planned without devices
//! have tensors meant for a device in host memory; those are bound by name.

use crate::buffer::DeviceMemoryBuffer;
use crate::device::Device;
use crate::error::{ErrorKind, Result};
use crate::layout::DeviceLayout;
use crate::registry::DeviceAllocatorRegistry;
use crate::shape::TensorSpec;
use crate::span::{DeviceSpan, DeviceSpanMut};

/// A tensor in memory that someone else owns, to read.
#[derive(Clone, Debug)]
pub struct TensorView<'a> {
    spec: TensorSpec,
    span: DeviceSpan<'a>,
}

/// A tensor in memory that someone else owns, to read and write.
#[derive(Debug)]
pub struct TensorViewMut<'a> {
    spec: TensorSpec,
    span: DeviceSpanMut<'a>,
}

/// A tensor that owns its memory.
///
/// # Examples
///
/// ```
/// use device_memory::{Device, DeviceTensor, ScalarType, TensorSpec};
///
/// let spec = TensorSpec::contiguous(ScalarType::Float, &[2, 2], Device::CPU)?;
/// let tensor = DeviceTensor::from_host(spec, &[0; 16])?;
/// let copy = tensor.to_device(Device::CPU)?;
///
/// assert_eq!(copy.to_vec()?, [0; 16]);
/// assert_eq!(copy.spec().strides(), [2, 1]);
/// # Ok::<(), device_memory::Error>(())
/// ```
#[derive(Debug)]
pub struct DeviceTensor {
    spec: TensorSpec,
    buffer: DeviceMemoryBuffer,
}

impl<'a> TensorView<'a> {
    /// Binds a description to the first bytes of a place.
    ///
    /// # Errors
    ///
    /// - [`DeviceMismatch`](ErrorKind::DeviceMismatch): the place is on another device
    ///   than the tensor is meant for.
    /// - [`OutOfBounds`](ErrorKind::OutOfBounds): the place is too small.
    pub fn bind(spec: TensorSpec, span: DeviceSpan<'a>) -> Result<Self> {
        check_device(&spec, span.device())?;
        Self::at(spec, span)
    }

    /// Binds a description to host memory, whatever device the tensor is meant
    /// for: programs that were planned without devices want that.
    ///
    /// # Errors
    ///
    /// - [`DeviceMismatch`](ErrorKind::DeviceMismatch): the place is not on `cpu:0`.
    /// - [`OutOfBounds`](ErrorKind::OutOfBounds): the place is too small.
    pub fn bind_in_host_memory(spec: TensorSpec, span: DeviceSpan<'a>) -> Result<Self> {
        check_host(span.device())?;
        Self::at(spec, span)
    }

    fn at(spec: TensorSpec, span: DeviceSpan<'a>) -> Result<Self> {
        let span = span.subspan(0, spec.size_in_bytes())?;
        Ok(Self { spec, span })
    }

    /// The description.
    #[must_use]
    pub fn spec(&self) -> &TensorSpec {
        &self.spec
    }

    /// Where the bytes are, which differs from
    /// [`spec().device()`](TensorSpec::device) for a device tensor in host memory.
    #[must_use]
    pub fn device(&self) -> Device {
        self.span.device()
    }

    /// The bytes.
    #[must_use]
    pub fn span(&self) -> DeviceSpan<'a> {
        self.span
    }

    /// Copies the whole tensor to the host.
    ///
    /// # Errors
    ///
    /// As [`DeviceSpan::copy_to_host`].
    pub fn copy_to_host(&self, dst: &mut [u8]) -> Result<()> {
        self.span.copy_to_host(dst)
    }

    /// The bytes, copied to the host.
    ///
    /// # Errors
    ///
    /// As [`DeviceSpan::to_vec`].
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        self.span.to_vec()
    }
}

impl<'a> TensorViewMut<'a> {
    /// Binds a description to the first bytes of a place.
    ///
    /// # Errors
    ///
    /// As [`TensorView::bind`].
    pub fn bind(spec: TensorSpec, span: DeviceSpanMut<'a>) -> Result<Self> {
        check_device(&spec, span.device())?;
        Self::at(spec, span)
    }

    /// Binds a description to host memory, whatever device the tensor is meant
    /// for.
    ///
    /// # Errors
    ///
    /// As [`TensorView::bind_in_host_memory`].
    pub fn bind_in_host_memory(spec: TensorSpec, span: DeviceSpanMut<'a>) -> Result<Self> {
        check_host(span.device())?;
        Self::at(spec, span)
    }

    fn at(spec: TensorSpec, span: DeviceSpanMut<'a>) -> Result<Self> {
        let span = span.into_subspan(0, spec.size_in_bytes())?;
        Ok(Self { spec, span })
    }

    /// The same tensor, to read.
    #[must_use]
    pub fn as_view(&self) -> TensorView<'_> {
        TensorView {
            spec: self.spec.clone(),
            span: self.span.as_span(),
        }
    }

    /// The description.
    #[must_use]
    pub fn spec(&self) -> &TensorSpec {
        &self.spec
    }

    /// Where the bytes are; see [`TensorView::device`].
    #[must_use]
    pub fn device(&self) -> Device {
        self.span.device()
    }

    /// The bytes.
    #[must_use]
    pub fn span_mut(&mut self) -> DeviceSpanMut<'_> {
        self.span.reborrow()
    }

    /// Copies the whole tensor from the host, to whatever device it is on.
    ///
    /// # Errors
    ///
    /// As [`DeviceSpanMut::copy_from_host`].
    pub fn copy_from_host(&mut self, src: &[u8]) -> Result<()> {
        self.span.copy_from_host(src)
    }

    /// Copies from a tensor of the same type, sizes and memory order, on any
    /// device.
    ///
    /// # Errors
    ///
    /// - [`InvalidTensor`](ErrorKind::InvalidTensor): type, sizes or order differ.
    /// - as [`DeviceSpanMut::copy_from`].
    pub fn copy_from(&mut self, src: &TensorView<'_>) -> Result<()> {
        if !self.spec.is_alike(&src.spec) {
            return Err(ErrorKind::InvalidTensor {
                reason: format!(
                    "source {} and destination {} differ in type, sizes or dim order",
                    src.spec.summary(),
                    self.spec.summary()
                ),
            }
            .into());
        }
        self.span.copy_from(src.span)
    }
}

impl DeviceTensor {
    /// Allocates a tensor on the device that `spec` names, without initializing
    /// it, from the global registry.
    ///
    /// # Errors
    ///
    /// As [`DeviceMemoryBuffer::create`].
    pub fn create(spec: TensorSpec) -> Result<Self> {
        Self::create_in(DeviceAllocatorRegistry::global(), spec)
    }

    /// Allocates a tensor on the device that `spec` names.
    ///
    /// # Errors
    ///
    /// As [`DeviceMemoryBuffer::create`].
    pub fn create_in(registry: &DeviceAllocatorRegistry, spec: TensorSpec) -> Result<Self> {
        let layout = DeviceLayout::from_size(spec.size_in_bytes())?;
        let buffer = DeviceMemoryBuffer::create_in(registry, layout, spec.device())?;
        Ok(Self { spec, buffer })
    }

    /// Allocates a tensor on the device that `spec` names and copies `bytes`
    /// there, from the global registry.
    ///
    /// # Errors
    ///
    /// As [`DeviceMemoryBuffer::from_host`];
    /// [`LengthMismatch`](ErrorKind::LengthMismatch) if `bytes` is not as long as the
    /// tensor.
    pub fn from_host(spec: TensorSpec, bytes: &[u8]) -> Result<Self> {
        Self::from_host_in(DeviceAllocatorRegistry::global(), spec, bytes)
    }

    /// [`from_host`](Self::from_host) with the allocators of `registry`.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn from_host_in(
        registry: &DeviceAllocatorRegistry,
        spec: TensorSpec,
        bytes: &[u8],
    ) -> Result<Self> {
        let mut tensor = Self::create_in(registry, spec)?;
        tensor.buffer.copy_from_host(bytes)?;
        Ok(tensor)
    }

    /// A copy of this tensor on `device`, from the global registry. Any pair of
    /// devices will do, also one and the same.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create) and [`DeviceMemoryBuffer::copy_from`].
    pub fn to_device(&self, device: Device) -> Result<Self> {
        self.to_device_in(DeviceAllocatorRegistry::global(), device)
    }

    /// [`to_device`](Self::to_device) with the allocators of `registry`.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn to_device_in(&self, registry: &DeviceAllocatorRegistry, device: Device) -> Result<Self> {
        let mut copy = Self::create_in(registry, self.spec.clone().with_device(device))?;
        copy.buffer.copy_from(self.buffer.as_span())?;
        Ok(copy)
    }

    /// The description.
    #[must_use]
    pub fn spec(&self) -> &TensorSpec {
        &self.spec
    }

    /// Where the bytes are.
    #[must_use]
    pub fn device(&self) -> Device {
        self.buffer.device()
    }

    /// The tensor, to read.
    ///
    /// # Errors
    ///
    /// None that a tensor made by this type can cause.
    pub fn view(&self) -> Result<TensorView<'_>> {
        TensorView::bind(self.spec.clone(), self.buffer.as_span())
    }

    /// The tensor, to read and write.
    ///
    /// # Errors
    ///
    /// None that a tensor made by this type can cause.
    pub fn view_mut(&mut self) -> Result<TensorViewMut<'_>> {
        TensorViewMut::bind(self.spec.clone(), self.buffer.as_span_mut())
    }

    /// Copies the whole tensor from the host.
    ///
    /// # Errors
    ///
    /// As [`DeviceMemoryBuffer::copy_from_host`].
    pub fn copy_from_host(&mut self, src: &[u8]) -> Result<()> {
        self.buffer.copy_from_host(src)
    }

    /// Copies the whole tensor to the host.
    ///
    /// # Errors
    ///
    /// As [`DeviceMemoryBuffer::copy_to_host`].
    pub fn copy_to_host(&self, dst: &mut [u8]) -> Result<()> {
        self.buffer.copy_to_host(dst)
    }

    /// The bytes, copied to the host.
    ///
    /// # Errors
    ///
    /// As [`DeviceMemoryBuffer::to_vec`].
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        self.buffer.to_vec()
    }

    /// The memory.
    #[must_use]
    pub fn buffer(&self) -> &DeviceMemoryBuffer {
        &self.buffer
    }

    /// The memory, without the description.
    #[must_use]
    pub fn into_buffer(self) -> DeviceMemoryBuffer {
        self.buffer
    }
}

/// Checks that a tensor lies on the device that it is meant for.
fn check_device(spec: &TensorSpec, place: Device) -> Result<()> {
    if spec.device() == place {
        Ok(())
    } else {
        Err(ErrorKind::DeviceMismatch {
            expected: spec.device(),
            found: place,
        }
        .into())
    }
}

/// Checks that a tensor lies in host memory.
fn check_host(place: Device) -> Result<()> {
    if place == Device::CPU {
        Ok(())
    } else {
        Err(ErrorKind::DeviceMismatch {
            expected: Device::CPU,
            found: place,
        }
        .into())
    }
}
