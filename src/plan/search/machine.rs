//! The search itself, as a machine that can be stopped and resumed.
//!
//! Rank 2. Part of `plan`.
//!
//! A frame is a set of jobs that share sections, to be placed within the capacity
//! above what is placed. It tries one job after the other as the next in order, at
//! its release. What remains falls into parts that share no section; all of them
//! must succeed, and one that fails is a proof against the frame's choice. Frames
//! lie on a stack of the machine's own, so that depth costs no stack of the thread
//! and a search can go on where it stopped.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

use super::bound::{Bound, Entry};
use super::lane::Lane;

/// What a machine has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All jobs are placed.
    Placed,
    /// No plan exists within the capacity.
    Impossible,
    /// It was stopped and can go on.
    Stopped,
}

/// A set of jobs that is being placed.
#[derive(Debug)]
struct Frame<T> {
    /// Its jobs among the machine's entries, by position.
    entries: Range<usize>,
    /// The key under which it is known if it fails.
    key: u64,
    /// How many jobs were passed over before it began.
    passed_over: usize,
    /// The next candidate, counted from the first job that was not passed over.
    next: usize,
    /// How many candidates are worth trying, once that is known.
    limit: Option<usize>,
    /// Parts of the present choice that are still to be placed.
    parts: Range<usize>,
}

/// A search for one plan, with one order among jobs at equal offsets.
#[derive(Debug)]
pub(super) struct Machine<T> {
    capacity: T,
    bound: Bound<T>,
    /// The jobs of all frames and parts on the stack.
    entries: Vec<Entry<T>>,
    /// The runs of jobs that make up parts.
    parts: Vec<Range<usize>>,
    frames: Vec<Frame<T>>,
    /// What is known to fail.
    failed: HashSet<u64, BuildHasherDefault<Key>>,
    /// The offset of each job, by rank.
    offsets: Vec<T>,
    /// What to do next.
    pending: Step,
    nodes: u64,
    scratch: Scratch<T>,
}
