//! The tables of a FlatBuffer and their fields.
//!
//! Rank 4. Part of `pte`.
//!
//! `planus` reads tables and scalars. Offsets are followed here, from the start
//! of the program and never from the parent table, because a vtable may lie
//! anywhere in the program. Every read is checked against the program's end.

use planus::errors::ErrorKind;
use planus::table_reader::Table as RawTable;
use planus::{SliceWithStartOffset, TableRead};

use crate::pte::fault::{Fallible, Fault};

/// A count or an offset of the file as one of the host.
///
/// Where it does not fit, it is larger than any file too.
#[inline]
pub(super) fn to_usize(value: u32) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// The 32-bit word at `position`.
#[inline]
pub(super) fn word(program: &[u8], position: usize) -> Option<u32> {
    let bytes = program.get(position..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

/// The end of an offset that is stored at `position`.
#[inline]
pub(super) fn target(program: &[u8], position: usize) -> Option<usize> {
    position.checked_add(to_usize(word(program, position)?))
}

/// A table somewhere in a program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Table<'a> {
    pub(super) program: &'a [u8],
    raw: RawTable<'a>,
}

impl<'a> Table<'a> {
    /// The table that the offset at `position` leads to.
    #[inline]
    pub(super) fn at(program: &'a [u8], position: usize, field: &'static str) -> Fallible<Self> {
        let whole = SliceWithStartOffset {
            buffer: program,
            offset_from_start: 0,
        };
        match RawTable::from_buffer(whole, position) {
            Ok(raw) => Ok(Self { program, raw }),
            Err(kind) => Err(bad_table(program, position, field, kind)),
        }
    }

    /// The scalar in `slot`, 0 if absent.
    #[inline]
    fn scalar<T: TableRead<'a> + Default>(&self, slot: usize, field: &'static str) -> Fallible<T> {
        match self.raw.access::<T>(slot, "", field) {
            Ok(value) => Ok(value.unwrap_or_default()),
            Err(error) => Err(bad_field(field, error.source_location.byte_offset)),
        }
    }

    /// Where the offset in `slot` is stored, if the field is present.
    #[inline]
    pub(super) fn position(&self, slot: usize, field: &'static str) -> Fallible<Option<usize>> {
        match self.raw.access::<Position>(slot, "", field) {
            Ok(position) => Ok(position.map(|Position(position)| position)),
            Err(error) => Err(bad_field(field, error.source_location.byte_offset)),
        }
    }
}

/// Where a field is, counted from the start of the program.
struct Position(usize);

impl<'a> TableRead<'a> for Position {
    #[inline]
    fn from_buffer(buffer: SliceWithStartOffset<'a>, offset: usize) -> Result<Self, ErrorKind> {
        match buffer.offset_from_start.checked_add(offset) {
            Some(position) => Ok(Self(position)),
            None => Err(ErrorKind::InvalidOffset),
        }
    }
}

/// A type that a field of a table may have.
pub(super) trait Field<'a>: Sized {
    /// Reads the field in `slot`.
    fn read(table: &Table<'a>, slot: usize, field: &'static str) -> Fallible<Self>;
}

macro_rules! scalar_fields {
    ($($scalar:ty)*) => {$(
        impl<'a> Field<'a> for $scalar {
            #[inline]
            fn read(table: &Table<'a>, slot: usize, field: &'static str) -> Fallible<Self> {
                table.scalar(slot, field)
            }
        }
    )*};
}

scalar_fields!(i8 u8 i32 u32 i64 u64);

/// A type that one of our table types wraps.
pub(super) trait FromTable<'a>: From<Table<'a>> {}

impl<'a, T: FromTable<'a>> Field<'a> for Option<T> {
    #[inline]
    fn read(table: &Table<'a>, slot: usize, field: &'static str) -> Fallible<Self> {
        match table.position(slot, field)? {
            Some(position) => Ok(Some(Table::at(table.program, position, field)?.into())),
            None => Ok(None),
        }
    }
}

/// An offset that is not followed yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link<'a> {
    program: &'a [u8],
    position: usize,
}

impl<'a> Link<'a> {
    /// Where the offset is stored.
    #[inline]
    pub(super) fn position(self) -> usize {
        self.position
    }

    /// The table at its end.
    #[inline]
    pub(super) fn follow<T: FromTable<'a>>(self, field: &'static str) -> Fallible<T> {
        Ok(Table::at(self.program, self.position, field)?.into())
    }
}

impl<'a> Field<'a> for Option<Link<'a>> {
    #[inline]
    fn read(table: &Table<'a>, slot: usize, field: &'static str) -> Fallible<Self> {
        Ok(table.position(slot, field)?.map(|position| Link {
            program: table.program,
            position,
        }))
    }
}

#[cold]
#[inline(never)]
fn bad_field(field: &'static str, table: usize) -> Fault {
    Fault::new(
        field,
        format_args!("field of the table at byte {table} passes the end of the program"),
    )
}

#[cold]
#[inline(never)]
fn bad_table(program: &[u8], position: usize, field: &'static str, kind: ErrorKind) -> Fault {
    let size = program.len();
    match (target(program, position), kind) {
        (Some(table), ErrorKind::InvalidVtableLength { length }) => Fault::new(
            field,
            format_args!("table at byte {table} has a vtable of {length} bytes"),
        ),
        (Some(table), _) if table >= size => Fault::new(
            field,
            format_args!("offset at byte {position} leads to byte {table} of a program of {size}"),
        ),
        (Some(table), _) => Fault::new(
            field,
            format_args!("table at byte {table} has no vtable inside the program of {size} bytes"),
        ),
        (None, _) => Fault::new(
            field,
            format_args!("no offset at byte {position} of a program of {size}"),
        ),
    }
}
