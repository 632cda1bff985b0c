//! The buffers of a plan, owned together.
//!
//! Rank 8. Imports `hierarchical`, `buffer`, `registry`, `plan` and the words.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::allocator::{MemoryInfo, guarded};
use crate::buffer::{BufferStack, DeviceMemoryBuffer};
use crate::device::Device;
use crate::error::{ErrorKind, Operation, OutOfMemory, PlacementError, Result};
use crate::hierarchical::{DeviceAddress, HierarchicalAllocator};
use crate::layout::Tag;
use crate::plan::{MemoryPlan, Placement, PlannedBuffer};
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
///
/// Two views can not exist at once:
///
/// ```compile_fail,E0499
/// use device_memory::{DeviceAllocatorRegistry, MemoryPlan, PlannedMemory};
///
/// let registry = DeviceAllocatorRegistry::global();
/// let mut memory = PlannedMemory::allocate(&MemoryPlan::default(), registry).unwrap();
/// let first = memory.view().unwrap();
/// let second = memory.view_of(0).unwrap();
/// assert_eq!(first.len(), second.len());
/// ```
#[derive(Debug)]
pub struct PlannedMemory {
    /// Those of the first plan, by memory id, then what later plans add.
    buffers: BufferStack,
    /// How many of them are the first plan's, if there is one.
    first: Option<usize>,
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
    /// - [`AtIndex`](ErrorKind::AtIndex): the buffer that failed, and why: what
    ///   [`DeviceMemoryBuffer::create`] or
    ///   [`memory_info`](crate::DeviceAllocator::memory_info) return. Those before
    ///   it are freed.
    pub fn allocate(plan: &MemoryPlan, registry: &DeviceAllocatorRegistry) -> Result<Self> {
        Self::allocate_shared(&[plan], registry)
    }

    /// [`allocate`](Self::allocate) with `tag` in the layout of every buffer.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn allocate_tagged(
        plan: &MemoryPlan,
        registry: &DeviceAllocatorRegistry,
        tag: Tag,
    ) -> Result<Self> {
        Self::allocate_all(&[plan], registry, tag)
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
        Self::allocate_all(plans, registry, Tag::NONE)
    }

    fn allocate_all(
        plans: &[&MemoryPlan],
        registry: &DeviceAllocatorRegistry,
        tag: Tag,
    ) -> Result<Self> {
        let (first, others) = match plans.split_first() {
            Some((first, others)) => (first.buffers(), others),
            None => (&[][..], &[][..]),
        };
        let Shared { needed, later } = share(first, others)?;
        check(&needed, registry).map_err(|mut error| {
            if let Some(report) = error.out_of_memory_mut() {
                report.tag = tag;
            }
            error
        })?;
        let mut buffers = BufferStack::with_capacity(needed.len());
        for (index, planned) in needed.iter().enumerate() {
            let layout = planned.layout()?.with_tag(tag);
            match DeviceMemoryBuffer::create_in(registry, layout, planned.device) {
                Ok(buffer) => buffers.push(buffer),
                Err(error) => return Err(error.at("planned buffer", index)),
            }
        }
        Ok(Self {
            buffers,
            first: plans.first().map(|first| first.buffers().len()),
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
        if let (0, Some(first)) = (index, self.first) {
            let first = self.buffers.as_slice_mut().iter_mut().take(first);
            let spans = first.map(DeviceMemoryBuffer::as_span_mut).collect();
            return Ok(HierarchicalAllocator::from_planned(spans));
        }
        let Some(plan) = index.checked_sub(1).and_then(|later| self.later.get(later)) else {
            return Err(ErrorKind::CountMismatch {
                what: "plans",
                expected: index.saturating_add(1),
                found: self.plan_count(),
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

    /// The number of plans.
    #[must_use]
    pub fn plan_count(&self) -> usize {
        self.later
            .len()
            .saturating_add(usize::from(self.first.is_some()))
    }

    /// The buffer that the `plan`-th plan has for a memory id.
    #[must_use]
    pub fn buffer(&self, plan: usize, memory_id: u32) -> Option<&DeviceMemoryBuffer> {
        let id = usize::try_from(memory_id).ok()?;
        let position = match plan.checked_sub(1) {
            None => id.lt(&self.first?).then_some(id)?,
            Some(later) => *self.later.get(later)?.get(id)?,
        };
        self.buffers().get(position)
    }

    /// The address of a placement of the `plan`-th plan, without borrowing the
    /// memory exclusively.
    ///
    /// # Errors
    ///
    /// As [`HierarchicalAllocator::get_offset_address`]; a plan that there is not
    /// has no memory ids.
    pub fn address(
        &self,
        plan: usize,
        placement: Placement,
    ) -> Result<DeviceAddress, PlacementError> {
        let buffer = placement.check(self.buffers().len(), |_| {
            let buffer = self.buffer(plan, placement.memory_id)?;
            Some((buffer, buffer.size()))
        })?;
        Ok(DeviceAddress {
            device: buffer.device(),
            ptr: buffer.ptr().saturating_add(placement.offset),
        })
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

/// What plans need together.
struct Shared<'a> {
    /// The buffers.
    needed: Cow<'a, [PlannedBuffer]>,
    /// Which of them each plan after the first has, by its memory ids.
    later: Vec<Vec<usize>>,
}

/// The buffers that plans need together, and which of them each later plan has.
///
/// They are those of the first plan, made larger where a later one needs that,
/// and what later plans have on other devices or beyond its memory ids.
fn share<'a>(first: &'a [PlannedBuffer], others: &[&MemoryPlan]) -> Result<Shared<'a>> {
    let mut needed = Cow::Borrowed(first);
    let mut added: HashMap<(usize, Device), usize> = HashMap::new();
    let mut later = Vec::with_capacity(others.len());
    if !others.is_empty() {
        check_layouts(first)?;
    }
    for plan in others {
        check_layouts(plan.buffers())?;
        let needed = needed.to_mut();
        let mut positions = Vec::with_capacity(plan.buffers().len());
        for (id, &planned) in plan.buffers().iter().enumerate() {
            let of_first = first
                .get(id)
                .filter(|buffer| buffer.device == planned.device);
            let position = match of_first {
                Some(_) => id,
                None => *added.entry((id, planned.device)).or_insert_with(|| {
                    needed.push(planned);
                    needed.len().saturating_sub(1)
                }),
            };
            if let Some(shared) = needed.get_mut(position) {
                shared.size = shared.size.max(planned.size);
                shared.align = shared.align.max(planned.align);
            }
            positions.push(position);
        }
        later.push(positions);
    }
    Ok(Shared { needed, later })
}

/// Checks each buffer of a plan that shares: what is shared has the larger
/// alignment of two, which would hide one that is none.
fn check_layouts(buffers: &[PlannedBuffer]) -> Result<()> {
    for (id, planned) in buffers.iter().enumerate() {
        if let Err(error) = planned.layout() {
            return Err(error.at("planned buffer", id));
        }
    }
    Ok(())
}

/// Checks that all can be asked for, and what each device needs against what it
/// has free, where it can tell.
fn check(needed: &[PlannedBuffer], registry: &DeviceAllocatorRegistry) -> Result<()> {
    // Buffers of one device mostly follow one another. Where they do not, there is
    // more than one sum for it, and those are brought together in the end.
    let mut sums: Vec<(Device, usize, usize)> = Vec::new();
    let mut current: Option<(Device, usize, usize)> = None;
    for (index, planned) in needed.iter().enumerate() {
        if let Err(error) = planned.layout() {
            return Err(error.at("planned buffer", index));
        }
        match &mut current {
            Some((device, _, bytes)) if *device == planned.device => {
                *bytes = bytes.saturating_add(planned.size);
            }
            _ => sums.extend(current.replace((planned.device, index, planned.size))),
        }
    }
    let sums = if sums.is_empty() {
        current.as_slice()
    } else {
        sums.extend(current);
        sums.sort_unstable();
        &sums
    };
    for of_device in sums.chunk_by(|(a, ..), (b, ..)| a == b) {
        let bytes = of_device.iter().map(|&(.., bytes)| bytes);
        let bytes = bytes.fold(0_usize, usize::saturating_add);
        if let Some(&(device, index, _)) = of_device.first() {
            check_free_memory(registry, device, bytes, index)?;
        }
    }
    Ok(())
}

/// Checks that `device` has `bytes` free, if it can tell. `index` is that of a
/// buffer on it, to name in an error.
fn check_free_memory(
    registry: &DeviceAllocatorRegistry,
    device: Device,
    bytes: usize,
    index: usize,
) -> Result<()> {
    let info = registry.lookup(device.device_type()).and_then(|allocator| {
        guarded(device, Operation::MemoryInfo, || {
            allocator.memory_info(device.index())
        })
    });
    match info {
        Ok(Some(MemoryInfo { free, total })) if free < bytes => {
            Err(OutOfMemory::of_plan(device, bytes, free, total).into())
        }
        Ok(_) => Ok(()),
        Err(error) => Err(error.at("planned buffer", index)),
    }
}
