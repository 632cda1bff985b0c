//! What to plan: the values, and what each device asks for.
//!
//! Rank 2. Part of `plan`.

use std::collections::BTreeMap;

use crate::device::Device;
use crate::error::Result;
use crate::layout::DeviceLayout;

use super::options::PlanOptions;
use super::report::PlanReport;
use super::value::PlanValue;

/// What holds for all values of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct DeviceOptions {
    /// The alignment of every value, in bytes: a power of two. Sizes are rounded up
    /// to it. 64 by default; ExecuTorch has 16.
    pub align: usize,
    /// Bytes added at the end of every buffer that holds a value.
    pub padding: usize,
    /// How many bytes all buffers of the device may have together.
    pub capacity: Option<usize>,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self {
            align: DeviceLayout::DEFAULT_ALIGN,
            padding: 0,
            capacity: None,
        }
    }
}

impl DeviceOptions {
    /// The default options with another alignment.
    #[must_use]
    pub fn aligned(align: usize) -> Self {
        Self {
            align,
            ..Self::default()
        }
    }

    /// The same with padding, in bytes.
    #[must_use]
    pub fn padding(self, padding: usize) -> Self {
        Self { padding, ..self }
    }

    /// The same with a capacity, in bytes.
    #[must_use]
    pub fn capacity(self, capacity: usize) -> Self {
        Self {
            capacity: Some(capacity),
            ..self
        }
    }
}

/// Values to plan.
///
/// # Examples
///
/// ```
/// use device_memory::plan::{DeviceOptions, PlanOptions, PlanRequest, PlanValue};
/// use device_memory::{Device, DeviceType};
///
/// let cuda = Device::new(DeviceType::Cuda, 0);
/// let mut request = PlanRequest::new();
/// request.set_device(cuda, DeviceOptions::aligned(256));
/// request.push(PlanValue::new(1000, 0..=1).on(cuda));
/// request.push(PlanValue::new(1000, 2..=3).on(cuda));
/// request.push(PlanValue::new(64, 0..=3));
///
/// let report = request.plan(&PlanOptions::default())?;
///
/// let [host, device] = report.plan.buffers() else { unreachable!() };
/// assert_eq!((host.device, host.size), (Device::CPU, 64));
/// assert_eq!((device.device, device.size), (cuda, 1024));
/// assert_eq!(report.plan.placements()[1].offset, 0);
/// assert_eq!(report.arenas[1].gap(), 0);
/// # Ok::<(), device_memory::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanRequest {
    values: Vec<PlanValue>,
    default_device: DeviceOptions,
    devices: BTreeMap<Device, DeviceOptions>,
    reserved: BTreeMap<(Device, u32), usize>,
}

impl PlanRequest {
    /// A request without values.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a value and returns its position.
    pub fn push(&mut self, value: PlanValue) -> usize {
        let position = self.values.len();
        self.values.push(value);
        position
    }

    /// The values, in the order they were added.
    #[must_use]
    pub fn values(&self) -> &[PlanValue] {
        &self.values
    }

    /// The values, to change them in place.
    #[must_use]
    pub fn values_mut(&mut self) -> &mut [PlanValue] {
        &mut self.values
    }

    /// Sets what holds for every device that [`set_device`](Self::set_device) does
    /// not name.
    pub fn set_default(&mut self, options: DeviceOptions) {
        self.default_device = options;
    }

    /// Sets what holds for one device.
    pub fn set_device(&mut self, device: Device, options: DeviceOptions) {
        self.devices.insert(device, options);
    }

    /// What holds for `device`.
    #[must_use]
    pub fn device(&self, device: Device) -> DeviceOptions {
        let own = self.devices.get(&device);
        own.copied().unwrap_or(self.default_device)
    }

    /// What holds for every device that has no options of its own.
    #[must_use]
    pub fn default_device(&self) -> DeviceOptions {
        self.default_device
    }

    /// The devices that have options of their own, and these.
    pub fn devices(&self) -> impl Iterator<Item = (Device, DeviceOptions)> + '_ {
        let devices = self.devices.iter();
        devices.map(|(&device, &options)| (device, options))
    }

    /// Keeps the first `size` bytes of a pool free of values, for the plan of a
    /// submodule. Of several submodules the largest counts: they do not run at the
    /// same time. A pool above the 1024th of a device is refused when planning.
    pub fn reserve(&mut self, device: Device, pool: u32, size: usize) {
        let reserved = self.reserved.entry((device, pool)).or_default();
        *reserved = size.max(*reserved);
    }

    /// What is reserved, by device and pool.
    pub fn reserved(&self) -> impl Iterator<Item = (Device, u32, usize)> + '_ {
        let reserved = self.reserved.iter();
        reserved.map(|(&(device, pool), &size)| (device, pool, size))
    }

    /// Plans the values.
    ///
    /// Buffers come in this order: `cpu:0` first, then by type and index, of each
    /// device by pool. A device without values has none, a pool without values
    /// below one with values is an empty buffer.
    ///
    /// # Errors
    ///
    /// - [`Plan`](crate::ErrorKind::Plan): a value contradicts itself or another, or
    ///   no plan was found within a capacity;
    ///   [`PlanError`](crate::PlanError) lists the reasons.
    /// - [`PlanTooLarge`](crate::ErrorKind::PlanTooLarge): the values of a device
    ///   pass what can be addressed.
    pub fn plan(&self, options: &PlanOptions) -> Result<PlanReport> {
        super::run::plan(self, options)
    }
}
