//! The type of a tensor's elements.
//!
//! Rank 0. Imports nothing from this crate.

use std::fmt;

macro_rules! scalar_types {
    ($($(#[$doc:meta])* $variant:ident = $code:literal, $name:literal, $size:literal;)*) => {
        /// The type of one element of a tensor, with the codes that PyTorch and
        /// ExecuTorch share.
        ///
        /// # Examples
        ///
        /// ```
        /// use device_memory::ScalarType;
        ///
        /// let float = ScalarType::from_code(6).ok_or("unknown")?;
        ///
        /// assert_eq!(float, ScalarType::Float);
        /// assert_eq!((float.name(), float.size()), ("FLOAT", 4));
        /// assert_eq!(ScalarType::from_code(100), None);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ScalarType {
            $($(#[$doc])* $variant,)*
        }

        impl ScalarType {
            /// Every type, in the order of the codes.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The type with this code, if there is one.
            #[inline]
            #[must_use]
            pub const fn from_code(code: i8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// The code of this type.
            #[inline]
            #[must_use]
            pub const fn code(self) -> i8 {
                match self {
                    $(Self::$variant => $code,)*
                }
            }

            /// The name in ExecuTorch's schema.
            #[inline]
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// The bytes that one element takes.
            #[inline]
            #[must_use]
            pub const fn size(self) -> usize {
                match self {
                    $(Self::$variant => $size,)*
                }
            }
        }
    };
}

scalar_types! {
    /// Unsigned 8-bit integer.
    Byte = 0, "BYTE", 1;
    /// Signed 8-bit integer.
    Char = 1, "CHAR", 1;
    /// Signed 16-bit integer.
    Short = 2, "SHORT", 2;
    /// Signed 32-bit integer.
    Int = 3, "INT", 4;
    /// Signed 64-bit integer.
    Long = 4, "LONG", 8;
    /// IEEE 754 binary16.
    Half = 5, "HALF", 2;
    /// IEEE 754 binary32.
    Float = 6, "FLOAT", 4;
    /// IEEE 754 binary64.
    Double = 7, "DOUBLE", 8;
    /// Pair of binary16.
    ComplexHalf = 8, "COMPLEX32", 4;
    /// Pair of binary32.
    ComplexFloat = 9, "COMPLEX64", 8;
    /// Pair of binary64.
    ComplexDouble = 10, "COMPLEX128", 16;
    /// Truth value, one byte.
    Bool = 11, "BOOL", 1;
    /// Quantized signed 8-bit integer.
    QInt8 = 12, "QINT8", 1;
    /// Quantized unsigned 8-bit integer.
    QUInt8 = 13, "QUINT8", 1;
    /// Quantized signed 32-bit integer.
    QInt32 = 14, "QINT32", 4;
    /// The upper half of a binary32.
    BFloat16 = 15, "BFLOAT16", 2;
    /// Two quantized 4-bit integers in a byte.
    QUInt4x2 = 16, "QUINT4X2", 1;
    /// Four quantized 2-bit integers in a byte.
    QUInt2x4 = 17, "QUINT2X4", 1;
    /// Eight 1-bit fields in a byte.
    Bits1x8 = 18, "BITS1X8", 1;
    /// Four 2-bit fields in a byte.
    Bits2x4 = 19, "BITS2X4", 1;
    /// Two 4-bit fields in a byte.
    Bits4x2 = 20, "BITS4X2", 1;
    /// Eight bits without meaning.
    Bits8 = 21, "BITS8", 1;
    /// Sixteen bits without meaning.
    Bits16 = 22, "BITS16", 2;
    /// 8-bit float, 5 exponent bits.
    Float8E5M2 = 23, "FLOAT8E5M2", 1;
    /// 8-bit float, 4 exponent bits, finite.
    Float8E4M3Fn = 24, "FLOAT8E4M3FN", 1;
    /// 8-bit float, 5 exponent bits, unsigned zero.
    Float8E5M2Fnuz = 25, "FLOAT8E5M2FNUZ", 1;
    /// 8-bit float, 4 exponent bits, unsigned zero.
    Float8E4M3Fnuz = 26, "FLOAT8E4M3FNUZ", 1;
    /// Unsigned 16-bit integer.
    UInt16 = 27, "UINT16", 2;
    /// Unsigned 32-bit integer.
    UInt32 = 28, "UINT32", 4;
    /// Unsigned 64-bit integer.
    UInt64 = 29, "UINT64", 8;
}

impl fmt::Display for ScalarType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
