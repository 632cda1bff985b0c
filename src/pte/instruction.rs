//! The instructions of a method.
//!
//! Rank 4. Part of `pte`.

use crate::pte::fault::{Budget, Fallible, Fault};
use crate::pte::link::Vtable;
use crate::pte::schema::{
    self, Chain, DelegateCall, FreeCall, JumpFalseCall, KernelCall, MoveCall,
};
use crate::pte::value::{check_index, is_index};
use crate::pte::vector::{Ints, Tables};

/// One instruction, read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Instruction<'a> {
    /// Runs an operator.
    Kernel { operator: i32, args: Ints<'a> },
    /// Runs a delegate.
    Delegate { delegate: i32, args: Ints<'a> },
    /// Makes a value the same as another.
    Move { from: i32, to: i32 },
    /// Goes on at another instruction if a value is false.
    JumpFalse { condition: i32, target: i32 },
    /// Ends the use of a value.
    Free { value: i32 },
}

impl<'a> Instruction<'a> {
    /// Reads an instruction whose call probably has the vtable `last`.
    #[inline]
    pub(super) fn read(table: &schema::Instruction<'a>, last: &mut Vtable<'a>) -> Fallible<Self> {
        let field = "instr_args";
        let code = table.instr_args_type()?;
        let Some(link) = table.instr_args()? else {
            return Err(Fault::new(
                field,
                format_args!("type {code} without its table"),
            ));
        };
        match code {
            1 => {
                let call: KernelCall<'a> = link.follow_like(last, field)?;
                Ok(Self::Kernel {
                    operator: call.op_index()?,
                    args: call.args()?.unwrap_or_default(),
                })
            }
            2 => {
                let call: DelegateCall<'a> = link.follow_like(last, field)?;
                Ok(Self::Delegate {
                    delegate: call.delegate_index()?,
                    args: call.args()?.unwrap_or_default(),
                })
            }
            3 => {
                let call: MoveCall<'a> = link.follow_like(last, field)?;
                Ok(Self::Move {
                    from: call.move_from()?,
                    to: call.move_to()?,
                })
            }
            4 => {
                let call: JumpFalseCall<'a> = link.follow_like(last, field)?;
                Ok(Self::JumpFalse {
                    condition: call.cond_value_index()?,
                    target: call.destination_instruction()?,
                })
            }
            5 => {
                let call: FreeCall<'a> = link.follow_like(last, field)?;
                Ok(Self::Free {
                    value: call.value_index()?,
                })
            }
            _ => Err(Fault::new(field, format_args!("unknown type {code}"))),
        }
    }
}

/// How many of each there are, for the indices in instructions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    pub(super) values: usize,
    pub(super) operators: usize,
    pub(super) delegates: usize,
}

/// Checks every instruction of `chains` and returns their number.
pub(super) fn check_chains<'a>(
    chains: Tables<'a, Chain<'a>>,
    counts: Counts,
    budget: &mut Budget,
) -> Fallible<usize> {
    if chains.len() == 0 {
        return Err(Fault::new("chains", format_args!("a method has no chain")));
    }
    budget.charge("chains", chains.len().saturating_mul(8))?;
    let mut total = 0_usize;
    for (index, chain) in chains.iter().enumerate() {
        let checked = chain.and_then(|chain| check_chain(&chain, counts, budget));
        let instructions = checked.map_err(|fault| fault.at("chain", index))?;
        total = total.saturating_add(instructions);
    }
    Ok(total)
}

fn check_chain(chain: &Chain<'_>, counts: Counts, budget: &mut Budget) -> Fallible<usize> {
    for (field, indices) in [("inputs", chain.inputs()?), ("outputs", chain.outputs()?)] {
        check_indices(field, indices.unwrap_or_default(), counts.values, budget)?;
    }
    let Some(instructions) = chain.instructions()? else {
        return Err(Fault::new(
            "instructions",
            format_args!("a chain has no instructions"),
        ));
    };
    let len = instructions.len();
    // Offset, table and call are 16 bytes where nothing is shared.
    budget.charge("instructions", len.saturating_mul(16))?;
    let mut last = Vtable::default();
    for (index, table) in instructions.iter().enumerate() {
        table
            .and_then(|table| Instruction::read(&table, &mut last))
            .and_then(|instruction| check(instruction, len, counts, budget))
            .map_err(|fault| fault.at("instruction", index))?;
    }
    Ok(len)
}

/// Checks one instruction of a chain of `len`.
#[inline]
fn check(
    instruction: Instruction<'_>,
    len: usize,
    counts: Counts,
    budget: &mut Budget,
) -> Fallible<()> {
    match instruction {
        Instruction::Kernel { operator, args } => {
            check_member("op_index", "operator", operator, counts.operators)?;
            check_indices("args", args, counts.values, budget)
        }
        Instruction::Delegate { delegate, args } => {
            check_member("delegate_index", "delegate", delegate, counts.delegates)?;
            check_indices("args", args, counts.values, budget)
        }
        Instruction::Move { from, to } => {
            check_index("move_from", from, counts.values)?;
            check_index("move_to", to, counts.values)
        }
        Instruction::JumpFalse { condition, target } => {
            check_index("cond_value_index", condition, counts.values)?;
            match usize::try_from(target) {
                // A jump to the end leaves the chain.
                Ok(target) if target <= len => Ok(()),
                _ => Err(Fault::new(
                    "destination_instruction",
                    format_args!("jump to instruction {target} of {len}"),
                )),
            }
        }
        Instruction::Free { value } => check_index("value_index", value, counts.values),
    }
}

/// Checks that every one of `indices` is a value of `count`.
#[inline]
pub(super) fn check_indices(
    field: &'static str,
    indices: Ints<'_>,
    count: usize,
    budget: &mut Budget,
) -> Fallible<()> {
    budget.charge(field, indices.size_in_bytes())?;
    match indices.iter().position(|index| !is_index(index, count)) {
        None => Ok(()),
        Some(position) => {
            let index = indices.get(position).unwrap_or_default();
            check_index(field, index, count).map_err(|fault| fault.at("entry", position))
        }
    }
}

/// Checks that `index` is one of `count` things called `what`.
#[inline]
fn check_member(field: &'static str, what: &str, index: i32, count: usize) -> Fallible<()> {
    if is_index(index, count) {
        Ok(())
    } else {
        Err(no_member(field, what, index, count))
    }
}

#[cold]
#[inline(never)]
fn no_member(field: &'static str, what: &str, index: i32, count: usize) -> Fault {
    Fault::new(field, format_args!("{what} {index} of {count}"))
}
