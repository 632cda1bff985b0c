//! What a test has chosen.

use std::collections::BTreeMap;

/// When a stream does its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Schedule {
    /// At once.
    Eager,
    /// When something waits for it.
    Delayed,
    /// Some of it between calls.
    Random,
}

/// The choices of a test.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) devices: usize,
    /// The bytes of each device.
    pub(super) total_memory: usize,
    /// The same, for devices that differ.
    pub(super) device_memory: BTreeMap<usize, usize>,
    /// The most bytes of pinned and managed memory.
    pub(super) host_memory: usize,
    /// Attributes that differ from the usual, by device and number.
    pub(super) attributes: BTreeMap<(usize, i32), i32>,
    pub(super) driver_version: i32,
    pub(super) peer_access: bool,
    pub(super) schedule: Schedule,
    /// Whether freed addresses are used again, the last freed first.
    pub(super) reuse: bool,
    /// Whether a free of the other family is reported.
    pub(super) strict_families: bool,
    /// Whether all calls say that the driver is gone.
    pub(super) shut_down: bool,
    /// Whether that happens by itself when the process exits.
    pub(super) shut_down_at_exit: bool,
    /// Whether calls are kept one by one.
    pub(super) record: bool,
    /// What new streams say of their capture.
    pub(super) capture_status: Option<u32>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            devices: 1,
            total_memory: 4 << 30,
            device_memory: BTreeMap::new(),
            host_memory: 4 << 30,
            attributes: BTreeMap::new(),
            driver_version: 13_040,
            peer_access: true,
            schedule: Schedule::Eager,
            reuse: false,
            strict_families: true,
            shut_down: false,
            shut_down_at_exit: true,
            record: false,
            capture_status: None,
        }
    }
}

impl Settings {
    /// The bytes of a device.
    pub(super) fn memory_of(&self, device: usize) -> usize {
        let own = self.device_memory.get(&device);
        own.copied().unwrap_or(self.total_memory)
    }

    /// Forgets what a test may change at any time; keeps what `cuInit` fixed.
    pub(super) fn clear(&mut self) {
        let usual = Self::default();
        *self = Self {
            devices: self.devices,
            total_memory: self.total_memory,
            device_memory: std::mem::take(&mut self.device_memory),
            attributes: std::mem::take(&mut self.attributes),
            driver_version: self.driver_version,
            peer_access: self.peer_access,
            ..usual
        };
    }
}
