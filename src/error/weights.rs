//! The report of a malformed file of weights.
//!
//! Rank 1. Part of `error`.

/// How a file of weights is malformed, or what it lacks.
///
/// Offsets and sizes are in bytes; those of tensors count from the first byte
/// after the header.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidWeights {
    /// The file ends too early.
    #[error("invalid weights: {needed} bytes needed, the file ends after {found}")]
    Truncated {
        /// The bytes that the header, or its length, asks for.
        needed: u64,
        /// The bytes that there are.
        found: u64,
    },
    /// Bytes follow that belong to no tensor.
    #[error("invalid weights: {extra} bytes after the last tensor")]
    Trailing {
        /// How many they are.
        extra: u64,
    },
    /// The header is said to be longer than any may be.
    #[error("invalid weights: header of {size} bytes, at most {limit} are allowed")]
    HeaderTooLarge {
        /// The length in the file.
        size: u64,
        /// The longest allowed.
        limit: u64,
    },
    /// The header is no text of the form that is due: an element type that there
    /// is not, a negative number, or no JSON at all.
    #[error("invalid weights: header: {reason}")]
    Header {
        /// What is wrong with it, and where.
        reason: String,
    },
    /// Two tensors have the same name.
    #[error("invalid weights: tensor {name:?} is there twice")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// The bytes of a tensor overlap those before, leave a gap, or end before they
    /// begin.
    #[error("invalid weights: tensor {name:?} has bytes {begin} to {end}, due from {due}")]
    Offsets {
        /// The tensor.
        name: String,
        /// The offset of its first byte.
        begin: usize,
        /// The offset after its last byte.
        end: usize,
        /// Where the tensor before ends.
        due: usize,
    },
    /// The bytes of a tensor are not as many as its type and shape take.
    #[error("invalid weights: tensor {name:?} has {found} bytes, {dtype} of {shape:?} takes {due}")]
    Size {
        /// The tensor.
        name: String,
        /// The type of its elements, by the name in the file.
        dtype: String,
        /// Its sizes in elements.
        shape: Vec<usize>,
        /// The bytes that it has.
        found: usize,
        /// The bytes that it takes.
        due: usize,
    },
    /// A tensor takes more bytes than can be counted, or no whole number of them.
    #[error("invalid weights: tensor {name:?}, {dtype} of {shape:?}, takes no countable bytes")]
    Uncountable {
        /// The tensor.
        name: String,
        /// The type of its elements, by the name in the file.
        dtype: String,
        /// Its sizes in elements.
        shape: Vec<usize>,
    },
    /// There is no tensor of this name.
    #[error("no tensor {name:?} among the weights")]
    NoSuchTensor {
        /// The name asked for.
        name: String,
    },
    /// The elements of a tensor are of a type that has no
    /// [`ScalarType`](crate::ScalarType); its bytes can be had all the same.
    #[error("tensor {name:?} is of {dtype}, which has no scalar type")]
    NoScalarType {
        /// The tensor.
        name: String,
        /// The type of its elements, by the name in the file.
        dtype: String,
    },
}
