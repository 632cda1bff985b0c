//! Items that must be where they are, and whether they can all be.
//!
//! Rank 2. Part of `plan`.

use std::collections::BTreeMap;

use crate::error::PlanError;

use super::problem::Item;

/// Checks that no two items with fixed offsets need the same bytes in a step.
pub(super) fn check(items: &[Item]) -> Result<(), PlanError> {
    // Within a step, what begins comes before what ends.
    let mut events: Vec<(usize, bool, usize, usize, &Item)> = Vec::new();
    for item in items {
        let Some(offset) = item.fixed else { continue };
        for need in item.needs() {
            let start = offset.saturating_add(need.bytes.start);
            let end = offset.saturating_add(need.bytes.end);
            events.push((need.first, false, start, end, item));
            events.push((need.last, true, start, end, item));
        }
    }
    events.sort_by_key(|&(step, ends, ..)| (step, ends));
    let mut alive: BTreeMap<usize, (usize, &Item)> = BTreeMap::new();
    for (_, ends, start, end, item) in events {
        if ends {
            alive.remove(&start);
            continue;
        }
        let below = alive.range(..end).next_back();
        if let Some((_, (_, other))) = below.filter(|(_, (end, _))| *end > start) {
            let later = if item.value > other.value {
                item
            } else {
                other
            };
            return Err(PlanError::FixedOverlap {
                value: later.value,
                offset: later.fixed.unwrap_or(start),
                other: Some(item.value.min(other.value)),
            });
        }
        alive.insert(start, (end, item));
    }
    Ok(())
}
