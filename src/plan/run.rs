//! From a request to a report: every arena planned, the plan put together.
//!
//! Rank 2. Part of `plan`.

use crate::error::Result;
use crate::layout::DeviceLayout;

use super::algorithm::Algorithm;
use super::capacity;
use super::exact::{self, Budget};
use super::heuristic::{self, Fit, Order};
use super::instance::Instance;
use super::memory_plan::{MemoryPlan, Placement, PlannedBuffer};
use super::options::{Goal, PlanOptions};
use super::problem::{Arena, Problem};
use super::report::{ArenaReport, PlanReport, PlanStatus};
use super::request::PlanRequest;

/// The offsets of the items of an arena, and what is known of them.
#[derive(Clone, Debug)]
pub(super) struct Solution {
    /// The offset of each item, in bytes.
    pub(super) offsets: Vec<usize>,
    /// What the end of the highest item can not be less than.
    pub(super) lower_bound: usize,
    /// What was proved of that: the lower bound, or more after a search.
    pub(super) proved: usize,
    /// Which algorithm found them.
    pub(super) algorithm: &'static str,
    /// How good they are.
    pub(super) status: PlanStatus,
    /// How many nodes a search visited.
    pub(super) nodes: u64,
}

/// Plans `request`.
pub(super) fn plan(request: &PlanRequest, options: &PlanOptions) -> Result<PlanReport> {
    let problem = Problem::new(request)?;
    let budget = Budget::new(options);
    let solutions: Vec<Solution> = problem
        .arenas
        .iter()
        .map(|arena| {
            let mut of_device = problem.arenas.iter();
            // Several pools share a capacity; then each is made as small as can be.
            let alone =
                of_device.all(|other| std::ptr::eq(other, arena) || other.device != arena.device);
            solve(arena, options, &budget, alone)
        })
        .collect();
    let report = report(request, &problem, &solutions)?;
    capacity::check(&problem, &report, options, &budget)?;
    Ok(report)
}

/// Plans one arena, which is `alone` on its device or not.
fn solve(arena: &Arena, options: &PlanOptions, budget: &Budget, alone: bool) -> Solution {
    let instance = Instance::new(arena);
    let room = capacity::room(arena).filter(|_| alone && options.goal == Goal::Fit);
    let enough = room.unwrap_or(0).max(instance.lower_bound);
    let (mut layout, searches) = match options.algorithm {
        Algorithm::Naive => (heuristic::naive(&instance), false),
        Algorithm::ExecutorchGreedy => (heuristic::executorch(&instance), false),
        Algorithm::GreedyBySize => {
            let layout = heuristic::by(&instance, Order::Size, Fit::Best, "greedy_by_size");
            (layout, false)
        }
        Algorithm::GreedyByBreadth => {
            let layout = heuristic::by(&instance, Order::Breadth, Fit::Best, "greedy_by_breadth");
            (layout, false)
        }
        Algorithm::BestFit => {
            let layout = heuristic::by(&instance, Order::Start, Fit::Best, "best_fit");
            (layout, false)
        }
        Algorithm::FirstFit => {
            let layout = heuristic::by(&instance, Order::Start, Fit::First, "first_fit");
            (layout, false)
        }
        Algorithm::Optimal | Algorithm::Auto => (heuristic::best(&instance, enough), true),
    };
    let (mut proved, mut nodes) = (instance.lower_bound, 0);
    let mut status = PlanStatus::Feasible;
    if searches && layout.peak > enough {
        let improved = exact::improve(&instance, layout.peak, room, budget);
        if let Some(offsets) = improved.offsets {
            layout.peak = instance.peak(&offsets);
            layout.offsets = offsets;
            layout.name = "search";
        }
        (proved, nodes) = (improved.proved, improved.nodes);
        if layout.peak > room.unwrap_or(0) {
            status = PlanStatus::BudgetExhausted;
        }
    }
    if layout.peak <= proved {
        status = PlanStatus::Optimal;
    }
    let placed = arena.items.iter().zip(&layout.offsets);
    let offsets = placed.map(|(item, &offset)| {
        // Alignment may have put an item without bytes above all that have some.
        let is_above = item.size == 0 && item.fixed.is_none() && offset > layout.peak;
        if is_above { 0 } else { offset }
    });
    Solution {
        offsets: offsets.collect(),
        lower_bound: instance.lower_bound,
        proved,
        algorithm: layout.name,
        status,
        nodes,
    }
}

/// Puts the plan of all arenas together.
fn report(request: &PlanRequest, problem: &Problem, solutions: &[Solution]) -> Result<PlanReport> {
    let mut buffers = Vec::with_capacity(problem.arenas.len());
    let mut arenas = Vec::with_capacity(problem.arenas.len());
    for (memory_id, (arena, solution)) in (0..).zip(problem.arenas.iter().zip(solutions)) {
        let ends = arena.items.iter().zip(&solution.offsets);
        let ends = ends.filter(|(item, _)| item.size > 0 || item.fixed.is_some());
        let peak = ends
            .map(|(item, offset)| offset.saturating_add(item.size))
            .max();
        let peak = peak.unwrap_or(0).max(arena.reserved);
        let aligns = arena.items.iter().map(|item| item.align);
        let padding = if arena.items.is_empty() {
            0
        } else {
            arena.options.padding
        };
        buffers.push(PlannedBuffer {
            device: arena.device,
            size: peak.saturating_add(padding),
            align: aligns.fold(DeviceLayout::DEFAULT_ALIGN, usize::max),
        });
        arenas.push(ArenaReport {
            device: arena.device,
            memory_id,
            peak,
            lower_bound: solution.lower_bound,
            proved: solution.proved,
            algorithm: solution.algorithm,
            status: solution.status,
            nodes: solution.nodes,
        });
    }
    let mut placements = Vec::with_capacity(problem.homes.len());
    for (value, home) in request.values().iter().zip(&problem.homes) {
        let offsets = solutions.get(home.arena);
        let offset = offsets.and_then(|solution| solution.offsets.get(home.item));
        let offset = offset.map_or(0, |offset| offset.saturating_add(home.offset));
        let memory_id = u32::try_from(home.arena).unwrap_or(u32::MAX);
        placements.push(Placement::new(memory_id, offset, value.size));
    }
    Ok(PlanReport {
        plan: MemoryPlan::new(buffers, placements)?,
        arenas,
    })
}
