//! All that the driver remembers.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::{Condvar, Mutex};

use super::context::Context;
use super::event::Event;
use super::fault::{self, Faults};
use super::host::HostBlocks;
use super::memory::Memory;
use super::pool::Pool;
use super::settings::Settings;
use super::stream::Stream;

/// The one driver of this copy of the library.
pub(super) static STATE: Mutex<Option<Box<State>>> = Mutex::new(None);

/// Told when a host function that a stream ran has returned.
pub(super) static RETURNED: Condvar = Condvar::new();

/// Handles are multiples of 16 from here on: no address of this process, and
/// none of the special stream handles.
const HANDLES: u64 = 0x00FA_CE00_0000_0000;

/// The driver.
#[derive(Debug)]
pub(super) struct State {
    pub(super) settings: Settings,
    pub(super) initialized: bool,
    pub(super) faults: Faults,
    pub(super) devices: Vec<Device>,
    pub(super) contexts: BTreeMap<u64, Context>,
    pub(super) streams: BTreeMap<u64, Stream>,
    pub(super) events: BTreeMap<u64, Event>,
    pub(super) pools: BTreeMap<u64, Pool>,
    pub(super) graphs: BTreeSet<u64>,
    pub(super) host: HostBlocks,
    pub(super) violations: Vec<String>,
    /// How much work of all streams waits.
    pub(super) pending: usize,
    /// How many streams are capturing.
    pub(super) captures: usize,
    pub(super) random: u64,
    last_id: u64,
}

/// One device.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) memory: Memory,
    /// The primary context, while it is retained.
    pub(super) primary: Option<u64>,
    pub(super) retains: u64,
    pub(super) flags: u32,
    pub(super) default_pool: u64,
    pub(super) current_pool: u64,
}

impl State {
    pub(super) fn new() -> Box<Self> {
        Box::new(Self {
            settings: Settings::default(),
            initialized: false,
            faults: Faults::new(),
            devices: Vec::new(),
            contexts: BTreeMap::new(),
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            pools: BTreeMap::new(),
            graphs: BTreeSet::new(),
            host: BTreeMap::new(),
            violations: Vec::new(),
            pending: 0,
            captures: 0,
            random: 1,
            last_id: 0,
        })
    }

    /// Destroys everything but the numbers that handles are made of, so that an
    /// old handle never means something new.
    pub(super) fn reset(&mut self) {
        let last_id = self.last_id;
        *self = *Self::new();
        self.last_id = last_id;
        self.clear_calls();
    }

    /// Forgets the calls counted and recorded.
    pub(super) fn clear_calls(&mut self) {
        fault::clear_counts();
        self.faults.records.clear();
    }

    /// A number that was not used before.
    pub(super) fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// A handle that was not used before.
    pub(super) fn next_handle(&mut self) -> u64 {
        HANDLES + 16 * self.next_id()
    }

    /// The next of a series of numbers that only look random.
    pub(super) fn roll(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// The device that an address belongs to.
    pub(super) fn device_of(&self, addr: u64) -> Option<usize> {
        let mut devices = self.devices.iter();
        devices.position(|device| device.memory.range.contains(addr))
    }

    /// The bytes of a device that are neither allocated nor held by a pool.
    pub(super) fn free_memory(&self, device: usize) -> usize {
        let Some(own) = self.devices.get(device) else {
            return 0;
        };
        let pools = self.pools.values().filter(|pool| pool.device == device);
        let pooled: usize = pools.map(|pool| pool.reserved).sum();
        let total = self.settings.memory_of(device);
        total.saturating_sub(own.memory.unpooled.saturating_add(pooled))
    }
}
