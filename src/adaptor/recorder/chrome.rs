//! A recording as a trace for Perfetto or `chrome://tracing`.
//!
//! Rank 4. Part of `adaptor::recorder`. Imports the words.
//!
//! Numbers in that JSON are read as floating point, so addresses, which may pass
//! 2^53, are written as text.

use std::fmt::{self, Write as _};
use std::time::Duration;

use super::event::{Action, Event, Layer, RecordedBlock};
use super::history::{History, Point};
use super::recording::Recording;
use crate::device::Device;
use crate::escape::Json;

pub(super) fn trace(recording: &Recording) -> String {
    let mut text = String::new();
    // Writing to a string can not fail.
    let _ = write(&mut text, recording);
    text
}

fn write(text: &mut String, recording: &Recording) -> fmt::Result {
    text.push_str("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
    let mut separator = "\n";
    for (process, device) in (1_u32..).zip(recording.devices()) {
        let mut out = Lines {
            text,
            process,
            separator,
        };
        out.device(recording, device)?;
        separator = out.separator;
    }
    write!(
        text,
        "\n],\"otherData\":{{\"events_lost\":\"{}\"}}}}\n",
        recording.lost()
    )
}

/// The lines of one device.
struct Lines<'a> {
    text: &'a mut String,
    process: u32,
    separator: &'static str,
}

impl Lines<'_> {
    fn device(&mut self, recording: &Recording, device: Device) -> fmt::Result {
        let history = History::of(recording, device);
        let reserves = history.most_reserved() > 0;
        let mut points = history.points.iter();
        let begin = points.next().copied().unwrap_or_default();
        self.line(
            "M",
            "process_name",
            Duration::ZERO,
            0,
            format_args!("\"args\":{{\"name\":\"{device}\"}}"),
        )?;
        for span in history.blocks.iter().filter(|span| !span.begins) {
            self.slice("b", begin.time, &span.block)?;
        }
        self.counters(begin, reserves)?;
        let events = recording
            .events()
            .iter()
            .filter(|event| event.device == device);
        for (event, point) in events.zip(points) {
            self.event(event)?;
            self.counters(*point, reserves)?;
        }
        Ok(())
    }

    fn event(&mut self, event: &Event) -> fmt::Result {
        let block = RecordedBlock::of(event);
        match (event.layer, event.action) {
            (Layer::Blocks, Action::Allocate) => self.slice("b", event.time, &block),
            (Layer::Blocks, Action::Free) => self.slice("e", event.time, &block),
            (Layer::Blocks, Action::FreeFailed) => {
                self.instant("free failed", event)?;
                self.slice("b", event.time, &block)
            }
            (Layer::Blocks, Action::OutOfMemory { .. }) => self.instant("out of memory", event),
            (Layer::Blocks, Action::AllocateFailed) => self.instant("allocate failed", event),
            (_, Action::Trim) => self.instant("trim", event),
            (Layer::Segments, Action::Allocate) => self.instant("segment allocated", event),
            (Layer::Segments, Action::Free) => self.instant("segment freed", event),
            (Layer::Segments, Action::FreeFailed) => self.instant("segment not freed", event),
            (Layer::Segments, Action::OutOfMemory { .. } | Action::AllocateFailed) => {
                self.instant("segment refused", event)
            }
        }
    }

    /// The begin or the end of the life of a block.
    fn slice(&mut self, phase: &str, time: Duration, block: &RecordedBlock) -> fmt::Result {
        let address = block.address;
        self.line(
            phase,
            block.tag.name(),
            time,
            block.thread,
            format_args!(
                "\"cat\":\"memory\",\"id\":\"{address:#x}\",\
                 \"args\":{{\"bytes\":{},\"address\":\"{address:#x}\"}}",
                block.size
            ),
        )
    }

    fn instant(&mut self, name: &str, event: &Event) -> fmt::Result {
        self.line(
            "i",
            name,
            event.time,
            event.thread,
            format_args!(
                "\"s\":\"t\",\"args\":{{\"bytes\":{},\"tag\":\"{}\"}}",
                event.size,
                Json(event.tag.name())
            ),
        )
    }

    fn counters(&mut self, point: Point, reserves: bool) -> fmt::Result {
        let bytes = |value| format!("\"args\":{{\"bytes\":{value}}}");
        let live = bytes(point.live);
        self.line("C", "in use", point.time, 0, format_args!("{live}"))?;
        if reserves {
            let reserved = bytes(point.reserved);
            self.line("C", "reserved", point.time, 0, format_args!("{reserved}"))?;
        }
        Ok(())
    }

    /// One event; times are microseconds.
    fn line(
        &mut self,
        phase: &str,
        name: &str,
        time: Duration,
        thread: u32,
        rest: fmt::Arguments<'_>,
    ) -> fmt::Result {
        let separator = std::mem::replace(&mut self.separator, ",\n");
        write!(
            self.text,
            "{separator}{{\"ph\":\"{phase}\",\"name\":\"{}\",\"pid\":{},\"tid\":{thread},\
             \"ts\":{}.{:03},{rest}}}",
            Json(name),
            self.process,
            time.as_micros(),
            time.subsec_nanos().checked_rem(1000).unwrap_or(0),
        )
    }
}
