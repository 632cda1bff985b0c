//! The first bytes of a program: identifier and extended header.
//!
//! Rank 4. Part of `pte`.
//!
//! The extended header says how much of the file is the flatbuffer and where the
//! segments behind it start. It is absent when no segment has bytes; then the
//! whole file is the flatbuffer.

use crate::pte::fault::{Fallible, Fault};
use crate::pte::wire::word;

/// The identifier of the one schema that is known.
const IDENTIFIER: &[u8; 4] = b"ET12";

/// The first bytes of an extended header.
const MAGIC: &[u8; 4] = b"eh00";

/// Where an extended header starts.
const EXTENDED_AT: usize = 8;

/// The length of the header's oldest form.
const OLDEST_LEN: u32 = 24;

/// The length of the header's present form, which ends with the size of the segments.
const PRESENT_LEN: u32 = 32;

/// The bytes of the root offset and the identifier.
const SMALLEST_PROGRAM: u64 = 8;

/// The most bytes of a flatbuffer, whose offsets may be signed 32-bit numbers.
const LARGEST_PROGRAM: usize = 0x7fff_ffff;

/// What the first bytes of a program say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    root_offset: u32,
    extended: Option<ExtendedHeader>,
}

impl Header {
    /// Where the root table is, counted from the start of the file.
    #[must_use]
    pub fn root_offset(&self) -> u32 {
        self.root_offset
    }

    /// The identifier of the schema.
    #[must_use]
    pub fn identifier(&self) -> &'static str {
        "ET12"
    }

    /// The extended header, where the file has one.
    #[must_use]
    pub fn extended(&self) -> Option<&ExtendedHeader> {
        self.extended.as_ref()
    }
}

/// The extended header: the parts of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtendedHeader {
    length: u32,
    program_size: u64,
    segment_base_offset: u64,
    segment_data_size: Option<u64>,
}

impl ExtendedHeader {
    /// The bytes of this header. Those past 32 are of a newer form and unknown.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.length
    }

    /// The bytes of the flatbuffer, from the start of the file.
    #[must_use]
    pub fn program_size(&self) -> u64 {
        self.program_size
    }

    /// Where the segments start, counted from the start of the file.
    #[must_use]
    pub fn segment_base_offset(&self) -> u64 {
        self.segment_base_offset
    }

    /// The bytes of all segments; the oldest form of the header does not say.
    #[must_use]
    pub fn segment_data_size(&self) -> Option<u64> {
        self.segment_data_size
    }
}

/// Reads the header of `bytes` and splits off the flatbuffer.
pub(super) fn read(bytes: &[u8]) -> Fallible<(Header, &[u8])> {
    let len = bytes.len();
    let (Some(root_offset), Some(identifier)) = (word(bytes, 0), word(bytes, 4)) else {
        return Err(Fault::new(
            "file",
            format_args!("{len} bytes, fewer than the {SMALLEST_PROGRAM} of the smallest program"),
        ));
    };
    let extended = extended(bytes)?;
    let size = match extended {
        Some(header) => program_size(&header, len)?,
        None => len,
    };
    let program = match bytes.get(..size) {
        Some(program) if size <= LARGEST_PROGRAM => program,
        _ => {
            return Err(Fault::new(
                "program_size",
                format_args!("{size} bytes are more than the {LARGEST_PROGRAM} of a flatbuffer"),
            ));
        }
    };
    if identifier != u32::from_le_bytes(*IDENTIFIER) {
        return Err(Fault::new(
            "identifier",
            format_args!(
                "expected \"ET12\", found \"{}\"",
                identifier.to_le_bytes().escape_ascii()
            ),
        ));
    }
    let header = Header {
        root_offset,
        extended,
    };
    Ok((header, program))
}

/// The extended header, if the magic bytes announce one.
fn extended(bytes: &[u8]) -> Fallible<Option<ExtendedHeader>> {
    let Some(header) = bytes.get(EXTENDED_AT..) else {
        return Ok(None);
    };
    if !header.starts_with(MAGIC) {
        return Ok(None);
    }
    let cut = || {
        Fault::new(
            "extended header",
            format_args!("cut off by the end of the file of {} bytes", bytes.len()),
        )
    };
    let length = word(header, 4).ok_or_else(cut)?;
    if length < OLDEST_LEN {
        return Err(Fault::new(
            "extended header",
            format_args!("length {length} is less than {OLDEST_LEN}"),
        ));
    }
    let segment_data_size = if length < PRESENT_LEN {
        None
    } else {
        Some(long(header, 24).ok_or_else(cut)?)
    };
    Ok(Some(ExtendedHeader {
        length,
        program_size: long(header, 8).ok_or_else(cut)?,
        segment_base_offset: long(header, 16).ok_or_else(cut)?,
        segment_data_size,
    }))
}

/// The size of the flatbuffer that `header` announces in a file of `len` bytes.
fn program_size(header: &ExtendedHeader, len: usize) -> Fallible<usize> {
    let announced = header.program_size;
    if announced < SMALLEST_PROGRAM {
        return Err(Fault::new(
            "program_size",
            format_args!(
                "{announced} bytes, fewer than the {SMALLEST_PROGRAM} of the smallest program"
            ),
        ));
    }
    let size = match usize::try_from(announced) {
        Ok(size) if size <= len => size,
        _ => {
            return Err(Fault::new(
                "program_size",
                format_args!("{announced} bytes, but the file has {len}"),
            ));
        }
    };
    let base = header.segment_base_offset;
    let data = header.segment_data_size.unwrap_or(0);
    let Some(end) = base.checked_add(data) else {
        return Err(Fault::new(
            "segment_base_offset",
            format_args!("{data} bytes at offset {base} pass 2^64"),
        ));
    };
    match usize::try_from(end) {
        Ok(end) if data == 0 || end <= len => Ok(size),
        _ => Err(Fault::new(
            "segment_data_size",
            format_args!("{data} bytes at offset {base}, but the file has {len}"),
        )),
    }
}

/// The 64-bit word at `position`.
fn long(bytes: &[u8], position: usize) -> Option<u64> {
    let bytes = bytes.get(position..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}
