//! An allocator that fails when told to.
//!
//! Rank 8. Part of `testing`. Imports `allocator` and the words.
//!
//! A call that fails never reaches the allocator inside, so the allocator's
//! state is what it was before the call.

mod faults;

use std::panic;

use crate::address::DevicePtr;
use crate::allocator::{DeviceAllocator, MemoryInfo};
use crate::device::{Device, DeviceIndex, DeviceType};
use crate::error::{Error, Operation, OutOfMemory, Result};
use crate::layout::DeviceLayout;

pub use faults::{Faults, InjectedFault};

use faults::Outcome;

/// An allocator that passes calls on to another, and fails those it is told to.
///
/// An `allocate` that fails is out of memory; any other call returns a
/// [`Backend`](crate::ErrorKind::Backend) error whose source is an [`InjectedFault`].
///
/// The orders are kept in [`Faults`], which all clones share. A test takes them
/// with [`faults`](Self::faults) before it gives the allocator away.
///
/// # Examples
///
/// ```
/// use device_memory::testing::{FakeDevice, FaultInjector};
/// use device_memory::{DeviceAllocator, DeviceLayout, DeviceType, Operation};
///
/// let fake = FakeDevice::new(DeviceType::Cuda, 1);
/// let allocator = FaultInjector::new(fake.clone());
/// let layout = DeviceLayout::from_size(64)?;
///
/// allocator.fail_nth(Operation::Allocate, 2);
///
/// let first = allocator.allocate(layout, 0)?;
/// assert!(allocator.allocate(layout, 0).unwrap_err().is_out_of_memory());
/// let third = allocator.allocate(layout, 0)?;
/// assert_eq!(fake.calls().len(), 2);
/// # assert_ne!(first, third);
/// # Ok::<(), device_memory::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct FaultInjector<A> {
    inner: A,
    faults: Faults,
}

impl<A> FaultInjector<A> {
    /// Wraps an allocator, with no orders to fail.
    #[must_use]
    pub fn new(inner: A) -> Self {
        Self::with_faults(inner, Faults::new())
    }

    /// Wraps an allocator that fails by orders which others share.
    #[must_use]
    pub fn with_faults(inner: A, faults: Faults) -> Self {
        Self { inner, faults }
    }

    /// The orders, which go on to apply to this allocator and its clones.
    #[must_use]
    pub fn faults(&self) -> Faults {
        self.faults.clone()
    }

    /// The allocator inside.
    #[must_use]
    pub fn inner(&self) -> &A {
        &self.inner
    }

    /// The allocator inside, without the wrapper.
    #[must_use]
    pub fn into_inner(self) -> A {
        self.inner
    }

    /// See [`Faults::fail_nth`].
    pub fn fail_nth(&self, operation: Operation, n: u64) {
        self.faults.fail_nth(operation, n);
    }

    /// See [`Faults::fail_nth_call`].
    pub fn fail_nth_call(&self, n: u64) {
        self.faults.fail_nth_call(n);
    }

    /// See [`Faults::fail_all`].
    pub fn fail_all(&self, operation: Operation) {
        self.faults.fail_all(operation);
    }

    /// See [`Faults::panic_on`].
    pub fn panic_on(&self, operation: Operation, n: u64) {
        self.faults.panic_on(operation, n);
    }

    /// See [`Faults::disarm`].
    pub fn disarm(&self) {
        self.faults.disarm();
    }

    /// See [`Faults::calls`].
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.faults.calls()
    }
}

impl<A: DeviceAllocator> FaultInjector<A> {
    /// Counts a call, and fails or panics if that is ordered.
    #[expect(clippy::panic, reason = "a panic that was ordered is the purpose")]
    fn pass(&self, operation: Operation, index: DeviceIndex) -> Result<()> {
        match self.faults.count(operation) {
            Outcome::Pass => Ok(()),
            Outcome::Fail(fault) => {
                let device = Device::new(self.inner.device_type(), index);
                Err(Error::backend(device, operation, fault))
            }
            Outcome::Panic(fault) => panic::panic_any(fault.to_string()),
        }
    }
}

// SAFETY: all promises are those of the allocator inside, which every call that
// is not refused is passed on to unchanged. Refusing a call changes nothing,
// touches no memory and leaves a block allocated; a panic does as well.
#[expect(unsafe_code, reason = "implements an unsafe trait")]
unsafe impl<A: DeviceAllocator> DeviceAllocator for FaultInjector<A> {
    fn device_type(&self) -> DeviceType {
        self.inner.device_type()
    }

    fn device_count(&self) -> usize {
        self.inner.device_count()
    }

    fn allocate(&self, layout: DeviceLayout, index: DeviceIndex) -> Result<DevicePtr> {
        if self.pass(Operation::Allocate, index).is_err() {
            let device = Device::new(self.inner.device_type(), index);
            return Err(OutOfMemory::new(device, layout).into());
        }
        self.inner.allocate(layout, index)
    }

    unsafe fn deallocate(
        &self,
        ptr: DevicePtr,
        layout: DeviceLayout,
        index: DeviceIndex,
    ) -> Result<()> {
        self.pass(Operation::Deallocate, index)?;
        // SAFETY: the caller's promises are the same; `ptr` came from the
        // allocator inside.
        unsafe { self.inner.deallocate(ptr, layout, index) }
    }

    unsafe fn copy_host_to_device(
        &self,
        dst: DevicePtr,
        src: *const u8,
        size: usize,
        index: DeviceIndex,
    ) -> Result<()> {
        self.pass(Operation::CopyHostToDevice, index)?;
        // SAFETY: the caller's promises are the same.
        unsafe { self.inner.copy_host_to_device(dst, src, size, index) }
    }

    unsafe fn copy_device_to_host(
        &self,
        dst: *mut u8,
        src: DevicePtr,
        size: usize,
        index: DeviceIndex,
    ) -> Result<()> {
        self.pass(Operation::CopyDeviceToHost, index)?;
        // SAFETY: the caller's promises are the same.
        unsafe { self.inner.copy_device_to_host(dst, src, size, index) }
    }

    unsafe fn copy_device_to_device(
        &self,
        dst: DevicePtr,
        dst_index: DeviceIndex,
        src: DevicePtr,
        src_index: DeviceIndex,
        size: usize,
    ) -> Result<()> {
        self.pass(Operation::CopyDeviceToDevice, dst_index)?;
        // SAFETY: the caller's promises are the same.
        unsafe {
            self.inner
                .copy_device_to_device(dst, dst_index, src, src_index, size)
        }
    }

    unsafe fn fill(&self, dst: DevicePtr, byte: u8, size: usize, index: DeviceIndex) -> Result<()> {
        self.pass(Operation::Fill, index)?;
        // SAFETY: the caller's promises are the same.
        unsafe { self.inner.fill(dst, byte, size, index) }
    }

    fn is_host_accessible(&self) -> bool {
        self.inner.is_host_accessible()
    }

    fn memory_info(&self, index: DeviceIndex) -> Result<Option<MemoryInfo>> {
        self.pass(Operation::MemoryInfo, index)?;
        self.inner.memory_info(index)
    }

    fn synchronize(&self, index: DeviceIndex) -> Result<()> {
        self.pass(Operation::Synchronize, index)?;
        self.inner.synchronize(index)
    }

    fn trim(&self, index: DeviceIndex) -> Result<usize> {
        self.pass(Operation::Trim, index)?;
        self.inner.trim(index)
    }

    fn check_index(&self, index: DeviceIndex) -> Result<()> {
        self.inner.check_index(index)
    }
}
