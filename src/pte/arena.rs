//! The arenas of a method: sizes and devices.
//!
//! Rank 4. Part of `pte`.
//!
//! The file counts arenas from 1: slot 0 of the sizes is reserved, and
//! `memory_id` and `buffer_idx` name slots. The device list is sparse: it has an
//! entry for each arena that is not on the CPU, and is absent if there is none.

use std::collections::BTreeSet;

use crate::device::{Device, DeviceType};
use crate::plan::PlannedBuffer;
use crate::pte::fault::{Budget, Fallible, Fault};
use crate::pte::schema::{ExecutionPlan, NonConstBufferDevice};
use crate::pte::vector::{Longs, Tables};
use crate::pte::warning::{Subject, WarningKind, Warnings};

/// An entry of the device list, as it is in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferDevice {
    /// The arena, counted from 1.
    pub buffer_idx: i32,
    /// The code of the device type (CPU 0, CUDA 1).
    pub device_type: i8,
    /// The index of the device.
    pub device_index: i8,
}

impl BufferDevice {
    pub(super) fn read(table: &NonConstBufferDevice<'_>) -> Fallible<Self> {
        Ok(Self {
            buffer_idx: table.buffer_idx()?,
            device_type: table.device_type()?,
            device_index: table.device_index()?,
        })
    }
}

/// Sizes from here on are more than the address space of a process.
const HUGE: usize = 1 << 47;

/// The device that the codes name.
///
/// ExecuTorch ignores the index of a CPU, and -1 is the current device, which
/// this crate does not have: both are read as 0, with a warning.
#[inline]
pub(super) fn resolve_device(
    device_type: i8,
    device_index: i8,
    [type_field, index_field]: [&'static str; 2],
) -> Fallible<(Device, Option<WarningKind>)> {
    match (DeviceType::from_executorch(device_type), device_index) {
        (Some(DeviceType::Cpu), 0) => Ok((Device::CPU, None)),
        (Some(DeviceType::Cpu), index) if index >= -1 => {
            Ok((Device::CPU, Some(WarningKind::CpuIndex { index })))
        }
        (Some(known), -1) => {
            let device = Device::new(known, 0);
            Ok((device, Some(WarningKind::CurrentDevice { device })))
        }
        (Some(known), index) => match u16::try_from(index) {
            Ok(index) => Ok((Device::new(known, index), None)),
            Err(_) => Err(Fault::new(
                index_field,
                format_args!("device index {index} of {known} is negative"),
            )),
        },
        (None, _) => Err(Fault::new(
            type_field,
            format_args!("unknown device type {device_type}"),
        )),
    }
}

/// The arenas of `plan`, without the reserved slot.
#[inline]
pub(super) fn read<'a>(
    plan: &ExecutionPlan<'a>,
    warnings: &mut Warnings<'a>,
    budget: &mut Budget,
) -> Fallible<Vec<PlannedBuffer>> {
    let sizes = plan.non_const_buffer_sizes()?.unwrap_or_default();
    let mut arenas = read_sizes(sizes, warnings, budget)?;
    if let Some(list) = plan.non_const_buffer_device()? {
        read_devices(list, &mut arenas, warnings, budget)?;
    }
    Ok(arenas)
}

fn read_sizes(
    sizes: Longs<'_>,
    warnings: &mut Warnings<'_>,
    budget: &mut Budget,
) -> Fallible<Vec<PlannedBuffer>> {
    let field = "non_const_buffer_sizes";
    budget.charge(field, sizes.size_in_bytes())?;
    let mut arenas = Vec::with_capacity(sizes.len().saturating_sub(1));
    let mut total = 0_usize;
    let mut overflows = false;
    for (index, size) in sizes.iter().skip(1).enumerate() {
        let Ok(size) = usize::try_from(size) else {
            return Err(Fault::new(
                field,
                format_args!("buffer {index} has the invalid size {size}"),
            ));
        };
        if size >= HUGE {
            let kind = WarningKind::HugeBuffer { size };
            warnings.add(Subject::Buffer(index), field, kind);
        }
        match total.checked_add(size) {
            Some(sum) => total = sum,
            None => overflows = true,
        }
        arenas.push(PlannedBuffer::new(Device::CPU, size));
    }
    if overflows || isize::try_from(total).is_err() {
        let size = arenas
            .iter()
            .filter_map(|arena| u128::try_from(arena.size).ok())
            .fold(0, u128::saturating_add);
        warnings.add(Subject::None, field, WarningKind::HugeTotal { size });
    }
    Ok(arenas)
}

fn read_devices<'a>(
    list: Tables<'a, NonConstBufferDevice<'a>>,
    arenas: &mut [PlannedBuffer],
    warnings: &mut Warnings<'a>,
    budget: &mut Budget,
) -> Fallible<()> {
    let field = "non_const_buffer_device";
    budget.charge(field, list.len().saturating_mul(8))?;
    let mut named = Named::default();
    for (index, entry) in list.iter().enumerate() {
        let at = |fault: Fault| fault.at("entry", index);
        let entry = BufferDevice::read(&entry.map_err(at)?).map_err(at)?;
        let (device, oddity) =
            resolve_device(entry.device_type, entry.device_index, [field; 2]).map_err(at)?;
        let slot = usize::try_from(entry.buffer_idx).ok();
        let arena = slot.and_then(|slot| slot.checked_sub(1));
        if let Some(kind) = oddity {
            warnings.add(arena.map_or(Subject::None, Subject::Buffer), field, kind);
        }
        let count = arenas.len();
        let slot = entry.buffer_idx;
        let Some(arena) = arena.and_then(|arena| arenas.get_mut(arena)) else {
            return Err(at(match slot {
                0 => Fault::new(field, format_args!("buffer_idx 0 is reserved")),
                _ => Fault::new(
                    field,
                    format_args!("buffer_idx {slot} is not in 1..={count}"),
                ),
            }));
        };
        let earlier = list.iter().take(index);
        if !named.insert(slot, earlier.flat_map(|entry| entry?.buffer_idx())) {
            let fault = Fault::new(field, format_args!("buffer_idx {slot} is listed twice"));
            return Err(at(fault));
        }
        arena.device = device;
    }
    Ok(())
}

/// The arenas that a device list named so far.
///
/// Exporters list them in ascending order; they are only gathered if one is not.
#[derive(Default)]
struct Named {
    highest: i32,
    all: BTreeSet<i32>,
}

impl Named {
    /// Adds `slot`, a positive number, to the `earlier` ones; `false` if it is one of them.
    #[inline]
    fn insert(&mut self, slot: i32, earlier: impl Iterator<Item = i32>) -> bool {
        if slot > self.highest && self.all.is_empty() {
            self.highest = slot;
            return true;
        }
        if self.all.is_empty() {
            self.all.extend(earlier);
        }
        self.all.insert(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::Named;

    #[test]
    fn an_arena_is_named_once_in_any_order() {
        for (list, is_new) in [
            ([1, 2, 3, 4], [true; 4]),
            ([4, 3, 2, 1], [true; 4]),
            ([1, 1, 2, 2], [true, false, true, false]),
            ([3, 1, 4, 4], [true, true, true, false]),
            ([2, 3, 1, 3], [true, true, true, false]),
        ] {
            let mut named = Named::default();

            let found = [0, 1, 2, 3].map(|index| {
                let earlier = list.iter().copied().take(index);
                named.insert(list[index], earlier)
            });

            assert_eq!(found, is_new, "{list:?}");
        }
    }
}
