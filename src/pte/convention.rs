//! How operators treat their arguments.
//!
//! Rank 4. Part of `pte`.

use crate::pte::delegate::Operator;
use crate::pte::schema::EValue;
use crate::pte::value::tensor_list;
use crate::pte::vector::{Ints, Tables};

/// How an operator treats its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Convention {
    /// Outputs are listed again at the end.
    Out,
    /// The first argument is replaced, and listed again at the end.
    Replace,
    /// The first argument is changed, and listed again at the end.
    Change,
    /// A part of the first argument is replaced.
    ReplacePart,
    /// Nothing is written: the other arguments become views of the first.
    View,
}

impl Convention {
    /// The convention of `operator`; an unreadable one is taken for the usual.
    pub(super) fn of(operator: Option<Operator<'_>>) -> Self {
        match operator.map(|operator| operator.name) {
            Some("aten::copy_") => Self::Replace,
            Some("executorch_prim::et_view") => Self::View,
            Some("executorch_prim::et_copy_index") => Self::ReplacePart,
            Some(name) if name.ends_with('_') && !name.ends_with("__") => Self::Change,
            _ => Self::Out,
        }
    }
}

/// How many of `args` before the last one are outputs, if the last one lists them.
pub(super) fn listed_outputs<'a>(values: Tables<'a, EValue<'a>>, args: Ints<'a>) -> Option<usize> {
    let last = args.len().checked_sub(1)?;
    let value = args.get(last)?;
    let before = last.checked_sub(1)?;
    if args.get(before)? == value {
        return Some(1);
    }
    let items = tensor_list(values, value)?;
    let listed = tensor_list(values, args.get(before)?);
    if listed.is_some_and(|listed| listed.eq(items.clone())) {
        return Some(1);
    }
    let count = items.len();
    let start = last.checked_sub(count)?;
    let listed = args.iter().skip(start).take(count);
    listed.eq(items).then_some(count)
}
