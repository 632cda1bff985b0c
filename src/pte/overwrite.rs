//! Tensors that are overwritten before their last read: what is reported.
//!
//! Rank 4. Part of `pte`. The walk that finds them is in `walk`.

use std::fmt;

/// A planned tensor that another one overwrites before its last read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Overwrite {
    /// The value that is lost.
    pub value: u32,
    /// The value whose writing loses it.
    pub by: u32,
    /// When the other value is written.
    pub written_at: Step,
    /// When the lost value is read after that.
    pub read_at: Step,
}

impl fmt::Display for Overwrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            value,
            by,
            written_at,
            read_at,
        } = self;
        write!(
            f,
            "value {value} is overwritten by value {by} {written_at} and read {read_at}"
        )
    }
}

/// A moment in the run of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// Before the first instruction, when inputs and state are set.
    Start,
    /// At an instruction, counted from 0 over all chains of the method.
    Instruction(usize),
    /// After the last instruction, when outputs and state are read.
    End,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => f.write_str("at the start"),
            Self::Instruction(index) => write!(f, "at instruction {index}"),
            Self::End => f.write_str("at the end"),
        }
    }
}
