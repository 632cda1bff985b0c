//! The devices of a driver, opened when they are first used.
//!
//! Rank 4. Part of `backend::cuda`. Imports the words.

use once_cell::sync::OnceCell;

use super::device::CudaDevice;
use super::probe;
use crate::device::{Device, DeviceIndex, DeviceType};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::process::ProcessGeneration;

/// What all allocators made of one opening share.
#[derive(Debug)]
pub(super) struct Devices {
    devices: Box<[OnceCell<CudaDevice>]>,
    threshold: Option<u64>,
    made_in: ProcessGeneration,
}

impl Devices {
    /// Finds the driver and its devices. No device is made ready yet.
    pub(super) fn open(device_type: DeviceType, threshold: Option<u64>) -> Result<Self> {
        let count = probe::device_count(device_type)?;
        Ok(Self {
            devices: (0..count).map(|_| OnceCell::new()).collect(),
            threshold,
            made_in: ProcessGeneration::current(),
        })
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.devices.len()
    }

    /// The device `index`, made ready if it is not, for `operation` on memory of
    /// `device_type`.
    #[inline]
    pub(super) fn get(
        &self,
        device_type: DeviceType,
        index: DeviceIndex,
        operation: Operation,
    ) -> Result<&CudaDevice> {
        let device = Device::new(device_type, index);
        if !self.made_in.is_current() {
            return Err(ErrorKind::ForkedProcess { device }.into());
        }
        match self
            .devices
            .get(usize::from(index))
            .map(|cell| (cell, cell.get()))
        {
            Some((_, Some(ready))) => Ok(ready),
            Some((cell, None)) => self.make_ready(cell, device, operation),
            None => Err(self.missing(device)),
        }
    }

    #[cold]
    fn make_ready<'a>(
        &self,
        cell: &'a OnceCell<CudaDevice>,
        device: Device,
        operation: Operation,
    ) -> Result<&'a CudaDevice> {
        cell.get_or_try_init(|| CudaDevice::open(device.index(), self.threshold))
            .map_err(|status| {
                if super::device::is_missing(status) {
                    self.missing(device)
                } else {
                    status.into_error(device, operation)
                }
            })
    }

    #[cold]
    fn missing(&self, device: Device) -> Error {
        ErrorKind::InvalidDevice {
            device,
            count: self.len(),
        }
        .into()
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        if !self.made_in.is_current() {
            // The driver is the parent's: nothing may be called, not even to give
            // things back.
            std::mem::forget(std::mem::take(&mut self.devices));
        }
    }
}
