//! A recording as a memory snapshot of PyTorch.
//!
//! Rank 4. Part of `adaptor::recorder`. Imports the words.
//!
//! PyTorch's viewer goes back in time from the last event and needs every block
//! to lie in a segment at each moment. So this goes back as it does, and gives a
//! block that lies in no recorded segment one of its own.

use std::collections::{BTreeMap, HashSet};

use super::event::{Action, Event, Layer, RecordedBlock};
use super::history::bytes;
use super::pickle::Pickle;
use super::recording::Recording;
use crate::device::{Device, DeviceIndex, DeviceType};
use crate::layout::Tag;

/// The category of what has none. The viewer fails if there are categories and
/// this is not among them.
const NO_CATEGORY: &str = "unknown";

pub(super) fn snapshot(recording: &Recording, device_type: DeviceType) -> Vec<u8> {
    let devices = recording.devices();
    let indices = devices
        .iter()
        .filter(|device| device.device_type() == device_type)
        .map(|device| device.index());
    let traces: Vec<DeviceTrace> = match indices.max() {
        Some(last) => (0..=last)
            .map(|index| DeviceTrace::of(recording, Device::new(device_type, index)))
            .collect(),
        None => Vec::new(),
    };
    let segments: Vec<&Segment> = traces.iter().flat_map(|trace| &trace.segments).collect();
    let base = base(&traces);
    let mut pickle = Pickle::new();
    pickle.dict(|pickle| {
        pickle.text("segments");
        pickle.list(&segments, |pickle, segment| segment.write(pickle, base));
        pickle.text("device_traces");
        pickle.list(&traces, |pickle, trace| {
            pickle.list(&trace.entries, |pickle, entry| entry.write(pickle, base));
        });
    });
    pickle.finish()
}

/// What is taken from all addresses: nothing, unless there is one past 2^53, from
/// where on the viewer's numbers are not exact.
fn base(traces: &[DeviceTrace]) -> usize {
    const EXACT: u64 = 1 << 53;
    let entries = traces.iter().flat_map(|trace| &trace.entries);
    let segments = traces.iter().flat_map(|trace| &trace.segments);
    let known = entries
        .filter(|entry| entry.address != 0)
        .map(|entry| (entry.address, entry.size))
        .chain(segments.map(|segment| (segment.address, segment.size)));
    let (mut lowest, mut highest) = (usize::MAX, 0);
    for (address, size) in known {
        lowest = lowest.min(address);
        highest = highest.max(address.saturating_add(size));
    }
    // A multiple of 256, so that what is aligned looks so, below the lowest, so
    // that no address becomes zero.
    let below = lowest.saturating_sub(256) & !0xff;
    if bytes(highest) > EXACT { below } else { 0 }
}

/// A part of a device's memory, and the blocks in it by address.
struct Segment {
    index: DeviceIndex,
    address: usize,
    size: usize,
    blocks: Vec<RecordedBlock>,
}

/// One line of the viewer's history.
struct Entry {
    action: &'static str,
    address: usize,
    size: usize,
    device_free: Option<usize>,
    /// What caused it, or nothing for the end of the trace.
    event: Option<Event>,
}

/// What there is about one device.
struct DeviceTrace {
    segments: Vec<Segment>,
    entries: Vec<Entry>,
}

impl DeviceTrace {
    fn of(recording: &Recording, device: Device) -> Self {
        let mut back = Back {
            segments: BTreeMap::new(),
            own: HashSet::new(),
            entries: vec![Entry {
                action: "snapshot",
                address: 0,
                size: 0,
                device_free: None,
                event: None,
            }],
        };
        let segments = back.end(recording, device);
        for event in recording.events().iter().rev() {
            if event.device == device {
                back.over(event);
            }
        }
        back.entries.reverse();
        // Nothing happened, so there is no end of it either.
        if back.entries.len() == 1 {
            back.entries.clear();
        }
        Self {
            segments,
            entries: back.entries,
        }
    }
}

/// The state of a device on the way back, and the entries so far, the last first.
struct Back {
    /// The size of each recorded segment, by address.
    segments: BTreeMap<usize, usize>,
    /// The addresses of blocks that are segments of their own.
    own: HashSet<usize>,
    entries: Vec<Entry>,
}

impl Back {
    /// Begins with what is live, and says how it is divided.
    fn end(&mut self, recording: &Recording, device: Device) -> Vec<Segment> {
        let here = |block: &&RecordedBlock| block.device == device;
        let mut found: BTreeMap<usize, Segment> = BTreeMap::new();
        let segment = |address, size| Segment {
            index: device.index(),
            address,
            size,
            blocks: Vec::new(),
        };
        for live in recording.segments().iter().filter(here) {
            self.segments.insert(live.address, live.size);
            found.insert(live.address, segment(live.address, live.size));
        }
        for block in recording.blocks().iter().filter(here) {
            let around = self.around(block.address, block.size);
            let address = around.unwrap_or(block.address);
            if around.is_none() {
                self.own.insert(block.address);
            }
            found
                .entry(address)
                .or_insert_with(|| segment(block.address, block.size))
                .blocks
                .push(*block);
        }
        found.into_values().collect()
    }

    /// The address of the recorded segment that the block lies in.
    fn around(&self, address: usize, size: usize) -> Option<usize> {
        let (&start, &len) = self.segments.range(..=address).next_back()?;
        let end = address.checked_add(size)?;
        (end <= start.checked_add(len)?).then_some(start)
    }

    fn push(&mut self, action: &'static str, event: &Event) {
        self.entries.push(Entry {
            action,
            address: event.address,
            size: event.size,
            device_free: None,
            event: Some(*event),
        });
    }

    /// Goes back over one event.
    fn over(&mut self, event: &Event) {
        match (event.layer, event.action) {
            (Layer::Blocks, Action::Free) => {
                if self.around(event.address, event.size).is_none() {
                    self.own.insert(event.address);
                    self.push("segment_free", event);
                }
                self.push("free_completed", event);
                self.push("free_requested", event);
            }
            (Layer::Blocks, Action::Allocate | Action::FreeFailed) => {
                self.push("alloc", event);
                if self.own.remove(&event.address) {
                    self.push("segment_alloc", event);
                }
            }
            (Layer::Segments, Action::Free) => {
                self.segments.insert(event.address, event.size);
                self.push("segment_free", event);
            }
            (Layer::Segments, Action::Allocate | Action::FreeFailed) => {
                self.segments.remove(&event.address);
                self.push("segment_alloc", event);
            }
            (Layer::Blocks, Action::OutOfMemory { device_free }) => {
                self.entries.push(Entry {
                    action: "oom",
                    address: 0,
                    size: event.size,
                    device_free: Some(device_free.unwrap_or(0)),
                    event: Some(*event),
                });
            }
            // A pool that is refused a segment may still find room.
            (Layer::Segments, Action::OutOfMemory { .. }) => {}
            (_, Action::AllocateFailed | Action::Trim) => {}
        }
    }
}

impl Entry {
    fn write(&self, pickle: &mut Pickle, base: usize) {
        pickle.dict(|pickle| {
            pickle.text("action");
            pickle.text(self.action);
            number(pickle, "addr", bytes(self.address.saturating_sub(base)));
            number(pickle, "size", bytes(self.size));
            number(pickle, "stream", 0);
            if let Some(free) = self.device_free {
                number(pickle, "device_free", bytes(free));
            }
            let category = match &self.event {
                Some(event) => {
                    let micros = u64::try_from(event.time.as_micros()).unwrap_or(u64::MAX);
                    number(pickle, "time_us", micros);
                    frames(pickle, Some((event.tag, event.thread)));
                    category(event.tag)
                }
                None => {
                    frames(pickle, None);
                    NO_CATEGORY
                }
            };
            pickle.text("category");
            pickle.text(category);
        });
    }
}

impl Segment {
    fn write(&self, pickle: &mut Pickle, base: usize) {
        let used = self
            .blocks
            .iter()
            .map(|block| bytes(block.size))
            .fold(0, u64::saturating_add);
        pickle.dict(|pickle| {
            number(pickle, "device", u64::from(self.index));
            number(pickle, "address", bytes(self.address.saturating_sub(base)));
            number(pickle, "total_size", bytes(self.size));
            number(pickle, "allocated_size", used);
            number(pickle, "active_size", used);
            number(pickle, "stream", 0);
            pickle.text("segment_type");
            pickle.text("large");
            frames(pickle, None);
            pickle.text("blocks");
            pickle.list(&self.tiles(), |pickle, tile| tile.write(pickle, base));
        });
    }

    /// The blocks and the gaps between them, which fill the segment.
    fn tiles(&self) -> Vec<Tile> {
        let mut tiles = Vec::new();
        let mut at = self.address;
        let gap = |from: usize, to: usize, tiles: &mut Vec<Tile>| {
            let size = to.saturating_sub(from);
            if size > 0 {
                tiles.push(Tile {
                    address: from,
                    size,
                    block: None,
                });
            }
        };
        for block in &self.blocks {
            // One that overlaps the one before can not be shown.
            if block.address < at {
                continue;
            }
            gap(at, block.address, &mut tiles);
            tiles.push(Tile {
                address: block.address,
                size: block.size,
                block: Some(*block),
            });
            at = block.end();
        }
        gap(at, self.address.saturating_add(self.size), &mut tiles);
        tiles
    }
}

/// A block, or a gap.
struct Tile {
    address: usize,
    size: usize,
    block: Option<RecordedBlock>,
}

impl Tile {
    fn write(&self, pickle: &mut Pickle, base: usize) {
        pickle.dict(|pickle| {
            number(pickle, "address", bytes(self.address.saturating_sub(base)));
            number(pickle, "size", bytes(self.size));
            number(pickle, "requested_size", bytes(self.size));
            pickle.text("state");
            pickle.text(match self.block {
                Some(_) => "active_allocated",
                None => "inactive",
            });
            frames(pickle, self.block.map(|block| (block.tag, block.thread)));
        });
    }
}

fn number(pickle: &mut Pickle, key: &str, value: u64) {
    pickle.text(key);
    pickle.int(value);
}

/// What stands where PyTorch has a stack of calls: the tag and the thread.
fn frames(pickle: &mut Pickle, of: Option<(Tag, u32)>) {
    pickle.text("frames");
    let Some((tag, thread)) = of else {
        pickle.list(&[], |_, ()| {});
        return;
    };
    let name = tag.name();
    pickle.shared(format!("{thread} {name}"), |pickle| {
        let frames = [("tag", name), ("by", &*format!("thread {thread}"))];
        pickle.list(&frames, |pickle, (file, name)| {
            pickle.dict(|pickle| {
                pickle.text("name");
                pickle.text(name);
                pickle.text("filename");
                pickle.text(file);
                number(pickle, "line", 0);
            });
        });
    });
}

fn category(tag: Tag) -> &'static str {
    if tag == Tag::NONE {
        NO_CATEGORY
    } else {
        tag.name()
    }
}
