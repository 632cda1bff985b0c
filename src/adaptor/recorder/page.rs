//! A recording as a page of HTML that needs nothing else.
//!
//! Rank 4. Part of `adaptor::recorder`. Imports the words.
//!
//! The style and the script are files beside this one. Without the script the
//! page can be read all the same: what it shows beside the pointer is the title
//! of each shape.

mod chart;
mod place;

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use super::history::{History, bytes};
use super::recording::Recording;
use super::report::by_size;
use crate::device::Device;
use crate::escape::Markup;
use crate::layout::Tag;
use crate::units::{Bytes, Time};

/// How many of the largest live blocks are listed.
const LISTED: usize = 20;

pub(super) fn page(recording: &Recording) -> String {
    let mut text = String::new();
    // Writing to a string can not fail.
    let _ = write(&mut text, recording);
    text
}

fn write(text: &mut String, recording: &Recording) -> fmt::Result {
    write!(
        text,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Device memory</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n\
         <h1>Device memory</h1>\n<p class=\"facts\">{} events in {}",
        include_str!("page/style.css"),
        recording.events().len(),
        Time(recording.taken()),
    )?;
    if recording.lost() > 0 {
        write!(text, ", {} before them lost", recording.lost())?;
    }
    text.push_str("</p>\n");
    for device in recording.devices() {
        section(text, recording, device)?;
    }
    write!(
        text,
        "</main>\n<div id=\"tip\" hidden></div>\n<script>\n{}</script>\n</body>\n</html>\n",
        include_str!("page/script.js"),
    )
}

fn section(text: &mut String, recording: &Recording, device: Device) -> fmt::Result {
    let history = History::of(recording, device);
    let blocks = by_size(recording, device);
    let peak = history.peak();
    let last = history.points.last().copied().unwrap_or_default();

    writeln!(text, "<section>\n<h2>{device}</h2>\n<dl class=\"tiles\">")?;
    tile(
        text,
        "peak in use",
        &Bytes(peak.live),
        &format!("at {}", Time(peak.time)),
    )?;
    tile(
        text,
        "in use at the end",
        &Bytes(last.live),
        &format!("{} blocks", blocks.len()),
    )?;
    if history.most_reserved() > 0 {
        let most = format!("at most {}", Bytes(history.most_reserved()));
        tile(text, "reserved at the end", &Bytes(last.reserved), &most)?;
    }
    tile(text, "allocations", &history.blocks.len(), "seen")?;
    tile(text, "failed", &history.failures.len(), "allocations")?;
    text.push_str("</dl>\n");

    let colors = Colors::of(&history);
    let left_out = chart::chart(text, recording, device, &history, &colors)?;
    legend(text, &history, &colors)?;
    if left_out > 0 {
        writeln!(
            text,
            "<p class=\"facts\">{left_out} allocations that are smaller or shorter are not drawn.</p>"
        )?;
    }
    if !blocks.is_empty() {
        text.push_str(
            "<h3>Largest live allocations</h3>\n<div class=\"scroll\"><table>\n<tr><th class=\"n\">size</th><th>tag</th>\
             <th>address</th><th class=\"n\">thread</th><th class=\"n\">allocated at</th></tr>\n",
        );
    }
    for block in blocks.iter().take(LISTED) {
        writeln!(
            text,
            "<tr><td class=\"n\">{}</td><td><i class=\"{}\"></i>{}</td><td><code>{:#x}</code></td>\
             <td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            Bytes(bytes(block.size)),
            colors.class(block.tag),
            Markup(block.tag.name()),
            block.address,
            block.thread,
            Time(block.allocated),
        )?;
    }
    if !blocks.is_empty() {
        text.push_str("</table></div>\n");
    }
    match blocks.len().saturating_sub(LISTED) {
        0 => {}
        more => writeln!(text, "<p class=\"facts\">and {more} more</p>")?,
    }
    text.push_str("</section>\n");
    Ok(())
}

fn tile(text: &mut String, name: &str, value: &dyn fmt::Display, more: &str) -> fmt::Result {
    writeln!(
        text,
        "<div><dt>{name}</dt><dd>{value}</dd><dd>{more}</dd></div>"
    )
}

/// Which color a tag has: the tags with the most bytes have the first ones, and
/// what has no tag is grey.
struct Colors(BTreeMap<Tag, usize>);

/// How many colors there are in the style.
const COLORS: usize = 8;

impl Colors {
    fn of(history: &History) -> Self {
        let mut tags: Vec<(Tag, u64)> = totals(history).into_iter().collect();
        tags.retain(|(tag, _)| *tag != Tag::NONE);
        tags.sort_by_key(|&(tag, total)| (std::cmp::Reverse(total), tag));
        let numbered = tags.into_iter().zip((0..COLORS).cycle());
        Self(numbered.map(|((tag, _), color)| (tag, color)).collect())
    }

    /// The class of a shape of this tag.
    fn class(&self, tag: Tag) -> String {
        match self.0.get(&tag) {
            Some(color) => format!("t{color}"),
            None => "none".to_owned(),
        }
    }
}

/// The bytes of all allocations by tag.
fn totals(history: &History) -> BTreeMap<Tag, u64> {
    let mut totals: BTreeMap<Tag, u64> = BTreeMap::new();
    for span in &history.blocks {
        let total = totals.entry(span.block.tag).or_default();
        *total = total.saturating_add(bytes(span.block.size));
    }
    totals
}

fn legend(text: &mut String, history: &History, colors: &Colors) -> fmt::Result {
    text.push_str("<ul class=\"legend\">");
    let mut tags: Vec<(Tag, u64)> = totals(history).into_iter().collect();
    tags.sort_by_key(|&(tag, total)| (std::cmp::Reverse(total), tag));
    for (tag, total) in tags {
        let name = if tag == Tag::NONE {
            "no tag"
        } else {
            tag.name()
        };
        write!(
            text,
            "<li><i class=\"{}\"></i>{} <span>{} allocated in all</span></li>",
            colors.class(tag),
            Markup(name),
            Bytes(total)
        )?;
    }
    text.push_str("</ul>\n");
    Ok(())
}
