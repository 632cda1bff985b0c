//! The parts of a FlatBuffer: tables, vectors, strings.
//!
//! Rank 3. Part of `pte`.
//!
//! `planus` reads tables and scalars. Offsets are followed here, from the start
//! of the program and never from the parent table, because a vtable may lie
//! anywhere in the program. Every read is checked against the program's end.

use std::marker::PhantomData;

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
fn target(program: &[u8], position: usize) -> Option<usize> {
    position.checked_add(to_usize(word(program, position)?))
}

/// A table somewhere in a program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Table<'a> {
    program: &'a [u8],
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
    fn position(&self, slot: usize, field: &'static str) -> Fallible<Option<usize>> {
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

/// The start of the vector at the end of the offset at `position`, and its `N`-byte elements.
#[inline]
fn elements<'a, const N: usize>(
    program: &'a [u8],
    position: usize,
    field: &'static str,
) -> Fallible<(usize, &'a [[u8; N]])> {
    match try_elements(program, position) {
        Some(found) => Ok(found),
        None => Err(out_of_bounds::<N>(program, position, field)),
    }
}

#[inline]
fn try_elements<const N: usize>(program: &[u8], position: usize) -> Option<(usize, &[[u8; N]])> {
    let vector = target(program, position)?;
    let len = to_usize(word(program, vector)?);
    let start = vector.checked_add(4)?;
    let bytes = program.get(start..)?.get(..len.checked_mul(N)?)?;
    Some((start, bytes.as_chunks().0))
}

#[cold]
#[inline(never)]
fn out_of_bounds<const N: usize>(program: &[u8], position: usize, field: &'static str) -> Fault {
    let size = program.len();
    match target(program, position).and_then(|vector| Some((vector, word(program, vector)?))) {
        Some((vector, len)) => Fault::new(
            field,
            format_args!(
                "{len} elements of {N} bytes at byte {vector} pass the end of the program of {size} bytes"
            ),
        ),
        None => Fault::new(
            field,
            format_args!("offset at byte {position} leads out of the program of {size} bytes"),
        ),
    }
}

impl<'a> Field<'a> for Option<&'a [u8]> {
    #[inline]
    fn read(table: &Table<'a>, slot: usize, field: &'static str) -> Fallible<Self> {
        match table.position(slot, field)? {
            Some(position) => {
                let (_, bytes) = elements::<1>(table.program, position, field)?;
                Ok(Some(bytes.as_flattened()))
            }
            None => Ok(None),
        }
    }
}

impl<'a> Field<'a> for Option<&'a str> {
    fn read(table: &Table<'a>, slot: usize, field: &'static str) -> Fallible<Self> {
        let Some(position) = table.position(slot, field)? else {
            return Ok(None);
        };
        let (start, bytes) = elements::<1>(table.program, position, field)?;
        let bytes = bytes.as_flattened();
        let end = start.saturating_add(bytes.len());
        if table.program.get(end) != Some(&0) {
            return Err(Fault::new(
                field,
                format_args!(
                    "string of {} bytes at byte {start} has no nul after it",
                    bytes.len()
                ),
            ));
        }
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Some(text)),
            Err(error) => Err(Fault::new(
                field,
                format_args!(
                    "string of {} bytes at byte {start} is not utf-8 after {} of them",
                    bytes.len(),
                    error.valid_up_to()
                ),
            )),
        }
    }
}

macro_rules! number_vectors {
    ($($(#[$doc:meta])* $vector:ident($number:ty, $size:literal);)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default)]
        pub(super) struct $vector<'a>(&'a [[u8; $size]]);

        impl<'a> $vector<'a> {
            /// The number of elements.
            #[inline]
            pub(super) fn len(self) -> usize {
                self.0.len()
            }

            /// The size of all elements.
            #[inline]
            pub(super) fn size_in_bytes(self) -> usize {
                self.0.as_flattened().len()
            }

            /// The element at `index`.
            #[inline]
            pub(super) fn get(self, index: usize) -> Option<$number> {
                self.0.get(index).copied().map(<$number>::from_le_bytes)
            }

            /// The elements, in order.
            #[inline]
            pub(super) fn iter(
                self,
            ) -> impl ExactSizeIterator<Item = $number> + DoubleEndedIterator + Clone + use<'a> {
                self.0.iter().copied().map(<$number>::from_le_bytes)
            }
        }

        impl<'a> Field<'a> for Option<$vector<'a>> {
            #[inline]
            fn read(table: &Table<'a>, slot: usize, field: &'static str) -> Fallible<Self> {
                match table.position(slot, field)? {
                    Some(position) => {
                        let (_, numbers) = elements(table.program, position, field)?;
                        Ok(Some($vector(numbers)))
                    }
                    None => Ok(None),
                }
            }
        }
    )*};
}

number_vectors! {
    /// A vector of 32-bit signed integers.
    Ints(i32, 4);
    /// A vector of 64-bit signed integers.
    Longs(i64, 8);
    /// A vector of 64-bit unsigned integers.
    ULongs(u64, 8);
}

/// A vector of offsets to tables.
#[derive(Debug)]
pub(super) struct Tables<'a, T> {
    program: &'a [u8],
    start: usize,
    len: usize,
    field: &'static str,
    table: PhantomData<T>,
}

impl<T> Clone for Tables<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Tables<'_, T> {}

impl<T> Default for Tables<'_, T> {
    fn default() -> Self {
        Self {
            program: &[],
            start: 0,
            len: 0,
            field: "",
            table: PhantomData,
        }
    }
}

impl<'a, T: FromTable<'a>> Tables<'a, T> {
    /// The number of tables.
    #[inline]
    pub(super) fn len(self) -> usize {
        self.len
    }

    /// The table at `index`, if there is one and it can be read.
    #[inline]
    pub(super) fn get(self, index: usize) -> Option<T> {
        if index >= self.len {
            return None;
        }
        let position = index.checked_mul(4)?.checked_add(self.start)?;
        Some(Table::at(self.program, position, self.field).ok()?.into())
    }

    /// The tables, in order, as far as they can be read.
    #[inline]
    pub(super) fn iter(self) -> impl Iterator<Item = Fallible<T>> + use<'a, T> {
        let end = self.len.saturating_mul(4).saturating_add(self.start);
        (self.start..end)
            .step_by(4)
            .map(move |position| Ok(Table::at(self.program, position, self.field)?.into()))
    }
}

impl<'a, T: FromTable<'a>> Field<'a> for Option<Tables<'a, T>> {
    #[inline]
    fn read(table: &Table<'a>, slot: usize, field: &'static str) -> Fallible<Self> {
        match table.position(slot, field)? {
            Some(position) => {
                let (start, offsets) = elements::<4>(table.program, position, field)?;
                Ok(Some(Tables {
                    program: table.program,
                    start,
                    len: offsets.len(),
                    field,
                    table: PhantomData,
                }))
            }
            None => Ok(None),
        }
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
