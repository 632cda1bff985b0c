//! The walk that finds tensors that are overwritten before their last read.
//!
//! Rank 4. Part of `pte`. What the arenas hold meanwhile is in `memory`.
//!
//! What an instruction writes is taken from the calling conventions: an
//! out-variant operator lists its outputs again at the end of its arguments; a
//! delegate's outputs are the last arguments, not yet written.
//!
//! Where instructions leave doubt, the writer is forgotten, so that a finding is
//! never a false alarm: at every instruction that is jumped to, after operators
//! of an unknown convention, and for values that are moved.

use std::ops::Range;

use crate::pte::convention::{Convention, listed_outputs};
use crate::pte::delegate::Operator;
use crate::pte::fault::{Fallible, Fault};
use crate::pte::instruction::Instruction;
use crate::pte::link::Vtable;
use crate::pte::memory::Memory;
use crate::pte::method::Method;
use crate::pte::overwrite::{Overwrite, Step};
use crate::pte::schema::Chain;
use crate::pte::value::tensor_list;
use crate::pte::vector::Ints;

struct Walk<'m, 'a> {
    method: &'m Method<'a>,
    conventions: Vec<Convention>,
    memory: Memory<'m>,
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
    Ok(walk.memory.finish())
}

impl<'m, 'a> Walk<'m, 'a> {
    /// How many list items are looked at for each value and instruction, at most.
    const ITEMS: usize = 32;

    fn new(method: &'m Method<'a>) -> Self {
        let values = method.values.len();
        let items = values.saturating_add(method.num_instructions);
        Self {
            method,
            conventions: method
                .operators
                .iter()
                .map(|table| Convention::of(table.and_then(|t| Operator::read(&t)).ok()))
                .collect(),
            memory: Memory::new(values, &method.records),
            items_left: items.saturating_mul(Self::ITEMS),
        }
    }

    /// Calls `each` for `value`, or for its items if it is a list of tensors.
    fn for_each(&mut self, value: i32, mut each: impl FnMut(&mut Memory<'m>, i32)) -> Fallible<()> {
        if self.memory.is_tensor(value) {
            each(&mut self.memory, value);
        } else if let Some(items) = tensor_list(self.method.values, value) {
            let Some(left) = self.items_left.checked_sub(items.len()) else {
                return Err(Fault::new(
                    "items",
                    format_args!("instructions share lists of tensors too much to be walked"),
                ));
            };
            self.items_left = left;
            items.for_each(|item| each(&mut self.memory, item));
        }
        Ok(())
    }

    /// Sets inputs and state, and notes which values are moved.
    fn start(&mut self) -> Fallible<()> {
        for chain in self.method.chains.iter() {
            for table in chain?.instructions()?.unwrap_or_default().iter() {
                match Instruction::read(&table?, &mut Vtable::default())? {
                    Instruction::Move { to, .. } => self.set_moved(to)?,
                    Instruction::Kernel { operator, args }
                        if self.convention(operator) == Convention::View =>
                    {
                        for value in args.iter().skip(1) {
                            self.set_moved(value)?;
                        }
                    }
                    _ => {}
                }
            }
        }
        for input in self.method.inputs.iter() {
            self.for_each(input, |memory, value| memory.write(value, Step::Start))?;
        }
        for record in self.method.records.iter().filter(|record| record.is_state) {
            if let Ok(value) = i32::try_from(record.value) {
                self.memory.write(value, Step::Start);
            }
        }
        Ok(())
    }

    fn set_moved(&mut self, value: i32) -> Fallible<()> {
        self.for_each(value, Memory::set_moved)
    }

    /// Reads outputs and state.
    fn end(&mut self) -> Fallible<()> {
        for output in self.method.outputs.iter() {
            self.for_each(output, |memory, value| memory.read(value, Step::End))?;
        }
        for record in self.method.records.iter().filter(|record| record.is_state) {
            if let Ok(value) = i32::try_from(record.value) {
                self.memory.read(value, Step::End);
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
            if let Instruction::JumpFalse { target, .. } =
                Instruction::read(&table?, &mut Vtable::default())?
            {
                targets.push(usize::try_from(target).unwrap_or(0));
            }
        }
        targets.sort_unstable();
        targets.dedup();
        let mut targets = targets.into_iter().peekable();
        for (index, table) in instructions.iter().enumerate() {
            if targets.next_if_eq(&index).is_some() {
                self.memory.forget_all();
            }
            let step = Step::Instruction(first.saturating_add(index));
            match Instruction::read(&table?, &mut Vtable::default())? {
                Instruction::Kernel { operator, args } => self.kernel(operator, args, step)?,
                Instruction::Delegate { args, .. } => self.delegate(args, step)?,
                Instruction::Move { from, .. } => {
                    self.for_each(from, |memory, value| memory.read(value, step))?;
                }
                Instruction::JumpFalse { condition, .. } => self.memory.read(condition, step),
                Instruction::Free { .. } => {}
            }
        }
        if targets.next().is_some() {
            self.memory.forget_all();
        }
        Ok(first.saturating_add(instructions.len()))
    }

    fn kernel(&mut self, operator: i32, args: Ints<'a>, step: Step) -> Fallible<()> {
        let convention = self.convention(operator);
        let len = args.len();
        let last = len.saturating_sub(1);
        let repeats_first = len > 1 && args.get(0) == args.get(last);
        match convention {
            Convention::View => self.call(args, 0..1, 0..0, step),
            Convention::ReplacePart => {
                self.call(args, 1..len, 0..0, step)?;
                self.forget(args, 0..1)
            }
            Convention::Replace if repeats_first => self.update(args, 1..last, step),
            Convention::Change if repeats_first => self.update(args, 0..last, step),
            _ => match listed_outputs(self.method.values, args) {
                Some(count) => self.call(args, 0..last.saturating_sub(count), last..len, step),
                None => self.forget(args, 0..len),
            },
        }
    }

    fn convention(&self, operator: i32) -> Convention {
        let operator = usize::try_from(operator).unwrap_or(usize::MAX);
        let known = self.conventions.get(operator);
        known.copied().unwrap_or(Convention::Out)
    }

    /// Reads `inputs` of `args` and then writes the first argument.
    ///
    /// One that was not written before may be a view of something that was.
    fn update(&mut self, args: Ints<'a>, inputs: Range<usize>, step: Step) -> Fallible<()> {
        let is_defined = args
            .get(0)
            .is_some_and(|first| self.memory.is_defined(first));
        if is_defined {
            self.call(args, inputs, 0..1, step)
        } else {
            self.call(args, inputs, 0..0, step)?;
            self.forget(args, 0..1)
        }
    }

    fn delegate(&mut self, args: Ints<'a>, step: Step) -> Fallible<()> {
        let len = args.len();
        let mut first_output = len;
        for (position, value) in args.iter().enumerate().rev() {
            let is_last = position.checked_add(1) == Some(len);
            let is_output = self.memory.may_be_output(value, is_last);
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
        inputs: Range<usize>,
        outputs: Range<usize>,
        step: Step,
    ) -> Fallible<()> {
        let arguments = |range: Range<usize>| {
            let len = range.len();
            args.iter().skip(range.start).take(len)
        };
        for value in arguments(inputs.clone()) {
            self.for_each(value, |memory, value| memory.read(value, step))?;
        }
        for value in arguments(outputs) {
            self.for_each(value, |memory, value| memory.write(value, step))?;
        }
        for value in arguments(inputs) {
            self.for_each(value, |memory, value| {
                memory.read_while_written(value, step)
            })?;
        }
        Ok(())
    }

    /// Forgets who wrote the bytes of `range` of `args`.
    fn forget(&mut self, args: Ints<'a>, range: Range<usize>) -> Fallible<()> {
        for value in args.iter().skip(range.start).take(range.len()) {
            self.for_each(value, Memory::forget)?;
        }
        Ok(())
    }
}
