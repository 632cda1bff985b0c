//! The options of a fake device.
//!
//! Rank 8. Part of `testing::fake_device`. Imports the words and `process`.

use std::sync::Arc;

use super::FakeDevice;
use super::addresses::Slots;
use super::state::{Config, Shared};
use crate::device::DeviceType;
use crate::process::ProcessGeneration;

/// The options of a [`FakeDevice`]; made by [`FakeDevice::builder`].
///
/// # Examples
///
/// ```
/// use device_memory::DeviceType;
/// use device_memory::testing::FakeDevice;
///
/// let fake = FakeDevice::builder(DeviceType::Cuda)
///     .devices(2)
///     .capacity(24 << 30)
///     .delayed_copies(true)
///     .build();
///
/// assert_eq!(fake.live_blocks(), 0);
/// ```
#[derive(Clone, Debug)]
pub struct FakeDeviceBuilder {
    device_type: DeviceType,
    devices: usize,
    capacity: Option<usize>,
    delayed: bool,
    reuse: bool,
}

impl FakeDeviceBuilder {
    pub(super) fn new(device_type: DeviceType) -> Self {
        Self {
            device_type,
            devices: 1,
            capacity: None,
            delayed: false,
            reuse: false,
        }
    }

    /// How many devices there are: 1 unless said otherwise, and at most
    /// [`FakeDevice::MAX_DEVICES`].
    #[must_use]
    pub fn devices(mut self, count: usize) -> Self {
        self.devices = count.min(FakeDevice::MAX_DEVICES);
        self
    }

    /// How many bytes each device has, which may be more than the host has.
    ///
    /// Without it a device has all the bytes that it has addresses for, and can
    /// not tell how many.
    #[must_use]
    pub fn capacity(mut self, bytes: usize) -> Self {
        self.capacity = Some(bytes);
        self
    }

    /// Whether the devices do copies and fills as late as they can.
    ///
    /// This is a driver that returns from a copy out of ordinary host memory
    /// once it has read the bytes, and lets the device go on alone: the host may
    /// use its side again, and the device does its work in the order given.
    /// Work is done when something has to see it: a copy to the host or to
    /// another device, `synchronize`, or the end of a block. Nothing that keeps
    /// to the contract can tell the difference.
    #[must_use]
    pub fn delayed_copies(mut self, delayed: bool) -> Self {
        self.delayed = delayed;
        self
    }

    /// Whether a new block takes the address of the block given back last, where
    /// it fits.
    ///
    /// Without it no address comes twice, so that every use after a free is
    /// found. With it stale pointers point at live blocks of others, as they do
    /// with real drivers.
    #[must_use]
    pub fn reuse_addresses(mut self, reuse: bool) -> Self {
        self.reuse = reuse;
        self
    }

    /// Makes the fake.
    #[must_use]
    pub fn build(self) -> FakeDevice {
        let config = Config {
            device_type: self.device_type,
            device_count: self.devices,
            capacity: self.capacity,
            delayed: self.delayed,
            reuse: self.reuse,
            slots: Slots::take(self.devices),
            generation: ProcessGeneration::current(),
        };
        FakeDevice {
            shared: Arc::new(Shared::new(config)),
        }
    }
}
