//! Planning the memory of an existing program again.
//!
//! Rank 4. Part of `pte`. Imports `plan`.
//!
//! Every arena is planned by itself, from lifetimes that the instructions tell.
//! One that would not get smaller stays as it is. What is written is checked as
//! any other program before it is handed out.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::{
    self, DeviceOptions, MemoryPlan, PlanOptions, PlanRequest, PlanValue, PlannedBuffer,
};
use crate::pte::Program;
use crate::pte::lives::{self, Doubt, Group};
use crate::pte::method::Method;
use crate::pte::patch::Patch;
use crate::pte::record::{Class, Record};
use crate::pte::wire::to_usize;

/// The largest alignment that is taken from the offsets of an arena.
const LARGEST_ALIGN: usize = 64;

/// The alignment of ExecuTorch's own plans, to which it rounds sizes up.
const USUAL_ALIGN: usize = 16;

/// A program whose memory was planned again.
#[derive(Clone, Debug)]
pub struct Replanned {
    /// The new program, a whole file. It differs from the old one in the sizes of
    /// arenas and the offsets in them only.
    pub bytes: Vec<u8>,
    /// What became of each arena, by method and arena.
    pub arenas: Vec<ArenaChange>,
}

/// What became of an arena.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArenaChange {
    /// The method.
    pub method: String,
    /// The arena, counted from 0.
    pub index: usize,
    /// The device that it is on.
    pub device: Device,
    /// Its size before, in bytes.
    pub before: usize,
    /// Its size now, in bytes.
    pub after: usize,
    /// What it can not be less than with these lifetimes and alignments.
    pub lower_bound: usize,
}

/// Plans the memory of all methods of `program` again, a whole file.
///
/// Groups of tensors that are views of one another or written in place of one
/// another keep their distances. The alignment of an arena is taken from its
/// offsets. State stays where it is if there are several methods, which may share
/// it. No arena grows.
///
/// # Errors
///
/// - [`InvalidProgram`](ErrorKind::InvalidProgram): the program is malformed.
/// - [`CanNotReplan`](ErrorKind::CanNotReplan): the lifetimes of a method can not
///   be told from its instructions: it jumps, moves values, has an operator that
///   does not list its outputs, or overwrites tensors before their last read.
/// - those of [`PlanRequest::plan`].
///
/// # Examples
///
/// ```
/// use device_memory::plan::PlanOptions;
/// use device_memory::pte::{Program, replan};
///
/// let old = std::fs::read("tests/data/pte/transformer_cpu.pte")?;
/// let new = replan(&old, &PlanOptions::default())?;
///
/// assert_eq!((new.arenas[0].before, new.arenas[0].after), (18432, 17408));
/// let program = Program::parse(&new.bytes)?;
/// assert_eq!(program.method("forward")?.memory_planned_buffer_size(0)?, 17408);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn replan(program: &[u8], options: &PlanOptions) -> Result<Replanned> {
    let old = Program::parse(program)?;
    let mut patch = Patch::default();
    let mut arenas = Vec::new();
    for method in old.methods() {
        let groups = told(method)?;
        for index in 0..method.buffers().len() {
            let arena = Arena::new(method, index, &groups)?;
            let moved = arena.plan(old.methods().len() > 1, options)?;
            patch.arena(method, index, moved.change.after)?;
            for &(position, offset) in &moved.offsets {
                patch.tensor(method, position, offset)?;
            }
            arenas.push(moved.change);
        }
    }
    let bytes = patch.apply(program, old.header())?;
    check(&old, &bytes, &arenas)?;
    Ok(Replanned { bytes, arenas })
}

impl Method<'_> {
    /// What there is to plan in arena `index`, counted from 0: the groups of its
    /// tensors with their lifetimes, as [`replan`] tells them.
    ///
    /// Step 0 is the start, when inputs and state are set; instruction `n` is step
    /// `n + 1`; the last step is the end, when outputs and state are read.
    ///
    /// # Errors
    ///
    /// As [`replan`]; [`CanNotReplan`](ErrorKind::CanNotReplan) too if there is no such
    /// arena.
    pub fn plan_request(&self, index: usize) -> Result<PlanRequest> {
        let groups = told(self)?;
        Ok(Arena::new(self, index, &groups)?.request(false))
    }
}

/// The groups of a method, if they can be told.
fn told(method: &Method<'_>) -> Result<Vec<Group>> {
    if let Some(overwrite) = method.overwrites()?.first() {
        return Err(refusal(method, overwrite.to_string()));
    }
    lives::find(method).map_err(|doubt| match doubt {
        Doubt::Reason(reason) => refusal(method, reason),
        Doubt::Fault(fault) => fault.of_method(method.name()).into(),
    })
}

fn refusal(method: &Method<'_>, reason: String) -> Error {
    let method = method.name().to_owned();
    ErrorKind::CanNotReplan { method, reason }.into()
}

/// Checks that what was written is the program that was meant.
fn check(old: &Program<'_>, bytes: &[u8], arenas: &[ArenaChange]) -> Result<()> {
    let new = Program::parse(bytes)?;
    let mut sizes = arenas.iter().map(|arena| arena.after);
    for (old, new) in old.methods().iter().zip(new.methods()) {
        let is_as_meant = old.name() == new.name()
            && old.planned_tensors().count() == new.planned_tensors().count()
            && new
                .buffers()
                .iter()
                .all(|arena| sizes.next() == Some(arena.size));
        if !is_as_meant {
            return Err(refusal(old, "its tables are shared".to_owned()));
        }
        if let Some(overwrite) = new.overwrites()?.first() {
            return Err(refusal(old, format!("in the new plan, {overwrite}")));
        }
    }
    Ok(())
}

/// What becomes of an arena.
struct Moved {
    change: ArenaChange,
    /// The new offsets of records that are not where they were, by position.
    offsets: Vec<(usize, usize)>,
}

/// An arena to plan.
struct Arena<'p, 'a> {
    method: &'p Method<'a>,
    index: usize,
    buffer: &'p PlannedBuffer,
    groups: Vec<&'p Group>,
    align: usize,
    /// The bytes from the first tensor to behind the last one.
    used: Range<usize>,
}

impl<'p, 'a> Arena<'p, 'a> {
    fn new(method: &'p Method<'a>, index: usize, groups: &'p [Group]) -> Result<Self> {
        let unknown = || refusal(method, format!("it has no arena {index}"));
        let buffer = method.buffers().get(index).ok_or_else(unknown)?;
        let groups: Vec<&Group> = groups
            .iter()
            .filter(|g| to_usize(g.buffer) == index)
            .collect();
        let bits = groups
            .iter()
            .fold(LARGEST_ALIGN, |bits, group| bits | group.bytes.start);
        let align = 1_usize.checked_shl(bits.trailing_zeros()).unwrap_or(1);
        let mut arena = Self {
            method,
            index,
            buffer,
            groups,
            align,
            used: 0..0,
        };
        let places = || {
            arena
                .records()
                .map(|(_, record)| (record.offset, end(record)))
        };
        let start = places().map(|(start, _)| start).min().unwrap_or(0);
        let end = places().map(|(_, end)| end).max().unwrap_or(0);
        arena.used = start..end;
        Ok(arena)
    }

    /// The tensors in it that have bytes, by the position of their records.
    fn records(&self) -> impl Iterator<Item = (usize, &'p Record)> + use<'p, 'a> {
        let (method, index) = (self.method, self.index);
        let records = method.records.iter().enumerate();
        records.filter(move |(_, record)| {
            record.class == Class::Planned && to_usize(record.buffer) == index
        })
    }

    /// Plans it again. What is free before the first tensor and behind the last
    /// one may be kept for something else, and stays free.
    fn plan(&self, keeps_state: bool, options: &PlanOptions) -> Result<Moved> {
        let request = self.request(keeps_state);
        let report = request.plan(options)?;
        plan::check(&request, &report.plan)
            .map_err(|fault| refusal(self.method, fault.to_string()))?;
        let lower_bound = report.arenas.first().map_or(0, |arena| arena.lower_bound);
        let (offsets, after) = self.moves(&report.plan);
        let is_smaller = after < self.buffer.size;
        Ok(Moved {
            change: ArenaChange {
                method: self.method.name().to_owned(),
                index: self.index,
                device: self.buffer.device,
                before: self.buffer.size,
                after: if is_smaller { after } else { self.buffer.size },
                lower_bound: lower_bound.min(self.buffer.size),
            },
            offsets: if is_smaller { offsets } else { Vec::new() },
        })
    }

    /// What to plan: one value a group, in the order of the groups.
    fn request(&self, keeps_state: bool) -> PlanRequest {
        let mut request = PlanRequest::new();
        request.set_default(DeviceOptions::aligned(self.align.min(USUAL_ALIGN)));
        request.reserve(self.buffer.device, 0, self.used.start);
        for group in &self.groups {
            let (first, last) = group.steps;
            let value = PlanValue::new(group.bytes.len(), first..=last).on(self.buffer.device);
            let value = value.aligned(self.align).named(self.name(group));
            request.push(match group.is_state && keeps_state {
                true => value.at_offset(group.bytes.start),
                false => value,
            });
        }
        request
    }

    /// The values of a group, for people.
    fn name(&self, group: &Group) -> String {
        let members = group.members.iter();
        let records = members.filter_map(|&member| self.method.records.get(member));
        let values: Vec<String> = records.map(|record| record.value.to_string()).collect();
        match values.len() {
            1 => format!("value {}", values.concat()),
            _ => format!("values {}", values.join(", ")),
        }
    }

    /// The new offsets of records, and the size that the arena needs with them.
    fn moves(&self, plan: &MemoryPlan) -> (Vec<(usize, usize)>, usize) {
        let mut offsets = BTreeMap::new();
        let mut last = self.used.start;
        for (group, placement) in self.groups.iter().zip(plan.placements()) {
            last = last.max(placement.offset.saturating_add(placement.size));
            for &member in &group.members {
                if let Some(record) = self.method.records.get(member) {
                    let distance = record.offset.saturating_sub(group.bytes.start);
                    offsets.insert(member, placement.offset.saturating_add(distance));
                }
            }
        }
        // Tensors that nothing names only have to lie within the arena.
        let unnamed = self
            .records()
            .filter(|(position, _)| !offsets.contains_key(position));
        let unnamed: Vec<(usize, &Record)> = unnamed.collect();
        last = unnamed
            .iter()
            .fold(last, |last, (_, record)| last.max(record.nbytes));
        let free = self.buffer.size.saturating_sub(self.rounded(self.used.end));
        let size = self.rounded(last).saturating_add(free);
        for (position, record) in unnamed {
            if end(record) > size {
                offsets.insert(position, 0);
            }
        }
        let is_moved = |&(position, offset): &(usize, usize)| {
            let record = self.method.records.get(position);
            record.is_some_and(|record| record.offset != offset)
        };
        (offsets.into_iter().filter(is_moved).collect(), size)
    }

    /// `end` as the end of an arena, which is rounded up where the old one was.
    fn rounded(&self, end: usize) -> usize {
        match end.checked_next_multiple_of(self.align) {
            Some(rounded) if self.buffer.size.is_multiple_of(self.align) => rounded,
            _ => end,
        }
    }
}

fn end(record: &Record) -> usize {
    record.offset.saturating_add(record.nbytes)
}
