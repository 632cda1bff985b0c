//! How much memory is in use, was at most, and came and went.
//!
//! Rank 4. Imports `observe` and the words.
//!
//! A block is counted from after the layer below gave it until before the layer
//! below gets it back. So no count is ever more than what was allocated at one
//! time, and no peak is higher than what the device had.

use crate::allocator::DeviceAllocator;
use crate::device::{Device, DeviceIndex};
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{DeviceLayout, Tag};
use crate::observe::{Block, Observed, Observer};
use crate::process::ProcessGeneration;
use crate::sync::{AtomicU64, AtomicUsize, Mutex, Ordering};
use crate::table::Table;

/// An allocator that counts what it gives and takes back, by device and by tag.
///
/// Costs nine atomic operations for an allocation and its free, on memory that
/// threads share, and no lock. Reading takes none either, so figures that are read
/// together while others allocate may be of moments a little apart. In a forked child
/// it goes on counting, and scopes can be neither opened nor closed.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use device_memory::adaptor::Statistics;
/// use device_memory::{DeviceLayout, DeviceMemoryBuffer, HostAllocator, Tag};
///
/// let statistics = Arc::new(Statistics::over(HostAllocator));
/// let layout = DeviceLayout::from_size(4096)?.with_tag(Tag::KV_CACHE);
///
/// statistics.push(0)?;
/// drop(DeviceMemoryBuffer::create_with(statistics.clone(), layout, 0)?);
/// let step = statistics.pop(0).ok_or("pushed above")?;
///
/// assert_eq!((step.peak, step.allocations), (4096, 1));
/// let cache = statistics.tag_usage(0, Tag::KV_CACHE);
/// assert_eq!((cache.current, cache.peak, cache.total), (0, 4096, 4096));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type Statistics<A> = Observed<A, Counters>;

/// What a device, or a tag on it, used. Sizes are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// What is allocated now.
    pub current: usize,
    /// The most that was allocated at one time.
    pub peak: usize,
    /// All that was ever allocated.
    pub total: u64,
    /// How many allocations succeeded.
    pub allocations: u64,
    /// How many frees succeeded, or are being made now.
    pub frees: u64,
    /// How many allocations failed.
    pub failures: u64,
}

/// What a device used from a `push` to its
/// [`pop`](Counters::pop). Sizes are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Scope {
    /// What was allocated at its start.
    pub at_start: usize,
    /// What was allocated at its end.
    pub at_end: usize,
    /// The most that was allocated at one time during it.
    pub peak: usize,
    /// All that was allocated during it.
    pub total: u64,
    /// How many allocations succeeded.
    pub allocations: u64,
    /// How many frees succeeded.
    pub frees: u64,
    /// How many allocations failed.
    pub failures: u64,
}

/// The counters of [`Statistics`].
#[derive(Debug)]
pub struct Counters {
    devices: Table<DeviceCounters>,
    generation: ProcessGeneration,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            devices: Table::default(),
            generation: ProcessGeneration::current(),
        }
    }
}

#[derive(Debug, Default)]
struct DeviceCounters {
    level: Level,
    tags: Table<TagCounters>,
    scopes: Mutex<Vec<Opened>>,
}

#[derive(Debug, Default)]
struct TagCounters {
    level: Level,
    total: AtomicU64,
    allocations: AtomicU64,
    frees: AtomicU64,
    failures: AtomicU64,
}

/// Bytes that come and go, and the most there were.
#[derive(Debug, Default)]
struct Level {
    current: AtomicUsize,
    peak: AtomicUsize,
}

/// A scope that is open: what was at its start, and the peak outside it.
#[derive(Debug)]
struct Opened {
    start: Usage,
    peak_outside: usize,
}

impl Level {
    #[inline]
    fn rise(&self, bytes: usize) {
        let before = self.current.fetch_add(bytes, Ordering::AcqRel);
        let now = before.wrapping_add(bytes);
        if now > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(now, Ordering::AcqRel);
        }
    }

    #[inline]
    fn fall(&self, bytes: usize) {
        self.current.fetch_sub(bytes, Ordering::AcqRel);
    }

    fn current(&self) -> usize {
        self.current.load(Ordering::Acquire)
    }

    /// The peak, which is not below what is there now.
    fn peak(&self, current: usize) -> usize {
        self.peak.load(Ordering::Acquire).max(current)
    }

    /// Begins a new peak at what is there now, and returns the old one.
    fn restart(&self) -> usize {
        let old = self.peak.swap(self.current(), Ordering::AcqRel);
        // What came between the reading and the exchange counts.
        self.peak.fetch_max(self.current(), Ordering::AcqRel);
        old
    }
}

impl TagCounters {
    fn usage(&self) -> Usage {
        let current = self.level.current();
        Usage {
            current,
            peak: self.level.peak(current),
            total: self.total.load(Ordering::Relaxed),
            allocations: self.allocations.load(Ordering::Relaxed),
            frees: self.frees.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
        }
    }
}

impl DeviceCounters {
    fn usage(&self) -> Usage {
        let current = self.level.current();
        let start = Usage {
            current,
            peak: self.level.peak(current),
            ..Usage::default()
        };
        self.tags.iter().fold(start, |sum, (_, tag)| {
            let usage = tag.usage();
            Usage {
                total: sum.total.saturating_add(usage.total),
                allocations: sum.allocations.saturating_add(usage.allocations),
                frees: sum.frees.saturating_add(usage.frees),
                failures: sum.failures.saturating_add(usage.failures),
                ..sum
            }
        })
    }
}

impl<A> Observed<A, Counters> {
    /// Counts what `upstream` gives and takes back from now on.
    #[must_use]
    pub fn over(upstream: A) -> Self {
        Self::new(upstream, Counters::default())
    }
}

impl<A: DeviceAllocator> Observed<A, Counters> {
    /// Opens a scope on the device `index`, within those that are open: for all
    /// threads, from now on until [`pop`](Counters::pop).
    ///
    /// # Errors
    ///
    /// - [`InvalidDevice`](ErrorKind::InvalidDevice): no such index.
    /// - [`ForkedProcess`](ErrorKind::ForkedProcess): the counters are a parent
    ///   process's.
    pub fn push(&self, index: DeviceIndex) -> Result<()> {
        self.inner().check_index(index)?;
        if !self.generation.is_current() {
            let device = Device::new(self.inner().device_type(), index);
            return Err(ErrorKind::ForkedProcess { device }.into());
        }
        let device = self.devices.get(index);
        let mut scopes = device.scopes.lock();
        let start = device.usage();
        let peak_outside = device.level.restart();
        scopes.push(Opened {
            start,
            peak_outside,
        });
        Ok(())
    }
}

impl Counters {
    /// What the device `index` used. In an open scope the peak is that of the scope.
    #[must_use]
    pub fn usage(&self, index: DeviceIndex) -> Usage {
        self.devices
            .find(index)
            .map(DeviceCounters::usage)
            .unwrap_or_default()
    }

    /// What `tag` used on the device `index`.
    #[must_use]
    pub fn tag_usage(&self, index: DeviceIndex, tag: Tag) -> Usage {
        let device = self.devices.find(index);
        let tag = device.and_then(|device| device.tags.find(tag.to_index()));
        tag.map(TagCounters::usage).unwrap_or_default()
    }

    /// What each tag used on the device `index`, of those that used anything.
    #[must_use]
    pub fn tags(&self, index: DeviceIndex) -> Vec<(Tag, Usage)> {
        let tags = self
            .devices
            .find(index)
            .into_iter()
            .flat_map(|device| device.tags.iter());
        let used = tags.map(|(number, tag)| (Tag::from_index(number), tag.usage()));
        used.filter(|(_, usage)| *usage != Usage::default())
            .collect()
    }

    /// Closes the scope that was opened last on the device `index`, or returns
    /// `None` if none is open, as in a forked child. Its peak counts for the scope
    /// around it.
    pub fn pop(&self, index: DeviceIndex) -> Option<Scope> {
        let device = self.devices.find(index)?;
        // The lock may be held by a thread that is not there.
        if !self.generation.is_current() {
            return None;
        }
        let mut scopes = device.scopes.lock();
        let Opened {
            start,
            peak_outside,
        } = scopes.pop()?;
        let end = device.usage();
        device.level.peak.fetch_max(peak_outside, Ordering::AcqRel);
        Some(Scope {
            at_start: start.current,
            at_end: end.current,
            peak: end.peak,
            total: end.total.saturating_sub(start.total),
            allocations: end.allocations.saturating_sub(start.allocations),
            frees: end.frees.saturating_sub(start.frees),
            failures: end.failures.saturating_sub(start.failures),
        })
    }
}

impl Observer for Counters {
    #[inline]
    fn allocated(&self, block: &Block) {
        let size = block.layout.size();
        let device = self.devices.get(block.device.index());
        let tag = device.tags.get(block.layout.tag().to_index());
        device.level.rise(size);
        tag.level.rise(size);
        let bytes = u64::try_from(size).unwrap_or(u64::MAX);
        tag.total.fetch_add(bytes, Ordering::Relaxed);
        tag.allocations.fetch_add(1, Ordering::Relaxed);
    }

    fn allocate_failed(&self, device: Device, layout: DeviceLayout, error: &mut Error) {
        let counters = self.devices.get(device.index());
        let tag = counters.tags.get(layout.tag().to_index());
        tag.failures.fetch_add(1, Ordering::Relaxed);
        if let Some(report) = error.out_of_memory_mut() {
            report.in_use.get_or_insert(counters.level.current());
        }
    }

    #[inline]
    fn before_free(&self, block: &Block) -> Result<()> {
        let size = block.layout.size();
        let device = self.devices.get(block.device.index());
        let tag = device.tags.get(block.layout.tag().to_index());
        device.level.fall(size);
        tag.level.fall(size);
        tag.frees.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn free_failed(&self, block: &Block) {
        let size = block.layout.size();
        let device = self.devices.get(block.device.index());
        let tag = device.tags.get(block.layout.tag().to_index());
        device.level.rise(size);
        tag.level.rise(size);
        tag.frees.fetch_sub(1, Ordering::Relaxed);
    }
}
