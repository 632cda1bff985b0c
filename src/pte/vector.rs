//! The vectors and strings of a FlatBuffer.
//!
//! Rank 4. Part of `pte`.
//!
//! A vector is a slice of the file, checked when it is found. The tables that a
//! vector of offsets leads to are checked when they are asked for.

use std::marker::PhantomData;
use std::str::Utf8Error;

use crate::pte::fault::{Fallible, Fault};
use crate::pte::link::{Link, Vtable};
use crate::pte::wire::{Field, FromTable, Table, target, to_usize, word};

/// The start of the vector at the end of `link`, and its `N`-byte elements.
#[inline]
fn elements<'a, const N: usize>(
    link: Link<'a>,
    field: &'static str,
) -> Fallible<(u32, &'a [[u8; N]])> {
    let Link { program, position } = link;
    match try_elements(program, position) {
        Some(found) => Ok(found),
        None => Err(out_of_bounds::<N>(program, position, field)),
    }
}

#[inline]
fn try_elements<const N: usize>(program: &[u8], position: u32) -> Option<(u32, &[[u8; N]])> {
    let vector = target(program, position)?;
    let size = to_usize(word(program, vector)?).checked_mul(N)?;
    let first = to_usize(vector).checked_add(4)?;
    let bytes = program.get(first..first.checked_add(size)?)?;
    // No program is so long that this wraps.
    Some((vector.wrapping_add(4), bytes.as_chunks().0))
}

#[cold]
#[inline(never)]
fn out_of_bounds<const N: usize>(program: &[u8], position: u32, field: &'static str) -> Fault {
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
        match table.link(slot) {
            Some(link) => {
                let (_, bytes) = elements::<1>(link, field)?;
                Ok(Some(bytes.as_flattened()))
            }
            None => Ok(None),
        }
    }
}

impl<'a> Field<'a> for Option<&'a str> {
    #[inline]
    fn read(table: &Table<'a>, slot: usize, field: &'static str) -> Fallible<Self> {
        match table.link(slot) {
            Some(link) => Ok(Some(text(link, field)?)),
            None => Ok(None),
        }
    }
}

/// The string at the end of `link`.
fn text<'a>(link: Link<'a>, field: &'static str) -> Fallible<&'a str> {
    let (start, bytes) = elements::<1>(link, field)?;
    let bytes = bytes.as_flattened();
    let end = to_usize(start).saturating_add(bytes.len());
    if link.program.get(end) != Some(&0) {
        return Err(no_text(field, start, bytes, None));
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(error) => Err(no_text(field, start, bytes, Some(error))),
    }
}

/// The fault of a string that no nul follows or that is not UTF-8.
#[cold]
#[inline(never)]
fn no_text(field: &'static str, start: u32, bytes: &[u8], error: Option<Utf8Error>) -> Fault {
    let len = bytes.len();
    match error {
        None => Fault::new(
            field,
            format_args!("string of {len} bytes at byte {start} has no nul after it"),
        ),
        Some(error) => Fault::new(
            field,
            format_args!(
                "string of {len} bytes at byte {start} is not utf-8 after {} of them",
                error.valid_up_to()
            ),
        ),
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
                match table.link(slot) {
                    Some(link) => {
                        let (_, numbers) = elements(link, field)?;
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

impl Ints<'_> {
    /// The element at `index`.
    #[inline]
    pub(super) fn get(self, index: usize) -> Option<i32> {
        self.0.get(index).copied().map(i32::from_le_bytes)
    }
}

impl ULongs<'_> {
    /// The element at `index`.
    #[inline]
    pub(super) fn get(self, index: usize) -> Option<u64> {
        self.0.get(index).copied().map(u64::from_le_bytes)
    }
}

/// A vector of offsets to tables.
#[derive(Debug)]
pub(super) struct Tables<'a, T> {
    program: &'a [u8],
    start: u32,
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
        self.get_like(&mut Vtable::default(), index)
    }

    /// The same, where the table probably has the vtable `last`.
    #[inline]
    pub(super) fn get_like(self, last: &mut Vtable<'a>, index: usize) -> Option<T> {
        if index >= self.len {
            return None;
        }
        let link = self.link(u32::try_from(index).ok()?);
        link.follow_like(last, self.field).ok()
    }

    /// The tables, in order, as far as they can be read.
    #[inline]
    pub(super) fn iter(self) -> impl Iterator<Item = Fallible<T>> + use<'a, T> {
        let mut last = Vtable::default();
        (0..)
            .take(self.len)
            .map(move |index| self.link(index).follow_like(&mut last, self.field))
    }

    #[inline]
    fn link(self, index: u32) -> Link<'a> {
        Link {
            program: self.program,
            // No program is so long that this wraps.
            position: self.start.wrapping_add(index.wrapping_mul(4)),
        }
    }
}

impl<'a, T: FromTable<'a>> Field<'a> for Option<Tables<'a, T>> {
    #[inline]
    fn read(table: &Table<'a>, slot: usize, field: &'static str) -> Fallible<Self> {
        match table.link(slot) {
            Some(link) => {
                let (start, offsets) = elements::<4>(link, field)?;
                Ok(Some(Tables {
                    program: link.program,
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
