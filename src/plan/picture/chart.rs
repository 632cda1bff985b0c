//! One arena as SVG.
//!
//! Rank 2. Part of `plan::picture`.

use std::fmt;

use super::frame::{Frame, Grouped, Length};
use super::shown;
use crate::escape::Markup;
use crate::plan::pressure::{Level, Pressure};
use crate::plan::problem::Problem;
use crate::plan::stretch::Stretch;
use crate::plan::{ArenaReport, Gap, Placement, PlanReport, PlanRequest, PlanStatus, PlanValue};
use crate::units::Bytes;

/// The style of a chart, which it carries along.
pub(super) const STYLE: &str = "\
.dm{--ink:#1b1f24;--faint:#6b7280;--line:#d7dbe0;--page:#fff;--bound:#b42318;--live:#1b1f24;\
font:12px system-ui,sans-serif;color:var(--ink);background:var(--page)}\
@media(prefers-color-scheme:dark){.dm{--ink:#e6e8eb;--faint:#9aa3ad;--line:#343a42;--page:#14171b;\
--bound:#ff8a7a;--live:#fff}}\
.dm text{fill:var(--ink)}.dm .faint{fill:var(--faint)}.dm .grid{stroke:var(--line)}\
.dm .bound{stroke:var(--bound);stroke-dasharray:6 4;fill:none}\
.dm .live{stroke:var(--live);stroke-width:1.5;fill:none;pointer-events:none}\
.dm .v{stroke:var(--page);stroke-width:.6;fill-opacity:.82}.dm .v:hover{fill-opacity:1;stroke:var(--ink);stroke-width:1.5}";

/// A value with its place.
type Placed<'a> = (&'a PlanValue, Placement);

/// The picture of an arena.
pub(super) struct Chart<'a> {
    arena: &'a ArenaReport,
    /// Whether the plan has no other.
    is_alone: bool,
    values: Vec<(usize, Placed<'a>)>,
    /// What the lower bound is told from; `None` if the request can not be planned.
    needed: Option<Needed>,
    frame: Frame,
}

/// What an arena needs.
struct Needed {
    /// In all steps, in bytes.
    reserved: usize,
    /// Besides that.
    pressure: Pressure,
}

impl Needed {
    /// What arena `index` of the plans of `request` needs.
    fn of(request: &PlanRequest, index: usize) -> Option<Self> {
        let problem = Problem::new(request).ok()?;
        let arena = problem.arenas.get(index)?;
        Some(Self {
            reserved: arena.reserved,
            pressure: Pressure::new(&arena.items),
        })
    }
}

impl<'a> Chart<'a> {
    /// The picture of arena `index`, if there is one.
    pub(super) fn new(
        request: &'a PlanRequest,
        report: &'a PlanReport,
        index: usize,
    ) -> Option<Self> {
        Self::on_scale(request, report, index, 0)
    }

    /// The same, whose axis reaches up to `bytes` at least.
    pub(super) fn on_scale(
        request: &'a PlanRequest,
        report: &'a PlanReport,
        index: usize,
        bytes: usize,
    ) -> Option<Self> {
        let arena = report.arenas.get(index)?;
        let placed = request
            .values()
            .iter()
            .zip(report.plan.placements().iter().copied());
        let inside = placed.enumerate();
        let values: Vec<_> = inside
            .filter(|(_, (_, placement))| placement.memory_id == arena.memory_id)
            .collect();
        // All arenas of a request are on one clock.
        let steps = request.values().iter();
        let steps = steps.map(|value| value.last_use.saturating_add(1));
        let frame = Frame {
            steps: steps.max().unwrap_or(1).max(1),
            bytes: arena.peak.max(arena.lower_bound).max(bytes).max(1),
        };
        Some(Self {
            arena,
            is_alone: report.arenas.len() == 1,
            values,
            needed: Needed::of(request, index),
            frame,
        })
    }

    fn title(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ArenaReport {
            device,
            memory_id,
            peak,
            lower_bound,
            algorithm,
            ..
        } = self.arena;
        let (left, count) = (Frame::LEFT, self.values.len());
        write!(
            f,
            "<text x=\"{left}\" y=\"18\" font-weight=\"600\">{device}"
        )?;
        if !self.is_alone {
            write!(f, ", memory id {memory_id}")?;
        }
        write!(f, ": {} bytes</text>", Grouped(*peak))?;
        let values = if count == 1 { "value" } else { "values" };
        let status = match self.arena.status {
            PlanStatus::Optimal => "optimal",
            PlanStatus::Feasible => "not searched",
            PlanStatus::BudgetExhausted => "search ended with its budget",
        };
        write!(
            f,
            "<text x=\"{left}\" y=\"34\" class=\"faint\">{} {values}, {}, {status}; lower bound {}, {} above</text>",
            Grouped(count),
            Markup(algorithm),
            Grouped(*lower_bound),
            Percent {
                part: self.arena.gap(),
                whole: *lower_bound
            },
        )
    }

    fn axes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let frame = self.frame;
        let (left, right) = (frame.x(0), frame.x(frame.steps));
        for bytes in frame.byte_ticks() {
            let y = frame.y(bytes);
            write!(
                f,
                "<line class=\"grid\" x1=\"{left}\" y1=\"{y}\" x2=\"{right}\" y2=\"{y}\"/>"
            )?;
            let (x, y) = (left.minus(Length::pixels(6)), y.plus(Length::pixels(4)));
            write!(
                f,
                "<text class=\"faint\" x=\"{x}\" y=\"{y}\" text-anchor=\"end\">{}</text>",
                Bytes::from(bytes)
            )?;
        }
        let bottom = frame.y(0);
        for step in frame.step_ticks() {
            let (x, y) = (frame.x(step), bottom.plus(Length::pixels(16)));
            write!(
                f,
                "<text class=\"faint\" x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">{step}</text>"
            )?;
        }
        let y = bottom.plus(Length::pixels(32));
        write!(
            f,
            "<text class=\"faint\" x=\"{right}\" y=\"{y}\" text-anchor=\"end\">step</text>"
        )
    }

    /// The values, each a path of rectangles.
    fn rectangles(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, (value, placement)) in &self.values {
            f.write_str("<path class=\"v\" d=\"")?;
            for stretch in shown(value) {
                self.rectangle(f, placement.offset, &stretch)?;
            }
            let hue = hue(*position);
            write!(f, "\" fill=\"hsl({hue} 60% 55%)\"><title>")?;
            match &value.name {
                Some(name) => write!(f, "{}", Markup(name))?,
                None => write!(f, "value {position}")?,
            }
            write!(
                f,
                "\n{} bytes at {}\nsteps {} to {}",
                Grouped(placement.size),
                Grouped(placement.offset),
                value.first_use,
                value.last_use
            )?;
            for Gap { steps, window } in &value.gaps {
                write!(f, "\nin steps {} to {} ", steps.start(), steps.end())?;
                match window.as_ref().filter(|window| !window.is_empty()) {
                    None => f.write_str("no bytes")?,
                    Some(window) => write!(
                        f,
                        "{} bytes from {} on",
                        Grouped(window.len()),
                        Grouped(window.start)
                    )?,
                }
            }
            f.write_str("</title></path>")?;
        }
        Ok(())
    }

    /// A rectangle for what is needed of a value at `offset` in some steps.
    fn rectangle(
        &self,
        f: &mut fmt::Formatter<'_>,
        offset: usize,
        needed: &Stretch,
    ) -> fmt::Result {
        let (frame, thin) = (self.frame, Length::pixels(1));
        let left = frame.x(needed.first);
        let right = frame.x(needed.last.saturating_add(1));
        let right = right.at_least(left.plus(thin));
        let top = frame.y(offset.saturating_add(needed.bytes.end));
        let bottom = frame.y(offset.saturating_add(needed.bytes.start));
        let bottom = bottom.at_least(top.plus(thin));
        write!(f, "M{left} {top}H{right}V{bottom}H{left}Z")
    }

    /// The bytes that are needed, step by step.
    fn live(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(needed) = &self.needed else {
            return Ok(());
        };
        let frame = self.frame;
        let (left, right) = (frame.x(0), frame.x(frame.steps));
        let above = |bytes: usize| frame.y(needed.reserved.saturating_add(bytes));
        write!(f, "<path class=\"live\" d=\"M{left} {}", above(0))?;
        for Level { step, bytes } in needed.pressure.levels() {
            write!(f, "H{}V{}", frame.x(step), above(bytes))?;
        }
        write!(f, "H{right}\"/>")
    }

    fn bound(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let frame = self.frame;
        let y = frame.y(self.arena.lower_bound);
        let (left, right) = (frame.x(0), frame.x(frame.steps));
        write!(
            f,
            "<path class=\"bound\" d=\"M{left} {y}H{right}\"><title>lower bound</title></path>"
        )
    }
}

impl fmt::Display for Chart<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = Frame::LEFT
            .saturating_add(Frame::WIDTH)
            .saturating_add(Frame::RIGHT);
        let height = Frame::TOP
            .saturating_add(Frame::HEIGHT)
            .saturating_add(Frame::BOTTOM);
        write!(
            f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"dm\" viewBox=\"0 0 {width} {height}\" \
             width=\"{width}\" height=\"{height}\"><style>{STYLE}</style>"
        )?;
        self.title(f)?;
        self.axes(f)?;
        self.rectangles(f)?;
        self.live(f)?;
        self.bound(f)?;
        f.write_str("</svg>")
    }
}

/// A color for a value, far from those of its neighbours.
fn hue(position: usize) -> usize {
    position.wrapping_mul(137) % 360
}

/// A share in percent, with one decimal.
struct Percent {
    part: usize,
    whole: usize,
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wide = |value: usize| u128::try_from(value).unwrap_or(u128::MAX);
        let thousandths = wide(self.part).saturating_mul(1000);
        let thousandths = thousandths.checked_div(wide(self.whole)).unwrap_or(0);
        write!(f, "{}.{} %", thousandths / 10, thousandths % 10)
    }
}
