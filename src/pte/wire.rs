//! The tables of a FlatBuffer and their fields.
//!
//! Rank 4. Part of `pte`.
//!
//! `planus` reads the scalars. Every read is checked against the program's end.

use planus::{SliceWithStartOffset, TableRead};

use crate::pte::fault::{Fallible, Fault};
use crate::pte::link::Link;

/// A count or an offset of the file as one of the host.
///
/// Where it does not fit, it is larger than any file too.
#[inline]
pub(super) fn to_usize(value: u32) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// The 32-bit word at `position`.
#[inline]
pub(super) fn word(program: &[u8], position: u32) -> Option<u32> {
    chunk(program, to_usize(position)).map(u32::from_le_bytes)
}

/// The `N` bytes at `position`.
#[inline]
pub(super) fn chunk<const N: usize>(program: &[u8], position: usize) -> Option<[u8; N]> {
    let bytes = program.get(position..position.saturating_add(N))?;
    bytes.first_chunk().copied()
}

/// The end of an offset that is stored at `position`.
#[inline]
pub(super) fn target(program: &[u8], position: u32) -> Option<u32> {
    position.checked_add(word(program, position)?)
}

/// A table somewhere in a program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Table<'a> {
    pub(super) program: &'a [u8],
    /// Where it starts.
    pub(super) start: u32,
    /// Where its fields are, counted from its start; 0 where a field is absent.
    pub(super) slots: &'a [[u8; 2]],
}

impl<'a> Table<'a> {
    /// Where the field in `slot` is, counted from the start, if it is present.
    #[inline]
    fn offset(&self, slot: usize) -> Option<u16> {
        match u16::from_le_bytes(*self.slots.get(slot)?) {
            0 => None,
            offset => Some(offset),
        }
    }

    /// The scalar in `slot`, 0 if absent.
    #[inline]
    fn scalar<T: TableRead<'a> + Default>(&self, slot: usize, field: &'static str) -> Fallible<T> {
        let Some(offset) = self.offset(slot) else {
            return Ok(T::default());
        };
        let whole = SliceWithStartOffset {
            buffer: self.program,
            offset_from_start: 0,
        };
        let position = to_usize(self.start).saturating_add(usize::from(offset));
        T::from_buffer(whole, position).map_err(|_| bad_field(field, self.start))
    }

    /// The offset in `slot`, if the field is present.
    #[inline]
    pub(super) fn link(&self, slot: usize) -> Option<Link<'a>> {
        let offset = u32::from(self.offset(slot)?);
        Some(Link {
            program: self.program,
            // No program is so long that this wraps.
            position: self.start.wrapping_add(offset),
        })
    }
}

#[cold]
#[inline(never)]
fn bad_field(field: &'static str, table: u32) -> Fault {
    Fault::new(
        field,
        format_args!("field of the table at byte {table} passes the end of the program"),
    )
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
        match table.link(slot) {
            Some(link) => link.follow(field).map(Some),
            None => Ok(None),
        }
    }
}

impl<'a> Field<'a> for Option<Link<'a>> {
    #[inline]
    fn read(table: &Table<'a>, slot: usize, _: &'static str) -> Fallible<Self> {
        Ok(table.link(slot))
    }
}
