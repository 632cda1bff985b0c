//! Pictures of plans, to be looked at.
//!
//! Rank 2. Part of `plan`.
//!
//! Steps go to the right and offsets up: a value is a rectangle, or several where it has
//! gaps, in which it is not shown. The line is the bytes that are alive, so what is above
//! it is lost to the arrangement, and the dashes are what no arrangement can get below.
//! The files need nothing else to be shown: no scripts, fonts or styles from elsewhere.

mod chart;
mod frame;
mod page;
mod trace;

pub use page::PlanPage;

use crate::plan::stretch::Stretch;
use crate::plan::{PlanReport, PlanRequest, PlanValue};

/// The most events of a trace.
const MOST_EVENTS: usize = 10_000_000;

impl PlanReport {
    /// An SVG picture of one arena of the plan of `request`, or `None` if there is
    /// no arena `index`.
    ///
    /// # Examples
    ///
    /// ```
    /// use device_memory::plan::{PlanOptions, PlanRequest, PlanValue};
    ///
    /// let mut request = PlanRequest::new();
    /// request.push(PlanValue::new(4096, 0..=2).named("query"));
    /// request.push(PlanValue::new(1024, 1..=3).named("key"));
    /// let report = request.plan(&PlanOptions::default())?;
    ///
    /// let svg = report.to_svg(&request, 0).ok_or("no arena")?;
    ///
    /// assert!(svg.starts_with("<svg") && svg.contains("query"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn to_svg(&self, request: &PlanRequest, index: usize) -> Option<String> {
        Some(chart::Chart::new(request, self, index)?.to_string())
    }

    /// The plan of `request` in the layout of ExecuTorch's memory profiler: a
    /// Chrome trace in JSON, in which time is the offset in bytes, a process an
    /// arena, counted from 1, and a thread a step.
    ///
    /// There is an event for each value and step that it is alive in, gaps left out; `None`
    /// if those are more than ten million.
    #[must_use]
    pub fn to_executorch_trace(&self, request: &PlanRequest) -> Option<String> {
        let trace = trace::Trace::new(request, self);
        (trace.events() <= MOST_EVENTS).then(|| trace.to_string())
    }
}

/// What is shown of a value: all of it, or what its gaps leave.
fn shown(value: &PlanValue) -> Vec<Stretch> {
    if value.gaps.is_empty() {
        return vec![Stretch {
            first: value.first_use,
            last: value.last_use,
            bytes: 0..value.size,
        }];
    }
    Stretch::of(value, value.size)
}
