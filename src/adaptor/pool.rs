//! Memory that is kept and handed out again.
//!
//! Rank 4. Imports `allocator`, `free_failure`, `free_space`, `stream` and the
//! words.
//!
//! No lock is held while the layer below, a stream or the program is called.

mod device;
mod heap;
mod keeping;
mod ladder;
mod on_stream;
mod options;
mod slot;
mod slots;
mod status;
mod turn;

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::address::DevicePtr;
use crate::allocator::{DeviceAllocator, MemoryInfo, forward};
use crate::device::{Device, DeviceIndex};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::layout::{DeviceLayout, LayoutError};
use crate::process::ProcessGeneration;
use crate::unwind::caught;

pub use on_stream::PoolOnStream;
pub use options::{MakeRoom, PoolBuilder};
pub use status::{PoolCounters, PoolStatus};

use device::PoolDevice;
use heap::UNIT_LOG2;
use on_stream::{StreamState, Uses};

/// A caching sub-allocator: it takes large segments from the layer below and hands
/// out parts of them.
///
/// - A request gets the smallest free block that holds it, or a part of it: from its
///   high end if it is 8 MiB or more, so that large blocks and small ones are less in
///   each other's way. Free neighbours are joined at once.
/// - A few free blocks of each size are kept as they are, for a few groups of
///   threads, and are had and given back by one atomic exchange: small ones always, and
///   those of any size while memory is ample
///   ([`cache_limit`](PoolBuilder::cache_limit)).
/// - Memory with a persistent [tag](crate::Tag) has segments of its own, so that
///   weights do not keep apart what comes and goes.
/// - A block that is given back may be another's at once: that is what
///   [`deallocate`](DeviceAllocator::deallocate) asks of its caller. For memory
///   that work on the device may still use, there are handles in the order of a
///   stream: [`on_stream`](Self::on_stream).
///
/// What a request goes through when there is no room is a ladder: search; complete
/// frees whose work is done, and search again; give back unused segments that are
/// too small, as many bytes as are asked for, and ask the layer below; wait for the
/// rest of such frees, and search again; give unused segments back, and ask the
/// layer below again; ask the program to make room. Each step is counted
/// ([`counters`](Self::counters)), and an [`OutOfMemory`](crate::OutOfMemory) says
/// which were taken.
///
/// Memory that is handed out again keeps the bytes that it had. A failed request
/// changes nothing but that segments may have been given back. Clones are handles
/// of one pool. When the last is dropped, segments are given back, but for those
/// in which a block is still allocated. In a forked child nothing is, and requests
/// are refused.
///
/// # Cost
///
/// A block that is kept: one atomic exchange to have, one to give. Others: a lock of
/// the device, and a search that costs the logarithm of the number of free blocks of
/// about its size. Blocks aligned to more than 256 bytes may cost a look at all that
/// are large enough. About 100 bytes of host memory a block; 8 KiB for each group of
/// threads and each stream.
///
/// # Threads
///
/// It may be used from any thread, and by what the layer below or a stream calls back,
/// also by way of other threads that that waits for. Threads that find no block go up
/// the ladder one after another, so that one takes what all need; those that find one,
/// and those that free, wait for nobody. A thread waits a tenth of a second for another
/// and then goes on beside it. If it finds no room there, what others have on their way
/// may be it: it waits once more as long, and goes up a second time, before it gives up.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use device_memory::adaptor::Pool;
/// use device_memory::{DeviceAllocator, DeviceLayout, DeviceMemoryBuffer, HostAllocator};
///
/// let pool = Arc::new(Pool::over(HostAllocator));
/// let layout = DeviceLayout::from_size(3 << 20)?;
///
/// let first = DeviceMemoryBuffer::create_with(pool.clone(), layout, 0)?;
/// let place = first.ptr();
/// drop(first);
/// let second = DeviceMemoryBuffer::create_with(pool.clone(), layout, 0)?;
///
/// assert_eq!(second.ptr(), place);
/// assert_eq!(pool.counters(0)?.grown, 1);
/// drop(second);
/// assert_eq!(pool.status(0)?.in_use, 0);
/// assert_eq!(pool.trim(0)?, 32 << 20);
/// # Ok::<(), device_memory::Error>(())
/// ```
#[derive(Debug)]
pub struct Pool<A: DeviceAllocator> {
    core: Arc<Core<A>>,
}

impl<A: DeviceAllocator> Clone for Pool<A> {
    fn clone(&self) -> Self {
        let core = Arc::clone(&self.core);
        Self { core }
    }
}

/// What the handles of a pool have in common.
#[derive(Debug)]
struct Core<A: DeviceAllocator> {
    upstream: A,
    options: PoolBuilder,
    devices: Box<[OnceLock<Box<PoolDevice>>]>,
    streams: Mutex<Vec<Arc<StreamState>>>,
    uses: Uses,
    made_in: ProcessGeneration,
}

impl<A: DeviceAllocator> Pool<A> {
    /// A pool with the options of [`PoolBuilder::new`], for the devices that `upstream` has now.
    #[must_use]
    pub fn over(upstream: A) -> Self {
        PoolBuilder::new().build(upstream)
    }

    /// The allocator inside.
    #[must_use]
    pub fn inner(&self) -> &A {
        &self.core.upstream
    }

    /// What is held of the memory of a device. Takes its lock, and time for each
    /// block that waits or is kept.
    ///
    /// # Errors
    ///
    /// - [`InvalidDevice`](ErrorKind::InvalidDevice): no such index.
    /// - [`ForkedProcess`](ErrorKind::ForkedProcess): the pool is a parent process's.
    pub fn status(&self, index: DeviceIndex) -> Result<PoolStatus> {
        let device = self.core.device(index)?;
        Ok(device.status())
    }

    /// How often each way to memory of a device was tried.
    ///
    /// # Errors
    ///
    /// Those of [`status`](Self::status).
    pub fn counters(&self, index: DeviceIndex) -> Result<PoolCounters> {
        let device = self.core.device(index)?;
        Ok(device.counters())
    }
}

impl<A: DeviceAllocator> Core<A> {
    fn new(upstream: A, options: PoolBuilder) -> Self {
        let devices = caught(|| upstream.device_count()).unwrap_or(0);
        let devices = devices.min(usize::from(DeviceIndex::MAX).saturating_add(1));
        Self {
            upstream,
            options,
            devices: (0..devices).map(|_| OnceLock::new()).collect(),
            streams: Mutex::new(Vec::new()),
            uses: Uses::default(),
            made_in: ProcessGeneration::current(),
        }
    }

    /// The device `index`.
    fn at(&self, index: DeviceIndex) -> Device {
        Device::new(self.upstream.device_type(), index)
    }

    /// The device, if it was used before and this is the process it was used in.
    #[inline]
    fn ready(&self, index: DeviceIndex) -> Option<&PoolDevice> {
        let device = self.devices.get(usize::from(index))?.get()?;
        self.made_in.is_current().then_some(device)
    }

    /// The device, made ready.
    #[inline]
    fn device(&self, index: DeviceIndex) -> Result<&PoolDevice> {
        match self.ready(index) {
            Some(device) => Ok(device),
            None => self.make_ready(index),
        }
    }

    #[cold]
    fn make_ready(&self, index: DeviceIndex) -> Result<&PoolDevice> {
        let Some(device) = self.devices.get(usize::from(index)) else {
            let count = self.devices.len();
            let device = self.at(index);
            return Err(ErrorKind::InvalidDevice { device, count }.into());
        };
        self.check_process(index)?;
        let at = self.at(index);
        let made = || Box::new(PoolDevice::new(at, &self.options));
        Ok(device.get_or_init(made))
    }

    /// Checks that this is the process that the pool was made in.
    fn check_process(&self, index: DeviceIndex) -> Result<()> {
        if self.made_in.is_current() {
            return Ok(());
        }
        let device = self.at(index);
        Err(ErrorKind::ForkedProcess { device }.into())
    }

    /// Allocates in an order.
    #[inline(always)]
    fn allocate(
        &self,
        layout: DeviceLayout,
        index: DeviceIndex,
        order: Option<&Arc<StreamState>>,
    ) -> Result<DevicePtr> {
        let device = self.device(index)?;
        if let Some(units) = cached_units(layout)
            && let Some(ptr) = device.take_kept(units, order)
        {
            return Ok(ptr);
        }
        self.find(device, layout, order)
    }

    /// Allocates what no block is kept for.
    #[inline(never)]
    fn find(
        &self,
        device: &PoolDevice,
        layout: DeviceLayout,
        order: Option<&Arc<StreamState>>,
    ) -> Result<DevicePtr> {
        let size = match units(layout.size()) {
            0 => return Err(LayoutError::ZeroSize.into()),
            // The size is at most isize::MAX, so this does not wrap.
            units => units.wrapping_shl(UNIT_LOG2),
        };
        match device.search(layout, size, order) {
            Some(ptr) => Ok(ptr),
            None => self.climb(device, layout, size, order),
        }
    }

    /// Frees in an order.
    #[inline(always)]
    fn deallocate(
        &self,
        ptr: DevicePtr,
        layout: DeviceLayout,
        index: DeviceIndex,
        order: Option<&Arc<StreamState>>,
    ) -> Result<()> {
        let device = self.device(index)?;
        if self.uses.is_empty() {
            self.put(device, ptr, layout, order)
        } else {
            self.put_after_uses(device, ptr, layout, order)
        }
    }

    /// Frees a block that others may have when the streams that use it are done.
    #[inline(never)]
    fn put_after_uses(
        &self,
        device: &PoolDevice,
        ptr: DevicePtr,
        layout: DeviceLayout,
        order: Option<&Arc<StreamState>>,
    ) -> Result<()> {
        let size = units(layout.size()).wrapping_shl(UNIT_LOG2);
        let place = (device.device.index(), ptr.addr());
        let fences = self.uses.fences(place, size, order)?;
        if fences.is_empty() {
            return self.put(device, ptr, layout, order);
        }
        let mut heap = device.part(layout).lock();
        let given = heap.give_later(ptr.addr(), fences, order.cloned());
        drop(heap);
        given.map_err(|_fences| Self::unknown(device.device, ptr))
    }

    /// Keeps a block that nothing uses, or gives it back, or one that gave way to it.
    #[inline(always)]
    fn put(
        &self,
        device: &PoolDevice,
        ptr: DevicePtr,
        layout: DeviceLayout,
        order: Option<&Arc<StreamState>>,
    ) -> Result<()> {
        let unkept = match cached_units(layout) {
            Some(units) => device.keep(units, ptr, order),
            None => Some(ptr),
        };
        match unkept {
            Some(ptr) => self.give(device, ptr, layout, order),
            None => Ok(()),
        }
    }

    /// Gives a block that is not kept back, to be joined with its neighbours. It was
    /// asked for with `layout`, or another that makes it a part of the same heap.
    fn give(
        &self,
        device: &PoolDevice,
        ptr: DevicePtr,
        layout: DeviceLayout,
        order: Option<&Arc<StreamState>>,
    ) -> Result<()> {
        match device.give(ptr, layout, order) {
            Some(whole) => {
                if whole && self.options.release_threshold < usize::MAX {
                    self.release_excess(device);
                }
                Ok(())
            }
            None => Err(Self::unknown(device.device, ptr)),
        }
    }

    /// The error for a free of what is not a block.
    #[cold]
    fn unknown(device: Device, ptr: DevicePtr) -> Error {
        let message = format!("no block of the pool starts at {ptr}");
        Error::backend(device, Operation::Deallocate, message)
    }

    /// The error for more things than can be told apart.
    #[cold]
    fn too_many(device: Device, operation: Operation) -> Error {
        Error::backend(device, operation, "the pool has too many blocks")
    }
}

/// The size in units of the blocks for a layout, if some may be kept as they are.
#[inline]
fn cached_units(layout: DeviceLayout) -> Option<usize> {
    let plain = layout.align_log2() <= UNIT_LOG2 && !layout.tag().is_persistent();
    plain.then(|| units(layout.size()))
}

/// The size in units, rounded up.
#[inline]
fn units(size: usize) -> usize {
    size.div_ceil(1_usize.wrapping_shl(UNIT_LOG2))
}

// SAFETY: by number of the promises,
// 1. and 5. Both are those of the layer below. Its bytes are initialized if it
//    says so, and stay so.
// 2. and 3. A block is part of a segment of the layer below, which is given back
//    only when no block in it is in use; `FreeSpace` hands out no byte twice.
// 4. Blocks are at multiples of 256 bytes, or as asked, in segments aligned so.
// 6. Copies are those of the layer below.
// 7. A search that fails has no effect; a free that fails is refused before it
//    has one.
// 8. A layout of no bytes is refused.
// 9. In a child nothing is given back.
// 10. Addresses are in blocks of the layer below.
#[expect(unsafe_code, reason = "implements an unsafe trait")]
unsafe impl<A: DeviceAllocator> DeviceAllocator for Pool<A> {
    forward!(self => self.core.upstream; identity, upstream, copies, synchronize);

    #[inline]
    fn allocate(&self, layout: DeviceLayout, index: DeviceIndex) -> Result<DevicePtr> {
        self.core.allocate(layout, index, None)
    }

    #[inline]
    unsafe fn deallocate(
        &self,
        ptr: DevicePtr,
        layout: DeviceLayout,
        index: DeviceIndex,
    ) -> Result<()> {
        self.core.deallocate(ptr, layout, index, None)
    }

    fn memory_info(&self, index: DeviceIndex) -> Result<Option<MemoryInfo>> {
        self.core.memory_info(index)
    }

    /// Waits for frees that wait for work, and gives all segments back in which
    /// nothing is in use; then has the layer below do the same. What that gives
    /// back includes these segments, if it keeps any.
    fn trim(&self, index: DeviceIndex) -> Result<usize> {
        self.core.trim(index)
    }
}
