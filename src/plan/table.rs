//! Values to plan as a table: the CSV of MiniMalloc.
//!
//! Rank 2. Part of `plan`.
//!
//! A first line names the columns, in any order; each further one is a value, up
//! to the first empty line. There are no quotes and no comments.
//!
//! | column | other names | what it is |
//! | --- | --- | --- |
//! | `id` | `buffer`, `buffer_id` | a name, which no other value has |
//! | `lower` | `begin`, `start` | the first step |
//! | `upper` | | the step after the last |
//! | `end` | | the last step, in place of `upper` |
//! | `size` | | bytes |
//! | `alignment` | | bytes, 1 if absent |
//! | `gaps` | | `a-b` for steps without need of memory, `b` not included; `a-b@lo:hi` if the bytes from `lo` up to `hi` are needed all the same; with spaces between |
//! | `offset` | | the offset that the value must have |
//! | `hint` | | a number, kept and not used |
//! | `device` | | such as `cuda:0`; `cpu:0` if absent. Of this crate |
//!
//! Other columns are kept and written back.

use std::collections::HashMap;
use std::fmt::{self, Write};

use crate::device::Device;
use crate::error::{PlanError, Result};
use crate::plan::{DeviceOptions, Gap, MemoryPlan, PlanRequest, PlanValue};

/// Values to plan that came as a table, and what else the table said.
///
/// # Examples
///
/// ```
/// use device_memory::plan::{PlanOptions, PlanTable};
///
/// let table = PlanTable::parse("id,lower,upper,size\na,0,2,64\nb,2,4,64\n")?;
/// let report = table.request().plan(&PlanOptions::default())?;
///
/// assert_eq!(
///     table.to_csv(Some(&report.plan))?,
///     "id,lower,upper,size,offset\na,0,2,64,0\nb,2,4,64,0\n"
/// );
/// # Ok::<(), device_memory::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanTable {
    request: PlanRequest,
    has: Optional,
    /// The names of the columns that are only kept.
    others: Vec<String>,
    /// What they hold, for each value.
    kept: Vec<Vec<String>>,
}

/// Which columns there are besides those that there must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Optional {
    alignment: bool,
    gaps: bool,
    device: bool,
}

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Column {
    Id,
    Lower,
    Upper,
    /// Upper, less one.
    End,
    Size,
    Alignment,
    Gaps,
    Offset,
    Device,
    Other,
}

impl Column {
    fn of(name: &str) -> Self {
        match name {
            "id" | "buffer" | "buffer_id" => Self::Id,
            "lower" | "begin" | "start" => Self::Lower,
            "upper" => Self::Upper,
            "end" => Self::End,
            "size" => Self::Size,
            "alignment" => Self::Alignment,
            "gaps" => Self::Gaps,
            "offset" => Self::Offset,
            "device" => Self::Device,
            _ => Self::Other,
        }
    }
}

impl PlanTable {
    /// Reads a table. Its values are aligned as it says and no more.
    ///
    /// # Errors
    ///
    /// - [`Table`](PlanError::Table): a column is missing or there twice, a line has
    ///   too few or too many fields, or a field is not what it has to be.
    pub fn parse(text: &str) -> Result<Self> {
        Ok(parse(text)?)
    }

    /// The values.
    #[must_use]
    pub fn request(&self) -> &PlanRequest {
        &self.request
    }

    /// The values, to be given options or changed.
    #[must_use]
    pub fn request_mut(&mut self) -> &mut PlanRequest {
        &mut self.request
    }

    /// The table as CSV, with the offsets of a plan of it, or without one with those that
    /// values must have. Columns that only some values need are there for all. A value
    /// without a name has its position as one.
    ///
    /// # Errors
    ///
    /// - [`Table`](PlanError::Table): a value can not be written so that it is read as it
    ///   is, by the line that it would have: its name is that of another or has commas,
    ///   line breaks or spaces around it; it is in a pool or in the storage of another; it
    ///   is alive in the last step there can be.
    pub fn to_csv(&self, plan: Option<&MemoryPlan>) -> Result<String> {
        let names = self.names()?;
        let mut csv = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut csv, &names, plan);
        Ok(csv)
    }

    /// The names of all values, once these are checked.
    fn names(&self) -> Result<Vec<String>, PlanError> {
        let mut seen: HashMap<String, usize> = HashMap::new();
        let values = (2..).zip(self.request.values().iter().enumerate());
        let name = |(line, (position, value)): (usize, (usize, &PlanValue))| {
            let name = value.name.clone();
            let name = name.unwrap_or_else(|| position.to_string());
            let is_field = |name: &str| !name.contains([',', '\n', '\r']) && name.trim() == name;
            if !is_field(&name) {
                return Err(fault(line, format!("id {name:?} can not be written")));
            }
            if value.alias.is_some() || value.pool != 0 {
                return Err(fault(line, "there is no column for storage and pools"));
            }
            if value.last_use == usize::MAX {
                return Err(fault(line, "there is no step after the last"));
            }
            unique(&mut seen, line, &name)?;
            Ok(name)
        };
        values.map(name).collect()
    }

    fn write(&self, csv: &mut String, names: &[String], plan: Option<&MemoryPlan>) -> fmt::Result {
        let values = self.request.values();
        let needed = |needs: fn(&PlanValue) -> bool| values.iter().any(needs);
        let alignment = self.has.alignment || needed(|value| value.align != 1);
        let gaps = self.has.gaps || needed(|value| !value.gaps.is_empty());
        let device = self.has.device || needed(|value| value.device != Device::CPU);
        let offset = plan.is_some() || needed(|value| value.fixed_offset.is_some());
        csv.write_str("id,lower,upper,size")?;
        for (_, name) in [(alignment, "alignment"), (gaps, "gaps"), (device, "device")]
            .iter()
            .filter(|(there, _)| *there)
        {
            write!(csv, ",{name}")?;
        }
        for name in &self.others {
            write!(csv, ",{name}")?;
        }
        csv.write_str(if offset { ",offset\n" } else { "\n" })?;
        for (index, (value, name)) in values.iter().zip(names).enumerate() {
            let upper = value.last_use.saturating_add(1);
            write!(csv, "{name},{},{upper},{}", value.first_use, value.size)?;
            if alignment {
                write!(csv, ",{}", value.align)?;
            }
            if gaps {
                csv.write_str(",")?;
                write_gaps(csv, &value.gaps)?;
            }
            if device {
                write!(csv, ",{}", value.device)?;
            }
            // A value that was added has nothing in the columns that are only kept.
            let kept = self.kept.get(index);
            for column in 0..self.others.len() {
                let field = kept.and_then(|kept| kept.get(column));
                write!(csv, ",{}", field.map_or("", String::as_str))?;
            }
            if offset {
                let placement = plan.map(|plan| plan.placements().get(index));
                let at = placement.map_or(value.fixed_offset, |placement| Some(placement?.offset));
                match at {
                    Some(at) => write!(csv, ",{at}")?,
                    None => csv.write_str(",")?,
                }
            }
            csv.write_str("\n")?;
        }
        Ok(())
    }
}

impl From<PlanRequest> for PlanTable {
    /// The values of a request as a table, with the columns that they need.
    fn from(request: PlanRequest) -> Self {
        Self {
            request,
            has: Optional::default(),
            others: Vec::new(),
            kept: Vec::new(),
        }
    }
}

/// Checks that no line before had this name.
fn unique(seen: &mut HashMap<String, usize>, line: usize, name: &str) -> Result<(), PlanError> {
    match seen.insert(name.to_owned(), line) {
        None => Ok(()),
        Some(first) => Err(fault(
            line,
            format!("id {name:?} is that of line {first} too"),
        )),
    }
}

fn write_gaps(csv: &mut String, gaps: &[Gap]) -> fmt::Result {
    for (position, gap) in gaps.iter().enumerate() {
        let space = if position == 0 { "" } else { " " };
        let (from, to) = (gap.steps.start(), gap.steps.end().saturating_add(1));
        write!(csv, "{space}{from}-{to}")?;
        if let Some(window) = &gap.window {
            write!(csv, "@{}:{}", window.start, window.end)?;
        }
    }
    Ok(())
}

fn fault(line: usize, reason: impl Into<String>) -> PlanError {
    PlanError::Table {
        line,
        reason: reason.into(),
    }
}

fn parse(text: &str) -> Result<PlanTable, PlanError> {
    let mut lines = (1..).zip(text.lines());
    let (_, head) = lines
        .next()
        .ok_or_else(|| fault(1, "there is no line of names"))?;
    let names: Vec<&str> = head.split(',').map(str::trim).collect();
    let columns = columns(&names)?;
    let has = |column| columns.contains(&column);
    let mut table = PlanTable {
        request: PlanRequest::new(),
        has: Optional {
            alignment: has(Column::Alignment),
            gaps: has(Column::Gaps),
            device: has(Column::Device),
        },
        others: others(&columns, &names),
        kept: Vec::new(),
    };
    table.request.set_default(DeviceOptions::aligned(1));
    let mut seen: HashMap<String, usize> = HashMap::new();
    for (line, text) in lines.take_while(|(_, text)| !text.trim().is_empty()) {
        let fields: Vec<&str> = text.split(',').map(str::trim).collect();
        if fields.len() != columns.len() {
            let (found, expected) = (fields.len(), columns.len());
            return Err(fault(
                line,
                format!("{found} fields for {expected} columns"),
            ));
        }
        let value = value(line, &columns, &fields)?;
        unique(&mut seen, line, value.name.as_deref().unwrap_or_default())?;
        table.request.push(value);
        table.kept.push(others(&columns, &fields));
    }
    Ok(table)
}

/// What is in the columns that are only kept.
fn others(columns: &[Column], fields: &[&str]) -> Vec<String> {
    let kept = columns.iter().zip(fields);
    let kept = kept.filter(|(column, _)| **column == Column::Other);
    kept.map(|(_, field)| (*field).to_owned()).collect()
}

fn columns(names: &[&str]) -> Result<Vec<Column>, PlanError> {
    let columns: Vec<Column> = names.iter().map(|name| Column::of(name)).collect();
    for (position, (name, column)) in names.iter().zip(&columns).enumerate() {
        let mut before = names.iter().zip(&columns).take(position);
        let is_same = before.any(|(other, of)| match column {
            Column::Other => other == name,
            Column::Upper | Column::End => matches!(of, Column::Upper | Column::End),
            _ => of == column,
        });
        if is_same {
            return Err(fault(1, format!("column {name:?} is there twice")));
        }
    }
    for (needed, name) in [
        (Column::Id, "id"),
        (Column::Lower, "lower"),
        (Column::Size, "size"),
    ] {
        if !columns.contains(&needed) {
            return Err(fault(1, format!("there is no column {name:?}")));
        }
    }
    if !columns.contains(&Column::Upper) && !columns.contains(&Column::End) {
        return Err(fault(1, "there is no column \"upper\""));
    }
    Ok(columns)
}

fn value(line: usize, columns: &[Column], fields: &[&str]) -> Result<PlanValue, PlanError> {
    let is_inclusive = columns.contains(&Column::End);
    let mut value = PlanValue::new(0, 0..=0);
    for (column, field) in columns.iter().zip(fields) {
        match column {
            Column::Id => value.name = Some((*field).to_owned()),
            Column::Lower => value.first_use = number(line, "lower", field)?,
            Column::End => value.last_use = number(line, "end", field)?,
            Column::Upper => {
                let upper: usize = number(line, "upper", field)?;
                let last = upper.checked_sub(1);
                value.last_use = last.ok_or_else(|| fault(line, "upper is 0"))?;
            }
            Column::Size => value.size = number(line, "size", field)?,
            Column::Alignment => value.align = number(line, "alignment", field)?,
            Column::Gaps => value.gaps = gaps(line, field, is_inclusive)?,
            Column::Offset if field.is_empty() => {}
            Column::Offset => value.fixed_offset = Some(number(line, "offset", field)?),
            Column::Device => {
                let device = field.parse::<Device>();
                value.device = device.map_err(|error| fault(line, error.to_string()))?;
            }
            Column::Other => {}
        }
    }
    if value.first_use > value.last_use {
        return Err(fault(line, "upper is not above lower"));
    }
    if !value.align.is_power_of_two() {
        return Err(fault(
            line,
            format!("alignment {} is no power of two", value.align),
        ));
    }
    Ok(value)
}

fn number(line: usize, column: &str, field: &str) -> Result<usize, PlanError> {
    let number = field.parse();
    number.map_err(|_| fault(line, format!("{column} {field:?} is no number")))
}

fn gaps(line: usize, field: &str, is_inclusive: bool) -> Result<Vec<Gap>, PlanError> {
    let gap = |text: &str| -> Option<Gap> {
        let (steps, window) = match text.split_once('@') {
            Some((steps, window)) => (steps, Some(window)),
            None => (text, None),
        };
        let (from, to) = steps.split_once('-')?;
        let (from, to) = (from.parse().ok()?, to.parse::<usize>().ok()?);
        let last = if is_inclusive { to } else { to.checked_sub(1)? };
        let window = match window {
            Some(window) => {
                let (low, high) = window.split_once(':')?;
                Some(low.parse().ok()?..high.parse().ok()?)
            }
            None => None,
        };
        Some(Gap {
            steps: from..=last,
            window,
        })
    };
    let gaps = field.split_whitespace();
    gaps.map(|text| gap(text).ok_or_else(|| fault(line, format!("{text:?} is no gap"))))
        .collect()
}
