//! A recording as a text for people.
//!
//! Rank 4. Part of `adaptor::recorder`. Imports the words.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use super::event::RecordedBlock;
use super::history::{History, bytes};
use super::recording::Recording;
use crate::device::Device;
use crate::escape::Line;
use crate::layout::Tag;
use crate::units::{Bytes, Time};

pub(super) fn report(recording: &Recording, largest: usize) -> String {
    let mut text = String::new();
    // Writing to a string can not fail.
    let _ = write(&mut text, recording, largest);
    text
}

fn write(text: &mut String, recording: &Recording, largest: usize) -> fmt::Result {
    let kept = recording.events().len();
    write!(text, "{kept} events in {}", Time(recording.taken()))?;
    if recording.lost() > 0 {
        write!(text, ", {} before them lost", recording.lost())?;
    }
    text.push('\n');
    for device in recording.devices() {
        write_device(text, recording, device, largest)?;
    }
    Ok(())
}

/// The live blocks of a device, the largest first.
pub(super) fn by_size(recording: &Recording, device: Device) -> Vec<RecordedBlock> {
    let blocks = recording.blocks().iter();
    let mut blocks: Vec<_> = blocks
        .filter(|block| block.device == device)
        .copied()
        .collect();
    // By address among equals, so that a report does not change by itself.
    blocks.sort_by_key(|block| (std::cmp::Reverse(block.size), block.address));
    blocks
}

fn write_device(
    text: &mut String,
    recording: &Recording,
    device: Device,
    largest: usize,
) -> fmt::Result {
    let history = History::of(recording, device);
    let blocks = by_size(recording, device);
    let peak = history.peak();
    let now = history.points.last().copied().unwrap_or_default();
    write!(
        text,
        "\n{device}: {} in use in {} blocks",
        Bytes(now.live),
        blocks.len()
    )?;
    if history.most_reserved() > 0 {
        write!(text, ", {} reserved", Bytes(now.reserved))?;
    }
    write!(text, "; peak {} at {}", Bytes(peak.live), Time(peak.time))?;
    match history.failures.len() {
        0 => {}
        failures => write!(text, "; {failures} failed")?,
    }
    text.push('\n');

    let mut tags: BTreeMap<Tag, (usize, u64)> = BTreeMap::new();
    for block in &blocks {
        let (count, sum) = tags.entry(block.tag).or_default();
        *count = count.saturating_add(1);
        *sum = sum.saturating_add(bytes(block.size));
    }
    for (tag, (count, sum)) in tags {
        writeln!(
            text,
            "  {:>10}  {:<12} {count} blocks",
            Bytes(sum),
            Line(tag.name())
        )?;
    }

    if largest > 0 && !blocks.is_empty() {
        writeln!(text, "  largest live allocations:")?;
    }
    for block in blocks.iter().take(largest) {
        writeln!(
            text,
            "  {:>10}  {:<12} {:#x}  thread {}  at {}",
            Bytes(bytes(block.size)),
            Line(block.tag.name()),
            block.address,
            block.thread,
            Time(block.allocated),
        )?;
    }
    match blocks.len().saturating_sub(largest) {
        0 => Ok(()),
        more => writeln!(text, "  and {more} more"),
    }
}
