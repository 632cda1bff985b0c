//! One allocator for small blocks, another for large ones.
//!
//! Rank 4. Imports `allocator`, `ledger` and the words.
//!
//! Which allocator a block is of follows from its size when it is freed as when it
//! was allocated. A copy names a place within a block, so that where each block lies
//! is kept for it.

use crate::address::DevicePtr;
use crate::allocator::{DeviceAllocator, End, MemoryInfo, below, copy_through_host, guarded};
use crate::device::{Device, DeviceIndex, DeviceType};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::layout::DeviceLayout;
use crate::ledger::{Entry, Ledger};
use crate::process::ProcessGeneration;

/// An allocator that hands each size range to an allocator of its own.
///
/// The allocators may be of different kinds if `A` is `Arc<dyn DeviceAllocator>`, but
/// serve the same type of device. The memory is said to be readable by the host if
/// that of all of them is, and there are as many devices as the one with the fewest
/// has. Free memory is that of the allocator for large blocks.
///
/// Costs a comparison a bin, and a lock of the device and a look-up among its live
/// blocks for each call, copies as well. In a forked child nothing is given or taken
/// back.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use device_memory::adaptor::{Arena, Binning};
/// use device_memory::{DeviceAllocator, DeviceLayout, DeviceMemoryBuffer, HostAllocator};
///
/// let small: Arc<dyn DeviceAllocator> = Arc::new(Arena::over(HostAllocator, 1 << 16));
/// let large: Arc<dyn DeviceAllocator> = Arc::new(HostAllocator);
/// let binning = Arc::new(Binning::over(large).bin(4096, small)?);
///
/// let layout = DeviceLayout::from_size(100)?;
/// let first = DeviceMemoryBuffer::create_with(binning.clone(), layout, 0)?;
/// let second = DeviceMemoryBuffer::create_with(binning, layout, 0)?;
///
/// assert_eq!(second.ptr().addr() - first.ptr().addr(), 128);
/// # Ok::<(), device_memory::Error>(())
/// ```
#[derive(Debug)]
pub struct Binning<A> {
    /// The bins by the size of their largest block.
    bins: Vec<Bin<A>>,
    rest: A,
    device_type: DeviceType,
    host_accessible: bool,
    /// The layouts of live blocks.
    blocks: Ledger<DeviceLayout>,
    generation: ProcessGeneration,
}

#[derive(Debug)]
struct Bin<A> {
    most: usize,
    allocator: A,
}

impl<A: DeviceAllocator> Binning<A> {
    /// Has no bins: all blocks are of `rest`.
    #[must_use]
    pub fn over(rest: A) -> Self {
        Self {
            bins: Vec::new(),
            device_type: rest.device_type(),
            host_accessible: rest.is_host_accessible(),
            rest,
            blocks: Ledger::default(),
            generation: ProcessGeneration::current(),
        }
    }

    /// Has `allocator` serve blocks of up to `most` bytes that no other bin for
    /// smaller blocks does. Bins may be added in any order; of two for the same size
    /// the first stays.
    ///
    /// # Errors
    ///
    /// - [`DeviceMismatch`](ErrorKind::DeviceMismatch): it serves another type of device.
    pub fn bin(mut self, most: usize, allocator: A) -> Result<Self> {
        let found = allocator.device_type();
        if found != self.device_type {
            return Err(ErrorKind::DeviceMismatch {
                expected: Device::new(self.device_type, 0),
                found: Device::new(found, 0),
            }
            .into());
        }
        self.host_accessible &= allocator.is_host_accessible();
        let at = self.bins.partition_point(|bin| bin.most <= most);
        self.bins.insert(at, Bin { most, allocator });
        Ok(self)
    }

    /// The allocator that serves blocks of `size` bytes.
    #[must_use]
    pub fn serving(&self, size: usize) -> &A {
        let bin = self.bins.iter().find(|bin| size <= bin.most);
        bin.map_or(&self.rest, |bin| &bin.allocator)
    }

    fn all(&self) -> impl Iterator<Item = &A> {
        self.bins
            .iter()
            .map(|bin| &bin.allocator)
            .chain([&self.rest])
    }

    fn check_process(&self, index: DeviceIndex) -> Result<()> {
        if self.generation.is_current() {
            return Ok(());
        }
        let device = Device::new(self.device_type, index);
        Err(ErrorKind::ForkedProcess { device }.into())
    }

    /// The allocator of the block that `ptr` points into.
    fn owner(&self, ptr: DevicePtr, index: DeviceIndex, operation: Operation) -> Result<&A> {
        self.check_process(index)?;
        let size = self.blocks.change(index, ptr.addr(), |start, layout| {
            let offset = ptr.addr().checked_sub(start);
            let inside = offset.is_some_and(|offset| offset < layout.size());
            inside.then_some(layout.size())
        });
        match size.flatten() {
            Some(size) => Ok(self.serving(size)),
            None => Err(self.stray(ptr, index, operation)),
        }
    }

    #[cold]
    fn stray(&self, ptr: DevicePtr, index: DeviceIndex, operation: Operation) -> Error {
        let device = Device::new(self.device_type, index);
        Error::backend(device, operation, format!("no live block at {ptr}"))
    }
}

impl Entry for DeviceLayout {
    fn size(&self) -> usize {
        DeviceLayout::size(*self)
    }
}

// SAFETY: by number of the promises,
// 1. The type is kept; the least of counts that never fall never falls.
// 2. to 4. Blocks are those of the allocator that serves their size, which is asked to
//    take them back. Those of two allocators lie in memory that each of them holds.
// 5. Said only if each allocator does.
// 6. A copy within one allocator is that allocator's, one between two goes through
//    the host and waits for both.
// 7. Where a block lies is entered after it was given, struck before it is given back,
//    and entered again if that fails.
// 8, 9. Those of the allocators.
// 10. The default of both: no allocator is known that all addresses are of.
#[expect(unsafe_code, reason = "implements an unsafe trait")]
unsafe impl<A: DeviceAllocator> DeviceAllocator for Binning<A> {
    fn device_type(&self) -> DeviceType {
        self.device_type
    }

    fn device_count(&self) -> usize {
        self.all().map(A::device_count).min().unwrap_or(0)
    }

    fn is_host_accessible(&self) -> bool {
        self.host_accessible
    }

    fn allocate(&self, layout: DeviceLayout, index: DeviceIndex) -> Result<DevicePtr> {
        self.check_index(index)?;
        self.check_process(index)?;
        let serving = self.serving(layout.size());
        let ptr = serving.allocate(layout, index).map_err(|error| {
            error.explained(|report| {
                report.in_use.get_or_insert(self.blocks.bytes(index));
            })
        })?;
        self.blocks.enter(index, ptr.addr(), layout);
        Ok(ptr)
    }

    unsafe fn deallocate(
        &self,
        ptr: DevicePtr,
        layout: DeviceLayout,
        index: DeviceIndex,
    ) -> Result<()> {
        self.check_process(index)?;
        let operation = Operation::Deallocate;
        let same = |allocated: &DeviceLayout| match *allocated == layout {
            true => Ok(()),
            false => Err(()),
        };
        let Some(Ok(struck)) = self.blocks.strike(index, ptr.addr(), same) else {
            return Err(self.stray(ptr, index, operation));
        };
        let device = Device::new(self.device_type, index);
        let freed = guarded(device, operation, || {
            // SAFETY: the caller's promises are the same; the allocator that serves the
            // size gave the block.
            unsafe { self.serving(layout.size()).deallocate(ptr, layout, index) }
        });
        if freed.as_ref().is_err_and(|error| !error.is_shut_down()) {
            self.blocks.enter(index, ptr.addr(), struck);
        }
        freed
    }

    unsafe fn copy_host_to_device(
        &self,
        dst: DevicePtr,
        src: *const u8,
        size: usize,
        index: DeviceIndex,
    ) -> Result<()> {
        let owner = self.owner(dst, index, Operation::CopyHostToDevice)?;
        // SAFETY: the caller's promises are the same, for a block that is the owner's.
        unsafe { owner.copy_host_to_device(dst, src, size, index) }
    }

    unsafe fn copy_device_to_host(
        &self,
        dst: *mut u8,
        src: DevicePtr,
        size: usize,
        index: DeviceIndex,
    ) -> Result<()> {
        let owner = self.owner(src, index, Operation::CopyDeviceToHost)?;
        // SAFETY: as for the copy to the device.
        unsafe { owner.copy_device_to_host(dst, src, size, index) }
    }

    unsafe fn copy_device_to_device(
        &self,
        dst: DevicePtr,
        dst_index: DeviceIndex,
        src: DevicePtr,
        src_index: DeviceIndex,
        size: usize,
    ) -> Result<()> {
        let to = self.owner(dst, dst_index, Operation::CopyDeviceToDevice)?;
        let from = self.owner(src, src_index, Operation::CopyDeviceToDevice)?;
        if std::ptr::eq(to, from) {
            // SAFETY: as for the copy to the device, on both sides.
            return unsafe { to.copy_device_to_device(dst, dst_index, src, src_index, size) };
        }
        let dst = End {
            allocator: to,
            ptr: dst,
            index: dst_index,
        };
        let src = End {
            allocator: from,
            ptr: src,
            index: src_index,
        };
        // SAFETY: the caller's promises are the same for both ends, each of which is a
        // block of its allocator.
        unsafe { copy_through_host(dst, src, size) }
    }

    unsafe fn fill(&self, dst: DevicePtr, byte: u8, size: usize, index: DeviceIndex) -> Result<()> {
        let owner = self.owner(dst, index, Operation::Fill)?;
        // SAFETY: as for the copy to the device.
        unsafe { owner.fill(dst, byte, size, index) }
    }

    fn memory_info(&self, index: DeviceIndex) -> Result<Option<MemoryInfo>> {
        self.check_index(index)?;
        below::memory_info(&self.rest, index)
    }

    fn synchronize(&self, index: DeviceIndex) -> Result<()> {
        self.check_index(index)?;
        self.all()
            .try_for_each(|allocator| below::synchronize(allocator, index))
    }

    fn trim(&self, index: DeviceIndex) -> Result<usize> {
        self.check_index(index)?;
        self.all().try_fold(0, |sum: usize, allocator| {
            Ok(sum.saturating_add(below::trim(allocator, index)?))
        })
    }
}
