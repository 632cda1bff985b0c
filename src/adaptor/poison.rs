//! Finding writes where there should be none.
//!
//! Rank 4. Imports `allocator`, `free_failure`, `observe` and the words.
//!
//! A block gets a red zone before and after it, and is kept for a while after it is
//! freed. What the bytes there should be is known, so that a kernel that writes past
//! its memory, or into memory that was freed, is found when they are looked at.

mod pattern;
mod quarantine;

use std::fmt;

use crate::address::DevicePtr;
use crate::allocator::{DeviceAllocator, below, forward, guarded, no_room};
use crate::device::{Device, DeviceIndex};
use crate::error::{Attempt, ErrorKind, Operation, Result};
use crate::free_failure;
use crate::layout::{DeviceLayout, LayoutError};
use crate::observe::Block;
use crate::process::ProcessGeneration;
use crate::sync::Mutex;
use crate::table::Table;
use crate::unwind::caught;

pub use pattern::{Damage, Region};

use pattern::{FREED, FRESH, ZONE, ends, first_other};
use quarantine::{Kept, Quarantine};

/// An allocator that finds writes before, after, and to freed blocks.
///
/// - New memory reads as `0xCA`, so that use before a first write is seen.
/// - Freed blocks read as `0xDE` and are kept from reuse, the oldest given back first.
/// - When a block is given back, it is looked at with the red zones around it: after it
///   was kept, or at once if it is more than is kept.
///
/// What is found is kept ([`damages`](Self::damages)) and told to the hook. Finding
/// does not stop anything: the free succeeds. A block that can not be looked at,
/// because the device fails, is not.
///
/// For debugging: each allocation costs two zones of memory and up to four fills, each
/// free four copies and fills, and a look at each freed block when it is given back. Of large
/// blocks only the first and the last part is filled and looked at. Memory that is
/// kept is given back before the layer below is said to be out of it. In a forked child
/// nothing is given or taken back.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use device_memory::adaptor::{Poison, Region};
/// use device_memory::{DeviceAllocator, DeviceLayout, HostAllocator};
///
/// let poison = Poison::over(HostAllocator);
/// let layout = DeviceLayout::from_size(100)?;
/// let ptr = poison.allocate(layout, 0)?;
///
/// // SAFETY: this writes one byte past the block, into its red zone.
/// unsafe { ptr.as_raw().add(100).write(7) };
/// // SAFETY: the block is freed once, as it was allocated.
/// unsafe { poison.deallocate(ptr, layout, 0)? };
/// // What is freed is kept for a while, and looked at when it is let go.
/// poison.trim(0)?;
///
/// let damage = &poison.damages()[0];
/// assert_eq!((damage.region, damage.offset, damage.found), (Region::After, 0, 7));
/// # Ok::<(), device_memory::Error>(())
/// ```
pub struct Poison<A: DeviceAllocator> {
    upstream: A,
    zone: usize,
    depth: usize,
    kept_bytes: usize,
    hook: Option<Box<Hook>>,
    found: Mutex<Vec<Damage>>,
    quarantines: Table<Mutex<Quarantine>>,
    generation: ProcessGeneration,
}

/// What is told of damage.
type Hook = dyn Fn(&Damage) + Send + Sync;

/// How many damages are kept.
const MOST_FOUND: usize = 1024;

impl<A: DeviceAllocator> Poison<A> {
    /// Has red zones of 64 bytes, keeps up to a MiB of freed blocks on each device, and
    /// fills and looks at up to a MiB at each end of a block.
    #[must_use]
    pub fn over(upstream: A) -> Self {
        Self {
            upstream,
            zone: 64,
            depth: 1 << 20,
            kept_bytes: 1 << 20,
            hook: None,
            found: Mutex::new(Vec::new()),
            quarantines: Table::default(),
            generation: ProcessGeneration::current(),
        }
    }

    /// How many bytes of red zone each block has on either side, rounded up to a power
    /// of two.
    #[must_use]
    pub fn red_zone(mut self, bytes: usize) -> Self {
        self.zone = match bytes {
            0 => 0,
            bytes => bytes.checked_next_power_of_two().unwrap_or(1 << 20),
        };
        self
    }

    /// How many bytes of freed blocks are kept on each device. With 0 none is.
    #[must_use]
    pub fn quarantine(mut self, bytes: usize) -> Self {
        self.kept_bytes = bytes;
        self
    }

    /// How many bytes are filled and looked at on either end of a block.
    #[must_use]
    pub fn depth(mut self, bytes: usize) -> Self {
        self.depth = bytes;
        self
    }

    /// Calls `hook` with each damage, under no lock, on the thread that found it. It may
    /// allocate and free.
    #[must_use]
    pub fn on_damage(mut self, hook: impl Fn(&Damage) + Send + Sync + 'static) -> Self {
        self.hook = Some(Box::new(hook));
        self
    }

    /// The allocator inside.
    #[must_use]
    pub fn inner(&self) -> &A {
        &self.upstream
    }

    /// What was found so far, the first first, of which the first thousand are kept.
    #[must_use]
    pub fn damages(&self) -> Vec<Damage> {
        match self.generation.is_current() {
            true => self.found.lock().clone(),
            false => Vec::new(),
        }
    }

    fn device(&self, index: DeviceIndex) -> Device {
        Device::new(self.upstream.device_type(), index)
    }

    fn check_process(&self, index: DeviceIndex) -> Result<()> {
        if self.generation.is_current() {
            return Ok(());
        }
        let device = self.device(index);
        Err(ErrorKind::ForkedProcess { device }.into())
    }

    /// How far into the block below a block begins.
    fn front(&self, layout: DeviceLayout) -> usize {
        match self.zone {
            0 => 0,
            zone => zone.max(layout.align()),
        }
    }

    /// What is asked of the layer below for a block.
    fn layout_below(&self, layout: DeviceLayout) -> Option<DeviceLayout> {
        let zones = self.front(layout).checked_add(self.zone)?;
        let size = layout.size().checked_add(zones)?;
        let below = DeviceLayout::new(size, layout.align()).ok()?;
        Some(below.with_tag(layout.tag()))
    }

    /// The block below that `block` lies in.
    fn below(&self, block: &Block) -> Option<(DevicePtr, DeviceLayout)> {
        let addr = block.ptr.addr().checked_sub(self.front(block.layout))?;
        let back = block.ptr.as_raw().with_addr(addr);
        Some((DevicePtr::from_raw(back)?, self.layout_below(block.layout)?))
    }

    /// Where the red zones of a block are.
    fn zones(&self, block: &Block) -> [(Region, DevicePtr); 2] {
        let before = block.ptr.addr().saturating_sub(self.zone);
        let before = DevicePtr::from_raw(block.ptr.as_raw().with_addr(before));
        let after = block.ptr.saturating_add(block.layout.size());
        [
            (Region::Before, before.unwrap_or(block.ptr)),
            (Region::After, after),
        ]
    }

    #[expect(unsafe_code, reason = "see SAFETY")]
    fn fill(&self, ptr: DevicePtr, byte: u8, size: usize, device: Device) -> Result<()> {
        if size == 0 {
            return Ok(());
        }
        guarded(device, Operation::Fill, || {
            // SAFETY: callers give a range of a block below that is live and that nobody
            // uses: a new one, a freed one, or a red zone.
            unsafe { self.upstream.fill(ptr, byte, size, device.index()) }
        })
    }

    /// The ends of a block get `byte`.
    fn fill_ends(&self, block: &Block, byte: u8) -> Result<()> {
        for (offset, size) in ends(block.layout.size(), self.depth) {
            let ptr = block.ptr.saturating_add(offset);
            self.fill(ptr, byte, size, block.device)?;
        }
        Ok(())
    }

    /// Looks at `size` bytes that should all be `byte`.
    #[expect(unsafe_code, reason = "see SAFETY")]
    fn look(
        &self,
        block: &Block,
        region: Region,
        (ptr, size): (DevicePtr, usize),
        (byte, base): (u8, usize),
    ) {
        let read = |offset: usize, out: &mut [u8]| {
            let (src, len) = (ptr.saturating_add(offset), out.len());
            let out = out.as_mut_ptr();
            guarded(block.device, Operation::CopyDeviceToHost, || {
                // SAFETY: callers give a range of a block below that is live and that
                // nobody should write: a freed one, or a red zone. `out` is `len` bytes.
                unsafe {
                    self.upstream
                        .copy_device_to_host(out, src, len, block.device.index())
                }
            })
        };
        // What can not be read is not looked at.
        if let Ok(Some((offset, found))) = first_other(size, byte, read) {
            self.tell(Damage {
                block: *block,
                region,
                offset: base.saturating_add(offset),
                found,
            });
        }
    }

    fn look_at_zones(&self, block: &Block) {
        for (region, ptr) in self.zones(block) {
            self.look(block, region, (ptr, self.zone), (ZONE, 0));
        }
    }

    fn tell(&self, damage: Damage) {
        {
            let mut found = self.found.lock();
            if found.len() < MOST_FOUND {
                found.push(damage);
            }
        }
        if let Some(hook) = &self.hook {
            // A hook that panics is cut short.
            let _ = caught(|| hook(&damage));
        }
    }

    #[expect(unsafe_code, reason = "see SAFETY")]
    fn give_back(&self, ptr: DevicePtr, layout: DeviceLayout, device: Device) -> Result<()> {
        guarded(device, Operation::Deallocate, || {
            // SAFETY: the allocator inside gave the block with this layout and index, and
            // it is freed once: callers own it and nobody else knows of it.
            unsafe { self.upstream.deallocate(ptr, layout, device.index()) }
        })
    }

    /// Looks at a block that was kept, and gives it back. If that fails, its owner is
    /// gone, so only the hook for failed frees can be told.
    fn release(&self, kept: &Kept) {
        let block = &kept.block;
        self.look_at_zones(block);
        for (offset, size) in ends(block.layout.size(), self.depth) {
            let ptr = block.ptr.saturating_add(offset);
            self.look(block, Region::Freed, (ptr, size), (FREED, offset));
        }
        self.give_back_or_tell(kept.below, kept.layout_below, block.device);
    }

    /// Gives a block below back that nobody owns any more.
    fn give_back_or_tell(&self, below: DevicePtr, layout: DeviceLayout, device: Device) {
        let freed = self.give_back(below, layout, device);
        free_failure::report_lost(device, below, layout, freed);
    }

    /// Gives back what is kept on a device until no more than `bytes` are, and returns
    /// how many that were.
    fn release_to(&self, bytes: usize, index: DeviceIndex) -> usize {
        let Some(quarantine) = self.quarantines.find(index) else {
            return 0;
        };
        let mut released: usize = 0;
        loop {
            let Some(kept) = quarantine.lock().pop_above(bytes) else {
                return released;
            };
            self.release(&kept);
            released = released.saturating_add(kept.layout_below.size());
        }
    }

    /// Allocates from the layer below, which gets back what is kept if it is out.
    fn allocate_below(&self, below: DeviceLayout, device: Device) -> Result<DevicePtr> {
        let index = device.index();
        let ask = || {
            guarded(device, Operation::Allocate, || {
                self.upstream.allocate(below, index)
            })
        };
        match ask() {
            Err(error) if error.is_out_of_memory() => match self.release_to(0, index) {
                0 => Err(error),
                _ => ask().map_err(|error| {
                    error.explained(|report| {
                        if report.tried.is_empty() {
                            report.tried = vec![Attempt::Upstream, Attempt::Trim];
                        }
                    })
                }),
            },
            other => other,
        }
    }
}

// SAFETY: by number of the promises,
// 1, 6, 8. Those of the allocator inside.
// 2, 3. A block lies in one of the allocator inside, which is given back after the
//    caller gave it back, and no two lie in one.
// 4. The block below has the same alignment, and the front is a multiple of it.
// 5. Its bytes are those of the block below.
// 7. What fails gives the block below back. A free fails only if the layer below was
//    asked at once and refused, or in another process; bytes may be filled then.
// 9. Dropped in a child, it leaks what it keeps.
// 10. The default of `as_any` does not tell; addresses are of the upstream's blocks.
#[expect(unsafe_code, reason = "implements an unsafe trait")]
unsafe impl<A: DeviceAllocator> DeviceAllocator for Poison<A> {
    forward!(self => self.upstream; identity, upstream, copies, memory_info, synchronize);

    fn allocate(&self, layout: DeviceLayout, index: DeviceIndex) -> Result<DevicePtr> {
        self.check_index(index)?;
        self.check_process(index)?;
        if layout.is_empty() {
            return Err(LayoutError::ZeroSize.into());
        }
        let device = self.device(index);
        let Some(below) = self.layout_below(layout) else {
            return Err(no_room(device, layout, &self.upstream).into());
        };
        let asked = self.allocate_below(below, device);
        let start = asked.map_err(|error| error.explained(|report| report.asked_for(layout)))?;
        let ptr = start.saturating_add(self.front(layout));
        let block = Block {
            ptr,
            layout,
            device,
        };
        let filled = self
            .zones(&block)
            .into_iter()
            .try_for_each(|(_, zone)| self.fill(zone, ZONE, self.zone, device));
        match filled.and_then(|()| self.fill_ends(&block, FRESH)) {
            Ok(()) => Ok(ptr),
            Err(error) => {
                // No caller has seen it.
                self.give_back_or_tell(start, below, device);
                Err(error)
            }
        }
    }

    unsafe fn deallocate(
        &self,
        ptr: DevicePtr,
        layout: DeviceLayout,
        index: DeviceIndex,
    ) -> Result<()> {
        self.check_process(index)?;
        let device = self.device(index);
        let block = Block {
            ptr,
            layout,
            device,
        };
        let Some((below, layout_below)) = self.below(&block) else {
            return Err(LayoutError::ZeroSize.into());
        };
        if layout_below.size() > self.kept_bytes || self.fill_ends(&block, FREED).is_err() {
            self.look_at_zones(&block);
            return self.give_back(below, layout_below, device);
        }
        let kept = Kept {
            block,
            below,
            layout_below,
        };
        self.quarantines.get(index).lock().push(kept);
        self.release_to(self.kept_bytes, index);
        Ok(())
    }

    fn trim(&self, index: DeviceIndex) -> Result<usize> {
        self.check_index(index)?;
        self.check_process(index)?;
        let released = self.release_to(0, index);
        // What the layer below gives back includes these, if it keeps any.
        Ok(released.max(below::trim(&self.upstream, index)?))
    }
}

impl<A: DeviceAllocator> Drop for Poison<A> {
    fn drop(&mut self) {
        if !self.generation.is_current() {
            return;
        }
        for (index, _) in self.quarantines.iter() {
            self.release_to(0, index);
        }
    }
}

impl<A: DeviceAllocator> fmt::Debug for Poison<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut poison = f.debug_struct("Poison");
        poison
            .field("upstream", &self.upstream)
            .field("red_zone", &self.zone)
            .field("quarantine", &self.kept_bytes)
            .finish_non_exhaustive()
    }
}
