//! Which blocks are live, whose they are, and which were forgotten.
//!
//! Rank 4. Imports `allocator`, `ledger` and the words.
//!
//! A block is entered after the layer below gave it and struck before the layer
//! below gets it back, so an entry is never that of another block at the same
//! address.

use std::backtrace::Backtrace;
use std::fmt;
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::Instant;

use crate::address::DevicePtr;
use crate::allocator::{DeviceAllocator, forward, guarded};
use crate::device::{Device, DeviceIndex};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::layout::DeviceLayout;
use crate::ledger::{Entry, Ledger};
use crate::observe::Block;
use crate::process::ProcessGeneration;
use crate::sync::{AtomicU64, Ordering};

/// An allocator that knows its live blocks, and takes back no others.
///
/// A free of an address that is no live block's, or with another layout than it was
/// allocated with, is refused with an [`Untracked`] as its source, and the layer
/// below is not told.
///
/// Costs a lock of the device and a look-up among its live blocks for each call,
/// and some hundred bytes of host memory a block; with backtraces a few microseconds
/// more for each allocation. In a forked child nothing is given or taken back, and no
/// block is known.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use device_memory::adaptor::Tracking;
/// use device_memory::{DeviceLayout, DeviceMemoryBuffer, HostAllocator, Tag};
///
/// let tracking = Arc::new(Tracking::over(HostAllocator));
/// let layout = DeviceLayout::from_size(4096)?.with_tag(Tag::WEIGHTS);
/// let buffer = DeviceMemoryBuffer::create_with(tracking.clone(), layout, 0)?;
/// tracking.set_name(0, buffer.ptr(), "embedding");
///
/// assert_eq!(
///     tracking.report().to_string(),
///     format!("1 live block(s), 4096 bytes\n4096 bytes at {} on cpu:0, tag weights, \
///              number 1, embedding", buffer.ptr())
/// );
/// drop(buffer);
/// assert!(tracking.report().live.is_empty());
/// # Ok::<(), device_memory::Error>(())
/// ```
#[derive(Debug)]
pub struct Tracking<A> {
    upstream: A,
    live: Ledger<Allocation>,
    count: AtomicU64,
    backtraces: bool,
    generation: ProcessGeneration,
}

/// A block that is allocated, and what is known of it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Allocation {
    /// Where it is and what was asked for.
    pub block: Block,
    /// Its number among all allocations, counted from 1.
    pub number: u64,
    /// What it was named after the fact.
    pub name: Option<Arc<str>>,
    /// The thread that allocated it.
    pub thread: ThreadId,
    /// When it was allocated.
    pub since: Instant,
    /// Where it was allocated, if backtraces are kept.
    pub backtrace: Option<Arc<Backtrace>>,
}

/// Why a block is not taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Untracked {
    /// No live block starts at the address: it is another allocator's, or was
    /// freed before.
    #[error("no live block at {ptr}")]
    Foreign {
        /// The address.
        ptr: DevicePtr,
    },
    /// The block was allocated with another layout.
    #[error("block at {ptr} has {allocated:?}, freed with {freed:?}")]
    WrongLayout {
        /// The address.
        ptr: DevicePtr,
        /// The layout it was allocated with.
        allocated: DeviceLayout,
        /// The layout it was to be freed with.
        freed: DeviceLayout,
    },
}

/// The blocks that are live, the largest first.
///
/// Shown as one line for all and one for each.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LiveReport {
    /// The blocks.
    pub live: Vec<Allocation>,
}

impl<A> Tracking<A> {
    /// Knows what `upstream` gives from now on. No backtraces are kept.
    #[must_use]
    pub fn over(upstream: A) -> Self {
        Self {
            upstream,
            live: Ledger::default(),
            count: AtomicU64::new(0),
            backtraces: false,
            generation: ProcessGeneration::current(),
        }
    }

    /// Whether to keep where each block was allocated.
    #[must_use]
    pub fn with_backtraces(mut self, kept: bool) -> Self {
        self.backtraces = kept;
        self
    }

    /// The allocator inside.
    #[must_use]
    pub fn inner(&self) -> &A {
        &self.upstream
    }

    /// The live blocks, the largest first, to be shown or looked through.
    #[must_use]
    pub fn report(&self) -> LiveReport {
        let mut live = match self.generation.is_current() {
            true => self.live.entries(),
            false => Vec::new(),
        };
        live.sort_by_key(|allocation| std::cmp::Reverse(allocation.block.layout.size()));
        LiveReport { live }
    }

    /// How many blocks are live.
    #[must_use]
    pub fn live_blocks(&self) -> usize {
        match self.generation.is_current() {
            true => self.live.len(),
            false => 0,
        }
    }

    /// The live block that `ptr` points into, on the device `index`.
    #[must_use]
    pub fn find(&self, index: DeviceIndex, ptr: DevicePtr) -> Option<Allocation> {
        let found =
            |_, allocation: &mut Allocation| allocation.holds(ptr).then(|| allocation.clone());
        self.change(index, ptr, found)?
    }

    /// Names the live block that `ptr` points into, on the device `index`, and
    /// returns whether there is one.
    pub fn set_name(&self, index: DeviceIndex, ptr: DevicePtr, name: &str) -> bool {
        let name: Arc<str> = name.into();
        let named = |_, allocation: &mut Allocation| {
            let holds = allocation.holds(ptr);
            if holds {
                allocation.name = Some(name);
            }
            holds
        };
        self.change(index, ptr, named).unwrap_or(false)
    }

    /// Looks at the block that starts last at or before `ptr`. In a child the lock may
    /// be held by a thread that is not there.
    fn change<T>(
        &self,
        index: DeviceIndex,
        ptr: DevicePtr,
        change: impl FnOnce(usize, &mut Allocation) -> T,
    ) -> Option<T> {
        if !self.generation.is_current() {
            return None;
        }
        self.live.change(index, ptr.addr(), change)
    }

    fn check_process(&self, device: Device) -> Result<()> {
        if self.generation.is_current() {
            Ok(())
        } else {
            Err(ErrorKind::ForkedProcess { device }.into())
        }
    }
}

impl Entry for Allocation {
    fn size(&self) -> usize {
        self.block.layout.size()
    }
}

impl Allocation {
    /// Whether `ptr` points into the block.
    fn holds(&self, ptr: DevicePtr) -> bool {
        let offset = ptr.addr().checked_sub(self.block.ptr.addr());
        offset.is_some_and(|offset| offset < self.block.layout.size())
    }
}

// SAFETY: the promises are those of the allocator inside, whose blocks are handed
// out as they are and given back as they came. By number of those that this could
// break:
// 2. A block is given back to the layer below when the caller gives it back.
// 7. A refusal changes nothing below. What is known of a block is struck before it
//    is given back, and entered again if that fails.
// 9. Dropping it drops the allocator inside and calls nothing.
// 10. The default of `as_any` does not tell; the layer below is the upstream.
#[expect(unsafe_code, reason = "implements an unsafe trait")]
unsafe impl<A: DeviceAllocator> DeviceAllocator for Tracking<A> {
    forward!(self => self.upstream; identity, upstream, copies, memory_info, synchronize, trim);

    fn allocate(&self, layout: DeviceLayout, index: DeviceIndex) -> Result<DevicePtr> {
        self.check_index(index)?;
        let device = Device::new(self.device_type(), index);
        self.check_process(device)?;
        // Whatever may fail or panic is done before there is a block to lose.
        let backtrace = self
            .backtraces
            .then(|| Arc::new(Backtrace::force_capture()));
        let thread = thread::current().id();
        let ptr = self.upstream.allocate(layout, index).map_err(|error| {
            error.explained(|report| {
                report.in_use.get_or_insert(self.live.bytes(index));
            })
        })?;
        let allocation = Allocation {
            block: Block {
                ptr,
                layout,
                device,
            },
            number: self.count.fetch_add(1, Ordering::Relaxed).wrapping_add(1),
            name: None,
            thread,
            since: Instant::now(),
            backtrace,
        };
        self.live.enter(index, ptr.addr(), allocation);
        Ok(ptr)
    }

    unsafe fn deallocate(
        &self,
        ptr: DevicePtr,
        layout: DeviceLayout,
        index: DeviceIndex,
    ) -> Result<()> {
        let device = Device::new(self.device_type(), index);
        self.check_process(device)?;
        let same = |allocation: &Allocation| match allocation.block.layout {
            allocated if allocated == layout => Ok(()),
            allocated => Err(Untracked::WrongLayout {
                ptr,
                allocated,
                freed: layout,
            }),
        };
        let struck = match self.live.strike(index, ptr.addr(), same) {
            Some(Ok(allocation)) => allocation,
            Some(Err(wrong)) => return Err(Error::backend(device, Operation::Deallocate, wrong)),
            None => {
                let foreign = Untracked::Foreign { ptr };
                return Err(Error::backend(device, Operation::Deallocate, foreign));
            }
        };
        let freed = guarded(device, Operation::Deallocate, || {
            // SAFETY: the caller's promises are the same; `ptr` came from the
            // allocator inside.
            unsafe { self.upstream.deallocate(ptr, layout, index) }
        });
        if freed.as_ref().is_err_and(|error| !error.is_shut_down()) {
            self.live.enter(index, ptr.addr(), struck);
        }
        freed
    }
}

#[cfg(feature = "tracing")]
impl<A> Drop for Tracking<A> {
    /// Tells of blocks that are still live, which nobody can give back now.
    fn drop(&mut self) {
        if !self.generation.is_current() {
            return;
        }
        let live = self.live.entries();
        let _ = crate::unwind::caught(|| {
            for allocation in live {
                tracing::warn!(
                    device = %allocation.block.device,
                    ptr = %allocation.block.ptr,
                    size = allocation.block.layout.size(),
                    tag = %allocation.block.layout.tag(),
                    name = allocation.name.as_deref(),
                    number = allocation.number,
                    "device memory leaked"
                );
            }
        });
    }
}

impl fmt::Display for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Block {
            ptr,
            layout,
            device,
        } = self.block;
        let (size, tag, number) = (layout.size(), layout.tag(), self.number);
        write!(
            f,
            "{size} bytes at {ptr} on {device}, tag {tag}, number {number}"
        )?;
        match &self.name {
            Some(name) => write!(f, ", {name}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for LiveReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes = self.live.iter().map(|live| live.block.layout.size());
        let bytes = sizes.fold(0, usize::saturating_add);
        write!(f, "{} live block(s), {bytes} bytes", self.live.len())?;
        for allocation in &self.live {
            write!(f, "\n{allocation}")?;
            if let Some(backtrace) = &allocation.backtrace {
                write!(f, "\n{backtrace}")?;
            }
        }
        Ok(())
    }
}
