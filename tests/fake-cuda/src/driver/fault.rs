//! Failures that a test has ordered, and the counts of calls.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering};

use super::code::Code;
use super::exports::{COUNT, NAMES};

/// One call, as a test sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) name: usize,
    pub(super) thread: u64,
    pub(super) context: u64,
    /// `-1` without a context.
    pub(super) device: i64,
    pub(super) ptr: u64,
    pub(super) size: usize,
    pub(super) stream: u64,
    pub(super) code: i32,
}

/// A failure that will happen.
#[derive(Clone, Copy, Debug)]
struct Fault {
    /// The function, or any.
    name: Option<usize>,
    /// How many more calls until it happens; `0` is the next.
    left: u64,
    /// Whether it happens from then on.
    always: bool,
    code: i32,
}

/// The calls counted, by function. They are apart from the state so that a call
/// can be counted without the lock.
static COUNTS: [AtomicU64; COUNT] = [const { AtomicU64::new(0) }; COUNT];

/// The failures ordered and the calls recorded.
#[derive(Debug)]
pub(super) struct Faults {
    faults: Vec<Fault>,
    pub(super) records: Vec<Record>,
    pub(super) fired: u64,
}

impl Faults {
    pub(super) const fn new() -> Self {
        Self {
            faults: Vec::new(),
            records: Vec::new(),
            fired: 0,
        }
    }

    /// Orders a failure of the `nth` call from now, counted from 1; `0` is every
    /// call.
    pub(super) fn arm(&mut self, name: Option<usize>, nth: u64, code: i32) {
        self.faults.push(Fault {
            name,
            left: nth.saturating_sub(1),
            always: nth == 0,
            code,
        });
    }

    pub(super) fn disarm(&mut self) {
        self.faults.clear();
    }

    /// How many failures are ordered that have not happened.
    pub(super) fn armed(&self) -> usize {
        self.faults.len()
    }

    /// Says how a call is to fail, which has been counted.
    #[cold]
    pub(super) fn next(&mut self, name: usize) -> Option<Code> {
        let mut fires = None;
        self.faults.retain_mut(|fault| {
            if fault.name.is_some_and(|only| only != name) {
                return true;
            }
            if fault.left == 0 {
                fires = fires.or(Some(Code(fault.code)));
                return fault.always;
            }
            fault.left -= 1;
            true
        });
        self.fired += u64::from(fires.is_some());
        fires.filter(|code| code.0 != 0)
    }
}

/// Counts a call.
#[inline]
pub(super) fn count(name: usize) {
    if let Some(count) = COUNTS.get(name) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// How often each function was called.
pub(super) fn counts() -> [u64; COUNT] {
    array::from_fn(|name| {
        let count = COUNTS.get(name);
        count.map_or(0, |count| count.load(Ordering::Relaxed))
    })
}

/// Forgets the calls counted.
pub(super) fn clear_counts() {
    for count in &COUNTS {
        count.store(0, Ordering::Relaxed);
    }
}

/// The number of an exported function.
pub(super) fn number_of(name: &str) -> Option<usize> {
    NAMES.iter().position(|exported| *exported == name)
}
