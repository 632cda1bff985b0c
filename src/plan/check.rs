//! Whether a plan is right: an independent answer.
//!
//! Rank 2. Part of `plan`.
//!
//! Nothing here is shared with the planners: lives, sizes and storage are read from
//! the request anew.

mod fault;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use crate::device::Device;

use super::memory_plan::{MemoryPlan, Placement};
use super::request::PlanRequest;
use super::value::PlanValue;

pub use fault::PlanFault;

/// Checks that `plan` is a plan of `request`.
///
/// Takes time near-linear in the number of values and gaps.
///
/// # Errors
///
/// - [`PlanFault`]: the first thing that is wrong.
///
/// # Examples
///
/// ```
/// use device_memory::plan::{PlanRequest, PlanValue, check};
/// use device_memory::{Device, MemoryPlan, Placement, PlannedBuffer};
///
/// let mut request = PlanRequest::new();
/// request.push(PlanValue::new(64, 0..=1));
/// request.push(PlanValue::new(64, 1..=2));
/// let plan = MemoryPlan::new(
///     vec![PlannedBuffer::new(Device::CPU, 64)],
///     vec![Placement::new(0, 0, 64), Placement::new(0, 0, 64)],
/// )?;
///
/// let fault = check(&request, &plan).unwrap_err();
///
/// assert_eq!(fault.to_string(), "values 0 and 1 overlap in step 1");
/// # Ok::<(), device_memory::Error>(())
/// ```
pub fn check(request: &PlanRequest, plan: &MemoryPlan) -> Result<(), PlanFault> {
    let (expected, found) = (request.values().len(), plan.placements().len());
    if expected != found {
        return Err(PlanFault::Count { expected, found });
    }
    let owners = owners(request.values())?;
    let mut pools = Pools::default();
    for (index, (value, placement)) in request.values().iter().zip(plan.placements()).enumerate() {
        check_place(request, plan, index, value, placement)?;
        pools.check(index, value, placement)?;
    }
    let needs = needs(request, plan, &owners);
    check_reserved(request, &needs)?;
    check_overlaps(&needs)?;
    check_capacities(request, plan)
}

/// Checks where one value is.
fn check_place(
    request: &PlanRequest,
    plan: &MemoryPlan,
    index: usize,
    value: &PlanValue,
    placement: &Placement,
) -> Result<(), PlanFault> {
    let memory_id = placement.memory_id;
    let buffer = usize::try_from(memory_id).ok();
    let buffer = buffer.and_then(|id| plan.buffers().get(id));
    let Some(buffer) = buffer.filter(|buffer| buffer.device == value.device) else {
        return Err(PlanFault::WrongBuffer {
            value: index,
            device: value.device,
            memory_id,
        });
    };
    if placement.size != value.size {
        return Err(PlanFault::WrongSize {
            value: index,
            expected: value.size,
            found: placement.size,
        });
    }
    let options = request.device(value.device);
    let offset = placement.offset;
    let end = offset.saturating_add(value.size);
    let padded = end.saturating_add(options.padding);
    if padded > buffer.size {
        return Err(PlanFault::OutOfBounds {
            value: index,
            end: padded,
            len: buffer.size,
        });
    }
    let other = value.alias.and_then(|alias| {
        let other = plan.placements().get(alias.of)?;
        Some((other.memory_id, other.offset.checked_add(alias.offset)?))
    });
    // What lies in another value is as aligned as that lets it be.
    let align = match other {
        Some(_) => value.align,
        None => value.align.max(options.align),
    };
    let is_aligned = offset.checked_rem(align).is_some_and(|rest| rest == 0);
    if !is_aligned || buffer.align < align {
        return Err(PlanFault::Misaligned {
            value: index,
            offset,
            align,
        });
    }
    let due = other.or(value.fixed_offset.map(|offset| (memory_id, offset)));
    if let Some((id, expected)) = due
        && (id, expected) != (memory_id, offset)
    {
        return Err(PlanFault::WrongOffset {
            value: index,
            expected,
            found: offset,
        });
    }
    Ok(())
}

/// Which buffer each pool has, and by which value that was seen first.
#[derive(Default)]
struct Pools {
    buffers: HashMap<(Device, u32), (u32, usize)>,
    pools: HashMap<u32, (u32, usize)>,
}

impl Pools {
    fn check(
        &mut self,
        index: usize,
        value: &PlanValue,
        placement: &Placement,
    ) -> Result<(), PlanFault> {
        let key = (value.device, value.pool);
        let (buffer, first) = *self
            .buffers
            .entry(key)
            .or_insert((placement.memory_id, index));
        let (pool, other) = *self
            .pools
            .entry(placement.memory_id)
            .or_insert((value.pool, index));
        let first = match (buffer == placement.memory_id, pool == value.pool) {
            (true, true) => return Ok(()),
            (false, _) => first,
            (true, false) => other,
        };
        let second = index;
        Err(PlanFault::WrongPool { first, second })
    }
}

/// Bytes that are needed in a run of steps.
struct Need {
    value: usize,
    first: usize,
    last: usize,
    memory_id: u32,
    bytes: Range<usize>,
}

/// Checks that no need is of bytes that are reserved.
fn check_reserved(request: &PlanRequest, needs: &[Need]) -> Result<(), PlanFault> {
    let reserved = request.reserved();
    let reserved = reserved.map(|(device, pool, size)| ((device, pool), size));
    let reserved: HashMap<(Device, u32), usize> = reserved.collect();
    for need in needs.iter().filter(|need| !need.bytes.is_empty()) {
        let value = request.values().get(need.value);
        let size = value.and_then(|value| reserved.get(&(value.device, value.pool)));
        if let Some(&reserved) = size.filter(|&&size| need.bytes.start < size) {
            return Err(PlanFault::Reserved {
                value: need.value,
                offset: need.bytes.start,
                reserved,
            });
        }
    }
    Ok(())
}

/// Checks that no two needs of different storage share bytes in a step.
fn check_overlaps(needs: &[Need]) -> Result<(), PlanFault> {
    // Within a step, what begins comes before what ends.
    let mut events: Vec<(usize, bool, &Need)> = Vec::new();
    for need in needs.iter().filter(|need| !need.bytes.is_empty()) {
        events.push((need.first, false, need));
        events.push((need.last, true, need));
    }
    events.sort_by_key(|&(step, ends, _)| (step, ends));
    let mut alive: BTreeMap<(u32, usize), (usize, usize)> = BTreeMap::new();
    for (step, ends, need) in events {
        let key = (need.memory_id, need.bytes.start);
        if ends {
            alive.remove(&key);
            continue;
        }
        let below = alive.range(..=key).next_back();
        let below = below.filter(|((id, _), (end, _))| *id == key.0 && *end > need.bytes.start);
        let above = alive.range(key..(need.memory_id, need.bytes.end)).next();
        if let Some((_, &(_, other))) = below.or(above) {
            return Err(PlanFault::Overlap {
                first: need.value.min(other),
                second: need.value.max(other),
                step,
            });
        }
        alive.insert(key, (need.bytes.end, need.value));
    }
    Ok(())
}

/// What is needed of each storage: as long as any value in it lives, and of one
/// with gaps what its gaps leave.
fn needs(request: &PlanRequest, plan: &MemoryPlan, owners: &[usize]) -> Vec<Need> {
    let values = request.values();
    let mut lives: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
    for (value, &owner) in values.iter().zip(owners) {
        let life = lives
            .entry(owner)
            .or_insert((value.first_use, value.last_use));
        life.0 = life.0.min(value.first_use);
        life.1 = life.1.max(value.last_use);
    }
    let mut needs = Vec::new();
    for (&index, &(first, last)) in &lives {
        let (Some(value), Some(placement)) = (values.get(index), plan.placements().get(index))
        else {
            continue;
        };
        let (start, memory_id) = (placement.offset, placement.memory_id);
        let mut need = |first, last, within: Range<usize>| {
            needs.push(Need {
                value: index,
                first,
                last,
                memory_id,
                bytes: start.saturating_add(within.start)..start.saturating_add(within.end),
            });
        };
        let mut from = Some(first);
        for gap in &value.gaps {
            let (begin, end) = (*gap.steps.start(), *gap.steps.end());
            if let (Some(from), Some(before)) = (from, begin.checked_sub(1))
                && from <= before
            {
                need(from, before, 0..value.size);
            }
            if let Some(window) = &gap.window {
                need(begin, end, window.clone());
            }
            from = end.checked_add(1);
        }
        if let Some(from) = from.filter(|&from| from <= last) {
            need(from, last, 0..value.size);
        }
    }
    needs
}

/// For each value the one whose storage it uses in the end: itself if it has its own.
fn owners(values: &[PlanValue]) -> Result<Vec<usize>, PlanFault> {
    let mut owners: Vec<Option<usize>> = vec![None; values.len()];
    for start in 0..values.len() {
        let mut chain = Vec::new();
        let mut at = start;
        let owner = loop {
            if let Some(&Some(owner)) = owners.get(at) {
                break owner;
            }
            let Some((value, alias)) = values.get(at).and_then(|of| Some((of, of.alias?))) else {
                break at;
            };
            chain.push(at);
            let other = values.get(alias.of).filter(|other| {
                let end = alias.offset.checked_add(value.size);
                let is_within = end.is_some_and(|end| end <= other.size);
                is_within && value.gaps.is_empty() && other.gaps.is_empty()
            });
            if other.is_none() || chain.len() > values.len() {
                return Err(PlanFault::WrongAlias {
                    value: at,
                    of: alias.of,
                });
            }
            at = alias.of;
        };
        for of in chain.into_iter().chain([at]) {
            if let Some(slot) = owners.get_mut(of) {
                *slot = Some(owner);
            }
        }
    }
    Ok(owners.into_iter().flatten().collect())
}

fn check_capacities(request: &PlanRequest, plan: &MemoryPlan) -> Result<(), PlanFault> {
    let mut sums: BTreeMap<Device, usize> = BTreeMap::new();
    for buffer in plan.buffers() {
        let sum = sums.entry(buffer.device).or_default();
        *sum = sum.saturating_add(buffer.size);
    }
    for (device, needed) in sums {
        let capacity = request.device(device).capacity;
        if let Some(capacity) = capacity.filter(|&capacity| needed > capacity) {
            return Err(PlanFault::OverCapacity {
                device,
                needed,
                capacity,
            });
        }
    }
    Ok(())
}
