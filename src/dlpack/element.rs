//! The element types of DLPack, as those of this crate.
//!
//! Rank 8. Part of `dlpack`.

use dlpack_ffi::{DLDataType, DLDataTypeCode};

use crate::scalar::ScalarType;

/// Each type that both sides have, with DLPack's code and the bits of an element.
const TYPES: &[(ScalarType, DLDataTypeCode, u8)] = &[
    (ScalarType::Byte, DLDataTypeCode::kDLUInt, 8),
    (ScalarType::Char, DLDataTypeCode::kDLInt, 8),
    (ScalarType::Short, DLDataTypeCode::kDLInt, 16),
    (ScalarType::Int, DLDataTypeCode::kDLInt, 32),
    (ScalarType::Long, DLDataTypeCode::kDLInt, 64),
    (ScalarType::UInt16, DLDataTypeCode::kDLUInt, 16),
    (ScalarType::UInt32, DLDataTypeCode::kDLUInt, 32),
    (ScalarType::UInt64, DLDataTypeCode::kDLUInt, 64),
    (ScalarType::Half, DLDataTypeCode::kDLFloat, 16),
    (ScalarType::Float, DLDataTypeCode::kDLFloat, 32),
    (ScalarType::Double, DLDataTypeCode::kDLFloat, 64),
    (ScalarType::BFloat16, DLDataTypeCode::kDLBfloat, 16),
    (ScalarType::ComplexHalf, DLDataTypeCode::kDLComplex, 32),
    (ScalarType::ComplexFloat, DLDataTypeCode::kDLComplex, 64),
    (ScalarType::ComplexDouble, DLDataTypeCode::kDLComplex, 128),
    (ScalarType::Bool, DLDataTypeCode::kDLBool, 8),
    (ScalarType::Float8E5M2, DLDataTypeCode::kDLFloat8_e5m2, 8),
    (
        ScalarType::Float8E4M3Fn,
        DLDataTypeCode::kDLFloat8_e4m3fn,
        8,
    ),
    (
        ScalarType::Float8E5M2Fnuz,
        DLDataTypeCode::kDLFloat8_e5m2fnuz,
        8,
    ),
    (
        ScalarType::Float8E4M3Fnuz,
        DLDataTypeCode::kDLFloat8_e4m3fnuz,
        8,
    ),
];

/// DLPack's type for `scalar_type`, if it has one.
pub(super) fn to_dlpack(scalar_type: ScalarType) -> Option<DLDataType> {
    let &(_, code, bits) = TYPES.iter().find(|(own, ..)| *own == scalar_type)?;
    let code = u8::try_from(code.0).ok()?;
    Some(DLDataType {
        code,
        bits,
        lanes: 1,
    })
}

/// The type of the same meaning, if there is one.
pub(super) fn from_dlpack(dtype: DLDataType) -> Option<ScalarType> {
    let same = |&&(_, code, bits): &&(ScalarType, DLDataTypeCode, u8)| {
        code.0 == u32::from(dtype.code) && bits == dtype.bits && dtype.lanes == 1
    };
    TYPES.iter().find(same).map(|&(own, ..)| own)
}
