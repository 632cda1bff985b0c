//! The buffers of a plan, owned together.
//!
//! Rank 7. Imports `hierarchical`, `buffer`, `registry`, `plan` and the words.

use crate::allocator::MemoryInfo;
use crate::buffer::{BufferStack, DeviceMemoryBuffer};
use crate::device::Device;
use crate::error::{ErrorKind, OutOfMemory, Result};
use crate::hierarchical::HierarchicalAllocator;
use crate::layout::DeviceLayout;
use crate::plan::{MemoryPlan, PlannedBuffer, requirements};
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
    /// For each plan, and each of its memory ids, what is planned and which
    /// buffer holds it. No two ids of one plan name the same buffer.
    plans: Vec<Vec<(usize, PlannedBuffer)>>,
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
        let mut needed: Vec<(usize, PlannedBuffer)> = Vec::new();
        let plans = plans
            .iter()
            .map(|plan| {
                let ids = plan.buffers().iter().enumerate();
                ids.map(|(id, &buffer)| (share(&mut needed, id, buffer), buffer))
                    .collect()
            })
            .collect();
        let needed: Vec<PlannedBuffer> = needed.into_iter().map(|(_, buffer)| buffer).collect();
        let requests = requests(&needed)?;
        check_free_memory(&needed, registry)?;
        Ok(Self {
            buffers: BufferStack::create("planned buffer", registry, &requests)?,
            plans,
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
    pub fn view_of(&mut self, index: usize) -> Result<HierarchicalAllocator<'_>> {
        let Some(plan) = self.plans.get(index) else {
            return Err(ErrorKind::CountMismatch {
                what: "plans",
                expected: index.saturating_add(1),
                found: self.plans.len(),
            }
            .into());
        };
        let mut buffers: Vec<Option<&mut DeviceMemoryBuffer>> =
            self.buffers.as_slice_mut().iter_mut().map(Some).collect();
        let mut spans: Vec<DeviceSpanMut<'_>> = Vec::with_capacity(plan.len());
        let mut devices = Vec::with_capacity(plan.len());
        for (position, planned) in plan {
            if let Some(buffer) = buffers.get_mut(*position).and_then(Option::take) {
                spans.push(buffer.as_span_mut().into_subspan(0, planned.size)?);
                devices.push(planned.device);
            }
        }
        HierarchicalAllocator::new(spans, &devices)
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

/// The position in `needed` of the buffer for memory id `id` of a plan, made or
/// made larger as required.
fn share(needed: &mut Vec<(usize, PlannedBuffer)>, id: usize, buffer: PlannedBuffer) -> usize {
    let shared = needed
        .iter()
        .position(|&(other, shared)| other == id && shared.device == buffer.device);
    match shared.and_then(|position| needed.get_mut(position).map(|slot| (position, slot))) {
        Some((position, (_, shared))) => {
            shared.size = shared.size.max(buffer.size);
            shared.align = shared.align.max(buffer.align);
            position
        }
        None => {
            needed.push((id, buffer));
            needed.len().saturating_sub(1)
        }
    }
}

/// What to ask the allocators for.
fn requests(needed: &[PlannedBuffer]) -> Result<Vec<(DeviceLayout, Device)>> {
    needed
        .iter()
        .enumerate()
        .map(|(index, buffer)| match buffer.layout() {
            Ok(layout) => Ok((layout, buffer.device)),
            Err(error) => Err(error.at("planned buffer", index)),
        })
        .collect()
}

/// Checks what each device needs against what it has free, where it can tell.
fn check_free_memory(needed: &[PlannedBuffer], registry: &DeviceAllocatorRegistry) -> Result<()> {
    for (device, bytes) in requirements(needed)? {
        let allocator = registry.try_get(device.device_type())?;
        allocator.check_index(device.index())?;
        match allocator.memory_info(device.index()) {
            Ok(MemoryInfo { free, total }) if free < bytes => {
                let mut report = OutOfMemory::new(device, DeviceLayout::new(bytes, 1)?);
                report.device_free = Some(free);
                report.device_total = Some(total);
                return Err(report.into());
            }
            Ok(_) => {}
            Err(error) if error.is_not_supported() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
