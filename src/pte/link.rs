//! The offsets of a FlatBuffer, and the way to the tables at their ends.
//!
//! Rank 4. Part of `pte`.
//!
//! A table starts with the distance to its vtable, which says where its fields
//! are. Tables of one type mostly share a vtable, so the last one is remembered.
//! A vtable may lie anywhere in the program, so every offset is followed from the
//! start of the program and never from the parent table.

use crate::pte::fault::{Fallible, Fault};
use crate::pte::wire::{FromTable, Table, chunk, target, to_usize, word};

/// An offset that is not followed yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link<'a> {
    pub(super) program: &'a [u8],
    /// Where the offset is stored.
    pub(super) position: u32,
}

impl<'a> Link<'a> {
    /// The table at its end.
    #[inline]
    pub(super) fn follow<T: FromTable<'a>>(self, field: &'static str) -> Fallible<T> {
        self.follow_like(&mut Vtable::default(), field)
    }

    /// The table at its end, which probably has the vtable `last`.
    ///
    /// The vtable that it has is left in `last`.
    #[inline]
    pub(super) fn follow_like<T: FromTable<'a>>(
        self,
        last: &mut Vtable<'a>,
        field: &'static str,
    ) -> Fallible<T> {
        let start = target(self.program, self.position);
        match start.and_then(|start| last.table(self.program, start)) {
            Some(table) => Ok(table.into()),
            None => Err(no_table(self.program, self.position, field)),
        }
    }
}

/// A vtable that was found in a program and checked, or none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vtable<'a> {
    /// Where it is; if it is none, where none can be.
    position: u64,
    /// Where the fields of its tables are.
    slots: &'a [[u8; 2]],
}

impl Default for Vtable<'_> {
    /// None.
    #[inline]
    fn default() -> Self {
        Self {
            position: u64::MAX,
            slots: &[],
        }
    }
}

impl<'a> Vtable<'a> {
    /// The table at `start` of `program`, whose vtable is left here.
    #[inline]
    fn table(&mut self, program: &'a [u8], start: u32) -> Option<Table<'a>> {
        let position = vtable_position(program, start)?;
        if u64::from(position) != self.position {
            *self = Self::read(program, position)?;
        }
        Some(Table {
            program,
            start,
            slots: self.slots,
        })
    }

    /// The vtable at `position` of `program`.
    #[inline]
    fn read(program: &'a [u8], position: u32) -> Option<Self> {
        let size = usize::from(vtable_size(program, position)?);
        let start = to_usize(position);
        let fields = program.get(start.saturating_add(4)..start.saturating_add(size))?;
        match fields.as_chunks() {
            (slots, []) => Some(Self {
                position: u64::from(position),
                slots,
            }),
            _ => None,
        }
    }
}

/// Where the vtable of the table at `start` is.
///
/// One before the start of the program wraps around to a place past the end of
/// any program, where nothing is found.
#[inline]
fn vtable_position(program: &[u8], start: u32) -> Option<u32> {
    Some(start.wrapping_sub(word(program, start)?))
}

/// The size that the vtable at `position` states.
#[inline]
fn vtable_size(program: &[u8], position: u32) -> Option<u16> {
    chunk(program, to_usize(position)).map(u16::from_le_bytes)
}

/// The fault of an offset at `position` that leads to no table.
#[cold]
#[inline(never)]
fn no_table(program: &[u8], position: u32, field: &'static str) -> Fault {
    let size = program.len();
    let Some(offset) = word(program, position) else {
        return Fault::new(
            field,
            format_args!("no offset at byte {position} of a program of {size}"),
        );
    };
    let start = match position.checked_add(offset) {
        Some(start) if to_usize(start) < size => start,
        _ => {
            let start = u64::from(position).saturating_add(u64::from(offset));
            return Fault::new(
                field,
                format_args!(
                    "offset at byte {position} leads to byte {start} of a program of {size}"
                ),
            );
        }
    };
    let vtable = vtable_position(program, start);
    match vtable.and_then(|vtable| vtable_size(program, vtable)) {
        Some(length) if length < 4 || length % 2 != 0 => Fault::new(
            field,
            format_args!("table at byte {start} has a vtable of {length} bytes"),
        ),
        _ => Fault::new(
            field,
            format_args!("table at byte {start} has no vtable inside the program of {size} bytes"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::{Link, Vtable};
    use crate::pte::schema::FreeCall;

    /// A program of these words.
    fn program(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn link(program: &[u8], position: u32) -> Link<'_> {
        Link { program, position }
    }

    #[test]
    fn a_vtable_outside_of_the_program_is_not_found() {
        // The table at 4 has its vtable 1 and 2^31 bytes before the program, and 2^31 behind.
        for distance in [5, 0x7fff_ffff, 0x8000_0000] {
            let bytes = program(&[4, distance]);
            let mut last = Vtable::default();

            let found = link(&bytes, 0).follow_like::<FreeCall<'_>>(&mut last, "field");

            assert!(found.is_err(), "{distance:#x}");
            assert_eq!(last.position, u64::MAX);
        }
    }

    #[test]
    fn a_remembered_vtable_serves_its_own_tables_only() {
        // Offsets to tables at 16, 16 and 24, whose vtables are at 32 and 40.
        let back = |start: u32, vtable: u32| start.wrapping_sub(vtable);
        let sizes = 6 | 8 << 16;
        let bytes = program(
            &[
                [16, 12, 16, 0],
                [back(16, 32), 7, back(24, 40), 9],
                [sizes, 4, sizes, 0],
            ]
            .concat(),
        );
        let mut last = Vtable::default();

        let values = [0, 4, 8, 0].map(|position| {
            let call: FreeCall<'_> = link(&bytes, position)
                .follow_like(&mut last, "field")
                .unwrap();
            call.value_index().unwrap()
        });

        assert_eq!(values, [7, 7, 0, 7]);
    }
}
