//! The buffers of a plan, owned together.
//!
//! Rank 8. Imports `hierarchical`, `buffer`, `registry`, `plan` and the words.

use std::borrow::Cow;

use crate::allocator::{MemoryInfo, guarded};
use crate::buffer::{BufferStack, DeviceMemoryBuffer};
use crate::device::Device;
use crate::error::{ErrorKind, Operation, OutOfMemory, Result};
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
    /// Those of the first plan, by memory id, then what later plans add.
    buffers: BufferStack,
    first: usize,
    /// # Invariants
    ///
    /// 0. For each later plan, the buffers of its memory ids; no two are the same.
    later: Vec<Vec<usize>>,
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
        let (first, others) = match plans.split_first() {
            Some((first, others)) => (first.buffers(), others),
            None => (&[][..], &[][..]),
        };
        let (needed, later) = share(first, others);
        check(&needed, registry)?;
        let mut buffers = BufferStack::with_capacity(needed.len());
        for (index, planned) in needed.iter().enumerate() {
            let layout = planned.layout()?;
            match DeviceMemoryBuffer::create_in(registry, layout, planned.device) {
                Ok(buffer) => buffers.push(buffer),
                Err(error) => return Err(error.at("planned buffer", index)),
            }
        }
        Ok(Self {
            buffers,
            first: first.len(),
            later,
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
        let Some(later) = index.checked_sub(1) else {
            let first = self.buffers.as_slice_mut().iter_mut().take(self.first);
            let spans = first.map(DeviceMemoryBuffer::as_span_mut).collect();
            return Ok(HierarchicalAllocator::from_planned(spans));
        };
        let Some(plan) = self.later.get(later) else {
            return Err(ErrorKind::CountMismatch {
                what: "plans",
                expected: index.saturating_add(1),
                found: self.later.len().saturating_add(1),
            }
            .into());
        };
        let buffers = self.buffers.as_slice();
        let spans = plan.iter().filter_map(|&position| {
            let span = buffers.get(position)?.as_span();
            // SAFETY: `self` is borrowed exclusively as long as the views live,
            // and each is of another buffer (invariant 0).
            Some(unsafe { DeviceSpanMut::from_shared(span) })
        });
        Ok(HierarchicalAllocator::from_planned(spans.collect()))
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

/// The buffers that plans need together, and which of them each later plan has.
///
/// They are those of the first plan, made larger where a later one needs that,
/// and what later plans have on other devices or beyond its memory ids.
fn share<'a>(
    first: &'a [PlannedBuffer],
    others: &[&MemoryPlan],
) -> (Cow<'a, [PlannedBuffer]>, Vec<Vec<usize>>) {
    let mut needed = Cow::Borrowed(first);
    let mut added: Vec<usize> = Vec::new();
    let mut later = Vec::with_capacity(others.len());
    for plan in others {
        let needed = needed.to_mut();
        let ids = plan.buffers().iter().enumerate();
        let positions = ids.map(|(id, planned)| {
            let ids_of_needed = (0..first.len()).chain(added.iter().copied());
            let shared = ids_of_needed
                .zip(needed.iter_mut())
                .enumerate()
                .find(|(_, (other, shared))| *other == id && shared.device == planned.device);
            if let Some((position, (_, shared))) = shared {
                shared.size = shared.size.max(planned.size);
                shared.align = shared.align.max(planned.align);
                return position;
            }
            added.push(id);
            needed.push(*planned);
            needed.len().saturating_sub(1)
        });
        later.push(positions.collect());
    }
    (needed, later)
}

/// Checks that all can be asked for, and what each device needs against what it
/// has free, where it can tell.
fn check(needed: &[PlannedBuffer], registry: &DeviceAllocatorRegistry) -> Result<()> {
    for (position, planned) in needed.iter().enumerate() {
        if let Err(error) = planned.layout() {
            return Err(error.at("planned buffer", position));
        }
        let on_device = |other: &&PlannedBuffer| other.device == planned.device;
        if needed.iter().take(position).any(|other| on_device(&other)) {
            continue;
        }
        let sizes = needed.iter().filter(on_device).map(|other| other.size);
        let bytes = sizes.fold(0_usize, usize::saturating_add);
        check_free_memory(registry, planned.device, bytes)?;
    }
    Ok(())
}

/// Checks that `device` has `bytes` free, if it can tell.
fn check_free_memory(
    registry: &DeviceAllocatorRegistry,
    device: Device,
    bytes: usize,
) -> Result<()> {
    let allocator = registry.lookup(device.device_type())?;
    let info = guarded(device, Operation::MemoryInfo, || {
        allocator.memory_info(device.index())
    })?;
    match info {
        Some(MemoryInfo { free, total }) if free < bytes => {
            let mut report = OutOfMemory::new(device, DeviceLayout::new(bytes, 1)?);
            report.device_free = Some(free);
            report.device_total = Some(total);
            Err(report.into())
        }
        _ => Ok(()),
    }
}
