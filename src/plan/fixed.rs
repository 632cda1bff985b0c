//! Items that must be where they are, and whether they can all be.
//!
//! Rank 2. Part of `plan`.

use std::collections::BTreeMap;

use crate::error::PlanError;

use super::problem::Item;

/// Checks that no two items with fixed offsets share bytes while both are alive.
pub(super) fn check(items: &[Item]) -> Result<(), PlanError> {
    // Within a step, what begins comes before what ends.
    let mut events: Vec<(usize, bool, usize, &Item)> = Vec::new();
    for item in items.iter().filter(|item| item.size > 0) {
        if let Some(offset) = item.fixed {
            events.push((item.first, false, offset, item));
            events.push((item.last, true, offset, item));
        }
    }
    events.sort_by_key(|&(step, ends, ..)| (step, ends));
    let mut alive: BTreeMap<usize, &Item> = BTreeMap::new();
    for (_, ends, offset, item) in events {
        if ends {
            alive.remove(&offset);
            continue;
        }
        let end = offset.saturating_add(item.size);
        let below = alive.range(..end).next_back();
        let below = below.filter(|(start, other)| start.saturating_add(other.size) > offset);
        if let Some((_, other)) = below {
            return Err(PlanError::FixedOverlap {
                value: item.value.max(other.value),
                offset: match item.value > other.value {
                    true => offset,
                    false => other.fixed.unwrap_or(offset),
                },
                other: Some(item.value.min(other.value)),
            });
        }
        alive.insert(offset, item);
    }
    Ok(())
}
