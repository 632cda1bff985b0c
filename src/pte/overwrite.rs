//! Tensors that are overwritten before their last read.
//!
//! Rank 3. Part of `pte`.
//!
//! The rule: the bytes of a tensor belong to whoever wrote them last, and a read
//! of a tensor that finds another's bytes is a fault of the plan. What writes
//! is taken from the calling conventions: an out-variant operator lists its
//! outputs again at the end of its arguments; a delegate's outputs are the last
//! arguments, not yet written. A tensor that nothing writes is a view that lost
//! its operator: it has the placement of its base, and its bytes are right as
//! long as a tensor with exactly this placement wrote them.
//!
//! Where instructions leave doubt, the writer is forgotten, so that a finding is
//! never a false alarm: at every instruction that is jumped to, after operators
//! of an unknown convention, and for values that are moved.

use std::fmt;

use crate::pte::delegate::Operator;
use crate::pte::fault::{Fallible, Fault};
use crate::pte::instruction::Instruction;
use crate::pte::method::Method;
use crate::pte::owners::{Owners, Place};
use crate::pte::record::{Class, Record};
use crate::pte::schema::Chain;
use crate::pte::value::tensor_list;
use crate::pte::wire::{Ints, to_usize};

/// A planned tensor that another one overwrites before its last read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Overwrite {
    /// The value that is lost.
    pub value: u32,
    /// The value whose writing loses it.
    pub by: u32,
    /// When the other value is written.
    pub written_at: Step,
    /// When the lost value is read after that.
    pub read_at: Step,
}

impl fmt::Display for Overwrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            value,
            by,
            written_at,
            read_at,
        } = self;
        write!(
            f,
            "value {value} is overwritten by value {by} {written_at} and read {read_at}"
        )
    }
}

/// A moment in the run of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// Before the first instruction, when inputs and state are set.
    Start,
    /// At an instruction, counted from 0 over all chains of the method.
    Instruction(usize),
    /// After the last instruction, when outputs and state are read.
    End,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => f.write_str("at the start"),
            Self::Instruction(index) => write!(f, "at instruction {index}"),
            Self::End => f.write_str("at the end"),
        }
    }
}

/// How an operator treats its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Convention {
    /// Outputs are listed again at the end.
    Out,
    /// The first argument is replaced, and listed again at the end.
    Replace,
    /// The first argument is changed, and listed again at the end.
    Change,
    /// A part of the first argument is replaced.
    ReplacePart,
    /// Nothing is written: an argument becomes a view of another.
    View,
}

impl Convention {
    fn of(operator: Option<Operator<'_>>) -> Self {
        match operator.map(|operator| operator.name) {
            Some("aten::copy_") => Self::Replace,
            Some("executorch_prim::et_view") => Self::View,
            Some("executorch_prim::et_copy_index") => Self::ReplacePart,
            Some(name) if name.ends_with('_') && !name.ends_with("__") => Self::Change,
            _ => Self::Out,
        }
    }
}

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
    /// Its bytes may be elsewhere.
    is_moved: bool,
}

/// The tensor has no record.
const NO_TENSOR: u32 = u32::MAX;

struct Walk<'m, 'a> {
    method: &'m Method<'a>,
    conventions: Vec<Convention>,
    /// From the value to the position of its record.
    tensors: Vec<u32>,
    states: Vec<State>,
    owners: Owners<Writer>,
    found: Vec<Overwrite>,
    /// Tensors set at the start that overlap: the reader's place in `found` and
    /// the tensor that must be read too.
    among_start: Vec<(Overwrite, usize)>,
    /// The list items that may still be looked at.
    items_left: usize,
}

/// Finds what is overwritten before its last read in `method`.
pub(super) fn find(method: &Method<'_>) -> Fallible<Vec<Overwrite>> {
    let mut walk = Walk::new(method);
    walk.start()?;
    let mut first = 0_usize;
    for chain in method.chains.iter() {
        first = walk.chain(&chain?, first)?;
    }
    walk.end()?;
    let Walk {
        mut found,
        among_start,
        states,
        ..
    } = walk;
    let both_read = among_start.into_iter().filter(|&(_, writer)| {
        let state = states.get(writer);
        state.is_some_and(|state| state.is_start_read)
    });
    found.extend(both_read.map(|(overwrite, _)| overwrite));
    Ok(found)
}

impl<'m, 'a> Walk<'m, 'a> {
    /// How many list items are looked at for each value and instruction, at most.
    const ITEMS: usize = 256;

    fn new(method: &'m Method<'a>) -> Self {
        let mut tensors = vec![NO_TENSOR; method.values.len()];
        for (position, record) in (0_u32..).zip(&method.records) {
            if let Some(slot) = tensors.get_mut(to_usize(record.value)) {
                *slot = position;
            }
        }
        let items = method.values.len().saturating_add(method.num_instructions);
        Self {
            method,
            conventions: method
                .operators
                .iter()
                .map(|table| Convention::of(table.and_then(|t| Operator::read(&t)).ok()))
                .collect(),
            tensors,
            states: vec![State::default(); method.records.len()],
            owners: Owners::new(),
            found: Vec::new(),
            among_start: Vec::new(),
            items_left: items.saturating_mul(Self::ITEMS),
        }
    }

    /// The position of the record of `value`, if it is a tensor.
    fn tensor(&self, value: i32) -> Option<(usize, &'m Record)> {
        let position = *self.tensors.get(usize::try_from(value).ok()?)?;
        let position = to_usize(position);
        Some((position, self.method.records.get(position)?))
    }

    /// The same, if its bytes are known to be where it was planned.
    fn planned(&self, value: i32) -> Option<(usize, &'m Record)> {
        let (position, record) = self.tensor(value)?;
        let is_moved = self.states.get(position)?.is_moved;
        (record.class == Class::Planned && record.nbytes > 0 && !is_moved)
            .then_some((position, record))
    }

    /// Calls `each` for `value`, or for its items if it is a list of tensors.
    fn for_each(&mut self, value: i32, mut each: impl FnMut(&mut Self, i32)) -> Fallible<()> {
        if self.tensor(value).is_some() {
            each(self, value);
        } else if let Some(items) = tensor_list(self.method.values, value) {
            let Some(left) = self.items_left.checked_sub(items.len()) else {
                return Err(Fault::new(
                    "items",
                    format_args!("instructions share lists of tensors too much to be walked"),
                ));
            };
            self.items_left = left;
            items.for_each(|item| each(self, item));
        }
        Ok(())
    }

    /// Sets inputs and state, and notes which values are moved.
    fn start(&mut self) -> Fallible<()> {
        for chain in self.method.chains.iter() {
            for table in chain?
                .instructions()?
                .into_iter()
                .flat_map(|list| list.iter())
            {
                if let Instruction::Move { to, .. } = Instruction::read(&table?)? {
                    self.for_each(to, |walk, value| {
                        let position = walk.tensor(value).map(|(position, _)| position);
                        if let Some(state) = position.and_then(|p| walk.states.get_mut(p)) {
                            state.is_moved = true;
                        }
                    })?;
                }
            }
        }
        for input in self.method.inputs.iter() {
            self.for_each(input, |walk, value| walk.write(value, Step::Start))?;
        }
        for record in self.method.records.iter().filter(|record| record.is_state) {
            if let Ok(value) = i32::try_from(record.value) {
                self.write(value, Step::Start);
            }
        }
        Ok(())
    }

    /// Reads outputs and state.
    fn end(&mut self) -> Fallible<()> {
        for output in self.method.outputs.iter() {
            self.for_each(output, |walk, value| walk.read(value, Step::End))?;
        }
        for record in self.method.records.iter().filter(|record| record.is_state) {
            if let Ok(value) = i32::try_from(record.value) {
                self.read(value, Step::End);
            }
        }
        Ok(())
    }

    /// Walks a chain whose instructions are numbered from `first` on, and
    /// returns the number after the last.
    fn chain(&mut self, chain: &Chain<'a>, first: usize) -> Fallible<usize> {
        let Some(instructions) = chain.instructions()? else {
            return Ok(first);
        };
        let mut targets = Vec::new();
        for table in instructions.iter() {
            if let Instruction::JumpFalse { target, .. } = Instruction::read(&table?)? {
                targets.push(usize::try_from(target).unwrap_or(0));
            }
        }
        targets.sort_unstable();
        targets.dedup();
        let mut targets = targets.into_iter().peekable();
        for (index, table) in instructions.iter().enumerate() {
            if targets.next_if_eq(&index).is_some() {
                self.owners.clear();
            }
            let step = Step::Instruction(first.saturating_add(index));
            match Instruction::read(&table?)? {
                Instruction::Kernel { operator, args } => self.kernel(operator, args, step)?,
                Instruction::Delegate { args, .. } => self.delegate(args, step)?,
                Instruction::Move { from, .. } => {
                    self.for_each(from, |walk, value| walk.read(value, step))?;
                }
                Instruction::JumpFalse { condition, .. } => self.read(condition, step),
                Instruction::Free { .. } => {}
            }
        }
        if targets.next().is_some() {
            self.owners.clear();
        }
        Ok(first.saturating_add(instructions.len()))
    }

    fn kernel(&mut self, operator: i32, args: Ints<'a>, step: Step) -> Fallible<()> {
        let operator = usize::try_from(operator).unwrap_or(usize::MAX);
        let convention = self.conventions.get(operator).copied();
        let len = args.len();
        let repeats_first = len > 1 && args.get(0) == args.get(len.saturating_sub(1));
        let (inputs, outputs) = match convention.unwrap_or(Convention::Out) {
            Convention::View => return self.call(args, 0..len, 0..0, step),
            Convention::Replace if repeats_first => (1..len.saturating_sub(1), 0..1),
            Convention::Change if repeats_first => (0..len.saturating_sub(1), 0..1),
            Convention::ReplacePart => (1..len, 0..1),
            _ => match self.outputs(args) {
                Some(count) => {
                    let last = len.saturating_sub(1);
                    (0..last.saturating_sub(count), last..len)
                }
                None => {
                    self.call(args, 0..len, 0..0, step)?;
                    return self.forget(args);
                }
            },
        };
        self.call(args, inputs, outputs, step)
    }

    /// How many arguments before the last one are outputs, if the last one lists them.
    fn outputs(&self, args: Ints<'a>) -> Option<usize> {
        let last = args.len().checked_sub(1)?;
        let value = args.get(last)?;
        let before = last.checked_sub(1)?;
        if args.get(before)? == value {
            return Some(1);
        }
        let items = tensor_list(self.method.values, value)?;
        let listed = tensor_list(self.method.values, args.get(before)?);
        if listed.is_some_and(|listed| listed.eq(items.clone())) {
            return Some(1);
        }
        let count = items.len();
        let start = last.checked_sub(count)?;
        let listed = args.iter().skip(start).take(count);
        listed.eq(items).then_some(count)
    }

    fn delegate(&mut self, args: Ints<'a>, step: Step) -> Fallible<()> {
        let len = args.len();
        let mut first_output = len;
        for (position, value) in args.iter().enumerate().rev() {
            let is_output = match self.tensor(value) {
                None => false,
                Some((tensor, record)) => match record.class {
                    Class::Constant => false,
                    Class::Runtime => true,
                    Class::Planned => {
                        let is_defined = self.states.get(tensor).is_some_and(|s| s.is_defined);
                        // One that lies exactly where live bytes are may be a view
                        // of them; the last argument is an output in any case.
                        let is_last = position.checked_add(1) == Some(len);
                        !is_defined && (is_last || self.owners.exactly(&place(record)).is_none())
                    }
                },
            };
            if !is_output {
                break;
            }
            first_output = position;
        }
        self.call(args, 0..first_output, first_output..len, step)
    }

    /// Reads `inputs` of `args` and then writes `outputs`.
    fn call(
        &mut self,
        args: Ints<'a>,
        inputs: std::ops::Range<usize>,
        outputs: std::ops::Range<usize>,
        step: Step,
    ) -> Fallible<()> {
        let arguments = |range: std::ops::Range<usize>| {
            let len = range.len();
            args.iter().skip(range.start).take(len)
        };
        for value in arguments(inputs.clone()) {
            self.for_each(value, |walk, value| walk.read(value, step))?;
        }
        for value in arguments(outputs) {
            self.for_each(value, |walk, value| walk.write(value, step))?;
        }
        for value in arguments(inputs) {
            self.for_each(value, |walk, value| walk.read_while_written(value, step))?;
        }
        Ok(())
    }

    /// Forgets who wrote the bytes of `args`.
    fn forget(&mut self, args: Ints<'a>) -> Fallible<()> {
        for value in args.iter() {
            self.for_each(value, |walk, value| {
                if let Some((_, record)) = walk.planned(value) {
                    walk.owners.forget(&place(record));
                }
            })?;
        }
        Ok(())
    }

    fn write(&mut self, value: i32, step: Step) {
        let Some((tensor, record)) = self.planned(value) else {
            return;
        };
        self.owners.assign(&place(record), Writer { tensor, step });
        if let Some(state) = self.states.get_mut(tensor) {
            state.is_defined = true;
            state.is_found = false;
        }
    }

    fn read(&mut self, value: i32, step: Step) {
        let Some((tensor, record)) = self.planned(value) else {
            return;
        };
        let place = place(record);
        let is_defined = self
            .states
            .get(tensor)
            .is_some_and(|state| state.is_defined);
        let mut other = None;
        for writer in self.owners.of(&place) {
            if let Some(state) = self.states.get_mut(writer.tensor) {
                let is_own =
                    writer.tensor == tensor || (!is_defined && same(self.method, writer, record));
                if is_own {
                    state.is_start_read |= writer.step == Step::Start;
                } else {
                    other = Some(writer);
                    break;
                }
            }
        }
        if let Some(writer) = other {
            self.lost(tensor, record, writer, step);
        }
    }

    /// Looks for bytes of an argument that the same call wrote.
    ///
    /// An output in exactly the place of an input is taken as meant.
    fn read_while_written(&mut self, value: i32, step: Step) {
        let Some((tensor, record)) = self.planned(value) else {
            return;
        };
        let other = self.owners.of(&place(record)).find(|writer| {
            writer.step == step && writer.tensor != tensor && !same(self.method, *writer, record)
        });
        if let Some(writer) = other {
            self.lost(tensor, record, writer, step);
        }
    }

    fn lost(&mut self, tensor: usize, record: &Record, writer: Writer, step: Step) {
        let Some(by) = self.method.records.get(writer.tensor) else {
            return;
        };
        let Some(state) = self.states.get_mut(tensor) else {
            return;
        };
        state.is_start_read |= writer.step == Step::Start;
        if std::mem::replace(&mut state.is_found, true) {
            return;
        }
        let overwrite = Overwrite {
            value: record.value,
            by: by.value,
            written_at: writer.step,
            read_at: step,
        };
        if writer.step == Step::Start {
            self.among_start.push((overwrite, writer.tensor));
        } else {
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

/// Whether the tensor that `writer` wrote lies exactly where `record` does.
fn same(method: &Method<'_>, writer: Writer, record: &Record) -> bool {
    method.records.get(writer.tensor).is_some_and(|other| {
        other.buffer == record.buffer
            && other.offset == record.offset
            && other.nbytes == record.nbytes
    })
}
