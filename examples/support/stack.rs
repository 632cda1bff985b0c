//! Stacks of adaptors from a line of text, such as `statistics,limit=1GiB,pool`.
//!
//! The first word is on top. A word may have one argument after `=`, which is a
//! number of bytes: digits, and `KiB`, `MiB`, `GiB` or `TiB` or nothing.

#![allow(
    dead_code,
    reason = "each program that includes this uses a part of it"
)]

use std::sync::Arc;

use device_memory::DeviceAllocator;
use device_memory::adaptor::{Limit, Statistics, Tracking};

/// Any allocator.
pub(crate) type Allocator = Arc<dyn DeviceAllocator>;

/// Why there is no such stack.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StackError {
    #[error("there is no adaptor {0:?}: there are {known}", known = known())]
    Unknown(String),
    #[error("{0} needs bytes after it, as in {0}=1GiB")]
    NoBytes(&'static str),
    #[error("{0:?} is no number of bytes")]
    Bytes(String),
}

/// Puts one adaptor over an allocator; `bytes` is its argument.
type Over = fn(Allocator, Option<usize>) -> Result<Allocator, StackError>;

/// All adaptors, by the word for them.
const ADAPTORS: &[(&str, Over)] = &[
    ("limit", |below, bytes| {
        let bytes = bytes.ok_or(StackError::NoBytes("limit"))?;
        Ok(Arc::new(Limit::over(below, bytes)))
    }),
    ("statistics", |below, _| {
        Ok(Arc::new(Statistics::over(below)))
    }),
    ("tracking", |below, _| Ok(Arc::new(Tracking::over(below)))),
];

/// The words for all adaptors.
pub(crate) fn known() -> String {
    let words: Vec<&str> = ADAPTORS.iter().map(|(word, _)| *word).collect();
    words.join(", ")
}

/// Puts the adaptors of `text` over `device`. No text is no adaptor.
pub(crate) fn build(text: &str, device: Allocator) -> Result<Allocator, StackError> {
    let words = text
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty());
    words.rev().try_fold(device, |below, word| {
        let (word, argument) = match word.split_once('=') {
            Some((word, argument)) => (word, Some(bytes(argument)?)),
            None => (word, None),
        };
        let found = ADAPTORS.iter().find(|(known, _)| *known == word);
        let (_, over) = found.ok_or_else(|| StackError::Unknown(word.to_owned()))?;
        over(below, argument)
    })
}

/// A number of bytes.
pub(crate) fn bytes(text: &str) -> Result<usize, StackError> {
    const UNITS: [(&str, u32); 4] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];
    let refused = || StackError::Bytes(text.to_owned());
    let unit = UNITS.iter().find(|(name, _)| text.ends_with(name));
    let (digits, shift) = match unit {
        Some((name, shift)) => (text.trim_end_matches(name), *shift),
        None => (text, 0),
    };
    let number: usize = digits.trim().parse().map_err(|_| refused())?;
    number.checked_mul(1 << shift).ok_or_else(refused)
}
