//! When the bytes of planned tensors are needed, as the instructions tell.
//!
//! Rank 4. Part of `pte`.
//!
//! A file has no lifetimes. A tensor is needed from the first instruction that
//! names it to the last. Tensors that one reads through another, or writes in
//! place of another, are a group: it is needed as long as any of them, and keeps
//! the distances between them. So a plan that keeps groups apart as long as both
//! are needed does what the old one did.
//!
//! Where instructions leave doubt about what is read or written, that is said,
//! and nothing is guessed.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::pte::convention::{Convention, listed_outputs};
use crate::pte::delegate::Operator;
use crate::pte::fault::Fault;
use crate::pte::instruction::Instruction;
use crate::pte::link::Vtable;
use crate::pte::method::Method;
use crate::pte::owners::{Owners, Place};
use crate::pte::record::{Class, Record};
use crate::pte::schema::Chain;
use crate::pte::value::tensor_list;
use crate::pte::vector::Ints;

/// Tensors whose bytes belong together.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// The arena, counted from 0.
    pub(super) buffer: u32,
    /// The bytes of all of them, from the first to the last.
    pub(super) bytes: Range<usize>,
    /// The first and the last step that needs them. Step 0 is the start, when
    /// inputs and state are set; the last one is the end.
    pub(super) steps: (usize, usize),
    /// The positions of their records.
    pub(super) members: Vec<usize>,
    /// Whether one of them lives on after a run.
    pub(super) is_state: bool,
}

/// Why lifetimes can not be told.
#[derive(Debug)]
pub(super) enum Doubt {
    /// The program can not be walked.
    Fault(Fault),
    /// The instructions leave it open.
    Reason(String),
}

impl From<Fault> for Doubt {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

type Told<T> = Result<T, Doubt>;

/// The most parts of a tensor that may have been written by different ones.
const PARTS: usize = 64;

/// The groups of the planned tensors of `method` that anything names.
pub(super) fn find(method: &Method<'_>) -> Told<Vec<Group>> {
    let mut lives = Lives::new(method);
    lives.start()?;
    for chain in method.chains.iter() {
        lives.chain(&chain?)?;
    }
    lives.end()?;
    Ok(lives.groups())
}

struct Lives<'m, 'a> {
    method: &'m Method<'a>,
    conventions: Vec<Convention>,
    /// From the value to the position of its record.
    records: BTreeMap<i32, usize>,
    /// From a record to one of its group, or to itself; a forest.
    parents: Vec<usize>,
    /// The first and last step that names a record.
    steps: Vec<Option<(usize, usize)>>,
    /// Which records were written or set.
    is_defined: Vec<bool>,
    /// Which record's bytes a record stands for while the method runs, if it is a
    /// view that is made by an instruction.
    views: BTreeMap<usize, usize>,
    /// Which record wrote the bytes last.
    owners: Owners<usize>,
    step: usize,
    /// The list items that may still be looked at.
    items_left: usize,
}

impl<'m, 'a> Lives<'m, 'a> {
    /// How many list items are looked at for each value and instruction, at most.
    const ITEMS: usize = 32;

    fn new(method: &'m Method<'a>) -> Self {
        let count = method.records.len();
        let items = method.values.len().saturating_add(method.num_instructions);
        let records = method.records.iter().enumerate();
        Self {
            method,
            conventions: method
                .operators
                .iter()
                .map(|table| Convention::of(table.and_then(|t| Operator::read(&t)).ok()))
                .collect(),
            records: records
                .filter_map(|(position, record)| {
                    Some((i32::try_from(record.value).ok()?, position))
                })
                .collect(),
            parents: (0..count).collect(),
            steps: vec![None; count],
            is_defined: vec![false; count],
            views: BTreeMap::new(),
            owners: Owners::new(),
            step: 0,
            items_left: items.saturating_mul(Self::ITEMS),
        }
    }

    /// Sets inputs and state.
    fn start(&mut self) -> Told<()> {
        for tensor in self.tensors(self.method.inputs.iter())? {
            self.write(tensor);
        }
        for tensor in self.state() {
            self.write(tensor);
        }
        Ok(())
    }

    /// Reads outputs and state.
    fn end(&mut self) -> Told<()> {
        self.step = self.step.saturating_add(1);
        for tensor in self.tensors(self.method.outputs.iter())? {
            self.read(tensor)?;
        }
        for tensor in self.state() {
            self.read(tensor)?;
        }
        Ok(())
    }

    fn state(&self) -> Vec<usize> {
        let records = self.method.records.iter().enumerate();
        let state = records.filter(|(_, record)| record.is_state);
        state.map(|(position, _)| position).collect()
    }

    fn chain(&mut self, chain: &Chain<'a>) -> Told<()> {
        for table in chain.instructions()?.unwrap_or_default().iter() {
            let index = self.step;
            self.step = index.saturating_add(1);
            match Instruction::read(&table?, &mut Vtable::default())? {
                Instruction::Kernel { operator, args } => self.kernel(index, operator, args)?,
                Instruction::Delegate { args, .. } => self.delegate(args)?,
                Instruction::Free { .. } => {}
                Instruction::Move { .. } => return Err(doubt(index, "moves a value")),
                Instruction::JumpFalse { .. } => return Err(doubt(index, "jumps")),
            }
        }
        Ok(())
    }

    fn kernel(&mut self, index: usize, operator: i32, args: Ints<'a>) -> Told<()> {
        let operator = usize::try_from(operator).unwrap_or(usize::MAX);
        let known = self.conventions.get(operator).copied();
        let last = args.len().saturating_sub(1);
        let repeats_first = args.len() > 1 && args.get(0) == args.get(last);
        match known.unwrap_or(Convention::Out) {
            Convention::View => self.view(args),
            Convention::ReplacePart => self.read_all(args.iter()),
            Convention::Replace | Convention::Change if repeats_first => self.read_all(args.iter()),
            _ => match listed_outputs(self.method.values, args) {
                Some(count) => self.call(index, args, last.saturating_sub(count), last),
                // What it makes is no tensor.
                None if self.tensors(args.iter().skip(last))?.is_empty() => {
                    self.read_all(args.iter())
                }
                None if self.planned(args.iter())?.is_empty() => Ok(()),
                None => Err(doubt(index, "does not list its outputs")),
            },
        }
    }

    /// All arguments but the first stand for the first from here on.
    fn view(&mut self, args: Ints<'a>) -> Told<()> {
        self.read_all(args.iter().take(1))?;
        let Some(&base) = self.tensors(args.iter().take(1))?.first() else {
            return Ok(());
        };
        let base = self.views.get(&base).copied().unwrap_or(base);
        for view in self.tensors(args.iter().skip(1))? {
            self.name(view);
            if view != base {
                self.views.insert(view, base);
            }
        }
        Ok(())
    }

    /// A delegate's outputs are its last arguments, which nothing has written yet.
    /// One that lies exactly where live bytes are may be a view of them, so it is
    /// kept with them; the last argument is an output in any case.
    fn delegate(&mut self, args: Ints<'a>) -> Told<()> {
        let mut first_output = args.len();
        for (position, value) in args.iter().enumerate().rev() {
            let is_last = position.checked_add(1) == Some(args.len());
            let Some(&tensor) = self.records.get(&value) else {
                break;
            };
            if !self.may_be_output(tensor, is_last) {
                break;
            }
            first_output = position;
        }
        self.call(
            self.step.saturating_sub(1),
            args,
            first_output,
            first_output,
        )
    }

    fn may_be_output(&self, tensor: usize, is_last: bool) -> bool {
        let is_defined = self.is_defined.get(tensor).copied().unwrap_or(true);
        match self.method.records.get(tensor) {
            None => false,
            Some(record) => match record.class {
                Class::Constant => false,
                Class::Runtime => true,
                Class::Planned => {
                    let is_free = is_last || self.owners.exactly(&place(record)).is_none();
                    is_free && !is_defined
                }
            },
        }
    }

    /// Reads the first `inputs` of `args`, then writes those from `outputs` on.
    fn call(&mut self, index: usize, args: Ints<'a>, inputs: usize, outputs: usize) -> Told<()> {
        let read = self.planned(args.iter().take(inputs))?;
        let written = self.planned(args.iter().skip(outputs))?;
        for &tensor in &read {
            self.read(tensor)?;
        }
        for &tensor in &written {
            self.write(tensor);
        }
        for &tensor in &read {
            let Some(record) = self.method.records.get(tensor) else {
                continue;
            };
            let now: Vec<usize> = self.owners.of(&place(record)).take(PARTS).collect();
            for owner in now {
                if owner == tensor || !written.contains(&owner) {
                    continue;
                }
                let is_same = self.method.records.get(owner).map(place) == Some(place(record));
                if !is_same {
                    return Err(doubt(index, "writes over a part of what it reads"));
                }
                self.join(tensor, owner);
            }
        }
        Ok(())
    }

    fn read_all(&mut self, args: impl Iterator<Item = i32>) -> Told<()> {
        for tensor in self.planned(args)? {
            self.read(tensor)?;
        }
        Ok(())
    }

    /// The positions of the tensors that `values` are or list.
    fn tensors(&mut self, values: impl Iterator<Item = i32>) -> Told<Vec<usize>> {
        let mut found = Vec::new();
        for value in values {
            if let Some(&tensor) = self.records.get(&value) {
                found.push(tensor);
            } else if let Some(items) = tensor_list(self.method.values, value) {
                let Some(left) = self.items_left.checked_sub(items.len()) else {
                    let reason = "instructions share lists of tensors too much to be walked";
                    return Err(Fault::new("items", format_args!("{reason}")).into());
                };
                self.items_left = left;
                found.extend(items.filter_map(|item| self.records.get(&item)));
            }
        }
        Ok(found)
    }

    /// Those of them that are planned, or stand for one that is.
    fn planned(&mut self, values: impl Iterator<Item = i32>) -> Told<Vec<usize>> {
        let mut tensors = self.tensors(values)?;
        tensors.retain(|&tensor| self.is_planned(tensor) || self.views.contains_key(&tensor));
        Ok(tensors)
    }

    fn is_planned(&self, tensor: usize) -> bool {
        let record = self.method.records.get(tensor);
        record.is_some_and(|record| record.class == Class::Planned)
    }

    /// Notes that a tensor is needed now, and what it stands for too.
    fn name(&mut self, tensor: usize) {
        let step = self.step;
        for named in [Some(tensor), self.views.get(&tensor).copied()] {
            let known = named.and_then(|named| self.steps.get_mut(named));
            if let Some(known) = known {
                let first = known.map_or(step, |(first, _)| first);
                *known = Some((first, step));
            }
        }
    }

    fn write(&mut self, tensor: usize) {
        self.name(tensor);
        if let Some(record) = self.method.records.get(tensor)
            && record.class == Class::Planned
            && !self.views.contains_key(&tensor)
        {
            self.owners.assign(&place(record), tensor);
        }
        if let Some(is_defined) = self.is_defined.get_mut(tensor) {
            *is_defined = true;
        }
    }

    fn read(&mut self, tensor: usize) -> Told<()> {
        self.name(tensor);
        let Some(record) = self.method.records.get(tensor) else {
            return Ok(());
        };
        if record.class != Class::Planned || self.views.contains_key(&tensor) {
            return Ok(());
        }
        let writers: Vec<usize> = self.owners.of(&place(record)).take(PARTS).collect();
        if writers.len() == PARTS {
            let reason = format!(
                "value {} is read in more parts than are followed",
                record.value
            );
            return Err(Doubt::Reason(reason));
        }
        for writer in writers {
            self.join(tensor, writer);
        }
        Ok(())
    }

    /// The record that stands for the group of a tensor.
    fn root(&mut self, tensor: usize) -> usize {
        let mut at = tensor;
        while let Some(&parent) = self.parents.get(at)
            && parent != at
        {
            let above = self.parents.get(parent).copied().unwrap_or(parent);
            if let Some(slot) = self.parents.get_mut(at) {
                *slot = above;
            }
            at = above;
        }
        at
    }

    fn join(&mut self, one: usize, other: usize) {
        let (one, other) = (self.root(one), self.root(other));
        if let Some(parent) = self.parents.get_mut(other) {
            *parent = one;
        }
    }

    fn groups(mut self) -> Vec<Group> {
        let mut groups: BTreeMap<usize, Group> = BTreeMap::new();
        for (position, record) in self.method.records.iter().enumerate() {
            let Some(&Some(steps)) = self.steps.get(position) else {
                continue;
            };
            if record.class != Class::Planned || record.nbytes == 0 {
                continue;
            }
            let root = self.root(position);
            let bytes = place(record).bytes;
            let group = groups.entry(root).or_insert_with(|| Group {
                buffer: record.buffer,
                bytes: bytes.clone(),
                steps,
                members: Vec::new(),
                is_state: false,
            });
            group.bytes.start = group.bytes.start.min(bytes.start);
            group.bytes.end = group.bytes.end.max(bytes.end);
            group.steps.0 = group.steps.0.min(steps.0);
            group.steps.1 = group.steps.1.max(steps.1);
            group.members.push(position);
            group.is_state |= record.is_state;
        }
        groups.into_values().collect()
    }
}

fn doubt(index: usize, what: &str) -> Doubt {
    Doubt::Reason(format!("instruction {index} {what}"))
}

/// The range of a planned tensor.
fn place(record: &Record) -> Place {
    Place {
        buffer: record.buffer,
        bytes: record.offset..record.offset.saturating_add(record.nbytes),
    }
}
