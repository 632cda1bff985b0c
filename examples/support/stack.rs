//! Stacks of adaptors from a line of text, such as `statistics,limit=1GiB,pool`.
//!
//! The first word is on top. A word may have one argument after `=`, which is a
//! number of bytes: digits, and `KiB`, `MiB`, `GiB` or `TiB` or nothing. That is the
//! limit of `limit`, the alignment of `aligned`, the chunk of `arena`, the growth
//! of `pool`, and up to
//! which size `binning` gives blocks from an arena of its own. `log` writes to
//! nowhere, and the hook of `retry` makes no room.

#![allow(
    dead_code,
    reason = "each program that includes this uses a part of it"
)]

use std::sync::Arc;

use device_memory::DeviceAllocator;
use device_memory::adaptor::{
    Aligned, Arena, Binning, Limit, Log, Poison, PoolBuilder, Retry, Shared, Statistics, Tracking,
};

/// Any allocator.
pub(crate) type Allocator = Arc<dyn DeviceAllocator>;

/// Why there is no such stack.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StackError {
    #[error("there is no adaptor {0:?}: there are {known}", known = known())]
    Unknown(String),
    #[error("{0} needs bytes after it, as in {0}=1GiB")]
    NoBytes(&'static str),
    #[error("{0} is no alignment")]
    Align(usize),
    #[error("no bin can be made for blocks of up to {0} bytes")]
    Bin(usize),
    #[error("{0:?} is no number of bytes")]
    Bytes(String),
}

/// Puts one adaptor over an allocator; `bytes` is its argument.
type Over = fn(Allocator, Option<usize>) -> Result<Allocator, StackError>;

/// All adaptors, by the word for them.
const ADAPTORS: &[(&str, Over)] = &[
    ("aligned", |below, bytes| {
        let bytes = bytes.ok_or(StackError::NoBytes("aligned"))?;
        let aligned = Aligned::over(below, bytes);
        Ok(Arc::new(aligned.map_err(|_| StackError::Align(bytes))?))
    }),
    ("arena", |below, bytes| {
        let bytes = bytes.ok_or(StackError::NoBytes("arena"))?;
        Ok(Arc::new(Arena::over(below, bytes)))
    }),
    ("binning", |below, bytes| {
        let bytes = bytes.ok_or(StackError::NoBytes("binning"))?;
        let small: Allocator = Arc::new(Arena::over(below.clone(), 1 << 20));
        let binning = Binning::over(below).bin(bytes, small);
        Ok(Arc::new(binning.map_err(|_| StackError::Bin(bytes))?))
    }),
    ("limit", |below, bytes| {
        let bytes = bytes.ok_or(StackError::NoBytes("limit"))?;
        Ok(Arc::new(Limit::over(below, bytes)))
    }),
    ("log", |below, _| {
        Ok(Arc::new(Log::csv(below, std::io::sink())))
    }),
    ("poison", |below, _| Ok(Arc::new(Poison::over(below)))),
    ("pool", |below, bytes| {
        let pool = PoolBuilder::new();
        let pool = match bytes {
            Some(bytes) => pool.growth(bytes),
            None => pool,
        };
        Ok(Arc::new(pool.build(below)))
    }),
    ("retry", |below, _| {
        Ok(Arc::new(Retry::over(below, |_| false)))
    }),
    ("shared", |below, _| Ok(Arc::new(Shared::from(below)))),
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
