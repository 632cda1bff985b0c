//! What a tensor looks like, apart from where it is.
//!
//! Rank 2. Imports the words: `device`, `scalar`, `error`.

use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::scalar::ScalarType;

/// Whether the sizes of a tensor may change after planning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShapeDynamism {
    /// They never change.
    Static,
    /// They may fall below the planned ones.
    DynamicBound,
    /// They are not known before execution; such a tensor can not be planned.
    DynamicUnbound,
}

impl ShapeDynamism {
    /// The meaning of `code` in ExecuTorch's schema.
    #[must_use]
    pub const fn from_code(code: i8) -> Option<Self> {
        match code {
            0 => Some(Self::Static),
            1 => Some(Self::DynamicBound),
            2 => Some(Self::DynamicUnbound),
            _ => None,
        }
    }

    /// The name in ExecuTorch's schema.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Static => "STATIC",
            Self::DynamicBound => "DYNAMIC_BOUND",
            Self::DynamicUnbound => "DYNAMIC_UNBOUND",
        }
    }
}

/// The element type, sizes and memory order of a tensor, and the device that it
/// is meant for.
///
/// `sizes` are in elements, one per dimension. `dim_order` lists the dimensions
/// from the slowest to the fastest changing in memory; a scalar has none.
///
/// # Examples
///
/// ```
/// use device_memory::{Device, ScalarType, TensorSpec};
///
/// let spec = TensorSpec::with_dim_order(ScalarType::Float, &[1, 3, 4, 4], &[0, 2, 3, 1], Device::CPU)?;
///
/// assert_eq!(spec.size_in_bytes(), 192);
/// assert_eq!(spec.strides(), [48, 1, 12, 3]);
/// assert!(TensorSpec::with_dim_order(ScalarType::Float, &[2, 2], &[0, 0], Device::CPU).is_err());
/// # Ok::<(), device_memory::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    scalar_type: ScalarType,
    sizes: Vec<usize>,
    dim_order: Vec<u8>,
    dynamism: ShapeDynamism,
    device: Device,
    size_in_bytes: usize,
}

impl TensorSpec {
    /// The most dimensions a tensor has.
    pub const MAX_RANK: usize = 16;

    /// A tensor in row-major order with sizes that never change.
    ///
    /// # Errors
    ///
    /// - [`InvalidTensor`](ErrorKind::InvalidTensor): too many dimensions, or more
    ///   bytes than can be addressed.
    pub fn contiguous(scalar_type: ScalarType, sizes: &[usize], device: Device) -> Result<Self> {
        let dim_order: Vec<u8> = (0..=u8::MAX).take(sizes.len()).collect();
        Self::with_dim_order(scalar_type, sizes, &dim_order, device)
    }

    /// A tensor in the memory order `dim_order` with sizes that never change.
    ///
    /// # Errors
    ///
    /// - [`InvalidTensor`](ErrorKind::InvalidTensor): too many dimensions, a
    ///   `dim_order` that is no permutation of them, or more bytes than can be
    ///   addressed.
    pub fn with_dim_order(
        scalar_type: ScalarType,
        sizes: &[usize],
        dim_order: &[u8],
        device: Device,
    ) -> Result<Self> {
        if sizes.len() > Self::MAX_RANK {
            return Err(invalid(format!(
                "{} dimensions, at most {} are supported",
                sizes.len(),
                Self::MAX_RANK
            )));
        }
        check_permutation(dim_order, sizes.len())?;
        Ok(Self {
            scalar_type,
            sizes: sizes.to_vec(),
            dim_order: dim_order.to_vec(),
            dynamism: ShapeDynamism::Static,
            device,
            size_in_bytes: size_in_bytes(scalar_type, sizes)?,
        })
    }

    /// The same tensor with sizes that may change as `dynamism` says.
    #[must_use]
    pub fn with_dynamism(self, dynamism: ShapeDynamism) -> Self {
        Self { dynamism, ..self }
    }

    /// The same tensor meant for `device`.
    #[must_use]
    pub fn with_device(self, device: Device) -> Self {
        Self { device, ..self }
    }

    /// The same tensor with other sizes, as they are found when it is used.
    ///
    /// # Errors
    ///
    /// - [`InvalidTensor`](ErrorKind::InvalidTensor): there are more or fewer
    ///   dimensions; the sizes never change and these differ; or they are bounded
    ///   and these need more bytes.
    ///
    /// # Examples
    ///
    /// ```
    /// use device_memory::{Device, ScalarType, ShapeDynamism, TensorSpec};
    ///
    /// let spec = TensorSpec::contiguous(ScalarType::Float, &[4, 8], Device::CPU)?
    ///     .with_dynamism(ShapeDynamism::DynamicBound);
    ///
    /// assert_eq!(spec.resized(&[2, 8])?.size_in_bytes(), 64);
    /// assert!(spec.resized(&[5, 8]).is_err());
    /// # Ok::<(), device_memory::Error>(())
    /// ```
    pub fn resized(&self, sizes: &[usize]) -> Result<Self> {
        let refuse = |why: &str| {
            let planned = &self.sizes;
            invalid(format!(
                "sizes {sizes:?} where {planned:?} are planned: {why}"
            ))
        };
        if sizes.len() != self.sizes.len() {
            return Err(refuse("the number of dimensions differs"));
        }
        if self.dynamism == ShapeDynamism::Static && sizes != self.sizes {
            return Err(refuse("they never change"));
        }
        let size = size_in_bytes(self.scalar_type, sizes)?;
        if self.dynamism == ShapeDynamism::DynamicBound && size > self.size_in_bytes {
            return Err(refuse(&format!(
                "{size} bytes are more than {}",
                self.size_in_bytes
            )));
        }
        let mut resized = self.clone();
        resized.sizes.copy_from_slice(sizes);
        resized.size_in_bytes = size;
        Ok(resized)
    }

    /// Whether two tensors have the same elements in the same order, on whatever
    /// devices.
    pub(crate) fn is_alike(&self, other: &Self) -> bool {
        self.scalar_type == other.scalar_type
            && self.sizes == other.sizes
            && self.dim_order == other.dim_order
    }

    /// What two tensors must agree in, for a message.
    pub(crate) fn summary(&self) -> String {
        format!(
            "{} {:?} in order {:?}",
            self.scalar_type, self.sizes, self.dim_order
        )
    }

    /// The type of the elements.
    #[must_use]
    pub fn scalar_type(&self) -> ScalarType {
        self.scalar_type
    }

    /// The sizes in elements, one per dimension.
    #[must_use]
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// The dimensions from the slowest to the fastest changing.
    #[must_use]
    pub fn dim_order(&self) -> &[u8] {
        &self.dim_order
    }

    /// Whether the sizes may change.
    #[must_use]
    pub fn dynamism(&self) -> ShapeDynamism {
        self.dynamism
    }

    /// The device that the tensor is meant for.
    #[must_use]
    pub fn device(&self) -> Device {
        self.device
    }

    /// The bytes of all elements.
    #[must_use]
    pub fn size_in_bytes(&self) -> usize {
        self.size_in_bytes
    }

    /// The distance in elements between neighbours along each dimension.
    ///
    /// A dimension of size 0 counts as 1, as in PyTorch.
    #[must_use]
    pub fn strides(&self) -> Vec<usize> {
        let mut strides = vec![1; self.sizes.len()];
        let mut stride = 1_usize;
        for dimension in self.dim_order.iter().rev().copied().map(usize::from) {
            if let Some(slot) = strides.get_mut(dimension) {
                *slot = stride;
            }
            let size = self.sizes.get(dimension).copied().unwrap_or(1);
            stride = stride.saturating_mul(size.max(1));
        }
        strides
    }
}

/// A tensor that contradicts itself.
#[cold]
fn invalid(reason: String) -> Error {
    ErrorKind::InvalidTensor { reason }.into()
}

/// Checks that `dim_order` names each of `rank` dimensions once.
fn check_permutation(dim_order: &[u8], rank: usize) -> Result<()> {
    if dim_order.len() != rank {
        return Err(invalid(format!(
            "dim order {dim_order:?} and sizes differ in length: expected {rank}"
        )));
    }
    let mut seen = [false; TensorSpec::MAX_RANK];
    for dimension in dim_order.iter().copied().map(usize::from) {
        match seen.get_mut(dimension) {
            Some(seen) if dimension < rank && !*seen => *seen = true,
            _ => {
                return Err(invalid(format!(
                    "dim order {dim_order:?} is no permutation of {rank} dimensions"
                )));
            }
        }
    }
    Ok(())
}

/// The bytes of `sizes` elements, none if any size is 0.
fn size_in_bytes(scalar_type: ScalarType, sizes: &[usize]) -> Result<usize> {
    if sizes.contains(&0) {
        return Ok(0);
    }
    sizes
        .iter()
        .try_fold(scalar_type.size(), |bytes, &size| bytes.checked_mul(size))
        .filter(|bytes| isize::try_from(*bytes).is_ok())
        .ok_or_else(|| {
            invalid(format!(
                "{scalar_type} elements of sizes {sizes:?} are more bytes than can be addressed"
            ))
        })
}
