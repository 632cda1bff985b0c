//! Logs of allocations, read as traces.
//!
//! A log is text in lines of fields between commas. The first line names the
//! columns: `Action`, `Pointer` and `Size` must be there, `Tag` may be, and others,
//! such as RMM's `Thread`, `Time` and `Stream`, are passed over, so the calls of
//! several threads are replayed by one, in the order of the log. A `free failure`,
//! which this crate's logs may have, says that the last free of its pointer did not
//! happen.

#![allow(
    dead_code,
    reason = "each program that includes this uses a part of it"
)]

use std::collections::{HashMap, HashSet};

use device_memory::Tag;

use crate::traces::Trace;

/// What is wrong with a log. Lines are counted from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LogError {
    #[error("the log is empty: its first line must name the columns")]
    Empty,
    #[error("line 1 names no column {0:?}")]
    NoColumn(&'static str),
    #[error("line {line} has {found} fields where line 1 has {expected}")]
    Fields {
        line: usize,
        found: usize,
        expected: usize,
    },
    #[error(
        "line {line}: {text:?} is no action: expected allocate, free, allocate failure or free failure"
    )]
    Action { line: usize, text: String },
    #[error("line {line}: {text:?} is no address")]
    Pointer { line: usize, text: String },
    #[error("line {line}: {text:?} is no size")]
    Size { line: usize, text: String },
    #[error("line {line} allocates {pointer:#x}, which line {first} allocated and none has freed")]
    Live {
        line: usize,
        pointer: u64,
        first: usize,
    },
    #[error("line {line} frees {pointer:#x}, which is not allocated")]
    NotLive { line: usize, pointer: u64 },
    #[error("line {line} frees {found} bytes at {pointer:#x}, of which {expected} were allocated")]
    OtherSize {
        line: usize,
        pointer: u64,
        found: usize,
        expected: usize,
    },
    #[error("line {line}: {error}")]
    Tag {
        line: usize,
        error: device_memory::TagError,
    },
}

/// What a log says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Log {
    /// The calls that succeeded.
    pub(crate) trace: Trace,
    /// How many allocations failed when the log was written.
    pub(crate) failed: usize,
    /// How many blocks were never freed.
    pub(crate) leaked: usize,
}

/// Where the columns are.
struct Columns {
    count: usize,
    action: usize,
    pointer: usize,
    size: usize,
    tag: Option<usize>,
}

impl Columns {
    fn read(header: &str) -> Result<Self, LogError> {
        let names: Vec<&str> = header.split(',').map(str::trim).collect();
        let find = |wanted: &str| names.iter().position(|name| *name == wanted);
        let required = |wanted| find(wanted).ok_or(LogError::NoColumn(wanted));
        Ok(Self {
            count: names.len(),
            action: required("Action")?,
            pointer: required("Pointer")?,
            size: required("Size")?,
            tag: find("Tag"),
        })
    }

    /// The lines of frees that failed, and those that say so.
    fn failed_frees<'t>(&self, lines: impl Iterator<Item = (usize, &'t str)>) -> HashSet<usize> {
        let mut frees = HashMap::new();
        let mut failed = HashSet::new();
        for (line, text) in lines {
            let field = |column| text.split(',').nth(column).map(str::trim);
            let pointer = field(self.pointer);
            match field(self.action) {
                Some("free") => {
                    frees.insert(pointer, line);
                }
                Some("free failure") => {
                    if let Some(free) = frees.remove(&pointer) {
                        failed.extend([free, line]);
                    }
                }
                _ => {}
            }
        }
        failed
    }
}

/// A block that a log has allocated and not freed.
struct Live {
    block: usize,
    size: usize,
    line: usize,
}

impl Log {
    /// Reads a log.
    pub(crate) fn parse(text: &str) -> Result<Self, LogError> {
        let mut lines = (1..).zip(text.lines());
        let (_, header) = lines.next().ok_or(LogError::Empty)?;
        let columns = Columns::read(header)?;
        let mut log = Self::default();
        let mut live: HashMap<u64, Live> = HashMap::new();
        let failed = columns.failed_frees(lines.clone());
        for (line, text) in lines {
            if !text.trim().is_empty() && !failed.contains(&line) {
                log.line(line, text, &columns, &mut live)?;
            }
        }
        log.leaked = live.len();
        Ok(log)
    }

    fn line(
        &mut self,
        line: usize,
        text: &str,
        columns: &Columns,
        live: &mut HashMap<u64, Live>,
    ) -> Result<(), LogError> {
        let fields: Vec<&str> = text.split(',').map(str::trim).collect();
        if fields.len() != columns.count {
            return Err(LogError::Fields {
                line,
                found: fields.len(),
                expected: columns.count,
            });
        }
        let size = fields[columns.size];
        let size: usize = size.parse().map_err(|_| LogError::Size {
            line,
            text: size.to_owned(),
        })?;
        let action = fields[columns.action];
        if action == "allocate failure" {
            self.failed += 1;
            return Ok(());
        }
        let pointer = pointer(line, fields[columns.pointer])?;
        match action {
            // Some allocators give no memory for no bytes, and one address for all.
            "allocate" | "free" if size == 0 => Ok(()),
            "allocate" => {
                if let Some(first) = live.get(&pointer) {
                    return Err(LogError::Live {
                        line,
                        pointer,
                        first: first.line,
                    });
                }
                let tag = match columns.tag.map(|column| fields[column]) {
                    None | Some("" | "none") => Tag::NONE,
                    Some(name) => {
                        Tag::named(name).map_err(|error| LogError::Tag { line, error })?
                    }
                };
                let block = self.trace.allocate(size, tag);
                live.insert(pointer, Live { block, size, line });
                Ok(())
            }
            "free" => {
                let freed = live
                    .remove(&pointer)
                    .ok_or(LogError::NotLive { line, pointer })?;
                if freed.size != size {
                    return Err(LogError::OtherSize {
                        line,
                        pointer,
                        found: size,
                        expected: freed.size,
                    });
                }
                self.trace.free(freed.block);
                Ok(())
            }
            _ => Err(LogError::Action {
                line,
                text: action.to_owned(),
            }),
        }
    }
}

/// An address: hexadecimal, with or without `0x`.
fn pointer(line: usize, text: &str) -> Result<u64, LogError> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u64::from_str_radix(digits, 16).map_err(|_| LogError::Pointer {
        line,
        text: text.to_owned(),
    })
}
