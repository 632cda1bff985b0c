//! Operators and delegates of a method.
//!
//! Rank 4. Part of `pte`.

use std::fmt;

use crate::pte::data::Data;
use crate::pte::fault::{Budget, Fallible, Fault};
use crate::pte::schema::{self, BackendDelegate};
use crate::pte::vector::Tables;
use crate::pte::wire::to_usize;

/// An operator that a method runs.
///
/// It is shown as `name.overload`, or as the name alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operator<'a> {
    /// The name with its namespace, as in `aten::add`.
    pub name: &'a str,
    /// The overload, as in `out`; often empty.
    pub overload: &'a str,
}

impl<'a> Operator<'a> {
    #[inline]
    pub(super) fn read(table: &schema::Operator<'a>) -> Fallible<Self> {
        let Some(name) = table.name()? else {
            return Err(Fault::new("operators", format_args!("no name")));
        };
        Ok(Self {
            name,
            overload: table.overload()?.unwrap_or_default(),
        })
    }
}

impl fmt::Display for Operator<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        if !self.overload.is_empty() {
            write!(f, ".{}", self.overload)?;
        }
        Ok(())
    }
}

/// Where the data of a delegate is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DelegateLocation {
    /// Inside the flatbuffer.
    Inline,
    /// A segment of its own.
    Segment,
}

impl DelegateLocation {
    /// The name in ExecuTorch's schema.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Inline => "INLINE",
            Self::Segment => "SEGMENT",
        }
    }
}

/// A setting of a delegate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CompileSpec<'a> {
    /// Its name.
    pub key: &'a str,
    /// Its value, whose form is the back end's own.
    pub value: &'a [u8],
}

impl<'a> CompileSpec<'a> {
    #[inline]
    fn read(table: &schema::CompileSpec<'a>) -> Fallible<Self> {
        let Some(key) = table.key()? else {
            return Err(Fault::new("compile_specs", format_args!("no key")));
        };
        Ok(Self {
            key,
            value: table.value()?.unwrap_or_default(),
        })
    }
}

/// A part of a method that a back end runs.
#[derive(Clone, Copy, Debug)]
pub struct Delegate<'a> {
    id: &'a str,
    location: DelegateLocation,
    index: u32,
    specs: Tables<'a, schema::CompileSpec<'a>>,
}

impl<'a> Delegate<'a> {
    /// The name of the back end.
    #[must_use]
    pub fn id(&self) -> &'a str {
        self.id
    }

    /// Where the data is.
    #[must_use]
    pub fn location(&self) -> DelegateLocation {
        self.location
    }

    /// The position of the data among the segments or the inline data.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The settings.
    pub fn compile_specs(&self) -> impl Iterator<Item = CompileSpec<'a>> + use<'a> {
        self.specs
            .iter()
            .filter_map(|spec| CompileSpec::read(&spec.ok()?).ok())
    }

    #[inline]
    pub(super) fn read(table: &BackendDelegate<'a>) -> Fallible<Self> {
        let Some(id) = table.id()? else {
            return Err(Fault::new("delegates", format_args!("no id")));
        };
        let Some(data) = table.processed()? else {
            return Err(Fault::new("processed", format_args!("no data of {id:?}")));
        };
        let location = match data.location()? {
            0 => DelegateLocation::Inline,
            1 => DelegateLocation::Segment,
            code => {
                return Err(Fault::new(
                    "location",
                    format_args!("unknown data location {code} of {id:?}"),
                ));
            }
        };
        Ok(Self {
            id,
            location,
            index: data.index()?,
            specs: table.compile_specs()?.unwrap_or_default(),
        })
    }
}

/// Checks every operator.
pub(super) fn check_operators<'a>(
    operators: Tables<'a, schema::Operator<'a>>,
    budget: &mut Budget,
) -> Fallible<()> {
    budget.charge("operators", operators.len().saturating_mul(16))?;
    for (index, table) in operators.iter().enumerate() {
        let operator = table.and_then(|table| Operator::read(&table));
        let operator = operator.map_err(|fault| fault.at("operator", index))?;
        let len = operator.name.len().saturating_add(operator.overload.len());
        budget.charge("operators", len)?;
    }
    Ok(())
}

/// Checks every delegate and that its data exists.
pub(super) fn check_delegates<'a>(
    delegates: Tables<'a, BackendDelegate<'a>>,
    data: &Data<'a>,
    budget: &mut Budget,
) -> Fallible<()> {
    budget.charge("delegates", delegates.len().saturating_mul(16))?;
    for (index, table) in delegates.iter().enumerate() {
        table
            .and_then(|table| check_delegate(&Delegate::read(&table)?, data, budget))
            .map_err(|fault| fault.at("delegate", index))?;
    }
    Ok(())
}

fn check_delegate(delegate: &Delegate<'_>, data: &Data<'_>, budget: &mut Budget) -> Fallible<()> {
    let (what, count) = match delegate.location {
        DelegateLocation::Inline => ("inline data", data.inline.len()),
        DelegateLocation::Segment => ("segment", data.segments.len()),
    };
    if to_usize(delegate.index) >= count {
        return Err(Fault::new(
            "processed",
            format_args!("{what} {} of {count}", delegate.index),
        ));
    }
    budget.charge("id", delegate.id.len())?;
    budget.charge("compile_specs", delegate.specs.len().saturating_mul(16))?;
    for (index, table) in delegate.specs.iter().enumerate() {
        let spec = table.and_then(|table| CompileSpec::read(&table));
        let spec = spec.map_err(|fault| fault.at("compile spec", index))?;
        budget.charge("compile_specs", spec.key.len())?;
    }
    Ok(())
}
