//! One method of a program.
//!
//! Rank 4. Part of `pte`.
//!
//! Arenas are counted from 0 here, as in `plan`; the file counts from 1.

use crate::device::Device;
use crate::error::{Error, PlacementError, Result};
use crate::plan::{MemoryPlan, PlannedBuffer};
use crate::pte::arena::{self, BufferDevice};
use crate::pte::data::Data;
use crate::pte::delegate::{Delegate, Operator, check_delegates, check_operators};
use crate::pte::fault::{Budget, Fallible, Fault};
use crate::pte::instruction::{Counts, check_chains, check_indices};
use crate::pte::overwrite::Overwrite;
use crate::pte::record::{Class, Context, Record, Vtables};
use crate::pte::schema::{self, Chain, EValue, ExecutionPlan};
use crate::pte::tensor::{PlannedTensor, Tensor};
use crate::pte::value::{self, ValueKind};
use crate::pte::vector::{Ints, Tables};
use crate::pte::walk;
use crate::pte::warning::Warnings;

/// A method of a program: its arenas, its values, its instructions.
#[derive(Clone, Debug)]
pub struct Method<'a> {
    pub(super) program: &'a [u8],
    pub(super) name: &'a str,
    pub(super) plan: ExecutionPlan<'a>,
    pub(super) values: Tables<'a, EValue<'a>>,
    pub(super) inputs: Ints<'a>,
    pub(super) outputs: Ints<'a>,
    pub(super) chains: Tables<'a, Chain<'a>>,
    pub(super) operators: Tables<'a, schema::Operator<'a>>,
    arenas: Vec<PlannedBuffer>,
    pub(super) records: Vec<Record>,
    pub(super) num_instructions: usize,
}

impl<'a> Method<'a> {
    /// The name, by which it is called.
    #[must_use]
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// The number of arenas.
    #[must_use]
    pub fn num_memory_planned_buffers(&self) -> usize {
        self.arenas.len()
    }

    /// The size of an arena in bytes.
    ///
    /// # Errors
    ///
    /// - [`Placement`](crate::ErrorKind::Placement): there is no arena `index`.
    pub fn memory_planned_buffer_size(&self, index: usize) -> Result<usize> {
        Ok(self.arena(index)?.size)
    }

    /// The device that an arena must be on.
    ///
    /// An arena that the file's device list leaves out is on the CPU.
    ///
    /// # Errors
    ///
    /// - [`Placement`](crate::ErrorKind::Placement): there is no arena `index`.
    pub fn memory_planned_buffer_device(&self, index: usize) -> Result<Device> {
        Ok(self.arena(index)?.device)
    }

    fn arena(&self, index: usize) -> Result<&PlannedBuffer> {
        self.arenas.get(index).ok_or_else(|| {
            Error::from(PlacementError::UnknownMemoryId {
                memory_id: u32::try_from(index).unwrap_or(u32::MAX),
                count: self.arenas.len(),
            })
        })
    }

    /// The arenas, counted from 0.
    #[must_use]
    pub fn buffers(&self) -> &[PlannedBuffer] {
        &self.arenas
    }

    /// The sizes as they are in the file: slot 0 is reserved.
    #[must_use]
    pub fn non_const_buffer_sizes(&self) -> impl ExactSizeIterator<Item = i64> + use<'a> {
        let sizes = self.plan.non_const_buffer_sizes().ok().flatten();
        sizes.unwrap_or_default().iter()
    }

    /// The device list as it is in the file, if there is one.
    #[must_use]
    pub fn non_const_buffer_device(&self) -> Option<impl Iterator<Item = BufferDevice> + use<'a>> {
        let list = self.plan.non_const_buffer_device().ok()??;
        let entries = list.iter();
        Some(entries.filter_map(|entry| BufferDevice::read(&entry.ok()?).ok()))
    }

    /// The tensors that lie in an arena, in the order of the values.
    ///
    /// Several may share a range: they are not alive at the same time, or one is
    /// a view of the other.
    #[inline]
    pub fn planned_tensors(&self) -> impl Iterator<Item = PlannedTensor<'a>> + Clone + '_ {
        let program = self.program;
        self.records
            .iter()
            .filter(|record| record.class == Class::Planned)
            .map(move |record| PlannedTensor::new(program, *record))
    }

    /// The tensors whose data is part of the program or of another file.
    pub fn constant_tensors(&self) -> impl Iterator<Item = Tensor<'a>> + Clone + '_ {
        self.tensors(Class::Constant)
    }

    /// The tensors that have no memory before execution, such as inputs that the
    /// caller provides.
    pub fn runtime_tensors(&self) -> impl Iterator<Item = Tensor<'a>> + Clone + '_ {
        self.tensors(Class::Runtime)
    }

    fn tensors(&self, class: Class) -> impl Iterator<Item = Tensor<'a>> + Clone + '_ {
        let program = self.program;
        self.records
            .iter()
            .filter(move |record| record.class == class)
            .map(move |record| Tensor::new(program, *record))
    }

    /// The number of values.
    #[must_use]
    pub fn num_values(&self) -> usize {
        self.values.len()
    }

    /// What value `index` is.
    #[must_use]
    pub fn value_kind(&self, index: u32) -> Option<ValueKind> {
        value::kind_of(self.values, i32::try_from(index).ok()?)
    }

    /// The values that the caller sets before a run, and what they are.
    pub fn inputs(&self) -> impl Iterator<Item = (u32, ValueKind)> + use<'a> {
        with_kinds(self.values, self.inputs)
    }

    /// The values that the caller gets after a run, and what they are.
    pub fn outputs(&self) -> impl Iterator<Item = (u32, ValueKind)> + use<'a> {
        with_kinds(self.values, self.outputs)
    }

    /// The operators that the instructions run.
    pub fn operators(&self) -> impl Iterator<Item = Operator<'a>> + use<'a> {
        self.operators
            .iter()
            .filter_map(|table| Operator::read(&table.ok()?).ok())
    }

    /// The parts that back ends run.
    pub fn delegates(&self) -> impl Iterator<Item = Delegate<'a>> + use<'a> {
        let delegates = self.plan.delegates().ok().flatten().unwrap_or_default();
        delegates
            .iter()
            .filter_map(|table| Delegate::read(&table.ok()?).ok())
    }

    /// The number of instructions.
    #[must_use]
    pub fn num_instructions(&self) -> usize {
        self.num_instructions
    }

    /// The arenas and the placements in them, one per planned tensor and in the
    /// order of [`planned_tensors`](Self::planned_tensors).
    ///
    /// # Errors
    ///
    /// None for a program that was read: every placement was checked.
    pub fn plan(&self) -> Result<MemoryPlan> {
        let placements = self.planned_tensors().map(|tensor| tensor.placement());
        MemoryPlan::new(self.arenas.clone(), placements.collect())
    }

    /// Every planned tensor that another one overwrites before its last read.
    ///
    /// The instructions are walked once. A finding holds on every path through
    /// them; where paths join after a jump, what was written before is forgotten,
    /// so an overwriting that spans a join is not found.
    ///
    /// # Errors
    ///
    /// - [`InvalidProgram`](crate::ErrorKind::InvalidProgram): instructions share lists of
    ///   tensors so much that walking them would take too long.
    pub fn overwrites(&self) -> Result<Vec<Overwrite>> {
        Ok(walk::find(self).map_err(|fault| fault.of_method(self.name))?)
    }

    /// Checks a method and adds what is needed of it to `methods`.
    #[inline]
    pub(super) fn read_into(
        methods: &mut Vec<Self>,
        program: &'a [u8],
        plan: ExecutionPlan<'a>,
        data: &Data<'a>,
        warnings: &mut Warnings<'a>,
        budget: &mut Budget,
    ) -> Fallible<()> {
        let Some(name) = plan.name()? else {
            return Err(Fault::new("name", format_args!("a method has no name")));
        };
        budget.charge("name", name.len())?;
        warnings.of_method(name);
        Self::read_named(methods, program, name, plan, data, warnings, budget)
            .map_err(|fault| fault.of_method(name))
    }

    #[inline]
    fn read_named(
        methods: &mut Vec<Self>,
        program: &'a [u8],
        name: &'a str,
        plan: ExecutionPlan<'a>,
        data: &Data<'a>,
        warnings: &mut Warnings<'a>,
        budget: &mut Budget,
    ) -> Fallible<()> {
        let Some(values) = plan.values()? else {
            return Err(Fault::new("values", format_args!("a method has no values")));
        };
        let arenas = arena::read(&plan, warnings, budget)?;
        let mut context = Context {
            arenas: &arenas,
            data,
            warnings,
            budget,
            vtables: Vtables::default(),
        };
        let records = value::read_all(values, &mut context)?;
        let budget = context.budget;
        let inputs = plan.inputs()?.unwrap_or_default();
        let outputs = plan.outputs()?.unwrap_or_default();
        check_indices("inputs", inputs, values.len(), budget)?;
        check_indices("outputs", outputs, values.len(), budget)?;
        let operators = plan.operators()?.unwrap_or_default();
        check_operators(operators, budget)?;
        let delegates = plan.delegates()?.unwrap_or_default();
        check_delegates(delegates, data, budget)?;
        let chains = plan.chains()?.unwrap_or_default();
        let counts = Counts {
            values: values.len(),
            operators: operators.len(),
            delegates: delegates.len(),
        };
        let num_instructions = check_chains(chains, counts, budget)?;
        methods.push(Self {
            program,
            name,
            plan,
            values,
            inputs,
            outputs,
            chains,
            operators,
            arenas,
            records,
            num_instructions,
        });
        Ok(())
    }
}

fn with_kinds<'a>(
    values: Tables<'a, EValue<'a>>,
    indices: Ints<'a>,
) -> impl Iterator<Item = (u32, ValueKind)> + use<'a> {
    indices.iter().filter_map(move |index| {
        let kind = value::kind_of(values, index)?;
        Some((u32::try_from(index).ok()?, kind))
    })
}
