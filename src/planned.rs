//! The buffers of a plan, owned together.
//!
//! Rank 7. Imports `hierarchical`, `buffer`, `registry`, `plan` and the words.

use smallvec::SmallVec;

use crate::allocator::MemoryInfo;
use crate::buffer::{BufferStack, DeviceMemoryBuffer};
use crate::device::Device;
use crate::error::{ErrorKind, OutOfMemory, Result};
use crate::hierarchical::HierarchicalAllocator;
use crate::layout::DeviceLayout;
use crate::plan::{MemoryPlan, PlannedBuffer};
use crate::registry::DeviceAllocatorRegistry;
use crate::span::DeviceSpanMut;

/// Every buffer of one plan, or of several that share, each on its device.
///
/// Host and device buffers are made alike, all or none. Their addresses stay the
/// same until this is dropped, and nothing is allocated on a device meanwhile;
/// then they are freed in reverse order.
///
/// # Examples
///
/// ```
/// use device_memory::{
///     Device, DeviceAllocatorRegistry, MemoryPlan, Placement, PlannedBuffer, PlannedMemory,
/// };
///
/// let placement = Placement::new(0, 16, 16);
/// let plan = MemoryPlan::new(vec![PlannedBuffer::new(Device::CPU, 32)], vec![placement])?;
/// let mut memory = PlannedMemory::allocate(&plan, DeviceAllocatorRegistry::global())?;
///
/// memory.view()?.span_mut(placement)?.copy_from_host(&[7; 16])?;
///
/// assert_eq!(memory.size_in_bytes(), 32);
/// assert_eq!(memory.view()?.span(placement)?.to_vec()?, [7; 16]);
/// # Ok::<(), device_memory::Error>(())
/// ```
#[derive(Debug)]
pub struct PlannedMemory {
    buffers: BufferStack,
    /// # Invariants
    ///
    /// 0. No two parts of one plan name the same buffer.
    /// 1. They are in the order of the plans, and of the memory ids in each.
    parts: SmallVec<[Part; 4]>,
    plan_count: usize,
}

/// What one memory id of a plan has of the buffers.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// The position of the plan.
    plan: usize,
    /// The position of the buffer.
    buffer: usize,
    /// The bytes that are the plan's, from the first.
    size: usize,
}

impl PlannedMemory {
    /// Allocates the buffers of one plan.
    ///
    /// Where a device can tell its free memory, that is checked first.
    ///
    /// # Errors
    ///
    /// - [`OutOfMemory`](ErrorKind::OutOfMemory): a device has less memory free than
    ///   the plan needs there. Nothing was allocated.
    /// - [`AtIndex`](ErrorKind::AtIndex): the buffer that failed, and why; see
    ///   [`DeviceMemoryBuffer::create`]. Those before it are freed.
    pub fn allocate(plan: &MemoryPlan, registry: &DeviceAllocatorRegistry) -> Result<Self> {
        Self::allocate_shared(&[plan], registry)
    }

    /// Allocates one set of buffers for several plans that are never in use at
    /// the same time, such as the methods of a program.
    ///
    /// Plans share a buffer where they have the same memory id on the same device;
    /// it is as large, and as aligned, as the largest of them needs.
    ///
    /// # Errors
    ///
    /// As [`allocate`](Self::allocate).
    pub fn allocate_shared(
        plans: &[&MemoryPlan],
        registry: &DeviceAllocatorRegistry,
    ) -> Result<Self> {
        let mut needed = Needed(SmallVec::new());
        let mut parts = SmallVec::new();
        for (position, plan) in plans.iter().enumerate() {
            let before = needed.0.len();
            for (id, &planned) in plan.buffers().iter().enumerate() {
                parts.push(Part {
                    plan: position,
                    buffer: needed.share(before, id, planned),
                    size: planned.size,
                });
            }
        }
        needed.check(registry)?;
        let mut buffers = BufferStack::with_capacity(needed.0.len());
        for (index, (_, planned)) in needed.0.iter().enumerate() {
            match DeviceMemoryBuffer::create_in(registry, planned.layout()?, planned.device) {
                Ok(buffer) => buffers.push(buffer),
                Err(error) => return Err(error.at("planned buffer", index)),
            }
        }
        Ok(Self {
            buffers,
            parts,
            plan_count: plans.len(),
        })
    }

    /// The buffers of the first plan, to place its values in.
    ///
    /// # Errors
    ///
    /// As [`view_of`](Self::view_of): an error only if there is no plan.
    pub fn view(&mut self) -> Result<HierarchicalAllocator<'_>> {
        self.view_of(0)
    }

    /// The buffers of the `index`-th plan, to place its values in.
    ///
    /// # Errors
    ///
    /// - [`CountMismatch`](ErrorKind::CountMismatch): there are not so many plans.
    #[expect(unsafe_code, reason = "see SAFETY")]
    pub fn view_of(&mut self, index: usize) -> Result<HierarchicalAllocator<'_>> {
        if index >= self.plan_count {
            return Err(ErrorKind::CountMismatch {
                what: "plans",
                expected: index.saturating_add(1),
                found: self.plan_count,
            }
            .into());
        }
        let buffers = self.buffers.as_slice();
        let mut spans = Vec::with_capacity(buffers.len());
        for part in self.parts.iter().filter(|part| part.plan == index) {
            if let Some(buffer) = buffers.get(part.buffer) {
                let span = buffer.as_span().truncated(part.size);
                // SAFETY: `self` is borrowed exclusively as long as the views
                // live, and each is of another buffer (invariant 0).
                spans.push(unsafe { DeviceSpanMut::from_shared(span) });
            }
        }
        Ok(HierarchicalAllocator::from_planned(spans))
    }

    /// The buffers themselves; for a single plan, by memory id.
    #[must_use]
    pub fn buffers(&self) -> &[DeviceMemoryBuffer] {
        self.buffers.as_slice()
    }

    /// The bytes of all buffers together.
    #[must_use]
    pub fn size_in_bytes(&self) -> usize {
        self.buffers()
            .iter()
            .fold(0, |sum, buffer| buffer.size().saturating_add(sum))
    }

    /// Sets every byte of every buffer to `byte`.
    ///
    /// # Errors
    ///
    /// As [`DeviceMemoryBuffer::fill`].
    pub fn fill(&mut self, byte: u8) -> Result<()> {
        self.buffers
            .as_slice_mut()
            .iter_mut()
            .try_for_each(|buffer| buffer.fill(byte))
    }
}

/// The buffers that a set of plans needs, with the memory id that each is for.
struct Needed(SmallVec<[(usize, PlannedBuffer); 4]>);

impl Needed {
    /// The position of the buffer for memory id `id` of a plan. It is one of those
    /// `before` the plan, made larger as `planned` requires, or a new one.
    fn share(&mut self, before: usize, id: usize, planned: PlannedBuffer) -> usize {
        let earlier = self.0.iter_mut().take(before).enumerate();
        for (position, (other, shared)) in earlier {
            if *other == id && shared.device == planned.device {
                shared.size = shared.size.max(planned.size);
                shared.align = shared.align.max(planned.align);
                return position;
            }
        }
        self.0.push((id, planned));
        self.0.len().saturating_sub(1)
    }

    /// Checks that all can be asked for, and what each device needs against what
    /// it has free, where it can tell.
    fn check(&self, registry: &DeviceAllocatorRegistry) -> Result<()> {
        let mut devices: SmallVec<[(Device, usize); 4]> = SmallVec::new();
        for (position, (_, planned)) in self.0.iter().enumerate() {
            if let Err(error) = planned.layout() {
                return Err(error.at("planned buffer", position));
            }
            match devices
                .iter_mut()
                .find(|(device, _)| *device == planned.device)
            {
                Some((_, bytes)) => *bytes = bytes.saturating_add(planned.size),
                None => devices.push((planned.device, planned.size)),
            }
        }
        for (device, bytes) in devices {
            check_free_memory(registry, device, bytes)?;
        }
        Ok(())
    }
}

/// Checks that `device` has `bytes` free, if it can tell.
fn check_free_memory(
    registry: &DeviceAllocatorRegistry,
    device: Device,
    bytes: usize,
) -> Result<()> {
    let allocator = registry.lookup(device.device_type())?;
    match allocator.memory_info(device.index())? {
        Some(MemoryInfo { free, total }) if free < bytes => {
            let mut report = OutOfMemory::new(device, DeviceLayout::new(bytes, 1)?);
            report.device_free = Some(free);
            report.device_total = Some(total);
            Err(report.into())
        }
        _ => Ok(()),
    }
}
