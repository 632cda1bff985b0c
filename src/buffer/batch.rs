//! Several buffers at once, or none.
//!
//! Rank 5. Part of `buffer`.

use crate::buffer::DeviceMemoryBuffer;
use crate::device::Device;
use crate::error::{Error, Result};
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
        BufferStack::create("request", registry, requests).map(BufferStack::into_vec)
    }
}

/// Buffers that are freed in the reverse of the order they were made in.
#[derive(Debug, Default)]
pub(crate) struct BufferStack(Vec<DeviceMemoryBuffer>);

impl BufferStack {
    /// All requests or none; `what` names one of them in an error.
    pub(crate) fn create(
        what: &'static str,
        registry: &DeviceAllocatorRegistry,
        requests: &[(DeviceLayout, Device)],
    ) -> Result<Self> {
        let mut stack = Self::default();
        if stack.0.try_reserve_exact(requests.len()).is_err() {
            let bytes = size_of::<DeviceMemoryBuffer>().saturating_mul(requests.len());
            return Err(Error::host_out_of_memory(bytes));
        }
        for (index, &(layout, device)) in requests.iter().enumerate() {
            let buffer = DeviceMemoryBuffer::create_in(registry, layout, device)
                .map_err(|error| error.at(what, index))?;
            stack.0.push(buffer);
        }
        Ok(stack)
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
