//! Several searches in turn, until one ends.
//!
//! Rank 2. Part of `plan`.
//!
//! Each machine gets the same number of choices in a round, and the rounds grow. The
//! first machine in order that ends in a round decides, whether they run one after
//! the other or on threads, so the outcome depends on the budget of nodes alone.

use std::time::Instant;

use crate::plan::instance::{Instance, Job};

use super::bound::Entry;
use super::gaps::{Gaps, Need};
use super::lane::Lane;
use super::machine::{Machine, Outcome};
use super::order::{By, ORDERS, ordered};

/// The most jobs that are searched: where few of them can be told apart, time and memory
/// grow with their square.
const MAX_JOBS: usize = 6000;

/// How many choices each machine makes in the first round.
const FIRST_ROUND: u64 = 64;

/// How long to search.
#[derive(Clone, Copy, Debug)]
pub(in crate::plan) struct Limits {
    /// How many choices all machines may make together.
    pub(in crate::plan) nodes: u64,
    /// When to stop.
    pub(in crate::plan) deadline: Option<Instant>,
    /// How many threads may run.
    pub(in crate::plan) threads: usize,
}

/// What a search has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::plan) enum Found {
    /// The offset of each job, in bytes.
    Plan(Vec<usize>),
    /// No plan exists within the capacity.
    Impossible,
    /// It is not known whether there is a plan, and a longer search would not tell.
    Exhausted,
    /// It is not known whether there is a plan.
    Unknown,
}

/// How many machines take turns: a budget of fewer nodes does nothing.
pub(in crate::plan) fn turns() -> u64 {
    u64::try_from(ORDERS.len()).unwrap_or(1)
}

/// Looks for a plan of `instance` that ends at `capacity` bytes or before. Returns
/// it with the number of choices made.
pub(in crate::plan) fn search(
    instance: &Instance,
    capacity: usize,
    limits: &Limits,
) -> (Found, u64) {
    if capacity < instance.lower_bound {
        return (Found::Impossible, 0);
    }
    let count = instance.jobs.iter().filter(|job| job.takes_room()).count();
    if count == 0 {
        return (Found::Plan(unplaced(instance)), 0);
    }
    if count > MAX_JOBS {
        return (Found::Exhausted, 0);
    }
    let unit = unit(instance);
    let units = capacity.checked_div(unit).unwrap_or(0);
    if let Some(units) = i16::new(units) {
        run(instance, unit, units, limits)
    } else if let Some(units) = i32::new(units) {
        run(instance, unit, units, limits)
    } else if let Some(units) = i64::new(units) {
        run(instance, unit, units, limits)
    } else {
        (Found::Exhausted, 0)
    }
}

/// What all sizes, fixed offsets and alignments are multiples of.
fn unit(instance: &Instance) -> usize {
    let jobs = instance.jobs.iter().filter(|job| job.takes_room());
    let lengths = jobs
        .clone()
        .flat_map(|job| [job.size, job.fixed.unwrap_or(0)]);
    let windows = jobs.clone().flat_map(Job::needs);
    let windows = windows.flat_map(|need| [need.low, need.high]);
    let unit = lengths.chain(windows).fold(0, divisor);
    // Where every alignment divides every size, each offset is aligned by itself.
    if jobs
        .clone()
        .all(|job| divisor(unit, job.align) == job.align)
    {
        unit
    } else {
        jobs.fold(unit, |unit, job| divisor(unit, job.align))
    }
}

/// The greatest common divisor.
fn divisor(mut a: usize, mut b: usize) -> usize {
    while let Some(rest) = a.checked_rem(b) {
        (a, b) = (b, rest);
    }
    a
}

/// Searches in lanes of type `T`.
fn run<T: Lane>(instance: &Instance, unit: usize, capacity: T, limits: &Limits) -> (Found, u64) {
    let mut machines = Vec::with_capacity(ORDERS.len());
    for order in ORDERS {
        // Totals change as jobs are placed, so machines compute them.
        let (by_total, order) = match order.split_first() {
            Some((By::Total, rest)) => (true, rest),
            _ => (false, order),
        };
        let jobs = ordered(instance, order);
        let Some(entries) = entries(instance, &jobs, unit, capacity) else {
            return (Found::Exhausted, 0);
        };
        // A job that is too large for a lane is too large for the capacity.
        let Some(entries) = entries.into_iter().collect::<Option<Vec<_>>>() else {
            return (Found::Impossible, 0);
        };
        let Some(gaps) = gaps(instance, &jobs, unit) else {
            return (Found::Exhausted, 0);
        };
        machines.push((
            Machine::new(&entries, gaps, instance.sections, capacity, by_total),
            jobs,
        ));
    }
    let stop = || {
        limits
            .deadline
            .is_some_and(|deadline| Instant::now() >= deadline)
    };
    let share = turns();
    let (mut round, mut spent) = (FIRST_ROUND, 0_u64);
    loop {
        let left = limits.nodes.saturating_sub(spent);
        let each = round.min(left.checked_div(share).unwrap_or(0));
        if each == 0 {
            return (Found::Unknown, spent);
        }
        let before: Vec<u64> = machines
            .iter()
            .map(|(machine, _)| machine.nodes())
            .collect();
        let outcomes = run_round(&mut machines, each, limits.threads, &stop);
        let all_full = outcomes.iter().all(|&outcome| outcome == Outcome::Full);
        for (at, ((machine, jobs), outcome)) in machines.iter().zip(outcomes).enumerate() {
            let found = match outcome {
                Outcome::Stopped | Outcome::Full => continue,
                // Orders by offset are not all there are where jobs lie in windows of others.
                Outcome::Impossible if instance.has_windows() => Found::Exhausted,
                Outcome::Impossible => Found::Impossible,
                Outcome::Placed => Found::Plan(offsets(instance, machine, jobs, unit)),
            };
            // Those after it may have gone on, on other threads: that is not counted.
            let counted = machines.iter().take(at.saturating_add(1));
            let counted: u64 = counted.map(|(machine, _)| machine.nodes()).sum();
            let after: u64 = before.iter().skip(at.saturating_add(1)).sum();
            return (found, counted.saturating_add(after));
        }
        spent = machines.iter().map(|(machine, _)| machine.nodes()).sum();
        if all_full {
            return (Found::Exhausted, spent);
        }
        if stop() {
            return (Found::Unknown, spent);
        }
        round = round.saturating_mul(2);
    }
}

/// A machine, and the jobs in its order.
type InOrder<T> = (Machine<T>, Vec<usize>);

/// Lets each machine make `nodes` more choices. What comes after the first that
/// ends is `Stopped`.
fn run_round<T: Lane>(
    machines: &mut [InOrder<T>],
    nodes: u64,
    threads: usize,
    stop: &(impl Fn() -> bool + Sync),
) -> Vec<Outcome> {
    let mut outcomes = vec![Outcome::Stopped; machines.len()];
    if threads <= 1 {
        for ((machine, _), outcome) in machines.iter_mut().zip(&mut outcomes) {
            *outcome = machine.run(nodes, stop);
            if outcome.decides() {
                break;
            }
        }
        return outcomes;
    }
    let share = machines.len().div_ceil(threads);
    let run = |(machines, outcomes): (&mut [InOrder<T>], &mut [Outcome])| {
        for ((machine, _), outcome) in machines.iter_mut().zip(outcomes) {
            *outcome = machine.run(nodes, stop);
        }
    };
    let mut left = Vec::new();
    std::thread::scope(|scope| {
        let shares = machines.chunks_mut(share).zip(outcomes.chunks_mut(share));
        for (number, of_thread) in shares.enumerate() {
            let spawned = std::thread::Builder::new().spawn_scoped(scope, move || run(of_thread));
            if spawned.is_err() {
                left.push(number);
            }
        }
    });
    // Where there is no thread to be had, this one does it.
    for number in left {
        let mut shares = machines.chunks_mut(share).zip(outcomes.chunks_mut(share));
        shares.nth(number).into_iter().for_each(run);
    }
    outcomes
}

/// The entries of `jobs`, in units, each with its position as rank. An entry is
/// `None` if it is too large, all are if there are more sections than fit.
fn entries<T: Lane>(
    instance: &Instance,
    jobs: &[usize],
    unit: usize,
    capacity: T,
) -> Option<Vec<Option<Entry<T>>>> {
    let units = |bytes: usize| bytes.checked_div(unit).and_then(T::new);
    // The power of two above the capacity: of its multiples only 0 is within, as of
    // those of any above.
    let above = capacity
        .get()
        .saturating_add(1)
        .checked_next_power_of_two()?;
    let above = usize::try_from(above).ok()?;
    let jobs = jobs.iter().filter_map(|&job| instance.jobs.get(job));
    jobs.zip(0_u16..)
        .map(|(job, rank)| {
            let (from, to) = (u16::try_from(job.from).ok()?, u16::try_from(job.to).ok()?);
            let entry = || {
                let align = job.align.checked_div(unit).unwrap_or(0).min(above);
                let below = align.saturating_sub(1);
                // No more than twice the capacity, of which lanes hold three times.
                let half = below / 2;
                let below = T::new(half)?.plus(T::new(below.saturating_sub(half))?);
                Some(Entry {
                    release: units(job.fixed.unwrap_or(0))?,
                    rank,
                    id: rank,
                    from,
                    to,
                    size: units(job.size)?,
                    below,
                    fixed: job.fixed.is_some(),
                    has_gaps: job.parts.is_some(),
                })
            };
            Some(entry())
        })
        .collect()
}

/// What those of `jobs` that have gaps need, in units, by position. `None` if there are
/// more sections than fit.
fn gaps<T: Lane>(instance: &Instance, jobs: &[usize], unit: usize) -> Option<Gaps<T>> {
    let units = |bytes: usize| bytes.checked_div(unit).and_then(T::new);
    if instance.jobs.iter().all(|job| job.parts.is_none()) {
        return Some(Gaps { needs: Vec::new() });
    }
    let needs = |job: &Job| -> Option<Vec<Need<T>>> {
        let needs = job.parts.iter().flatten().map(|need| {
            Some(Need {
                from: u16::try_from(need.from).ok()?,
                to: u16::try_from(need.to).ok()?,
                low: units(need.low)?,
                high: units(need.high)?,
            })
        });
        needs.collect()
    };
    let jobs = jobs.iter().filter_map(|&job| instance.jobs.get(job));
    let needs = jobs.map(needs).collect::<Option<_>>()?;
    Some(Gaps { needs })
}

/// Offsets before the search places anything: what takes no room is at the bottom or
/// where it is fixed.
fn unplaced(instance: &Instance) -> Vec<usize> {
    let jobs = instance.jobs.iter();
    jobs.map(|job| job.fixed.unwrap_or(0)).collect()
}

/// The offsets that a machine found, in bytes, by job.
fn offsets<T: Lane>(
    instance: &Instance,
    machine: &Machine<T>,
    jobs: &[usize],
    unit: usize,
) -> Vec<usize> {
    let mut offsets = unplaced(instance);
    for (&job, offset) in jobs.iter().zip(machine.offsets()) {
        if let Some(slot) = offsets.get_mut(job) {
            let units = usize::try_from(offset.get()).unwrap_or(0);
            *slot = units.saturating_mul(unit);
        }
    }
    offsets
}

#[cfg(test)]
mod tests {
    use super::{Found, Limits, search};
    use crate::plan::instance::Instance;
    use crate::plan::problem::Problem;
    use crate::plan::{DeviceOptions, PlanRequest, PlanValue};

    #[test]
    fn a_search_that_would_take_too_much_memory_ends_without_an_answer() {
        // All alive at once, and each but the last wastes 15 bytes: half of them fit into
        // what the capacity leaves before the search sees that the others do not.
        let mut request = PlanRequest::new();
        request.set_default(DeviceOptions::aligned(1));
        for _ in 0..500 {
            request.push(PlanValue::new(17, 0..=0).aligned(16));
        }
        let problem = Problem::new(&request).unwrap();
        let instance = Instance::new(&problem.arenas[0]);
        let limits = Limits {
            nodes: u64::MAX,
            deadline: None,
            threads: 1,
        };

        let (found, nodes) = search(&instance, 500 * 25, &limits);

        assert_eq!(found, Found::Exhausted);
        // Four stacks, each as deep as it may get: less than 500 entries a node.
        assert!((4 * 131..4 * 500).contains(&nodes), "{nodes}");
    }
}
