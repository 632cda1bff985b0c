//! What the driver is told and what it tells.

/// When streams do their work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// At once, as if the device were infinitely fast.
    Eager,
    /// When something waits for it: as late as CUDA allows.
    Delayed,
    /// Some of it between calls, by a series of numbers from this seed.
    Random(u64),
}

impl Schedule {
    /// The two extremes and `seeds` in between, for tests that hold under all.
    pub fn all(seeds: u64) -> impl Iterator<Item = Self> {
        let extremes = [Self::Eager, Self::Delayed];
        extremes.into_iter().chain((1..=seeds).map(Self::Random))
    }
}

/// Which waiting work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Run {
    /// All of it.
    All,
    /// So many pieces, from streams taken by chance.
    Steps(u64),
    /// That of the stream of this handle, and what it waits for.
    Stream(u64),
}

/// One call of a `cu*` function.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallRecord {
    /// The function.
    pub name: String,
    /// A number of the calling thread.
    pub thread: u64,
    /// The context that was current when it returned, or 0.
    pub context: u64,
    /// The device of that context, if there is one.
    pub device: Option<usize>,
    /// The address that the call is about, or that an allocation returned, or 0.
    pub ptr: u64,
    /// The bytes it is about.
    pub size: usize,
    /// The stream as it was passed; 0 is the null stream, and no stream.
    pub stream: u64,
    /// What it returned.
    pub code: i32,
}

/// What is alive on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceLive {
    /// Allocations of device memory, also those that a stream is still to free.
    pub blocks: usize,
    /// Their bytes.
    pub bytes: usize,
    /// The most bytes at one time.
    pub peak_bytes: usize,
    /// The bytes that pools hold, used or not.
    pub reserved_bytes: usize,
    /// How often the primary context is retained.
    pub primary_retains: usize,
}

/// What is alive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Live {
    /// By device; empty before `cuInit`.
    pub devices: Vec<DeviceLive>,
    /// Blocks of pinned memory.
    pub pinned: usize,
    /// Their bytes.
    pub pinned_bytes: usize,
    /// Blocks of managed memory.
    pub managed: usize,
    /// Their bytes.
    pub managed_bytes: usize,
    /// Ranges of registered host memory.
    pub registered: usize,
    /// Streams that were made and not destroyed.
    pub streams: usize,
    /// Events that were made and not destroyed.
    pub events: usize,
    /// Contexts that were made and not destroyed, without the primary ones.
    pub contexts: usize,
    /// Pools that were made and not destroyed.
    pub pools: usize,
    /// Graphs from captures.
    pub graphs: usize,
    /// Pieces of work that wait.
    pub pending: usize,
}

impl Live {
    /// Allocations of device memory on all devices.
    #[must_use]
    pub fn device_blocks(&self) -> usize {
        self.devices.iter().map(|device| device.blocks).sum()
    }

    /// Their bytes.
    #[must_use]
    pub fn device_bytes(&self) -> usize {
        self.devices.iter().map(|device| device.bytes).sum()
    }

    /// How often primary contexts are retained.
    #[must_use]
    pub fn primary_retains(&self) -> usize {
        self.devices
            .iter()
            .map(|device| device.primary_retains)
            .sum()
    }

    /// Whether nothing is alive but retained primary contexts, and no work waits.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let others = [
            self.device_blocks(),
            self.pinned,
            self.managed,
            self.registered,
            self.streams,
            self.events,
            self.contexts,
            self.pools,
            self.graphs,
            self.pending,
        ];
        others == [0; 10]
    }

    /// Reads the lines of the driver.
    pub(super) fn parse(text: &str) -> Self {
        let mut live = Self::default();
        for line in text.lines() {
            let mut words = line.split(' ');
            let name = words.next().unwrap_or_default();
            let values: Vec<usize> = words.filter_map(|word| word.parse().ok()).collect();
            match (name, values.as_slice()) {
                ("device", [blocks, bytes, peak_bytes, reserved_bytes, primary_retains]) => {
                    live.devices.push(DeviceLive {
                        blocks: *blocks,
                        bytes: *bytes,
                        peak_bytes: *peak_bytes,
                        reserved_bytes: *reserved_bytes,
                        primary_retains: *primary_retains,
                    });
                }
                ("pinned", [count, bytes]) => {
                    (live.pinned, live.pinned_bytes) = (*count, *bytes);
                }
                ("managed", [count, bytes]) => {
                    (live.managed, live.managed_bytes) = (*count, *bytes);
                }
                ("registered", [count, _]) => live.registered = *count,
                ("streams", [count]) => live.streams = *count,
                ("events", [count]) => live.events = *count,
                ("contexts", [count]) => live.contexts = *count,
                ("pools", [count]) => live.pools = *count,
                ("graphs", [count]) => live.graphs = *count,
                ("pending", [count]) => live.pending = *count,
                _ => {}
            }
        }
        live
    }
}

impl CallRecord {
    /// Reads a line of the driver.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        Some(Self {
            name: words.next()?.to_owned(),
            thread: words.next()?.parse().ok()?,
            context: words.next()?.parse().ok()?,
            device: words.next()?.parse::<i64>().ok()?.try_into().ok(),
            ptr: words.next()?.parse().ok()?,
            size: words.next()?.parse().ok()?,
            stream: words.next()?.parse().ok()?,
            code: words.next()?.parse().ok()?,
        })
    }
}
