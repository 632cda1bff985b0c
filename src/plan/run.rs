//! From a request to a report: every arena planned, the plan put together.
//!
//! Rank 2. Part of `plan`.

use crate::error::{ErrorKind, Result};
use crate::layout::DeviceLayout;

use super::memory_plan::{MemoryPlan, Placement, PlannedBuffer};
use super::options::PlanOptions;
use super::problem::{Arena, Problem, round_up};
use super::report::{ArenaReport, PlanReport, PlanStatus};
use super::request::PlanRequest;

/// The offsets of the items of an arena, and what is known of them.
#[derive(Clone, Debug)]
pub(super) struct Solution {
    /// The offset of each item, in bytes.
    pub(super) offsets: Vec<usize>,
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
    let solutions: Vec<Solution> = problem
        .arenas
        .iter()
        .map(|arena| solve(arena, options))
        .collect::<Result<_>>()?;
    report(request, &problem, &solutions)
}

/// Plans one arena.
fn solve(arena: &Arena, _options: &PlanOptions) -> Result<Solution> {
    let mut offset = arena.base;
    let mut offsets = Vec::with_capacity(arena.items.len());
    for item in &arena.items {
        let device = arena.device;
        let start = round_up(offset, item.align).ok_or(ErrorKind::PlanTooLarge { device })?;
        offset = start.saturating_add(item.size);
        offsets.push(start);
    }
    Ok(Solution {
        offsets,
        algorithm: "naive",
        status: PlanStatus::Feasible,
        nodes: 0,
    })
}

/// Puts the plan of all arenas together.
fn report(request: &PlanRequest, problem: &Problem, solutions: &[Solution]) -> Result<PlanReport> {
    let mut buffers = Vec::with_capacity(problem.arenas.len());
    let mut arenas = Vec::with_capacity(problem.arenas.len());
    for (memory_id, (arena, solution)) in (0..).zip(problem.arenas.iter().zip(solutions)) {
        let ends = arena.items.iter().zip(&solution.offsets);
        let ends = ends.filter(|(item, _)| item.size > 0);
        let peak = ends
            .map(|(item, offset)| offset.saturating_add(item.size))
            .max();
        let peak = peak.unwrap_or(arena.base);
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
            lower_bound: 0,
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
