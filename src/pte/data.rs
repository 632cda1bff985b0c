//! The data of a program: segments, constants, initial state.
//!
//! Rank 4. Part of `pte`.
//!
//! Only ranges are checked here; no data is read.

use crate::pte::fault::{Budget, Fallible, Fault};
use crate::pte::header::{ExtendedHeader, Header};
use crate::pte::schema::{self, Buffer, DataSegment, InlineData, NamedData, SubsegmentOffsets};
use crate::pte::vector::{Tables, ULongs};
use crate::pte::warning::{Subject, WarningKind, Warnings};
use crate::pte::wire::to_usize;

/// A range of the file behind the flatbuffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it starts, counted from the start of the segments.
    pub offset: u64,
    /// Its size in bytes.
    pub size: u64,
}

/// Where parts of a segment start.
#[derive(Clone, Copy, Debug)]
pub struct Subsegments<'a> {
    segment_index: u32,
    offsets: ULongs<'a>,
}

impl<'a> Subsegments<'a> {
    /// The segment, by its position among the segments of the program.
    #[must_use]
    pub fn segment_index(&self) -> u32 {
        self.segment_index
    }

    /// The starts of the parts, counted from the start of the segment.
    #[must_use]
    pub fn offsets(&self) -> impl ExactSizeIterator<Item = u64> + use<'a> {
        self.offsets.iter()
    }

    #[inline]
    pub(super) fn read(table: &SubsegmentOffsets<'a>) -> Fallible<Self> {
        Ok(Self {
            segment_index: table.segment_index()?,
            offsets: table.offsets()?.unwrap_or_default(),
        })
    }
}

/// The data that the tensors and delegates of a program refer to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Data<'a> {
    pub(super) segments: Tables<'a, DataSegment<'a>>,
    pub(super) constants: Option<Subsegments<'a>>,
    pub(super) mutable: Tables<'a, SubsegmentOffsets<'a>>,
    pub(super) named: Tables<'a, NamedData<'a>>,
    pub(super) inline: Tables<'a, InlineData<'a>>,
    buffers: Tables<'a, Buffer<'a>>,
    constant_segment_size: u64,
}

impl<'a> Data<'a> {
    /// Reads and checks the lists of `root`, the root of a program in a file of
    /// `len` bytes.
    #[inline]
    pub(super) fn read(
        root: &schema::Program<'a>,
        header: &Header,
        len: usize,
        warnings: &mut Warnings<'a>,
        budget: &mut Budget,
    ) -> Fallible<Self> {
        let mut data = Self {
            segments: root.segments()?.unwrap_or_default(),
            constants: None,
            mutable: root.mutable_data_segments()?.unwrap_or_default(),
            named: root.named_data()?.unwrap_or_default(),
            inline: root.backend_delegate_data()?.unwrap_or_default(),
            buffers: root.constant_buffer()?.unwrap_or_default(),
            constant_segment_size: 0,
        };
        check_segments(data.segments, header, len, warnings, budget)?;
        data.check_inline(budget)?;
        if let Some(table) = root.constant_segment()? {
            let constants = Subsegments::read(&table)?;
            budget.charge("constant_segment", constants.offsets.size_in_bytes())?;
            if constants.offsets.len() > 0 {
                data.constant_segment_size = data
                    .segment_size(constants.segment_index)
                    .ok_or_else(|| data.unknown("constant_segment", constants.segment_index))?;
            }
            data.constants = Some(constants);
        }
        budget.charge(
            "mutable_data_segments",
            data.mutable.len().saturating_mul(8),
        )?;
        for (index, table) in data.mutable.iter().enumerate() {
            let at = |fault: Fault| fault.at("mutable segment", index);
            let part = Subsegments::read(&table.map_err(at)?).map_err(at)?;
            if part.offsets.len() > 0 && data.segment_size(part.segment_index).is_none() {
                return Err(at(data.unknown("mutable_data_segments", part.segment_index)));
            }
        }
        budget.charge("named_data", data.named.len().saturating_mul(8))?;
        for (index, table) in data.named.iter().enumerate() {
            let at = |fault: Fault| fault.at("entry", index);
            let table = table.map_err(at)?;
            let key = table.key().map_err(at)?;
            let Some(key) = key else {
                return Err(at(Fault::new("named_data", format_args!("no key"))));
            };
            budget.charge("named_data", key.len())?;
            let segment = table.segment_index().map_err(at)?;
            if to_usize(segment) >= data.segments.len() {
                return Err(at(data.unknown("named_data", segment)));
            }
        }
        Ok(data)
    }

    /// Checks that inline constants and delegate data lie within the program.
    fn check_inline(&self, budget: &mut Budget) -> Fallible<()> {
        budget.charge("backend_delegate_data", self.inline.len().saturating_mul(8))?;
        for (index, table) in self.inline.iter().enumerate() {
            let checked = table.and_then(|table| table.data());
            checked.map_err(|fault| fault.at("entry", index))?;
        }
        budget.charge("constant_buffer", self.buffers.len().saturating_mul(8))?;
        for (index, table) in self.buffers.iter().enumerate() {
            let checked = table.and_then(|table| table.storage());
            checked.map_err(|fault| fault.at("constant", index))?;
        }
        Ok(())
    }

    /// The size of a segment, if it exists.
    #[inline]
    fn segment_size(&self, index: u32) -> Option<u64> {
        self.segments.get(to_usize(index))?.size().ok()
    }

    #[cold]
    fn unknown(&self, field: &'static str, segment: u32) -> Fault {
        Fault::new(
            field,
            format_args!("segment {segment} of {}", self.segments.len()),
        )
    }

    /// Checks that constant `index` exists and has `size` bytes.
    #[inline]
    pub(super) fn check_constant(&self, index: u32, size: usize) -> Fallible<()> {
        match self.constants {
            Some(constants) if constants.offsets.len() > 0 => check_part(
                "data_buffer_idx",
                constants.offsets,
                self.constant_segment_size,
                index,
                size,
            ),
            _ => self.check_constant_buffer(index, size),
        }
    }

    /// Checks that constant `index` exists inside the program and has `size` bytes.
    fn check_constant_buffer(&self, index: u32, size: usize) -> Fallible<()> {
        let Some(buffer) = self.buffers.get(to_usize(index)) else {
            return Err(Fault::new(
                "data_buffer_idx",
                format_args!("constant {index} of {}", self.buffers.len()),
            ));
        };
        let len = buffer.storage()?.map_or(0, <[u8]>::len);
        if len < size {
            return Err(Fault::new(
                "data_buffer_idx",
                format_args!("constant {index} has {len} bytes, the tensor {size}"),
            ));
        }
        Ok(())
    }

    /// Checks that part `index` of mutable segment `segments` exists and has `size` bytes.
    pub(super) fn check_initial(&self, segments: u64, index: u32, size: usize) -> Fallible<()> {
        let field = "mutable_data_segments_idx";
        let table = usize::try_from(segments)
            .ok()
            .and_then(|position| self.mutable.get(position));
        let Some(table) = table else {
            return Err(Fault::new(
                field,
                format_args!("mutable segment {segments} of {}", self.mutable.len()),
            ));
        };
        let part = Subsegments::read(&table)?;
        let Some(len) = self.segment_size(part.segment_index) else {
            return Err(self.unknown(field, part.segment_index));
        };
        check_part(field, part.offsets, len, index, size)
    }
}

/// Checks that part `index` exists and has `size` bytes in a segment of `len` bytes.
fn check_part(
    field: &'static str,
    offsets: ULongs<'_>,
    len: u64,
    index: u32,
    size: usize,
) -> Fallible<()> {
    let Some(offset) = offsets.get(to_usize(index)) else {
        return Err(Fault::new(
            field,
            format_args!("constant {index} of {}", offsets.len()),
        ));
    };
    let end = u64::try_from(size)
        .ok()
        .and_then(|size| offset.checked_add(size));
    match end {
        Some(end) if end <= len => Ok(()),
        _ => Err(Fault::new(
            field,
            format_args!(
                "constant {index}: {size} bytes at offset {offset} pass the segment of {len} bytes"
            ),
        )),
    }
}

/// Checks the segments against the file of `len` bytes.
fn check_segments<'a>(
    segments: Tables<'a, DataSegment<'a>>,
    header: &Header,
    len: usize,
    warnings: &mut Warnings<'a>,
    budget: &mut Budget,
) -> Fallible<()> {
    budget.charge("segments", segments.len().saturating_mul(8))?;
    let mut has_bytes = false;
    for (index, segment) in segments.iter().enumerate() {
        let at = |fault: Fault| fault.at("segment", index);
        let segment = segment.map_err(at)?;
        let offset = segment.offset().map_err(at)?;
        let size = segment.size().map_err(at)?;
        has_bytes |= size > 0;
        match header.extended() {
            Some(extended) => {
                check_segment(index, Segment { offset, size }, extended, len, warnings)?
            }
            None if size > 0 => warnings.add(
                Subject::None,
                "segments",
                WarningKind::SegmentWithoutHeader {
                    segment: index,
                    size,
                },
            ),
            None => {}
        }
    }
    if let Some(extended) = header.extended() {
        let base = extended.segment_base_offset();
        let program_size = extended.program_size();
        if has_bytes && base < program_size {
            warnings.add(
                Subject::None,
                "segment_base_offset",
                WarningKind::SegmentsInProgram { base, program_size },
            );
        }
    }
    Ok(())
}

/// Checks one segment against the file of `len` bytes.
fn check_segment(
    index: usize,
    segment: Segment,
    header: &ExtendedHeader,
    len: usize,
    warnings: &mut Warnings<'_>,
) -> Fallible<()> {
    let Segment { offset, size } = segment;
    let base = header.segment_base_offset();
    let end = offset.checked_add(size);
    let end_in_file = end
        .and_then(|end| end.checked_add(base))
        .and_then(|end| usize::try_from(end).ok());
    match (end, end_in_file, header.segment_data_size()) {
        (Some(end), Some(end_in_file), known) if size == 0 || end_in_file <= len => {
            if let Some(segment_data_size) = known.filter(|&known| known > 0 && end > known) {
                warnings.add(
                    Subject::None,
                    "segments",
                    WarningKind::SegmentPastData {
                        segment: index,
                        end,
                        segment_data_size,
                    },
                );
            }
            Ok(())
        }
        _ => Err(Fault::new(
            "segments",
            format_args!(
                "segment {index}: {size} bytes at offset {offset} from byte {base} pass the file of {len} bytes"
            ),
        )),
    }
}
