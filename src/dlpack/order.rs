//! The memory order that strides mean.
//!
//! Rank 8. Part of `dlpack`.

use crate::device::Device;
use crate::dlpack::describe::invalid;
use crate::error::Result;
use crate::scalar::ScalarType;
use crate::shape::TensorSpec;

/// The tensor whose elements lie densely as `strides` say, in elements. Without
/// strides it is in row-major order.
///
/// A dimension of one element may have any stride. Strides that leave gaps, let
/// elements overlap or go backwards are those of no tensor here.
pub(super) fn spec_of(
    scalar_type: ScalarType,
    sizes: &[usize],
    strides: Option<&[i64]>,
    device: Device,
) -> Result<TensorSpec> {
    let contiguous = TensorSpec::contiguous(scalar_type, sizes, device)?;
    let Some(strides) = strides else {
        return Ok(contiguous);
    };
    if sizes.contains(&0) || has_strides(&contiguous, strides) {
        return Ok(contiguous);
    }
    let mut dim_order: Vec<(i64, u8)> = strides.iter().copied().zip(0..).collect();
    // The sort is stable, so dimensions of the same stride stay in order.
    dim_order.sort_by_key(|&(stride, _)| std::cmp::Reverse(stride));
    let dim_order: Vec<u8> = dim_order.into_iter().map(|(_, dim)| dim).collect();
    let spec = TensorSpec::with_dim_order(scalar_type, sizes, &dim_order, device)?;
    if has_strides(&spec, strides) {
        Ok(spec)
    } else {
        Err(invalid(format!(
            "strides {strides:?} of sizes {sizes:?} are not those of a dense tensor"
        )))
    }
}

/// Whether a tensor has these strides, wherever they matter.
fn has_strides(spec: &TensorSpec, strides: &[i64]) -> bool {
    let own = spec.strides();
    let same = |own: usize, stride: i64| usize::try_from(stride) == Ok(own);
    let mut dims = own.iter().zip(strides).zip(spec.sizes());
    dims.all(|((&own, &stride), &size)| size <= 1 || same(own, stride))
}
