//! What is odd about a program, yet no reason to refuse it.
//!
//! Rank 4. Part of `pte`.

use std::fmt;

use crate::device::Device;

/// One oddity of a program, with the place where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Warning<'a> {
    /// The method, where one is concerned.
    pub method: Option<&'a str>,
    /// The arena of the method, counted from 0, where one is concerned.
    pub buffer: Option<usize>,
    /// The value of the method, where one is concerned.
    pub value: Option<u32>,
    /// The field of the file.
    pub field: &'static str,
    /// What is odd about it.
    pub kind: WarningKind,
}

/// What is odd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WarningKind {
    /// The program has no methods.
    NoMethods,
    /// A segment has bytes, but no extended header says where.
    SegmentWithoutHeader {
        /// The segment.
        segment: usize,
        /// Its size in bytes.
        size: u64,
    },
    /// The segments start before the flatbuffer ends.
    SegmentsInProgram {
        /// Where they start.
        base: u64,
        /// Where the flatbuffer ends.
        program_size: u64,
    },
    /// A segment passes the end of the bytes that the extended header counts.
    SegmentPastData {
        /// The segment.
        segment: usize,
        /// Its end, counted from the start of the segments.
        end: u64,
        /// The bytes that the header counts.
        segment_data_size: u64,
    },
    /// An arena is larger than the address space of any present machine.
    HugeBuffer {
        /// Its size in bytes.
        size: usize,
    },
    /// The arenas of a method are together more than can be addressed.
    HugeTotal {
        /// The sum of their sizes in bytes.
        size: u128,
    },
    /// A device index of -1, "the current device", is read as index 0.
    CurrentDevice {
        /// The device that is taken.
        device: Device,
    },
    /// The index of a CPU is not 0, and ignored.
    CpuIndex {
        /// The index.
        index: i8,
    },
    /// The offset of a tensor is no multiple of the size of its elements.
    Misaligned {
        /// The offset in bytes.
        offset: usize,
        /// The size of an element in bytes.
        align: usize,
    },
    /// A tensor is empty, but its other sizes multiply to more than can be addressed.
    OversizedEmpty,
    /// Loaders write initial data from the host, but the tensor is not on the host.
    InitialDataOnDevice {
        /// Where the tensor is.
        device: Device,
    },
}

impl fmt::Display for WarningKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMethods => f.write_str("the program has no methods"),
            Self::SegmentWithoutHeader { segment, size } => write!(
                f,
                "segment {segment} has {size} bytes, but no extended header says where"
            ),
            Self::SegmentsInProgram { base, program_size } => write!(
                f,
                "segments start at offset {base}, inside the flatbuffer of {program_size} bytes"
            ),
            Self::SegmentPastData {
                segment,
                end,
                segment_data_size,
            } => write!(
                f,
                "segment {segment} ends at {end}, past the {segment_data_size} bytes of all segments"
            ),
            Self::HugeBuffer { size } => {
                write!(f, "{size} bytes are more than the memory of any machine")
            }
            Self::HugeTotal { size } => {
                write!(f, "buffers of together {size} bytes can not be addressed")
            }
            Self::CurrentDevice { device } => {
                write!(
                    f,
                    "device index -1 (the current device) is read as {device}"
                )
            }
            Self::CpuIndex { index } => write!(f, "cpu index {index} is read as 0"),
            Self::Misaligned { offset, align } => {
                write!(
                    f,
                    "offset {offset} is no multiple of the element size {align}"
                )
            }
            Self::OversizedEmpty => {
                f.write_str("sizes of an empty tensor multiply to more than can be addressed")
            }
            Self::InitialDataOnDevice { device } => write!(
                f,
                "initial data is written by the host, but the tensor is on {device}"
            ),
        }
    }
}

impl fmt::Display for Warning<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(method) = self.method {
            write!(f, "method {method:?}, ")?;
        }
        if let Some(buffer) = self.buffer {
            write!(f, "buffer {buffer}, ")?;
        }
        if let Some(value) = self.value {
            write!(f, "value {value}, ")?;
        }
        write!(f, "{}: {}", self.field, self.kind)
    }
}

/// What a warning is about, within its method.
#[derive(Clone, Copy, Debug)]
pub(super) enum Subject {
    None,
    Buffer(usize),
    Value(u32),
}

/// The warnings of a program while it is read.
#[derive(Debug, Default)]
pub(super) struct Warnings<'a> {
    method: Option<&'a str>,
    kept: Vec<Warning<'a>>,
    left_out: usize,
}

impl<'a> Warnings<'a> {
    /// The most warnings that are kept; the others are counted.
    const MAX: usize = 1024;

    /// Names the method that the next warnings are about.
    pub(super) fn of_method(&mut self, method: &'a str) {
        self.method = Some(method);
    }

    /// Adds a warning.
    #[cold]
    #[inline(never)]
    pub(super) fn add(&mut self, subject: Subject, field: &'static str, kind: WarningKind) {
        if self.kept.len() < Self::MAX {
            self.kept.push(Warning {
                method: self.method,
                buffer: match subject {
                    Subject::Buffer(buffer) => Some(buffer),
                    _ => None,
                },
                value: match subject {
                    Subject::Value(value) => Some(value),
                    _ => None,
                },
                field,
                kind,
            });
        } else {
            self.left_out = self.left_out.saturating_add(1);
        }
    }

    /// The warnings that were kept, and how many were not.
    pub(super) fn finish(self) -> (Vec<Warning<'a>>, usize) {
        (self.kept, self.left_out)
    }
}
