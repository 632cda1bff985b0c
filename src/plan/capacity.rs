//! Whether a plan is within the capacities, and if not, why.
//!
//! Rank 2. Part of `plan`.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Instant;

use crate::device::Device;
use crate::error::{OverCapacity, PlanError};

use super::exact::Budget;
use super::instance::Instance;
use super::options::PlanOptions;
use super::pressure::Pressure;
use super::problem::{Arena, Item, Problem};
use super::report::PlanReport;
use super::search::{Found, Limits, search};

/// How many nodes the search for a set that can not fit may visit for each value.
const NODES_EACH: u64 = 20_000;

/// How many bytes the capacity leaves to `arena` besides padding, if it is alone on
/// its device.
pub(super) fn room(arena: &Arena) -> Option<usize> {
    arena.options.capacity?.checked_sub(arena.options.padding)
}

/// Checks the buffers of each device against its capacity.
pub(super) fn check(
    problem: &Problem,
    report: &PlanReport,
    options: &PlanOptions,
    budget: &Budget,
) -> Result<(), PlanError> {
    let devices: BTreeSet<Device> = problem.arenas.iter().map(|arena| arena.device).collect();
    for device in devices {
        let arenas = problem.arenas.iter().zip(&report.arenas);
        let arenas = arenas.filter(|(arena, _)| arena.device == device);
        let Some(capacity) = arenas.clone().find_map(|(arena, _)| arena.options.capacity) else {
            continue;
        };
        let buffers = report.plan.buffers().iter();
        let sizes = buffers.filter(|buffer| buffer.device == device);
        let sizes = sizes.map(|buffer| buffer.size);
        let needed = sizes.fold(0, usize::saturating_add);
        if needed <= capacity {
            continue;
        }
        let mut error = OverCapacity::new(device, needed, capacity);
        let mut proved = 0_usize;
        for (arena, found) in arenas.clone() {
            let padding = match arena.items.is_empty() {
                true => 0,
                false => arena.options.padding,
            };
            let least = |bytes: usize| bytes.saturating_add(padding);
            error.lower_bound = error.lower_bound.saturating_add(least(found.lower_bound));
            proved = proved.saturating_add(least(found.proved));
        }
        error.proved = proved > capacity;
        let items = || arenas.clone().flat_map(|(arena, _)| &arena.items);
        let worst = Pressure::new(items()).most();
        error.worst_step = worst.step;
        let alive = items().filter(|item| bytes_in(item, worst.step) > 0);
        error.live = alive.map(|item| item.value).collect();
        error.live.sort_unstable();
        if options.explain && error.proved {
            let mut arenas = arenas.map(|(arena, _)| arena);
            if let (Some(arena), None) = (arenas.next(), arenas.next()) {
                error.irreducible = irreducible(arena, worst.step, budget);
            }
        }
        return Err(PlanError::OverCapacity(Box::new(error)));
    }
    Ok(())
}

/// How many bytes `item` needs in `step`.
fn bytes_in(item: &Item, step: usize) -> usize {
    let mut needs = item.needs();
    let need = needs.find(|need| (need.first..=need.last).contains(&step));
    need.map_or(0, |need| need.bytes.len())
}

/// Values of an arena that can not fit, of which none was found that can be left
/// out before the budget ended.
fn irreducible(arena: &Arena, worst_step: usize, budget: &Budget) -> Vec<usize> {
    let capacity = room(arena).unwrap_or(0);
    // If one step alone is too full, those that need most in it are: with the one that
    // passes the capacity all are needed, since those before it need no less.
    let mut items: Vec<&Item> = arena.items.iter().collect();
    items.sort_by_key(|item| Reverse(bytes_in(item, worst_step)));
    let mut sum = arena.reserved;
    let mut together = Vec::new();
    for item in &items {
        sum = sum.saturating_add(bytes_in(item, worst_step));
        together.push(item.value);
        if sum > capacity {
            together.sort_unstable();
            return together;
        }
    }
    let passes = |item: &&Item| item.fixed.unwrap_or(0).saturating_add(item.size) > capacity;
    if let Some(item) = arena.items.iter().find(passes) {
        return vec![item.value];
    }
    items.sort_by_key(|item| Reverse(item.size));
    let limits = Limits {
        nodes: NODES_EACH,
        deadline: budget.deadline,
        threads: budget.threads,
    };
    let mut kept = arena.clone();
    let is_late = || {
        let deadline = budget.deadline;
        deadline.is_some_and(|deadline| Instant::now() >= deadline)
    };
    for item in items.iter().rev() {
        if is_late() {
            break;
        }
        let mut fewer = kept.clone();
        fewer.items.retain(|other| other.value != item.value);
        let found = search(&Instance::new(&fewer), capacity, &limits);
        if matches!(found, (Found::Impossible, _)) {
            kept = fewer;
        }
    }
    kept.items.iter().map(|item| item.value).collect()
}
