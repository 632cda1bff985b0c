//! What the arenas of a method hold while its instructions are walked.
//!
//! Rank 4. Part of `pte`.
//!
//! The rule: the bytes of a tensor belong to whoever wrote them last, and a read
//! of a tensor that finds another's bytes is a fault of the plan. A tensor that
//! nothing writes is a view that lost its operator: it has the placement of its
//! base, and its bytes are right as long as a tensor with exactly this placement
//! wrote them.

use std::collections::HashSet;

use crate::pte::overwrite::{Overwrite, Step};
use crate::pte::owners::{Owners, Place};
use crate::pte::record::{Class, Record};
use crate::pte::wire::to_usize;

/// Who wrote a range, and when.
#[derive(Clone, Copy, Debug)]
struct Writer {
    /// The position of the record.
    tensor: usize,
    step: Step,
}

/// What is known of a tensor during the walk.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// It was written or set.
    is_defined: bool,
    /// What it was set to at the start is read.
    is_start_read: bool,
    /// Its loss was found already.
    is_found: bool,
    /// The same, of what it was set to at the start.
    is_start_found: bool,
    /// Its bytes may be elsewhere.
    is_moved: bool,
}

/// The tensor has no record.
const NO_TENSOR: u32 = u32::MAX;

/// The most parts of a tensor that are looked at when it is read.
///
/// A tensor that was not lost has few, and a lost one is seen at the first.
const PARTS: usize = 64;

/// What the arenas hold, and what was lost so far.
pub(super) struct Memory<'m> {
    records: &'m [Record],
    /// From the value to the position of its record.
    tensors: Vec<u32>,
    states: Vec<State>,
    owners: Owners<Writer>,
    /// The places to which something was written.
    places: HashSet<(u32, usize, usize)>,
    found: Vec<Overwrite>,
    /// Losses among what is set at the start: findings if the record at this
    /// position is read too.
    among_start: Vec<(Overwrite, usize)>,
}

impl<'m> Memory<'m> {
    /// The memory of a method with `values` values, before its start.
    pub(super) fn new(values: usize, records: &'m [Record]) -> Self {
        let mut tensors = vec![NO_TENSOR; values];
        for (position, record) in (0_u32..).zip(records) {
            if let Some(slot) = tensors.get_mut(to_usize(record.value)) {
                *slot = position;
            }
        }
        Self {
            records,
            tensors,
            states: vec![State::default(); records.len()],
            owners: Owners::new(),
            places: HashSet::new(),
            found: Vec::new(),
            among_start: Vec::new(),
        }
    }

    /// What was lost.
    pub(super) fn finish(self) -> Vec<Overwrite> {
        let mut found = self.found;
        let both_read = self.among_start.into_iter().filter(|&(_, writer)| {
            let state = self.states.get(writer);
            state.is_some_and(|state| state.is_start_read)
        });
        found.extend(both_read.map(|(overwrite, _)| overwrite));
        found
    }

    /// The position of the record of `value`, if it is a tensor.
    fn tensor(&self, value: i32) -> Option<(usize, &'m Record)> {
        let position = *self.tensors.get(usize::try_from(value).ok()?)?;
        let position = to_usize(position);
        Some((position, self.records.get(position)?))
    }

    /// The same, if its bytes are known to be where it was planned.
    fn planned(&self, value: i32) -> Option<(usize, &'m Record)> {
        let (position, record) = self.tensor(value)?;
        let is_moved = self.states.get(position)?.is_moved;
        (record.class == Class::Planned && record.nbytes > 0 && !is_moved)
            .then_some((position, record))
    }

    /// Whether `value` is a tensor.
    pub(super) fn is_tensor(&self, value: i32) -> bool {
        self.tensor(value).is_some()
    }

    /// Whether `value` was written or set before.
    pub(super) fn is_defined(&self, value: i32) -> bool {
        self.tensor(value)
            .and_then(|(tensor, _)| self.states.get(tensor))
            .is_some_and(|state| state.is_defined)
    }

    /// Whether `value` may be an output of a delegate that has it as an argument,
    /// the last one or not.
    ///
    /// One that lies exactly where live bytes are may be a view of them; the last
    /// argument is an output in any case.
    pub(super) fn may_be_output(&self, value: i32, is_last: bool) -> bool {
        match self.tensor(value) {
            None => false,
            Some((_, record)) => match record.class {
                Class::Constant => false,
                Class::Runtime => true,
                Class::Planned => {
                    let is_free = is_last || self.owners.exactly(&place(record)).is_none();
                    is_free && !self.is_defined(value)
                }
            },
        }
    }

    /// Notes that the bytes of `value` may be elsewhere.
    pub(super) fn set_moved(&mut self, value: i32) {
        let tensor = self.tensor(value).map(|(tensor, _)| tensor);
        if let Some(state) = tensor.and_then(|tensor| self.states.get_mut(tensor)) {
            state.is_moved = true;
        }
    }

    /// Forgets who wrote the bytes of `value`.
    pub(super) fn forget(&mut self, value: i32) {
        if let Some((_, record)) = self.planned(value) {
            self.owners.forget(&place(record));
        }
    }

    /// Forgets who wrote any bytes.
    pub(super) fn forget_all(&mut self) {
        self.owners.clear();
    }

    /// Notes that `value` is written at `step`.
    pub(super) fn write(&mut self, value: i32, step: Step) {
        let Some((tensor, record)) = self.planned(value) else {
            return;
        };
        self.owners.assign(&place(record), Writer { tensor, step });
        self.places.insert(key(record));
        if let Some(state) = self.states.get_mut(tensor) {
            state.is_defined = true;
            state.is_found = false;
        }
    }

    /// Notes that `value` is read at `step`, and looks for its loss.
    pub(super) fn read(&mut self, value: i32, step: Step) {
        let Some((tensor, record)) = self.planned(value) else {
            return;
        };
        let state = self.states.get(tensor).copied().unwrap_or_default();
        // A tensor that is never written is a view. If nothing was written to
        // exactly its place, its base is not known.
        if !state.is_defined && !self.places.contains(&key(record)) {
            return;
        }
        // State may be replaced by a result that was planned onto it.
        let takes_same = !state.is_defined || (record.is_state && step == Step::End);
        let mut other = None;
        for writer in self.owners.of(&place(record)).take(PARTS) {
            let is_own = writer.tensor == tensor || (takes_same && self.is_same(writer, record));
            if !is_own {
                other = Some(writer);
                break;
            }
            if let Some(state) = self.states.get_mut(writer.tensor) {
                state.is_start_read |= writer.step == Step::Start;
            }
        }
        if let Some(writer) = other {
            self.lost(tensor, record, writer, step);
        }
    }

    /// Looks for bytes of an argument that the same call wrote.
    ///
    /// An output in exactly the place of an input is taken as meant.
    pub(super) fn read_while_written(&mut self, value: i32, step: Step) {
        let Some((tensor, record)) = self.planned(value) else {
            return;
        };
        let other = self.owners.of(&place(record)).take(PARTS).find(|writer| {
            writer.step == step && writer.tensor != tensor && !self.is_same(*writer, record)
        });
        if let Some(writer) = other {
            self.lost(tensor, record, writer, step);
        }
    }

    /// Whether the tensor that `writer` wrote lies exactly where `record` does.
    fn is_same(&self, writer: Writer, record: &Record) -> bool {
        let other = self.records.get(writer.tensor);
        other.is_some_and(|other| key(other) == key(record))
    }

    fn lost(&mut self, tensor: usize, record: &Record, writer: Writer, step: Step) {
        let Some(by) = self.records.get(writer.tensor) else {
            return;
        };
        let Some(state) = self.states.get_mut(tensor) else {
            return;
        };
        let overwrite = Overwrite {
            value: record.value,
            by: by.value,
            written_at: writer.step,
            read_at: step,
        };
        if writer.step == Step::Start {
            state.is_start_read = true;
            if !std::mem::replace(&mut state.is_start_found, true) {
                self.among_start.push((overwrite, writer.tensor));
            }
        } else if !std::mem::replace(&mut state.is_found, true) {
            self.found.push(overwrite);
        }
    }
}

/// The range of a planned tensor.
fn place(record: &Record) -> Place {
    Place {
        buffer: record.buffer,
        bytes: record.offset..record.offset.saturating_add(record.nbytes),
    }
}

/// The place of a planned tensor, to look it up.
fn key(record: &Record) -> (u32, usize, usize) {
    (record.buffer, record.offset, record.nbytes)
}
