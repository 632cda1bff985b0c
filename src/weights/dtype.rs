//! The element types of safetensors, as those of this crate.
//!
//! Rank 9. Part of `weights`.

use safetensors::Dtype;

use crate::scalar::ScalarType;

/// The type of the same meaning, if there is one.
pub(super) fn scalar_type(dtype: Dtype) -> Option<ScalarType> {
    Some(match dtype {
        Dtype::BOOL => ScalarType::Bool,
        Dtype::U8 => ScalarType::Byte,
        Dtype::I8 => ScalarType::Char,
        Dtype::F8_E5M2 => ScalarType::Float8E5M2,
        Dtype::F8_E4M3 => ScalarType::Float8E4M3Fn,
        Dtype::F8_E5M2FNUZ => ScalarType::Float8E5M2Fnuz,
        Dtype::F8_E4M3FNUZ => ScalarType::Float8E4M3Fnuz,
        Dtype::I16 => ScalarType::Short,
        Dtype::U16 => ScalarType::UInt16,
        Dtype::F16 => ScalarType::Half,
        Dtype::BF16 => ScalarType::BFloat16,
        Dtype::I32 => ScalarType::Int,
        Dtype::U32 => ScalarType::UInt32,
        Dtype::F32 => ScalarType::Float,
        Dtype::C64 => ScalarType::ComplexFloat,
        Dtype::F64 => ScalarType::Double,
        Dtype::I64 => ScalarType::Long,
        Dtype::U64 => ScalarType::UInt64,
        _ => return None,
    })
}

/// The bytes that a tensor takes, if they can be counted.
pub(super) fn size_in_bytes(dtype: Dtype, shape: &[usize]) -> Option<usize> {
    let bits = shape
        .iter()
        .try_fold(1_usize, |product, &size| product.checked_mul(size))?
        .checked_mul(dtype.bitsize())?;
    (bits.checked_rem(8) == Some(0)).then(|| bits.checked_div(8))?
}
