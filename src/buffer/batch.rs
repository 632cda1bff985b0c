//! Several buffers at once, or none.
//!
//! Rank 6. Part of `buffer`.

use crate::buffer::DeviceMemoryBuffer;
use crate::device::Device;
use crate::error::Result;
use crate::layout::DeviceLayout;
use crate::registry::DeviceAllocatorRegistry;

impl DeviceMemoryBuffer {
    /// Allocates one buffer for each request, in order, or none at all.
    ///
    /// If one fails, those before it are freed in reverse order.
    ///
    /// # Errors
    ///
    /// - [`AtIndex`](crate::ErrorKind::AtIndex): the request that failed, and why; see
    ///   [`create`](Self::create).
    ///
    /// # Examples
    ///
    /// ```
    /// use device_memory::{
    ///     Device, DeviceAllocatorRegistry, DeviceLayout, DeviceMemoryBuffer,
    /// };
    ///
    /// let registry = DeviceAllocatorRegistry::new();
    /// let small = (DeviceLayout::from_size(64)?, Device::CPU);
    /// let nowhere = (DeviceLayout::from_size(64)?, "custom3:0".parse()?);
    ///
    /// assert_eq!(DeviceMemoryBuffer::create_all(&registry, &[small, small])?.len(), 2);
    /// assert_eq!(
    ///     DeviceMemoryBuffer::create_all(&registry, &[small, nowhere]).unwrap_err().to_string(),
    ///     "request 1: no allocator is registered for device type custom3"
    /// );
    /// # Ok::<(), device_memory::Error>(())
    /// ```
    pub fn create_all(
        registry: &DeviceAllocatorRegistry,
        requests: &[(DeviceLayout, Device)],
    ) -> Result<Vec<Self>> {
        let mut buffers = BufferStack::with_capacity(requests.len());
        for (index, &(layout, device)) in requests.iter().enumerate() {
            match Self::create_in(registry, layout, device) {
                Ok(buffer) => buffers.push(buffer),
                Err(error) => return Err(error.at("request", index)),
            }
        }
        Ok(buffers.into_vec())
    }
}

/// Buffers that are freed in the reverse of the order they were made in.
#[derive(Debug, Default)]
pub(crate) struct BufferStack(Vec<DeviceMemoryBuffer>);

impl BufferStack {
    /// No buffers, with room on the host for `capacity` owners.
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self(Vec::with_capacity(capacity))
    }

    /// Adds a buffer, to be freed before all that are there.
    #[inline]
    pub(crate) fn push(&mut self, buffer: DeviceMemoryBuffer) {
        self.0.push(buffer);
    }

    /// The buffers, in the order they were made in.
    pub(crate) fn as_slice(&self) -> &[DeviceMemoryBuffer] {
        &self.0
    }

    /// The buffers, in the order they were made in.
    pub(crate) fn as_slice_mut(&mut self) -> &mut [DeviceMemoryBuffer] {
        &mut self.0
    }

    fn into_vec(mut self) -> Vec<DeviceMemoryBuffer> {
        std::mem::take(&mut self.0)
    }
}

impl Drop for BufferStack {
    fn drop(&mut self) {
        while let Some(buffer) = self.0.pop() {
            drop(buffer);
        }
    }
}
