//! The timeline of a device: bytes above, allocations below, over one time axis.
//!
//! Rank 4. Part of `adaptor::recorder`. Imports the words.

use std::cmp::Reverse;
use std::fmt::{self, Write as _};
use std::time::Duration;

use super::super::event::Action;
use super::super::history::{History, Point, Span, bytes};
use super::super::recording::Recording;
use super::super::scale::Scale;
use super::Colors;
use super::place::Places;
use crate::device::Device;
use crate::escape::Markup;
use crate::layout::Tag;
use crate::units::{Bytes, Time, nanos};

/// How many allocations are drawn.
const DRAWN: usize = 4000;
/// How many points the lines have, or a few more.
const COLUMNS: u64 = 800;

const LEFT: f64 = 84.0;
const TOP: f64 = 26.0;
const WIDTH: u32 = 1000;
const BYTES_HEIGHT: u32 = 200;
const BARS_HEIGHT: u32 = 320;
/// Where the bars begin.
const BARS_TOP: f64 = 270.0;
/// A bar is at least this high and this wide, or it could not be seen.
const LEAST: f64 = 1.2;

/// Draws the chart and says how many allocations it leaves out.
pub(super) fn chart(
    text: &mut String,
    recording: &Recording,
    device: Device,
    history: &History,
    colors: &Colors,
) -> Result<usize, fmt::Error> {
    let first = history.points.first().map_or(0, |point| nanos(point.time));
    let last = nanos(recording.taken()).max(first);
    let chart = Chart {
        time: Scale {
            from: first,
            to: last,
            pixels: WIDTH,
        },
        bytes: Scale {
            from: 0,
            to: most_bytes(history),
            pixels: BYTES_HEIGHT,
        },
    };
    let points = chart.thinned(&history.points);
    write!(
        text,
        "<svg viewBox=\"0 0 1110 650\" role=\"img\" aria-label=\"memory of {device} over time\" \
         data-left=\"{LEFT}\" data-width=\"{WIDTH}\" data-from=\"{first}\" data-to=\"{last}\" data-points=\"",
    )?;
    for point in &points {
        write!(
            text,
            "{},{},{} ",
            nanos(point.time),
            point.live,
            point.reserved
        )?;
    }
    text.push_str("\">\n");
    chart.byte_axis(text)?;
    let bars_bottom = BARS_TOP + f64::from(BARS_HEIGHT);
    chart.time_axis(text, bars_bottom)?;
    chart.lines(text, &points, history)?;
    chart.failures(text, history)?;
    let left_out = chart.bars(text, history, colors)?;
    writeln!(
        text,
        "<line class=\"cross\" x1=\"0\" x2=\"0\" y1=\"{TOP}\" y2=\"{bars_bottom}\" visibility=\"hidden\"/>\n</svg>"
    )?;
    Ok(left_out)
}

fn most_bytes(history: &History) -> u64 {
    let most = history.peak().live.max(history.most_reserved()).max(1);
    // Room for the text at the peak.
    most.saturating_add(most.checked_div(8).unwrap_or(0))
}

/// The axes of one device.
struct Chart {
    time: Scale,
    bytes: Scale,
}

impl Chart {
    fn x(&self, time: Duration) -> f64 {
        LEFT + self.time.at(nanos(time))
    }

    fn y(&self, bytes: u64) -> f64 {
        TOP + f64::from(BYTES_HEIGHT) - self.bytes.at(bytes)
    }

    /// The points without those that no one could tell apart: of each column the
    /// one with the most live bytes, and the last.
    fn thinned(&self, points: &[Point]) -> Vec<Point> {
        let columns = Scale {
            pixels: u32::try_from(COLUMNS).unwrap_or(1),
            ..self.time
        };
        let column = |point: &Point| columns.at(nanos(point.time)).floor();
        let mut kept: Vec<Point> = Vec::new();
        for group in points.chunk_by(|a, b| column(a).total_cmp(&column(b)).is_eq()) {
            let highest = group.iter().rev().max_by_key(|point| point.live);
            let last = group.last();
            kept.extend(highest);
            if last.map(|point| point.time) != highest.map(|point| point.time) {
                kept.extend(last);
            }
        }
        kept
    }

    fn byte_axis(&self, text: &mut String) -> fmt::Result {
        let right = LEFT + f64::from(WIDTH);
        writeln!(
            text,
            "<text class=\"title\" x=\"{LEFT}\" y=\"14\">Bytes</text>"
        )?;
        for tick in self.bytes.byte_ticks(5) {
            let y = self.y(tick);
            writeln!(
                text,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text class=\"tick y\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                LEFT - 8.0,
                y + 4.0,
                Bytes(tick)
            )?;
        }
        Ok(())
    }

    fn time_axis(&self, text: &mut String, bottom: f64) -> fmt::Result {
        let middle = TOP + f64::from(BYTES_HEIGHT);
        for tick in self.time.time_ticks(8) {
            let x = LEFT + self.time.at(tick);
            writeln!(
                text,
                "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{middle}\"/>\
                 <line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{BARS_TOP}\" y2=\"{bottom}\"/>\
                 <text class=\"tick x\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
                bottom + 18.0,
                Time(Duration::from_nanos(tick))
            )?;
        }
        writeln!(
            text,
            "<text class=\"title x\" x=\"{:.1}\" y=\"{:.1}\">Time since the recorder was started</text>",
            LEFT + f64::from(WIDTH) / 2.0,
            bottom + 42.0
        )
    }

    /// The area of live bytes, the line of reserved ones, and the peak.
    fn lines(&self, text: &mut String, points: &[Point], history: &History) -> fmt::Result {
        let zero = self.y(0);
        let end = LEFT + self.time.at(self.time.to);
        let mut live = String::new();
        let mut reserved = String::new();
        for (n, point) in points.iter().enumerate() {
            let x = self.x(point.time);
            let (y, above) = (self.y(point.live), self.y(point.reserved));
            if n == 0 {
                write!(live, "M{x:.1} {y:.1}")?;
                write!(reserved, "M{x:.1} {above:.1}")?;
            } else {
                write!(live, "H{x:.1}V{y:.1}")?;
                write!(reserved, "H{x:.1}V{above:.1}")?;
            }
        }
        if points.is_empty() {
            return Ok(());
        }
        writeln!(
            text,
            "<path class=\"area\" d=\"{live}H{end:.1}V{zero:.1}H{LEFT}Z\"/><path class=\"live\" d=\"{live}H{end:.1}\"/>"
        )?;
        let mut key = String::from("<tspan class=\"live\">in use</tspan>");
        if history.most_reserved() > 0 {
            writeln!(text, "<path class=\"reserved\" d=\"{reserved}H{end:.1}\"/>")?;
            key.push_str("<tspan class=\"reserved\" dx=\"14\">reserved</tspan>");
        }
        if !history.failures.is_empty() {
            key.push_str("<tspan class=\"failed\" dx=\"14\">failed</tspan>");
        }
        writeln!(
            text,
            "<text class=\"key\" x=\"{:.1}\" y=\"14\">{key}</text>",
            LEFT + f64::from(WIDTH)
        )?;
        let peak = history.peak();
        let (x, y) = (self.x(peak.time), self.y(peak.live));
        let right = x > LEFT + f64::from(WIDTH) * 0.8;
        let (anchor, dx) = if right { ("end", -8.0) } else { ("start", 8.0) };
        writeln!(
            text,
            "<circle class=\"peak\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"/>\
             <text class=\"peak\" text-anchor=\"{anchor}\" x=\"{:.1}\" y=\"{:.1}\">peak {} at {}</text>",
            x + dx,
            y - 7.0,
            Bytes(peak.live),
            Time(peak.time)
        )
    }

    fn failures(&self, text: &mut String, history: &History) -> fmt::Result {
        for failure in history.failures.iter().take(DRAWN) {
            let what = match failure.action {
                Action::OutOfMemory { .. } => "out of memory",
                _ => "allocation failed",
            };
            let x = self.x(failure.time);
            writeln!(
                text,
                "<path class=\"failure\" d=\"M{x:.1} {TOP}V{:.1}\"><title>{what}: {} for {}, thread {}, at {}</title></path>",
                self.y(0),
                Bytes(bytes(failure.size)),
                Markup(failure.tag.name()),
                failure.thread,
                Time(failure.time)
            )?;
        }
        Ok(())
    }

    /// A bar an allocation, from its first to its last moment, where it lies.
    fn bars(
        &self,
        text: &mut String,
        history: &History,
        colors: &Colors,
    ) -> Result<usize, fmt::Error> {
        let mut spans: Vec<&Span> = history.blocks.iter().collect();
        spans.sort_by_key(|span| (Reverse(self.area(span)), span.block.allocated));
        let left_out = spans.len().saturating_sub(DRAWN);
        spans.truncate(DRAWN);
        let drawn = spans.iter().copied().chain(&history.segments);
        let places = Places::of(drawn.map(|span| {
            let block = &span.block;
            (bytes(block.address), bytes(block.end()))
        }));
        let scale = Scale {
            from: 0,
            to: places.total().max(1),
            pixels: BARS_HEIGHT,
        };
        writeln!(
            text,
            "<text class=\"title\" x=\"{LEFT}\" y=\"{:.1}\">Allocations, by place in memory (addresses never used are left out)</text>",
            BARS_TOP - 12.0
        )?;
        for tick in scale.byte_ticks(6) {
            let y = BARS_TOP + f64::from(BARS_HEIGHT) - scale.at(tick);
            writeln!(
                text,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text class=\"tick y\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                LEFT + f64::from(WIDTH),
                LEFT - 8.0,
                y + 4.0,
                Bytes(tick)
            )?;
        }
        for segment in &history.segments {
            self.bar(text, segment, &places, scale, "segment", "segment")?;
        }
        // The largest first, so that no small one is hidden by it.
        for span in spans {
            let tag = span.block.tag;
            let name = if tag == Tag::NONE {
                "no tag"
            } else {
                tag.name()
            };
            self.bar(text, span, &places, scale, &colors.class(tag), name)?;
        }
        Ok(left_out)
    }

    /// Bytes by nanoseconds: how much of the picture a bar takes.
    fn area(&self, span: &Span) -> u128 {
        let (begin, end) = self.life(span);
        let life = u128::from(end.saturating_sub(begin)).max(1);
        u128::from(bytes(span.block.size)).saturating_mul(life)
    }

    /// The first and the last nanosecond of a bar.
    fn life(&self, span: &Span) -> (u64, u64) {
        let begin = if span.begins {
            nanos(span.block.allocated)
        } else {
            self.time.from
        };
        (begin, span.freed.map_or(self.time.to, nanos))
    }

    fn bar(
        &self,
        text: &mut String,
        span: &Span,
        places: &Places,
        scale: Scale,
        class: &str,
        name: &str,
    ) -> fmt::Result {
        let block = &span.block;
        let (begin, end) = self.life(span);
        let (x, right) = (self.time.at(begin), self.time.at(end));
        let low = scale.at(places.below(bytes(block.address)));
        let high = scale.at(places.below(bytes(block.end())));
        write!(
            text,
            "<rect class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{}, {} at {:#x}, ",
            LEFT + x,
            BARS_TOP + f64::from(scale.pixels) - high,
            (right - x).max(LEAST),
            (high - low).max(LEAST),
            Markup(name),
            Bytes(bytes(block.size)),
            block.address,
        )?;
        if span.begins {
            write!(
                text,
                "thread {}, from {}",
                block.thread,
                Time(block.allocated)
            )?;
        } else {
            text.push_str("from before the first event");
        }
        match span.freed {
            Some(freed) => write!(text, " to {}", Time(freed))?,
            None => text.push_str(", live"),
        }
        text.push_str("</title></rect>\n");
        Ok(())
    }
}
