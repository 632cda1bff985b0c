//! Giving up ownership, and taking it back.
//!
//! Rank 6. Part of `buffer`.

use std::fmt;
use std::mem::ManuallyDrop;

use crate::address::DevicePtr;
use crate::allocator::{AllocatorHandle, DeviceAllocator, device_type_of};
use crate::buffer::DeviceMemoryBuffer;
use crate::device::{Device, DeviceIndex};
use crate::error::Result;
use crate::layout::DeviceLayout;

/// Memory whose owner was dissolved: everything needed to free it, and nothing
/// that does.
///
/// Dropping it leaks the memory, and the allocator with it.
pub struct RawDeviceMemory {
    inner: ManuallyDrop<DeviceMemoryBuffer>,
}

impl RawDeviceMemory {
    /// The address of the first byte; dangling if the size is 0.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.inner.ptr()
    }

    /// The layout that was asked for.
    #[must_use]
    pub fn layout(&self) -> DeviceLayout {
        self.inner.layout()
    }

    /// The device that the memory is on.
    #[must_use]
    pub fn device(&self) -> Device {
        self.inner.device()
    }

    /// The allocator that the memory came from.
    #[must_use]
    pub fn allocator(&self) -> &dyn DeviceAllocator {
        self.inner.allocator()
    }

    /// The address, for whoever frees the memory from now on. The allocator is let
    /// go of, so the memory has to be of a kind that outlives it, such as that of
    /// [`HostAllocator`](crate::HostAllocator).
    ///
    /// # Examples
    ///
    /// ```
    /// use device_memory::{DeviceLayout, DeviceMemoryBuffer, HostAllocator};
    ///
    /// let layout = DeviceLayout::new(12, align_of::<f32>())?;
    /// let buffer = DeviceMemoryBuffer::create_with(&HostAllocator, layout, 0)?;
    ///
    /// let floats = buffer.into_raw().into_ptr().as_raw().cast::<f32>();
    /// // SAFETY: `HostAllocator` has its blocks from `std::alloc`, this one with the
    /// // layout of three floats; they are zeroed, and nothing else frees them.
    /// let floats = unsafe { Vec::from_raw_parts(floats, 3, 3) };
    /// assert_eq!(floats, [0.0; 3]);
    /// # Ok::<(), device_memory::Error>(())
    /// ```
    #[must_use = "the memory is leaked unless someone frees it"]
    pub fn into_ptr(self) -> DevicePtr {
        let buffer = ManuallyDrop::into_inner(self.inner);
        let ptr = buffer.ptr();
        buffer.give_up();
        ptr
    }
}

impl fmt::Debug for RawDeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawDeviceMemory")
            .field("device", &format_args!("{}", self.device()))
            .field("ptr", &format_args!("{}", self.ptr()))
            .field("layout", &self.layout())
            .finish()
    }
}

impl DeviceMemoryBuffer {
    /// Dissolves the owner without freeing the memory.
    ///
    /// # Examples
    ///
    /// ```
    /// use device_memory::{DeviceMemoryBuffer, DeviceType};
    ///
    /// let raw = DeviceMemoryBuffer::create(64, DeviceType::Cpu, 0)?.into_raw();
    /// let address = raw.ptr().as_raw();
    /// // A kernel or a foreign runtime uses the address.
    /// assert!(!address.is_null());
    /// // SAFETY: nothing uses or freed the memory.
    /// let buffer = unsafe { DeviceMemoryBuffer::from_raw(raw) };
    /// assert_eq!(buffer.size(), 64);
    /// # Ok::<(), device_memory::Error>(())
    /// ```
    #[must_use = "the memory is leaked unless it is taken back"]
    pub fn into_raw(self) -> RawDeviceMemory {
        RawDeviceMemory {
            inner: ManuallyDrop::new(self),
        }
    }

    /// Makes an owner of memory that was allocated otherwise.
    ///
    /// # Errors
    ///
    /// - [`NoDeviceType`](crate::ErrorKind::NoDeviceType): the allocator panicked
    ///   when asked for its type.
    ///
    /// # Safety
    ///
    /// `ptr` came from [`allocate`](DeviceAllocator::allocate) of the allocator
    /// with this layout and index, in this process, no free of it has succeeded,
    /// and nothing else accesses it from now on. If the layout has no bytes,
    /// nothing is promised of `ptr`.
    #[expect(unsafe_code, reason = "ownership is the caller's to give")]
    pub unsafe fn from_raw_parts(
        allocator: impl Into<AllocatorHandle>,
        ptr: DevicePtr,
        layout: DeviceLayout,
        index: DeviceIndex,
    ) -> Result<Self> {
        let allocator = allocator.into();
        let device = Device::new(device_type_of(&*allocator)?, index);
        Ok(Self::own(allocator, ptr, layout, device))
    }

    /// Gives up the memory, which someone else frees or has freed, and nothing
    /// else: the allocator is no longer kept by this.
    pub(crate) fn give_up(mut self) {
        self.size = 0;
    }

    /// Makes an owner again.
    ///
    /// # Safety
    ///
    /// The memory was not freed since [`into_raw`](Self::into_raw), and nothing
    /// else accesses it from now on.
    #[must_use]
    #[expect(unsafe_code, reason = "ownership is the caller's to give")]
    pub unsafe fn from_raw(raw: RawDeviceMemory) -> Self {
        ManuallyDrop::into_inner(raw.inner)
    }
}
