//! The options of a CUDA allocator.
//!
//! Rank 4. Part of `backend::cuda`. Imports the words.

use std::sync::Arc;

use super::allocator::{CudaAllocator, Shared};
use super::devices::Devices;
use super::order::Order;
use super::overaligned::Overaligned;
use super::uses::Uses;
use crate::device::DeviceType;
use crate::error::Result;

/// How to open a [`CudaAllocator`].
#[derive(Clone, Copy, Debug, Default)]
pub struct CudaAllocatorBuilder {
    release_threshold: Option<u64>,
}

impl CudaAllocatorBuilder {
    /// Gives each device a pool of its own that keeps up to `bytes` of unused
    /// memory rather than giving them back to the driver.
    ///
    /// Without this, memory comes from the current pool of the device, which
    /// other libraries share and whose settings are not touched.
    #[must_use]
    pub fn release_threshold(self, bytes: u64) -> Self {
        Self {
            release_threshold: Some(bytes),
        }
    }

    /// Finds the driver.
    ///
    /// # Errors
    ///
    /// As [`CudaAllocator::open`].
    pub fn open(self) -> Result<CudaAllocator> {
        Ok(CudaAllocator {
            shared: Arc::new(Shared {
                devices: Devices::open(DeviceType::Cuda, self.release_threshold)?,
                overaligned: Overaligned::default(),
                uses: Uses::default(),
            }),
            order: Order::Device,
        })
    }
}
