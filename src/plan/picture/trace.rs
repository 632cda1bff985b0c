//! A plan in the layout of ExecuTorch's memory profiler.
//!
//! Rank 2. Part of `plan::picture`.

use std::fmt;

use super::shown;
use crate::escape::Json;
use crate::plan::{PlanReport, PlanRequest};

/// The plan as a Chrome trace.
pub(super) struct Trace<'a> {
    request: &'a PlanRequest,
    report: &'a PlanReport,
}

impl<'a> Trace<'a> {
    pub(super) fn new(request: &'a PlanRequest, report: &'a PlanReport) -> Self {
        Self { request, report }
    }

    /// How many events there are.
    pub(super) fn events(&self) -> usize {
        let shown = self.request.values().iter().flat_map(shown);
        let steps = shown.map(|of| of.last.saturating_sub(of.first));
        steps.fold(0, |sum, steps| sum.saturating_add(steps).saturating_add(1))
    }
}

impl fmt::Display for Trace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{\"traceEvents\":[")?;
        let mut separator = "";
        let placements = self.report.plan.placements();
        for (position, (value, placement)) in
            self.request.values().iter().zip(placements).enumerate()
        {
            let name = value.name.clone();
            let name = name.unwrap_or_else(|| format!("value {position}"));
            let name = Json(&name);
            let memory_id = placement.memory_id.saturating_add(1);
            for stretch in shown(value) {
                let offset = placement.offset.saturating_add(stretch.bytes.start);
                let size = stretch.bytes.len();
                for step in stretch.first..=stretch.last {
                    write!(
                        f,
                        "{separator}\n{{\"name\":\"{name}\",\"cat\":\"memory_allocation\",\"ph\":\"X\",\
                         \"ts\":{offset},\"dur\":{size},\"pid\":{memory_id},\"tid\":{step},\
                         \"args\":{{\"Memory ID\":{memory_id},\"fqn\":\"{name}\",\"bytes\":{size}}}}}"
                    )?;
                    separator = ",";
                }
            }
        }
        f.write_str("\n]}\n")
    }
}
