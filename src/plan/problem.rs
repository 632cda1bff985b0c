//! A request, checked and taken apart: one independent problem an arena.
//!
//! Rank 2. Part of `plan`.
//!
//! Values that use another's storage are merged into it here, sizes are rounded
//! up, and the sum of everything is checked once, so that no sum of the planners
//! can overflow.

use std::collections::BTreeMap;

use crate::device::Device;
use crate::error::{ErrorKind, PlanError, Result};

use super::fixed;
use super::request::{DeviceOptions, PlanRequest};
use super::storage;
use super::stretch::Stretch;
use super::value::PlanValue;

/// How many pools a device can have.
const MAX_POOLS: u32 = 1024;

/// Something that needs an offset: a value together with those in its storage.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// The value that owns the storage.
    pub(super) value: usize,
    /// Its size in bytes, rounded up to the alignment of the device.
    pub(super) size: usize,
    /// Its alignment in bytes.
    pub(super) align: usize,
    /// Its first step.
    pub(super) first: usize,
    /// Its last step.
    pub(super) last: usize,
    /// The offset that it must have.
    pub(super) fixed: Option<usize>,
    /// What its gaps leave of its life, in the order of steps; `None` without gaps.
    pub(super) stretches: Option<Vec<Stretch>>,
}

impl Item {
    /// What all bytes at which it begins to need some are multiples of.
    fn grain(&self) -> usize {
        let mut stretches = self.stretches.iter().flatten();
        match stretches.all(|stretch| stretch.bytes.start == 0) {
            true => self.align,
            false => 1,
        }
    }

    /// What it needs when: all of it from its first step to its last, or what its gaps
    /// leave.
    pub(super) fn needs(&self) -> impl Iterator<Item = Stretch> + '_ {
        let whole = self.stretches.is_none() && self.size > 0;
        let whole = whole.then_some(Stretch {
            first: self.first,
            last: self.last,
            bytes: 0..self.size,
        });
        whole
            .into_iter()
            .chain(self.stretches.iter().flatten().cloned())
    }
}

/// The items of one buffer.
#[derive(Clone, Debug)]
pub(super) struct Arena {
    /// The device.
    pub(super) device: Device,
    /// The pool of the device.
    pub(super) pool: u32,
    /// What holds for the device.
    pub(super) options: DeviceOptions,
    /// How many bytes at the start are reserved in all steps, rounded up to where an item
    /// can begin to need bytes.
    pub(super) reserved: usize,
    /// The items, in the order of their values.
    pub(super) items: Vec<Item>,
}

/// Where each value is: an arena, an item of it, an offset in the item.
#[derive(Clone, Copy, Debug)]
pub(super) struct Home {
    /// The arena, which is the memory id.
    pub(super) arena: usize,
    /// The item in the arena.
    pub(super) item: usize,
    /// The first byte in the item.
    pub(super) offset: usize,
}

/// A request, checked and taken apart.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    /// The arenas, by memory id.
    pub(super) arenas: Vec<Arena>,
    /// Where each value is.
    pub(super) homes: Vec<Home>,
}

/// `number` rounded up to a multiple of `align`, a power of two.
pub(super) fn round_up(number: usize, align: usize) -> Option<usize> {
    let below = align.wrapping_sub(1);
    Some(number.checked_add(below)? & !below)
}

impl Problem {
    /// Checks `request` and takes it apart.
    pub(super) fn new(request: &PlanRequest) -> Result<Self> {
        let values = request.values();
        for (index, value) in values.iter().enumerate() {
            check_value(index, value)?;
        }
        let roots = storage::roots(values)?;
        let mut problem = Self {
            arenas: arenas(request)?,
            homes: Vec::with_capacity(values.len()),
        };
        problem.add_owners(request, &roots)?;
        problem.add_aliases(values, &roots);
        for arena in &mut problem.arenas {
            arena.finish(request)?;
        }
        Ok(problem)
    }
}

/// Checks what can be seen of a value alone.
fn check_value(index: usize, value: &PlanValue) -> Result<(), PlanError> {
    let &PlanValue {
        first_use,
        last_use,
        align,
        pool,
        ..
    } = value;
    if first_use > last_use {
        return Err(PlanError::ReversedLife {
            value: index,
            first_use,
            last_use,
        });
    }
    if !align.is_power_of_two() {
        return Err(PlanError::InvalidAlign {
            value: index,
            align,
        });
    }
    if pool >= MAX_POOLS {
        return Err(PlanError::TooManyPools {
            value: index,
            pool,
            limit: MAX_POOLS,
        });
    }
    let mut after = None;
    for (gap, found) in value.gaps.iter().enumerate() {
        let invalid = |reason| PlanError::InvalidGap {
            value: index,
            gap,
            reason,
        };
        let (from, to) = (*found.steps.start(), *found.steps.end());
        if from > to || from < first_use || to > last_use {
            return Err(invalid("its steps are not within the life of the value"));
        }
        if after.is_some_and(|after| from <= after) {
            return Err(invalid("it begins before the one before it ends"));
        }
        if let Some(window) = &found.window
            && (window.start > window.end || window.end > value.size)
        {
            return Err(invalid("its window is not within the value"));
        }
        after = Some(to);
    }
    Ok(())
}

/// The arenas without their items: every pool of every device up to the highest.
fn arenas(request: &PlanRequest) -> Result<Vec<Arena>> {
    let mut pools: BTreeMap<Device, u32> = BTreeMap::new();
    let values = request.values().iter();
    let used = values.map(|value| (value.device, value.pool));
    let reserved = request.reserved().map(|(device, pool, _)| (device, pool));
    for (device, pool) in used.chain(reserved) {
        // Those of values are checked already.
        if pool >= MAX_POOLS {
            return Err(PlanError::ReservedPool {
                device,
                pool,
                limit: MAX_POOLS,
            }
            .into());
        }
        let count = pools.entry(device).or_default();
        *count = pool.saturating_add(1).max(*count);
    }
    let mut arenas = Vec::new();
    for (device, count) in pools {
        let options = request.device(device);
        if !options.align.is_power_of_two() {
            return Err(PlanError::InvalidDeviceAlign {
                device,
                align: options.align,
            }
            .into());
        }
        arenas.extend((0..count).map(|pool| Arena {
            device,
            pool,
            options,
            reserved: 0,
            items: Vec::new(),
        }));
    }
    Ok(arenas)
}

impl Problem {
    /// Adds an item for each value that owns its storage.
    fn add_owners(&mut self, request: &PlanRequest, roots: &[(usize, usize)]) -> Result<()> {
        for (index, (value, &(root, _))) in request.values().iter().zip(roots).enumerate() {
            let mut home = Home {
                arena: 0,
                item: 0,
                offset: 0,
            };
            if root == index {
                let found =
                    self.arenas.iter_mut().enumerate().find(|(_, arena)| {
                        (arena.device, arena.pool) == (value.device, value.pool)
                    });
                let Some((memory_id, arena)) = found else {
                    continue;
                };
                home.arena = memory_id;
                home.item = arena.items.len();
                arena.items.push(item(index, value, &arena.options)?);
            }
            self.homes.push(home);
        }
        Ok(())
    }

    /// Lets the items live as long as all values in them, as aligned as they need.
    fn add_aliases(&mut self, values: &[PlanValue], roots: &[(usize, usize)]) {
        for (index, (value, &(root, offset))) in values.iter().zip(roots).enumerate() {
            let Some(home) = self.homes.get(root).copied() else {
                continue;
            };
            if let Some(own) = self.homes.get_mut(index) {
                *own = Home { offset, ..home };
            }
            let arena = self.arenas.get_mut(home.arena);
            if let Some(item) = arena.and_then(|arena| arena.items.get_mut(home.item)) {
                item.first = item.first.min(value.first_use);
                item.last = item.last.max(value.last_use);
                item.align = item.align.max(value.align);
            }
        }
    }
}

/// The item of a value that owns its storage.
fn item(index: usize, value: &PlanValue, options: &DeviceOptions) -> Result<Item> {
    let size = round_up(value.size, options.align).ok_or(ErrorKind::PlanTooLarge {
        device: value.device,
    })?;
    Ok(Item {
        value: index,
        size,
        align: value.align.max(options.align),
        first: value.first_use,
        last: value.last_use,
        fixed: value.fixed_offset,
        stretches: (!value.gaps.is_empty()).then(|| Stretch::of(value, size)),
    })
}

impl Arena {
    /// Finds what is reserved, and checks fixed offsets and the sum of everything.
    fn finish(&mut self, request: &PlanRequest) -> Result<()> {
        let device = self.device;
        let too_large = || ErrorKind::PlanTooLarge { device };
        let mut of_pool = request
            .reserved()
            .filter(|&(of, pool, _)| (of, pool) == (device, self.pool));
        let reserved = of_pool.next().map_or(0, |(_, _, size)| size);
        let align = self.items.iter().map(Item::grain).min();
        self.reserved = round_up(reserved, align.unwrap_or(1)).ok_or_else(too_large)?;

        let mut sum = self.reserved.checked_add(self.options.padding);
        for item in &self.items {
            if let Some(offset) = item.fixed {
                if offset & item.align.wrapping_sub(1) != 0 {
                    return Err(PlanError::MisalignedOffset {
                        value: item.value,
                        offset,
                        align: item.align,
                    }
                    .into());
                }
                let mut starts = item.needs().map(|need| need.bytes.start);
                if starts.any(|start| offset.saturating_add(start) < reserved) {
                    return Err(PlanError::FixedOverlap {
                        value: item.value,
                        offset,
                        other: None,
                    }
                    .into());
                }
                sum = sum.and_then(|sum| sum.checked_add(offset));
            }
            let room = item.size.checked_add(item.align);
            sum = sum.and_then(|sum| sum.checked_add(room?));
        }
        let limit = usize::MAX.checked_shr(2).unwrap_or(usize::MAX);
        sum.filter(|&sum| sum <= limit).ok_or_else(too_large)?;
        fixed::check(&self.items)?;
        Ok(())
    }
}
