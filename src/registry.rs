//! Which allocator serves which type of device.
//!
//! Rank 5. Imports `allocator`, `backend` and the words.
//!
//! A lookup is one atomic load. That works because a registry keeps every
//! allocator that was ever registered until it is dropped itself: no reader can
//! come too late. The global one is never dropped, so buffers made through it
//! need not count references either.

mod builtin;

use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

use parking_lot::Mutex;

use crate::allocator::{AllocatorHandle, device_type_of};
use crate::device::DeviceType;
use crate::error::{ErrorKind, Result};

/// The allocators of a process or of a part of it, by device type.
///
/// Where nothing is registered for a type, its built-in back end serves: the
/// host's for [`DeviceType::Cpu`]. Built-in back ends are opened on first use.
///
/// All methods may be called from any thread. A replaced or unregistered
/// allocator is kept until the registry is dropped, the global one's for the
/// life of the process; live buffers go on using the allocator that they came
/// from.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use device_memory::{
///     Device, DeviceAllocatorRegistry, DeviceLayout, DeviceMemoryBuffer, DeviceType, HostAllocator,
/// };
///
/// let registry = DeviceAllocatorRegistry::new();
/// registry.register(Arc::new(HostAllocator))?;
/// assert!(registry.register(Arc::new(HostAllocator)).is_err());
///
/// let buffer = DeviceMemoryBuffer::create_in(&registry, DeviceLayout::from_size(64)?, Device::CPU)?;
/// assert_eq!(buffer.size(), 64);
/// assert!(registry.get(DeviceType::Custom(1)).is_none());
/// # Ok::<(), device_memory::Error>(())
/// ```
pub struct DeviceAllocatorRegistry {
    /// # Invariants
    ///
    /// 0. Each is null or points at a handle in `kept`.
    known: [AtomicPtr<AllocatorHandle>; 4],
    /// # Invariants
    ///
    /// 0. As above.
    custom: [AtomicPtr<AllocatorHandle>; 256],
    /// # Invariants
    ///
    /// 1. Handles are only ever added, and freed when the registry is dropped.
    kept: Mutex<Vec<Kept>>,
    /// Whether what is kept is kept for the life of the process, so that handles
    /// of it need not be counted.
    is_global: bool,
}

impl DeviceAllocatorRegistry {
    /// The registry that [`DeviceMemoryBuffer::create`](crate::DeviceMemoryBuffer::create) asks.
    #[inline]
    #[must_use]
    pub fn global() -> &'static Self {
        static GLOBAL: DeviceAllocatorRegistry = DeviceAllocatorRegistry::with_scope(true);
        &GLOBAL
    }

    /// A registry of its own, in which nothing is registered.
    #[must_use]
    pub const fn new() -> Self {
        Self::with_scope(false)
    }

    const fn with_scope(is_global: bool) -> Self {
        Self {
            known: [const { AtomicPtr::new(ptr::null_mut()) }; 4],
            custom: [const { AtomicPtr::new(ptr::null_mut()) }; 256],
            kept: Mutex::new(Vec::new()),
            is_global,
        }
    }

    /// Lets `allocator` serve its type of device, if none does.
    ///
    /// Of registrations that race, one wins. A built-in back end does not count.
    ///
    /// # Errors
    ///
    /// - [`AlreadyRegistered`](ErrorKind::AlreadyRegistered): one does, perhaps this
    ///   very one; it stays in place.
    /// - [`NoDeviceType`](ErrorKind::NoDeviceType): it panicked when asked for its type.
    pub fn register(&self, allocator: impl Into<AllocatorHandle>) -> Result<()> {
        let allocator = allocator.into();
        let device_type = device_type_of(&*allocator)?;
        let mut kept = self.kept.lock();
        let slot = self.slot(device_type);
        if !slot.load(Ordering::Acquire).is_null() {
            drop(kept);
            return Err(ErrorKind::AlreadyRegistered { device_type }.into());
        }
        slot.store(self.keep(&mut kept, allocator), Ordering::Release);
        Ok(())
    }

    /// Lets `allocator` serve its type of device, and returns the one that did.
    ///
    /// # Errors
    ///
    /// - [`NoDeviceType`](ErrorKind::NoDeviceType): it panicked when asked for its type.
    pub fn replace(
        &self,
        allocator: impl Into<AllocatorHandle>,
    ) -> Result<Option<AllocatorHandle>> {
        let allocator = allocator.into();
        let device_type = device_type_of(&*allocator)?;
        let mut kept = self.kept.lock();
        let old = self.registered(device_type).cloned();
        let new = self.keep(&mut kept, allocator);
        self.slot(device_type).store(new, Ordering::Release);
        Ok(old)
    }

    /// Lets nothing but a built-in back end serve the type, and returns the
    /// allocator that did.
    pub fn unregister(&self, device_type: DeviceType) -> Option<AllocatorHandle> {
        let _kept = self.kept.lock();
        let old = self.registered(device_type).cloned();
        self.slot(device_type)
            .store(ptr::null_mut(), Ordering::Release);
        old
    }

    /// The allocator that serves `device_type`, or `None` if none does or its
    /// back end does not open.
    #[inline]
    #[must_use]
    pub fn get(&self, device_type: DeviceType) -> Option<AllocatorHandle> {
        match self.registered(device_type) {
            Some(handle) => Some(handle.clone()),
            None => builtin::open(device_type).ok().cloned(),
        }
    }

    /// The allocator that serves `device_type`, or the reason why none does.
    ///
    /// Takes no lock, unless a built-in back end has to be opened.
    ///
    /// # Errors
    ///
    /// - [`NotRegistered`](ErrorKind::NotRegistered): none is registered or built in.
    /// - what the built-in back end returns when it is opened; a later call tries
    ///   again.
    #[inline]
    pub fn try_get(&self, device_type: DeviceType) -> Result<AllocatorHandle> {
        self.lookup(device_type).cloned()
    }

    /// [`try_get`](Self::try_get) without a handle of one's own.
    #[inline]
    pub(crate) fn lookup(&self, device_type: DeviceType) -> Result<&AllocatorHandle> {
        match self.registered(device_type) {
            Some(handle) => Ok(handle),
            None => builtin::open(device_type),
        }
    }

    /// The handle that is registered for `device_type`, borrowed.
    ///
    /// The cheapest look-up: it counts nothing and opens nothing, so a built-in
    /// back end is `None`.
    #[inline]
    #[must_use]
    #[expect(unsafe_code, reason = "see SAFETY")]
    pub fn registered(&self, device_type: DeviceType) -> Option<&AllocatorHandle> {
        let handle = self.slot(device_type).load(Ordering::Acquire);
        // SAFETY: a slot is null or points at a handle in `kept` (invariant 0),
        // which is not freed while the registry is borrowed (invariant 1) and
        // only used by shared reference.
        unsafe { handle.as_ref() }
    }

    /// The slot of a type.
    #[inline]
    #[expect(
        clippy::indexing_slicing,
        reason = "the number of a type is below the number of slots"
    )]
    fn slot(&self, device_type: DeviceType) -> &AtomicPtr<AllocatorHandle> {
        if let DeviceType::Custom(number) = device_type {
            return &self.custom[usize::from(number)];
        }
        &self.known[match device_type {
            DeviceType::Cpu | DeviceType::Custom(_) => 0,
            DeviceType::Cuda => 1,
            DeviceType::CudaHost => 2,
            DeviceType::CudaManaged => 3,
        }]
    }

    /// Keeps `allocator`, unless it is kept already, and returns where.
    fn keep(&self, kept: &mut Vec<Kept>, allocator: AllocatorHandle) -> *mut AllocatorHandle {
        let known = kept
            .iter()
            .find(|kept| kept.handle().same_allocator(&allocator));
        if let Some(known) = known {
            return known.0.as_ptr();
        }
        let new = Kept::new(if self.is_global {
            allocator.into_forever()
        } else {
            allocator
        });
        let place = new.0.as_ptr();
        kept.push(new);
        place
    }
}

impl Default for DeviceAllocatorRegistry {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for DeviceAllocatorRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let types = [
            DeviceType::Cpu,
            DeviceType::Cuda,
            DeviceType::CudaHost,
            DeviceType::CudaManaged,
        ];
        let registered = types
            .into_iter()
            .chain((0..=u8::MAX).map(DeviceType::Custom))
            .filter_map(|device_type| Some((device_type, self.registered(device_type)?)));
        f.debug_map().entries(registered).finish()
    }
}

/// A handle at an address of its own, which stays while the list of them moves.
///
/// # Invariants
///
/// 0. The pointer came from `Box::into_raw` and is freed by `drop` only.
struct Kept(NonNull<AllocatorHandle>);

// SAFETY: this owns a handle, which is Send and Sync.
#[expect(unsafe_code, reason = "a raw pointer is only Send by declaration")]
unsafe impl Send for Kept {}

impl Kept {
    fn new(handle: AllocatorHandle) -> Self {
        Self(NonNull::from(Box::leak(Box::new(handle))))
    }

    #[expect(unsafe_code, reason = "see SAFETY")]
    fn handle(&self) -> &AllocatorHandle {
        // SAFETY: the box is not freed while `self` lives (invariant 0), and no
        // exclusive reference to it is ever made before that.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Kept {
    #[expect(unsafe_code, reason = "see SAFETY")]
    fn drop(&mut self) {
        // SAFETY: the pointer came from a box and is freed only here (invariant 0).
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}
