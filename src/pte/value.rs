//! The values of a method: a union each.
//!
//! Rank 4. Part of `pte`.

use std::fmt;

use crate::pte::fault::{Fallible, Fault};
use crate::pte::link::{Link, Vtable};
use crate::pte::record::{Context, Record};
use crate::pte::schema::{
    Bool, BoolList, Double, DoubleList, EValue, Int, IntList, Tensor, TensorList, Text,
};
use crate::pte::vector::Tables;
use crate::pte::wire::to_usize;

macro_rules! value_kinds {
    ($($(#[$doc:meta])* $kind:ident = $code:literal;)*) => {
        /// What a value of a method is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ValueKind {
            $($(#[$doc])* $kind,)*
        }

        impl ValueKind {
            /// The name; `None` for no value.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => stringify!($kind),)*
                }
            }

            /// The kind with this code in ExecuTorch's schema.
            #[inline]
            pub(super) const fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$kind),)*
                    _ => None,
                }
            }
        }
    };
}

value_kinds! {
    /// No value.
    None = 1;
    /// An integer.
    Int = 2;
    /// A truth value.
    Bool = 3;
    /// A float.
    Double = 4;
    /// A tensor.
    Tensor = 5;
    /// A text.
    String = 6;
    /// A list of values that are integers.
    IntList = 7;
    /// A list of floats.
    DoubleList = 8;
    /// A list of truth values.
    BoolList = 9;
    /// A list of values that are tensors.
    TensorList = 10;
    /// A list of values that are tensors or none.
    OptionalTensorList = 11;
}

impl fmt::Display for ValueKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The kind of value `index`, if there is such a value.
pub(super) fn kind_of<'a>(values: Tables<'a, EValue<'a>>, index: i32) -> Option<ValueKind> {
    kind_of_like(values, usize::try_from(index).ok()?, &mut Vtable::default())
}

/// The same, if the value probably has the vtable `last`.
#[inline(always)]
fn kind_of_like<'a>(
    values: Tables<'a, EValue<'a>>,
    index: usize,
    last: &mut Vtable<'a>,
) -> Option<ValueKind> {
    let value = values.get_like(last, index)?;
    ValueKind::from_code(value.val_type().ok()?)
}

/// The items of value `index` if it is a list of tensors.
pub(super) fn tensor_list<'a>(
    values: Tables<'a, EValue<'a>>,
    index: i32,
) -> Option<impl ExactSizeIterator<Item = i32> + Clone + use<'a>> {
    let value = values.get(usize::try_from(index).ok()?)?;
    match ValueKind::from_code(value.val_type().ok()?)? {
        ValueKind::TensorList | ValueKind::OptionalTensorList => {
            let list: TensorList<'a> = value.val().ok()??.follow("val").ok()?;
            Some(list.items().ok()?.unwrap_or_default().iter())
        }
        _ => None,
    }
}

/// Checks every value and returns what to keep of the tensors.
pub(super) fn read_all<'a>(
    values: Tables<'a, EValue<'a>>,
    context: &mut Context<'_, 'a>,
) -> Fallible<Vec<Record>> {
    // Offset, table and union of a value are 16 bytes where nothing is shared.
    context
        .budget
        .charge("values", values.len().saturating_mul(16))?;
    let mut records = Vec::with_capacity(values.len());
    for (index, value) in (0_u32..).zip(values.iter()) {
        value
            .and_then(|value| read(&value, index, values, context, &mut records))
            .map_err(|fault| fault.of_value(index))?;
    }
    Ok(records)
}

/// Checks `value`, number `index`, and adds to `records` what to keep of a tensor.
#[inline]
fn read<'a>(
    value: &EValue<'a>,
    index: u32,
    values: Tables<'a, EValue<'a>>,
    context: &mut Context<'_, 'a>,
    records: &mut Vec<Record>,
) -> Fallible<()> {
    let code = value.val_type()?;
    let Some(kind) = ValueKind::from_code(code) else {
        return Err(Fault::new("val", format_args!("unknown value type {code}")));
    };
    let Some(link) = value.val()? else {
        return match kind {
            ValueKind::None => Ok(()),
            _ => Err(Fault::new("val", format_args!("{kind} without its table"))),
        };
    };
    if kind == ValueKind::Tensor {
        let tensor: Tensor<'a> = link.follow_like(&mut context.vtables.tensor, "val")?;
        records.push(Record::read(&tensor, index, link.position, context)?);
        return Ok(());
    }
    check_other(kind, link, values, context)
}

/// Checks a value that is no tensor.
fn check_other<'a>(
    kind: ValueKind,
    link: Link<'a>,
    values: Tables<'a, EValue<'a>>,
    context: &mut Context<'_, 'a>,
) -> Fallible<()> {
    let field = "val";
    let vtable = &mut context.vtables.other;
    let item_vtable = &mut context.vtables.item;
    match kind {
        ValueKind::Int => link
            .follow_like::<Int<'_>>(vtable, field)?
            .int_val()
            .map(|_| ()),
        ValueKind::Bool => link
            .follow_like::<Bool<'_>>(vtable, field)?
            .bool_val()
            .map(|_| ()),
        ValueKind::Double => link
            .follow_like::<Double<'_>>(vtable, field)?
            .double_val()
            .map(|_| ()),
        ValueKind::None | ValueKind::Tensor => Ok(()),
        ValueKind::String => {
            let text = link.follow_like::<Text<'_>>(vtable, field)?.string_val()?;
            let text = text.ok_or_else(|| missing(kind, "its text"))?;
            context.budget.charge("string_val", text.len())
        }
        ValueKind::IntList => {
            let items = link.follow_like::<IntList<'_>>(vtable, field)?.items()?;
            let items = items.ok_or_else(|| missing(kind, "items"))?;
            context.budget.charge("items", items.size_in_bytes())?;
            for item in items.iter() {
                let index = usize::try_from(item).ok();
                match index.and_then(|index| kind_of_like(values, index, item_vtable)) {
                    // One that is computed during the run is none before.
                    Some(ValueKind::Int | ValueKind::None) => {}
                    _ => return Err(bad_item(kind, item, values.len())),
                }
            }
            Ok(())
        }
        ValueKind::DoubleList => {
            let items = link.follow_like::<DoubleList<'_>>(vtable, field)?.items()?;
            items.map(|_| ()).ok_or_else(|| missing(kind, "items"))
        }
        ValueKind::BoolList => {
            let items = link.follow_like::<BoolList<'_>>(vtable, field)?.items()?;
            items.map(|_| ()).ok_or_else(|| missing(kind, "items"))
        }
        ValueKind::TensorList | ValueKind::OptionalTensorList => {
            let items = link.follow_like::<TensorList<'_>>(vtable, field)?.items()?;
            let items = items.ok_or_else(|| missing(kind, "items"))?;
            context.budget.charge("items", items.size_in_bytes())?;
            let optional = kind == ValueKind::OptionalTensorList;
            for item in items.iter() {
                let index = usize::try_from(item).ok();
                match index.and_then(|index| kind_of_like(values, index, item_vtable)) {
                    Some(ValueKind::Tensor) => {}
                    Some(ValueKind::None) if optional => {}
                    None if optional && item == -1 => {}
                    _ => return Err(bad_item(kind, i64::from(item), values.len())),
                }
            }
            Ok(())
        }
    }
}

#[cold]
#[inline(never)]
fn missing(kind: ValueKind, what: &str) -> Fault {
    Fault::new("val", format_args!("{kind} without {what}"))
}

#[cold]
#[inline(never)]
fn bad_item(kind: ValueKind, item: i64, count: usize) -> Fault {
    Fault::new(
        "items",
        format_args!("{kind} names value {item}, which is none of its kind among {count} values"),
    )
}

/// Whether `index` is one of `count` elements.
///
/// As an unsigned number, a negative index passes any count: no program is so long.
#[inline]
pub(super) fn is_index(index: i32, count: usize) -> bool {
    to_usize(index.cast_unsigned()) < count
}

/// Checks that `index` is a value of `count`.
#[inline]
pub(super) fn check_index(field: &'static str, index: i32, count: usize) -> Fallible<()> {
    if is_index(index, count) {
        Ok(())
    } else {
        Err(no_value(field, index, count))
    }
}

#[cold]
#[inline(never)]
fn no_value(field: &'static str, index: i32, count: usize) -> Fault {
    Fault::new(field, format_args!("value {index} is not in 0..{count}"))
}
