//! What was recorded, and the forms it can be had in.
//!
//! Rank 4. Part of `adaptor::recorder`. Imports the words.

use std::collections::BTreeSet;
use std::time::Duration;

use super::event::{Event, Layer, RecordedBlock};
use super::{chrome, page, pytorch, report};
use crate::device::{Device, DeviceType};

/// What a [`Recorder`](super::Recorder) had recorded at one moment.
///
/// Every form is made in memory and takes time and space in proportion to the
/// events.
#[derive(Clone, Debug)]
pub struct Recording {
    events: Vec<Event>,
    lost: u64,
    blocks: Vec<RecordedBlock>,
    segments: Vec<RecordedBlock>,
    taken: Duration,
}

impl Recording {
    pub(super) fn new(
        events: Vec<Event>,
        lost: u64,
        live: impl Iterator<Item = (Layer, RecordedBlock)>,
        taken: Duration,
    ) -> Self {
        let (mut blocks, mut segments) = (Vec::new(), Vec::new());
        for (layer, block) in live {
            match layer {
                Layer::Blocks => blocks.push(block),
                Layer::Segments => segments.push(block),
            }
        }
        blocks.sort_by_key(|block| (block.device, block.address));
        segments.sort_by_key(|segment| (segment.device, segment.address));
        Self {
            events,
            lost,
            blocks,
            segments,
            taken,
        }
    }

    /// The events that were kept, the first first.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// How many events there was no room for. They came before those kept.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// The live blocks, by device and address, whether or not the ring still has
    /// their allocation.
    #[must_use]
    pub fn blocks(&self) -> &[RecordedBlock] {
        &self.blocks
    }

    /// The live segments, by device and address.
    #[must_use]
    pub fn segments(&self) -> &[RecordedBlock] {
        &self.segments
    }

    /// When it was taken, since the recorder was started.
    #[must_use]
    pub fn taken(&self) -> Duration {
        self.taken
    }

    /// The devices that there is anything about.
    #[must_use]
    pub fn devices(&self) -> Vec<Device> {
        let events = self.events.iter().map(|event| event.device);
        let live = self.blocks.iter().chain(&self.segments);
        let devices: BTreeSet<Device> = events.chain(live.map(|block| block.device)).collect();
        devices.into_iter().collect()
    }

    /// The devices of one type as a snapshot of PyTorch's allocator, for the viewer
    /// of PyTorch and its `torch.cuda._memory_viz`: a pickle, to be written to a
    /// file. An index of a device is that of the viewer.
    ///
    /// Tags are shown as frames and as categories. A block that lies in no segment
    /// that was recorded is shown as a segment of its own.
    /// Addresses past 2^53, which the viewer can not tell apart, are moved down, all
    /// by as much.
    #[must_use]
    pub fn to_pytorch_snapshot(&self, device_type: DeviceType) -> Vec<u8> {
        pytorch::snapshot(self, device_type)
    }

    /// The events as a trace for Perfetto or `chrome://tracing`: JSON, with a
    /// process a device, a counter of the bytes in use and of those reserved, and
    /// a slice an allocation.
    #[must_use]
    pub fn to_chrome_trace(&self) -> String {
        chrome::trace(self)
    }

    /// A page with a timeline of each device: HTML that needs no other file and no
    /// network.
    ///
    /// Bars are drawn for the 4,000 allocations that took the most bytes for the
    /// longest.
    #[must_use]
    pub fn to_html(&self) -> String {
        page::page(self)
    }

    /// A text for people: bytes by device and tag, and the `largest` largest live
    /// blocks of each device.
    #[must_use]
    pub fn report(&self, largest: usize) -> String {
        report::report(self, largest)
    }
}
