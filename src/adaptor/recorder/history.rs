//! What was live when, on one device.
//!
//! Rank 4. Part of `adaptor::recorder`. Imports the words.
//!
//! What is live at the end is known for sure; the ring may have lost how it
//! began. So history is told backwards, from the end.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::event::{Action, Event, Layer, RecordedBlock};
use super::recording::Recording;
use crate::device::Device;

/// The bytes of a device from one moment on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) time: Duration,
    /// The bytes of live blocks.
    pub(super) live: u64,
    /// The bytes of live segments.
    pub(super) reserved: u64,
}

/// The life of a block or a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// The block; when and by whom it was allocated is right if `begins`.
    pub(super) block: RecordedBlock,
    /// Its allocation is among the events.
    pub(super) begins: bool,
    /// When it was freed, unless it is live.
    pub(super) freed: Option<Duration>,
}

/// What was live when.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    /// One point before the first event, then one after each.
    pub(super) points: Vec<Point>,
    pub(super) blocks: Vec<Span>,
    pub(super) segments: Vec<Span>,
    /// The events that gave no memory.
    pub(super) failures: Vec<Event>,
}

/// The lives of one layer that go on at some moment, by address.
struct Open {
    live: HashMap<usize, Span>,
    /// Those whose free comes next and did not happen.
    staying: HashSet<usize>,
    bytes: u64,
    closed: Vec<Span>,
}

impl Open {
    fn at_the_end(live: &[RecordedBlock], device: Device) -> Self {
        let on_device = live.iter().filter(|block| block.device == device);
        let mut open = Self {
            live: HashMap::new(),
            staying: HashSet::new(),
            bytes: 0,
            closed: Vec::new(),
        };
        for block in on_device {
            open.enter(*block, None);
        }
        open
    }

    /// Goes back over one event.
    fn over(&mut self, event: &Event) {
        match event.action {
            Action::Allocate => self.leave(event),
            Action::FreeFailed => {
                self.staying.insert(event.address);
            }
            Action::Free if self.staying.remove(&event.address) => {}
            Action::Free => self.enter(RecordedBlock::of(event), Some(event.time)),
            Action::OutOfMemory { .. } | Action::AllocateFailed | Action::Trim => {}
        }
    }

    /// Goes back over a free.
    fn enter(&mut self, block: RecordedBlock, freed: Option<Duration>) {
        let span = Span {
            block,
            begins: false,
            freed,
        };
        self.bytes = self.bytes.saturating_add(bytes(block.size));
        if let Some(cut_off) = self.live.insert(block.address, span) {
            self.bytes = self.bytes.saturating_sub(bytes(cut_off.block.size));
            self.closed.push(cut_off);
        }
    }

    /// Goes back over an allocation.
    fn leave(&mut self, event: &Event) {
        if let Some(span) = self.live.remove(&event.address) {
            self.bytes = self.bytes.saturating_sub(bytes(span.block.size));
            self.closed.push(Span {
                block: RecordedBlock::of(event),
                begins: true,
                freed: span.freed,
            });
        }
    }

    fn spans(mut self) -> Vec<Span> {
        self.closed.extend(self.live.into_values());
        self.closed
            .sort_by_key(|span| (span.begins, span.block.allocated, span.block.address));
        self.closed
    }
}

impl History {
    pub(super) fn of(recording: &Recording, device: Device) -> Self {
        let mut blocks = Open::at_the_end(recording.blocks(), device);
        let mut segments = Open::at_the_end(recording.segments(), device);
        let mut points = Vec::new();
        let mut failures = Vec::new();
        let mut point = |time, blocks: &Open, segments: &Open| {
            points.push(Point {
                time,
                live: blocks.bytes,
                reserved: segments.bytes,
            });
        };
        let mut first = recording.taken();
        for event in recording.events().iter().rev() {
            if event.device != device {
                continue;
            }
            first = event.time;
            point(event.time, &blocks, &segments);
            match event.layer {
                Layer::Blocks => blocks.over(event),
                Layer::Segments => segments.over(event),
            }
            if let Action::OutOfMemory { .. } | Action::AllocateFailed = event.action {
                failures.push(*event);
            }
        }
        let begin = if recording.lost() == 0 {
            Duration::ZERO
        } else {
            first
        };
        point(begin, &blocks, &segments);
        points.reverse();
        failures.reverse();
        Self {
            points,
            blocks: blocks.spans(),
            segments: segments.spans(),
            failures,
        }
    }

    /// The first point with the most live bytes.
    pub(super) fn peak(&self) -> Point {
        let most = self.points.iter().map(|point| point.live).max();
        let peak = self.points.iter().find(|point| Some(point.live) == most);
        peak.copied().unwrap_or_default()
    }

    /// The most bytes of segments at one time.
    pub(super) fn most_reserved(&self) -> u64 {
        let reserved = self.points.iter().map(|point| point.reserved);
        reserved.max().unwrap_or(0)
    }
}

/// A size as the number that sums are made of.
pub(super) fn bytes(size: usize) -> u64 {
    u64::try_from(size).unwrap_or(u64::MAX)
}
