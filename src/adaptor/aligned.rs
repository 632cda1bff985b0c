//! Blocks aligned to more than was asked for, or than the layer below can.
//!
//! Rank 4. Imports `allocator`, `ledger` and the words.

use crate::address::DevicePtr;
use crate::allocator::{DeviceAllocator, forward, guarded, no_room};
use crate::device::{Device, DeviceIndex};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::layout::{DeviceLayout, LayoutError};
use crate::ledger::{Entry, Ledger};
use crate::process::ProcessGeneration;

/// An allocator that aligns every block to at least so many bytes.
///
/// The layer below is asked for the larger alignment. One that can not give it is
/// asked for a larger block instead, of which an aligned part is handed out, if
/// [`native_align`](Self::native_align) says so.
///
/// Costs nothing but the arithmetic where the layer below aligns; where it does not,
/// a lock of the device and a look-up among such blocks for each call, and up to the
/// alignment in bytes of the device for each block.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use device_memory::adaptor::Aligned;
/// use device_memory::{DeviceLayout, DeviceMemoryBuffer, HostAllocator};
///
/// let aligned = Arc::new(Aligned::over(HostAllocator, 4096)?.native_align(16)?);
/// let layout = DeviceLayout::new(10, 1)?;
/// let buffer = DeviceMemoryBuffer::create_with(aligned, layout, 0)?;
///
/// assert!(buffer.ptr().is_aligned_to(4096));
/// assert_eq!(buffer.size(), 10);
/// # Ok::<(), device_memory::Error>(())
/// ```
#[derive(Debug)]
pub struct Aligned<A> {
    upstream: A,
    least: usize,
    native: usize,
    /// The blocks below that aligned parts were handed out of, by the address of the
    /// part.
    blocks: Ledger<Padded>,
    generation: ProcessGeneration,
}

/// A block of the layer below.
#[derive(Clone, Copy, Debug)]
struct Padded {
    ptr: DevicePtr,
    layout: DeviceLayout,
}

impl Entry for Padded {
    fn size(&self) -> usize {
        self.layout.size()
    }
}

/// More than any alignment.
const ANY: usize = usize::MAX;

impl<A> Aligned<A> {
    /// Aligns every block of `upstream` to at least `align` bytes.
    ///
    /// # Errors
    ///
    /// - [`Layout`](ErrorKind::Layout): `align` is zero or no power of two.
    pub fn over(upstream: A, align: usize) -> Result<Self> {
        Ok(Self {
            upstream,
            least: checked(align)?,
            native: ANY,
            blocks: Ledger::default(),
            generation: ProcessGeneration::current(),
        })
    }

    /// Says that the layer below aligns to no more than `align` bytes.
    ///
    /// # Errors
    ///
    /// - [`Layout`](ErrorKind::Layout): `align` is zero or no power of two.
    pub fn native_align(mut self, align: usize) -> Result<Self> {
        self.native = checked(align)?;
        Ok(self)
    }

    /// The allocator inside.
    #[must_use]
    pub fn inner(&self) -> &A {
        &self.upstream
    }

    /// The alignment to hand out blocks of `layout` with.
    #[inline]
    fn align_of(&self, layout: DeviceLayout) -> usize {
        layout.align().max(self.least)
    }

    /// What to ask the layer below for.
    #[inline]
    fn layout_below(&self, layout: DeviceLayout) -> Option<DeviceLayout> {
        let align = self.align_of(layout);
        let below = if align <= self.native {
            DeviceLayout::new(layout.size(), align)
        } else {
            let padding = align.checked_sub(self.native)?;
            DeviceLayout::new(layout.size().checked_add(padding)?, self.native)
        };
        Some(below.ok()?.with_tag(layout.tag()))
    }
}

impl<A: DeviceAllocator> Aligned<A> {
    /// The block below that `ptr` was handed out of, which is forgotten: once it is
    /// freed, the address may be another's.
    fn take_padded(&self, ptr: DevicePtr, device: Device) -> Result<Padded> {
        if !self.generation.is_current() {
            return Err(ErrorKind::ForkedProcess { device }.into());
        }
        let struck = self
            .blocks
            .strike(device.index(), ptr.addr(), |_| Ok::<(), ()>(()));
        match struck {
            Some(Ok(padded)) => Ok(padded),
            // The caller broke the contract: nothing is known to be freed.
            _ => {
                let stray = format!("no live block at {ptr}");
                Err(Error::backend(device, Operation::Deallocate, stray))
            }
        }
    }
}

// SAFETY: by number of the promises,
// 1, 6, 8, 9. Those of the allocator inside.
// 2, 3. A block is, or lies in, one of the allocator inside that is given back when
//    the caller gives it back, and no two lie in one.
// 4. The layer below aligned it, or its address was rounded up within the block,
//    which is larger by what that can take.
// 5. Its bytes are those of the block below.
// 7. What fails below changes nothing; where a block lies is forgotten before it is
//    given back and entered again if that fails.
// 10. The default of `as_any` does not tell; the layer below is the upstream.
#[expect(unsafe_code, reason = "implements an unsafe trait")]
unsafe impl<A: DeviceAllocator> DeviceAllocator for Aligned<A> {
    forward!(self => self.upstream; identity, upstream, copies, memory_info, synchronize, trim);

    #[inline]
    fn allocate(&self, layout: DeviceLayout, index: DeviceIndex) -> Result<DevicePtr> {
        let align = self.align_of(layout);
        let padded = align > self.native;
        let device = Device::new(self.device_type(), index);
        if padded && !self.generation.is_current() {
            return Err(ErrorKind::ForkedProcess { device }.into());
        }
        let Some(below) = self.layout_below(layout) else {
            self.check_index(index)?;
            return Err(no_room(device, layout, &self.upstream).into());
        };
        let asked = self.upstream.allocate(below, index);
        let ptr = asked.map_err(|error| error.explained(|report| report.asked_for(layout)))?;
        if !padded {
            return Ok(ptr);
        }
        let mask = align.wrapping_sub(1);
        let skipped = ptr.addr().wrapping_neg() & mask;
        // It is inside the block: at most what was added to the size is skipped.
        let part = ptr.saturating_add(skipped);
        let block = Padded { ptr, layout: below };
        self.blocks.enter(index, part.addr(), block);
        Ok(part)
    }

    #[inline]
    unsafe fn deallocate(
        &self,
        ptr: DevicePtr,
        layout: DeviceLayout,
        index: DeviceIndex,
    ) -> Result<()> {
        if self.align_of(layout) <= self.native {
            let below = self.layout_below(layout).unwrap_or(layout);
            // SAFETY: the caller's promises are the same; the allocator inside gave
            // `ptr` for the same layout, made from the same one.
            return unsafe { self.upstream.deallocate(ptr, below, index) };
        }
        let device = Device::new(self.device_type(), index);
        let block = self.take_padded(ptr, device)?;
        let freed = guarded(device, Operation::Deallocate, || {
            // SAFETY: the allocator inside gave the block with this layout and index;
            // the caller promises that the part of it is not used any more.
            unsafe { self.upstream.deallocate(block.ptr, block.layout, index) }
        });
        if freed.as_ref().is_err_and(|error| !error.is_shut_down()) {
            self.blocks.enter(index, ptr.addr(), block);
        }
        freed
    }
}

fn checked(align: usize) -> Result<usize, LayoutError> {
    DeviceLayout::new(0, align).map(DeviceLayout::align)
}
