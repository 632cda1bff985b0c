//! Writing other sizes and offsets into a program.
//!
//! Rank 4. Part of `pte`.
//!
//! A number is written where it is. One that the file leaves out, because it is
//! 0, has no place: then the tensor gets a new table behind all others, and the
//! segments move back if they must.

use crate::error::Result;
use crate::pte::fault::{Fallible, Fault};
use crate::pte::header::{ExtendedHeader, Header};
use crate::pte::link::Link;
use crate::pte::method::Method;
use crate::pte::schema::{AllocationDetails, Tensor};
use crate::pte::wire::{target, to_usize};

/// The vtable of the tables that are added: its size, the size of a table, and
/// where a table has memory id and the halves of the offset.
const VTABLE: [u16; 6] = [10, 16, 4, 8, 12, 0];

/// The largest alignment that segments are taken to have.
const SEGMENT_ALIGN: u64 = 4096;

/// Where an extended header has the sizes that change.
const PROGRAM_SIZE_AT: usize = 16;
const SEGMENT_BASE_AT: usize = 24;

/// What is to be written.
#[derive(Debug, Default)]
pub(super) struct Patch {
    /// Bytes by position.
    writes: Vec<(usize, Vec<u8>)>,
    /// New tables.
    tables: Vec<NewTable>,
}

/// A table to add.
#[derive(Debug)]
struct NewTable {
    /// Where the offset to it is.
    link: usize,
    memory_id: u32,
    offset: u64,
}

impl Patch {
    /// Sets the size of arena `index` of a method.
    pub(super) fn arena(&mut self, method: &Method<'_>, index: usize, size: usize) -> Result<()> {
        Ok(self.try_arena(method, index, size)?)
    }

    fn try_arena(&mut self, method: &Method<'_>, index: usize, size: usize) -> Fallible<()> {
        let field = "non_const_buffer_sizes";
        let link = method.plan.non_const_buffer_sizes_at()?;
        let vector = link.and_then(|link| target(link.program, link.position));
        // The vector starts with its length, and slot 0 is reserved.
        let position = index.checked_add(1).and_then(|slot| slot.checked_mul(8));
        let position = position.and_then(|at| at.checked_add(4)?.checked_add(to_usize(vector?)));
        match (position, i64::try_from(size)) {
            (Some(position), Ok(size)) => {
                self.writes.push((position, size.to_le_bytes().to_vec()));
                Ok(())
            }
            _ => Err(Fault::new(
                field,
                format_args!("no place for arena {index}"),
            )),
        }
    }

    /// Sets the offset of the record at `position` of a method.
    pub(super) fn tensor(
        &mut self,
        method: &Method<'_>,
        position: usize,
        offset: usize,
    ) -> Result<()> {
        Ok(self.try_tensor(method, position, offset)?)
    }

    fn try_tensor(&mut self, method: &Method<'_>, position: usize, offset: usize) -> Fallible<()> {
        let field = "allocation_info";
        let none = || Fault::new(field, format_args!("no tensor {position}"));
        let record = method.records.get(position).ok_or_else(none)?;
        let tensor: Tensor<'_> = Link {
            program: method.program,
            position: record.position,
        }
        .follow("val")?;
        let link = tensor.allocation_info()?.ok_or_else(none)?;
        let details: AllocationDetails<'_> = link.follow(field)?;
        let offset = u64::try_from(offset).map_err(|_| none())?;
        let [a, b, c, d, e, f, g, h] = offset.to_le_bytes();
        let halves = [
            (details.low_at()?, [a, b, c, d]),
            (details.high_at()?, [e, f, g, h]),
        ];
        if halves
            .iter()
            .all(|(at, half)| at.is_some() || *half == [0; 4])
        {
            for (at, half) in halves {
                self.writes
                    .extend(at.map(|at| (to_usize(at.position), half.to_vec())));
            }
        } else {
            self.tables.push(NewTable {
                link: to_usize(link.position),
                memory_id: details.memory_id()?,
                offset,
            });
        }
        Ok(())
    }

    /// The program with all that written, a whole file.
    pub(super) fn apply(self, program: &[u8], header: &Header) -> Result<Vec<u8>> {
        Ok(self.try_apply(program, header)?)
    }

    fn try_apply(self, program: &[u8], header: &Header) -> Fallible<Vec<u8>> {
        let size = match header.extended() {
            Some(extended) => usize::try_from(extended.program_size()).unwrap_or(usize::MAX),
            None => program.len(),
        };
        let (flatbuffer, rest) = program.split_at_checked(size).unwrap_or((program, &[]));
        let mut bytes = flatbuffer.to_vec();
        for (position, value) in &self.writes {
            write(&mut bytes, *position, value)?;
        }
        if self.tables.is_empty() {
            bytes.extend_from_slice(rest);
            return Ok(bytes);
        }
        self.append(&mut bytes)?;
        if let Some(extended) = header.extended() {
            join(&mut bytes, rest, extended)?;
        }
        Ok(bytes)
    }

    /// Adds the new tables and leads to them.
    fn append(&self, bytes: &mut Vec<u8>) -> Fallible<()> {
        pad(bytes, 4);
        let vtable = bytes.len();
        bytes.extend(VTABLE.iter().flat_map(|word| word.to_le_bytes()));
        for table in &self.tables {
            let start = bytes.len();
            let distance = |from: usize| {
                let distance = start.checked_sub(from).map(u32::try_from);
                match distance {
                    Some(Ok(distance)) => Ok(distance.to_le_bytes()),
                    _ => Err(Fault::new(
                        "allocation_info",
                        format_args!("the program is too long"),
                    )),
                }
            };
            let (to_vtable, to_table) = (distance(vtable)?, distance(table.link)?);
            bytes.extend(to_vtable);
            bytes.extend(table.memory_id.to_le_bytes());
            bytes.extend(table.offset.to_le_bytes());
            write(bytes, table.link, &to_table)?;
        }
        Ok(())
    }
}

/// Puts the segments behind a flatbuffer that has grown: where they were if it
/// ends before them, else as far behind as their alignment asks for.
fn join(bytes: &mut Vec<u8>, rest: &[u8], header: &ExtendedHeader) -> Fallible<()> {
    let too_long = || Fault::new("program_size", format_args!("the program is too long"));
    let old_size = header.program_size();
    let base = header.segment_base_offset();
    let new_size = u64::try_from(bytes.len()).map_err(|_| too_long())?;
    let grown = new_size.checked_sub(old_size).ok_or_else(too_long)?;
    let fits = header.segment_data_size() == Some(0) || new_size <= base;
    let free = base
        .checked_sub(old_size)
        .and_then(|free| usize::try_from(free).ok());
    let is_padding = free
        .and_then(|free| rest.get(..free))
        .is_some_and(|free| free.iter().all(|&b| b == 0));
    write(bytes, PROGRAM_SIZE_AT, &new_size.to_le_bytes())?;
    if fits && is_padding {
        let taken = usize::try_from(grown).map_err(|_| too_long())?;
        bytes.extend_from_slice(rest.get(taken..).unwrap_or_default());
        return Ok(());
    }
    let align = SEGMENT_ALIGN.min(
        1_u64
            .checked_shl(base.trailing_zeros())
            .unwrap_or(SEGMENT_ALIGN),
    );
    let shift = grown.checked_next_multiple_of(align).ok_or_else(too_long)?;
    let new_base = base.checked_add(shift).ok_or_else(too_long)?;
    write(bytes, SEGMENT_BASE_AT, &new_base.to_le_bytes())?;
    let start = old_size
        .checked_add(shift)
        .and_then(|start| usize::try_from(start).ok());
    bytes.resize(start.ok_or_else(too_long)?, 0);
    bytes.extend_from_slice(rest);
    Ok(())
}

fn pad(bytes: &mut Vec<u8>, align: usize) {
    let len = bytes.len().checked_next_multiple_of(align);
    bytes.resize(len.unwrap_or(bytes.len()), 0);
}

fn write(bytes: &mut [u8], position: usize, value: &[u8]) -> Fallible<()> {
    let end = position.saturating_add(value.len());
    match bytes.get_mut(position..end) {
        Some(place) => {
            place.copy_from_slice(value);
            Ok(())
        }
        None => Err(Fault::new(
            "program",
            format_args!("no byte {position} to write"),
        )),
    }
}
