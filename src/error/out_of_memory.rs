//! The report of an allocation that found no room.
//!
//! Rank 1. Part of `error`.

use std::fmt;

use crate::device::Device;
use crate::layout::{DeviceLayout, Tag};

/// Something that was tried before memory was said to be out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Attempt {
    /// A free block that is large enough was looked for.
    Search,
    /// Frees that waited for work on the device were completed.
    Drain,
    /// Memory that was cached and unused was given back to the layer below.
    Trim,
    /// The layer below was asked.
    Upstream,
    /// The program was asked to make room.
    Hook,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Search => "search",
            Self::Drain => "drain",
            Self::Trim => "trim",
            Self::Upstream => "upstream",
            Self::Hook => "hook",
        })
    }
}

/// What was asked for, and what was known of the memory when it was refused.
///
/// All sizes are in bytes. A field is `None` where nothing in the stack of
/// allocators knew it. Each layer fills in what it knows and leaves what the layers
/// below it said, but for two: the request is that of the outermost layer, and the
/// bytes in use and reserved are those of the outermost one that divides memory, to
/// which all that it got is reserved.
///
/// # Examples
///
/// ```
/// use device_memory::{Attempt, Device, DeviceLayout, OutOfMemory};
///
/// let mut report = OutOfMemory::new(Device::CPU, DeviceLayout::new(65, 16)?);
/// report.in_use = Some(0);
/// report.limit = Some(64);
/// report.tried = vec![Attempt::Search, Attempt::Trim];
///
/// assert_eq!(
///     report.to_string(),
///     "out of memory on cpu:0: 65 bytes requested (align 16), 0 in use, limit 64; tried search, trim"
/// );
/// # Ok::<(), device_memory::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutOfMemory {
    /// The device that was asked.
    pub device: Device,
    /// The bytes asked for.
    pub requested: usize,
    /// The alignment asked for.
    pub align: usize,
    /// What the memory was for.
    pub tag: Tag,
    /// The bytes handed out to callers.
    pub in_use: Option<usize>,
    /// The bytes held from the layer below, in use or not.
    pub reserved: Option<usize>,
    /// The most bytes that may be in use.
    pub limit: Option<usize>,
    /// The largest block that could have been given.
    pub largest_free: Option<usize>,
    /// The bytes free on the device.
    pub device_free: Option<usize>,
    /// The bytes of the device.
    pub device_total: Option<usize>,
    /// What was tried, in this order, by the layer that tried most.
    pub tried: Vec<Attempt>,
}

impl OutOfMemory {
    /// A report of which only the request is known.
    #[must_use]
    pub fn new(device: Device, layout: DeviceLayout) -> Self {
        Self {
            device,
            requested: layout.size(),
            align: layout.align(),
            tag: layout.tag(),
            in_use: None,
            reserved: None,
            limit: None,
            largest_free: None,
            device_free: None,
            device_total: None,
            tried: Vec::new(),
        }
    }
}

impl OutOfMemory {
    /// Says that `layout` was asked for, where a layer asked for more than that.
    pub(crate) fn asked_for(&mut self, layout: DeviceLayout) {
        self.requested = layout.size();
        self.align = layout.align();
        self.tag = layout.tag();
    }

    /// A plan needs `needed` bytes on a device that has `free` of `total`.
    pub(crate) fn of_plan(device: Device, needed: usize, free: usize, total: usize) -> Self {
        Self {
            device,
            requested: needed,
            align: 1,
            tag: Tag::NONE,
            in_use: None,
            reserved: None,
            limit: None,
            largest_free: None,
            device_free: Some(free),
            device_total: Some(total),
            tried: Vec::new(),
        }
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "out of memory on {}: {} bytes requested (align {}",
            self.device, self.requested, self.align
        )?;
        if self.tag == Tag::NONE {
            f.write_str(")")?;
        } else {
            write!(f, ", tag {})", self.tag)?;
        }
        if let Some(bytes) = self.in_use {
            write!(f, ", {bytes} in use")?;
        }
        if let Some(bytes) = self.reserved {
            write!(f, ", {bytes} reserved")?;
        }
        if let Some(bytes) = self.limit {
            write!(f, ", limit {bytes}")?;
        }
        if let Some(bytes) = self.largest_free {
            write!(f, ", largest free block {bytes}")?;
        }
        match (self.device_free, self.device_total) {
            (Some(free), Some(total)) => write!(f, ", {free} of {total} free on the device"),
            (Some(free), None) => write!(f, ", {free} free on the device"),
            (None, Some(total)) => write!(f, ", {total} on the device"),
            (None, None) => Ok(()),
        }?;
        for (n, attempt) in self.tried.iter().enumerate() {
            let before = if n == 0 { "; tried" } else { "," };
            write!(f, "{before} {attempt}")?;
        }
        Ok(())
    }
}
