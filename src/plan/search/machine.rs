//! The search itself, as a machine that can be stopped and resumed.
//!
//! Rank 2. Part of `plan`.
//!
//! A frame is a set of jobs that share sections, to be placed within the capacity
//! above what is placed. It tries one job after the other as the next in order, at
//! its release. What remains falls into parts that share no section; all of them
//! must succeed, and one that fails is a proof against the frame's choice. Frames
//! lie on a stack of the machine's own, so that depth costs no stack of the thread
//! and a search can go on where it stopped. Each holds the jobs that remain, so that
//! deep stacks grow with the square of the jobs; where one gets too large, it ends.

use std::collections::HashSet;
use std::hash::BuildHasherDefault;
use std::ops::Range;

use super::bound::{Bound, Entry};
use super::gaps::Gaps;
use super::lane::Lane;
use super::memo::{KeyHasher, key};
use super::parts::{Cover, number_parts, part_of, rank_by_total};

/// What a machine has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All jobs are placed.
    Placed,
    /// No plan exists within the capacity.
    Impossible,
    /// It was stopped and can go on.
    Stopped,
    /// It would take more memory than it may, and can not go on.
    Full,
}

impl Outcome {
    /// Whether it is an answer.
    pub(super) fn decides(self) -> bool {
        matches!(self, Self::Placed | Self::Impossible)
    }
}

/// The most entries of all frames and parts on the stack, of 16 to 40 bytes each.
const MOST_ENTRIES: usize = if cfg!(test) { 1 << 16 } else { 1 << 22 };

/// The most sets that are known to fail, of 8 bytes each and as many free: those found
/// after are not remembered.
const MOST_FAILED: usize = 1 << 23;

/// A set of jobs that is being placed.
#[derive(Debug)]
struct Frame<T> {
    /// Its jobs among the machine's entries, by position.
    entries: Range<usize>,
    /// The key under which it is known if it fails.
    key: u64,
    /// The lowest top of its jobs. What lies there or higher could not keep that job
    /// from its release, so the job comes first.
    ceiling: T,
    /// The next candidate among the machine's entries.
    next: usize,
    /// The end of the candidates that are worth trying.
    limit: usize,
    /// Whether the limit was computed.
    limited: bool,
    /// The last candidate tried.
    tried: Option<Entry<T>>,
    /// How many parts on the stack belong to frames below.
    parts: usize,
}

/// A search for one plan, with one order among jobs at equal offsets.
#[derive(Debug)]
pub(super) struct Machine<T> {
    capacity: T,
    bound: Bound<T>,
    /// The jobs of all frames and parts on the stack.
    entries: Vec<Entry<T>>,
    /// Parts that are still to be placed: their jobs, and the position before which
    /// jobs were passed over.
    parts: Vec<(Range<usize>, (T, u16))>,
    frames: Vec<Frame<T>>,
    /// The keys of what is known to fail.
    failed: HashSet<u64, BuildHasherDefault<KeyHasher>>,
    /// The offset of each job, by id.
    offsets: Vec<T>,
    /// What to do next.
    pending: Step,
    nodes: u64,
    by_total: bool,
    scratch: Scratch<T>,
}

/// What a machine does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Begin the last part on the stack.
    Enter,
    /// Try the next choice of the last frame.
    Choose,
    /// The last frame, or an empty part, is placed.
    Succeed,
    /// The last frame, or a part of it, can not be placed.
    Fail,
    /// Nothing is left to do.
    End(Outcome),
}

/// Working memory of a choice.
#[derive(Debug)]
struct Scratch<T> {
    /// The jobs that remain, by position.
    remaining: Vec<Entry<T>>,
    /// Those among them that the choice raised.
    raised: Vec<Entry<T>>,
    /// The sum of sizes in each section.
    totals: Vec<i64>,
    /// What is known of each section, to tell parts.
    cover: Vec<Cover>,
}

impl<T: Lane> Machine<T> {
    /// A machine for `jobs`, whose ids and ranks are their positions. With `by_total`
    /// jobs that cross fuller sections come before others.
    pub(super) fn new(
        jobs: &[Entry<T>],
        gaps: Gaps<T>,
        sections: usize,
        capacity: T,
        by_total: bool,
    ) -> Self {
        let mut remaining = jobs.to_vec();
        let mut totals = vec![0; sections.saturating_add(1)];
        if by_total {
            rank_by_total(&mut remaining, &mut totals);
        }
        remaining.sort_unstable_by_key(Entry::position);
        let mut machine = Self {
            capacity,
            bound: Bound::new(sections, capacity, gaps),
            entries: Vec::new(),
            parts: Vec::new(),
            frames: Vec::new(),
            failed: HashSet::default(),
            offsets: vec![T::ZERO; jobs.len()],
            pending: Step::Enter,
            nodes: 0,
            by_total,
            scratch: Scratch {
                remaining,
                raised: Vec::new(),
                totals,
                cover: vec![Cover::default(); sections.saturating_add(1)],
            },
        };
        let start = (T::ZERO, 0);
        if machine.bound.may_fit(&machine.scratch.remaining, start) {
            machine.push_parts(start);
            machine.frames.push(Frame {
                entries: 0..0,
                key: 0,
                ceiling: T::ZERO,
                next: 0,
                limit: 0,
                limited: true,
                tried: None,
                parts: 0,
            });
            machine.pending = Step::Succeed;
        } else {
            machine.pending = Step::End(Outcome::Impossible);
        }
        machine
    }

    /// How many choices were made.
    pub(super) fn nodes(&self) -> u64 {
        self.nodes
    }

    /// The offset of each job, by id, once all are placed.
    pub(super) fn offsets(&self) -> &[T] {
        &self.offsets
    }

    /// Goes on until it ends, has made `nodes` more choices, or `stop` says so, which
    /// is asked before each choice.
    pub(super) fn run(&mut self, nodes: u64, stop: &impl Fn() -> bool) -> Outcome {
        let last = self.nodes.saturating_add(nodes);
        loop {
            self.pending = match self.pending {
                Step::Enter => self.enter(),
                Step::Choose if self.nodes >= last || stop() => return Outcome::Stopped,
                Step::Choose => self.choose(),
                Step::Succeed => self.succeed(),
                Step::Fail => self.fail(),
                Step::End(outcome) => return outcome,
            };
        }
    }

    /// Begins the last part on the stack.
    fn enter(&mut self) -> Step {
        let Some((range, after)) = self.parts.pop() else {
            return Step::Succeed;
        };
        let Some(entries) = self.entries.get(range.clone()) else {
            return Step::Succeed;
        };
        let passed_over = entries.partition_point(|entry| entry.position() < after);
        let first = entries.get(passed_over).map(Entry::position);
        let key = key(entries, first.filter(|_| passed_over > 0));
        let tops = entries.iter().map(Entry::top);
        self.frames.push(Frame {
            next: range.start.saturating_add(passed_over),
            limit: range.end,
            limited: false,
            tried: None,
            ceiling: tops.min().unwrap_or(T::ZERO),
            entries: range,
            key,
            parts: self.parts.len(),
        });
        if self.failed.contains(&key) {
            self.frames.pop();
            return Step::Fail;
        }
        Step::Choose
    }

    /// A part is placed: on to the next one of the frame, or out of it.
    fn succeed(&mut self) -> Step {
        let Some(frame) = self.frames.last() else {
            return Step::End(Outcome::Placed);
        };
        if self.parts.len() > frame.parts {
            let end = self.parts.last().map_or(0, |(range, _)| range.end);
            self.entries.truncate(end);
            return Step::Enter;
        }
        self.frames.pop();
        Step::Succeed
    }

    /// A part can not be placed: the frame's choice was wrong.
    fn fail(&mut self) -> Step {
        let Some(frame) = self.frames.last() else {
            return Step::End(Outcome::Impossible);
        };
        self.parts.truncate(frame.parts);
        self.entries.truncate(frame.entries.end);
        Step::Choose
    }

    /// Tries the next choice of the last frame.
    fn choose(&mut self) -> Step {
        let Self {
            frames, entries, ..
        } = self;
        let Some(frame) = frames.last_mut() else {
            return Step::Succeed;
        };
        let candidate = frame.next;
        let chosen = match entries.get(candidate) {
            Some(entry) if candidate < frame.limit && entry.release < frame.ceiling => *entry,
            _ => return self.give_up(),
        };
        frame.next = candidate.saturating_add(1);
        if frame.tried.is_some_and(|before| chosen.is_twin(&before)) {
            return Step::Choose;
        }
        let first = frame.tried.replace(chosen).is_none();
        if !first && !frame.limited {
            frame.limited = true;
            if let Some(all) = entries.get(frame.entries.clone()) {
                let from = candidate.saturating_sub(frame.entries.start);
                let limit = worth_trying(&mut self.bound, all, from);
                frame.limit = frame.entries.start.saturating_add(limit);
            }
            if candidate >= frame.limit {
                return self.give_up();
            }
        }
        self.nodes = self.nodes.saturating_add(1);
        if let Some(offset) = self.offsets.get_mut(usize::from(chosen.id)) {
            *offset = chosen.release;
        }
        let range = frame.entries.clone();
        let may_fit = if self.bound.gaps().is_empty() {
            self.place::<false>(range, candidate, chosen)
        } else {
            self.place::<true>(range, candidate, chosen)
        };
        if !may_fit {
            return Step::Choose;
        }
        self.push_parts(chosen.position());
        if self.entries.len() > MOST_ENTRIES {
            return Step::End(Outcome::Full);
        }
        Step::Succeed
    }

    /// No choice of the last frame is left: it fails, and that is remembered.
    fn give_up(&mut self) -> Step {
        if let Some(frame) = self.frames.pop()
            && self.failed.len() < MOST_FAILED
        {
            self.failed.insert(frame.key);
        }
        Step::Fail
    }

    /// Puts the jobs that remain after a choice into the scratch memory. Whether they
    /// may still fit.
    fn place<const GAPS: bool>(
        &mut self,
        range: Range<usize>,
        candidate: usize,
        chosen: Entry<T>,
    ) -> bool {
        let Scratch {
            remaining, raised, ..
        } = &mut self.scratch;
        remaining.clear();
        raised.clear();
        let top = chosen.top();
        let before = self.entries.get(range.start..candidate).unwrap_or(&[]);
        let behind = self.entries.get(candidate.saturating_add(1)..range.end);
        for entry in before.iter().chain(behind.unwrap_or(&[])) {
            let lowest = match entry.release < top {
                true => self.bound.gaps().lowest_above::<GAPS>(&chosen, entry),
                false => None,
            };
            let Some(lowest) = lowest.filter(|&lowest| entry.release < lowest) else {
                remaining.push(*entry);
                continue;
            };
            let release = entry.aligned(lowest);
            let entry = Entry { release, ..*entry };
            if entry.fixed || entry.top() > self.capacity {
                return false;
            }
            raised.push(entry);
        }
        raised.sort_unstable_by_key(Entry::position);
        merge(remaining, raised);
        top <= self.capacity && self.bound.may_fit(remaining, chosen.position())
    }

    /// Splits the jobs that remain into parts that share no section and puts them on
    /// the stack.
    fn push_parts(&mut self, after: (T, u16)) {
        let Scratch {
            remaining,
            raised: part_entries,
            totals,
            cover,
        } = &mut self.scratch;
        if remaining.is_empty() {
            return;
        }
        let count = number_parts(remaining, cover);
        if count == 1 {
            let start = self.entries.len();
            self.entries.extend_from_slice(remaining);
            self.parts.push((start..self.entries.len(), after));
            return;
        }
        for part in 1..=count {
            let of_part = remaining.iter();
            let of_part = of_part.filter(|entry| part == part_of(entry, cover));
            part_entries.clear();
            part_entries.extend(of_part.copied());
            if self.by_total {
                rank_by_total(part_entries, totals);
                part_entries.sort_unstable_by_key(Entry::position);
            }
            let start = self.entries.len();
            self.entries.extend_from_slice(part_entries);
            // What was passed over for the sake of another part may be placed again.
            self.parts.push((start..self.entries.len(), (T::ZERO, 0)));
        }
    }
}

/// How many of `entries`, from the first on, hold candidates that may lead to a
/// plan. Those before `from` do.
fn worth_trying<T: Lane>(bound: &mut Bound<T>, entries: &[Entry<T>], from: usize) -> usize {
    let mut survives = |candidate: usize| {
        let position = entries.get(candidate).map(Entry::position);
        position.is_some_and(|position| bound.may_fit(entries, position))
    };
    let (mut good, mut step) = (from, 1_usize);
    let mut bad = loop {
        let candidate = good
            .saturating_add(step)
            .min(entries.len())
            .saturating_sub(1);
        if candidate < good || !survives(candidate) {
            break candidate;
        }
        good = candidate.saturating_add(1);
        step = step.saturating_mul(2);
    };
    while good < bad {
        let middle = good.midpoint(bad);
        if survives(middle) {
            good = middle.saturating_add(1);
        } else {
            bad = middle;
        }
    }
    good
}

/// Merges `raised` into `entries`, both by position.
fn merge<T: Lane>(entries: &mut Vec<Entry<T>>, raised: &[Entry<T>]) {
    let mut kept = entries.len();
    entries.extend_from_slice(raised);
    let mut end = entries.len();
    // From the back, so that each entry moves once.
    for entry in raised.iter().rev() {
        let below = entries.get(..kept).unwrap_or(&[]);
        let start = below.partition_point(|kept| kept.position() < entry.position());
        let moved = kept.saturating_sub(start);
        end = end.saturating_sub(moved);
        entries.copy_within(start..kept, end);
        end = end.saturating_sub(1);
        if let Some(slot) = entries.get_mut(end) {
            *slot = *entry;
        }
        kept = start;
    }
}
