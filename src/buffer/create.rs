//! The ways to make a buffer.
//!
//! Rank 6. Part of `buffer`.

use std::mem::ManuallyDrop;

use crate::allocator::{AllocatorHandle, device_type_of};
use crate::buffer::DeviceMemoryBuffer;
use crate::device::{Device, DeviceIndex, DeviceType};
use crate::error::Result;
use crate::layout::DeviceLayout;
use crate::registry::DeviceAllocatorRegistry;

impl DeviceMemoryBuffer {
    /// Allocates `size` bytes on the device `index` of type `device_type`.
    ///
    /// The allocator is that of [`DeviceAllocatorRegistry::global`]. A size of 0
    /// needs it too, and a valid index, but does not call `allocate`.
    ///
    /// # Errors
    ///
    /// - [`NotRegistered`](crate::ErrorKind::NotRegistered): no allocator serves the type.
    /// - [`InvalidDevice`](crate::ErrorKind::InvalidDevice): there is no such index.
    /// - [`Layout`](crate::ErrorKind::Layout): `size` is more than one allocation can have.
    /// - [`OutOfMemory`](crate::ErrorKind::OutOfMemory): the device has no room.
    /// - [`BadAllocator`](crate::ErrorKind::BadAllocator): the memory it returned is unusable.
    /// - [`ForkedProcess`](crate::ErrorKind::ForkedProcess): the allocator is a parent process's.
    /// - [`Backend`](crate::ErrorKind::Backend): the driver failed otherwise.
    ///
    /// # Examples
    ///
    /// ```
    /// use device_memory::{DeviceMemoryBuffer, DeviceType};
    ///
    /// let buffer = DeviceMemoryBuffer::create(1024, DeviceType::Cpu, 0)?;
    ///
    /// assert_eq!(buffer.device().to_string(), "cpu:0");
    /// assert!(DeviceMemoryBuffer::create(1024, DeviceType::Custom(9), 0).is_err());
    /// # Ok::<(), device_memory::Error>(())
    /// ```
    #[inline]
    pub fn create(size: usize, device_type: DeviceType, index: DeviceIndex) -> Result<Self> {
        let registry = DeviceAllocatorRegistry::global();
        let layout = DeviceLayout::from_size(size)?;
        Self::create_in(registry, layout, Device::new(device_type, index))
    }

    /// Allocates `len` values of `T`, without initializing them.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create); [`Layout`](crate::ErrorKind::Layout) too if the number of
    /// bytes overflows.
    #[inline]
    pub fn create_array<T>(
        len: usize,
        device_type: DeviceType,
        index: DeviceIndex,
    ) -> Result<Self> {
        let registry = DeviceAllocatorRegistry::global();
        let layout = DeviceLayout::array::<T>(len)?;
        Self::create_in(registry, layout, Device::new(device_type, index))
    }

    /// Allocates with the allocator that serves the device in `registry`.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create).
    // Always: the look-up folds to one load where the type is known.
    #[inline(always)]
    pub fn create_in(
        registry: &DeviceAllocatorRegistry,
        layout: DeviceLayout,
        device: Device,
    ) -> Result<Self> {
        match registry.registered(device.device_type()) {
            Some(allocator) => Self::allocate(allocator, layout, device),
            None => Self::create_builtin(registry, layout, device),
        }
    }

    /// [`create_in`](Self::create_in) where nothing is registered.
    #[cold]
    fn create_builtin(
        registry: &DeviceAllocatorRegistry,
        layout: DeviceLayout,
        device: Device,
    ) -> Result<Self> {
        let allocator = registry.lookup(device.device_type())?;
        Self::allocate(allocator, layout, device)
    }

    /// Allocates with `allocator`, which no registry needs to know.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create), without `NotRegistered`.
    ///
    /// # Examples
    ///
    /// ```
    /// use device_memory::{DeviceLayout, DeviceMemoryBuffer, HostAllocator};
    ///
    /// let page = DeviceMemoryBuffer::create_with(&HostAllocator, DeviceLayout::new(4096, 4096)?, 0)?;
    ///
    /// assert!(page.ptr().is_aligned_to(4096));
    /// # Ok::<(), device_memory::Error>(())
    /// ```
    #[inline]
    pub fn create_with(
        allocator: impl Into<AllocatorHandle>,
        layout: DeviceLayout,
        index: DeviceIndex,
    ) -> Result<Self> {
        let allocator = allocator.into();
        let device = Device::new(device_type_of(&*allocator)?, index);
        Self::allocate(allocator, layout, device)
    }

    /// Allocates `size` bytes and sets them to 0.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create) and [`fill`](Self::fill).
    pub fn create_zeroed(size: usize, device_type: DeviceType, index: DeviceIndex) -> Result<Self> {
        let registry = DeviceAllocatorRegistry::global();
        let layout = DeviceLayout::from_size(size)?;
        Self::create_zeroed_in(registry, layout, Device::new(device_type, index))
    }

    /// [`create_zeroed`](Self::create_zeroed) with the allocators of `registry`.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn create_zeroed_in(
        registry: &DeviceAllocatorRegistry,
        layout: DeviceLayout,
        device: Device,
    ) -> Result<Self> {
        let mut buffer = Self::create_in(registry, layout, device)?;
        buffer.fill(0)?;
        Ok(buffer)
    }

    /// Allocates as many bytes as `bytes` and copies them there.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create) and [`copy_from_host`](Self::copy_from_host).
    pub fn from_host(bytes: &[u8], device_type: DeviceType, index: DeviceIndex) -> Result<Self> {
        let registry = DeviceAllocatorRegistry::global();
        Self::from_host_in(registry, bytes, Device::new(device_type, index))
    }

    /// [`from_host`](Self::from_host) with the allocators of `registry`.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn from_host_in(
        registry: &DeviceAllocatorRegistry,
        bytes: &[u8],
        device: Device,
    ) -> Result<Self> {
        let layout = DeviceLayout::from_size(bytes.len())?;
        let mut buffer = Self::create_in(registry, layout, device)?;
        buffer.copy_from_host(bytes)?;
        Ok(buffer)
    }

    /// Allocates the same layout with the same allocator on the same device, and
    /// copies the bytes there.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create) and [`copy_from`](Self::copy_from).
    #[expect(unsafe_code, reason = "see SAFETY")]
    pub fn try_clone(&self) -> Result<Self> {
        if !self.is_empty() {
            self.as_span().check_process()?;
        }
        // SAFETY: these are the parts of the handle that this buffer owns
        // (invariant 0); what is made of them here is not dropped.
        let handle = ManuallyDrop::new(unsafe {
            AllocatorHandle::from_parts(self.allocator, self.is_counted())
        });
        let mut clone = Self::allocate(&*handle, self.layout(), self.device)?;
        clone.copy_from(self.as_span())?;
        Ok(clone)
    }
}
