//! Whose storage each value uses.
//!
//! Rank 2. Part of `plan`.

use crate::device::Device;
use crate::error::{ErrorKind, PlanError, Result};

use super::value::PlanValue;

/// For each value the one that owns its storage, and the offset in it.
pub(super) fn roots(values: &[PlanValue]) -> Result<Vec<(usize, usize)>> {
    let mut roots: Vec<Option<(usize, usize)>> = vec![None; values.len()];
    let mut path = Vec::new();
    for start in 0..values.len() {
        let mut at = start;
        let (root, mut offset) = loop {
            if let Some(&Some(known)) = roots.get(at) {
                break known;
            }
            let Some(alias) = values.get(at).and_then(|value| value.alias) else {
                break (at, 0);
            };
            let invalid = |reason| PlanError::InvalidAlias {
                value: at,
                of: alias.of,
                reason,
            };
            if alias.of >= values.len() {
                return Err(invalid("there is no such value").into());
            }
            if path.len() > values.len() {
                return Err(invalid("they use the storage of each other").into());
            }
            path.push((at, alias.offset));
            at = alias.of;
        };
        if let Some(slot) = roots.get_mut(at) {
            *slot = Some((root, offset));
        }
        while let Some((value, within)) = path.pop() {
            check_alias(values, value, within)?;
            offset = within.checked_add(offset).ok_or(ErrorKind::PlanTooLarge {
                device: values.get(root).map_or(Device::CPU, |root| root.device),
            })?;
            if let Some(slot) = roots.get_mut(value) {
                *slot = Some((root, offset));
            }
        }
    }
    Ok(roots.into_iter().flatten().collect())
}

/// Checks a value against the one whose storage it uses.
fn check_alias(values: &[PlanValue], index: usize, offset: usize) -> Result<(), PlanError> {
    let Some(value) = values.get(index) else {
        return Ok(());
    };
    let Some((of, other)) = value
        .alias
        .and_then(|alias| Some((alias.of, values.get(alias.of)?)))
    else {
        return Ok(());
    };
    let end = offset.checked_add(value.size);
    let reason = if (value.device, value.pool) != (other.device, other.pool) {
        "they are in different places"
    } else if end.is_none_or(|end| end > other.size) {
        "it passes the end"
    } else if value.fixed_offset.is_some() {
        "its offset is fixed"
    } else if !value.gaps.is_empty() || !other.gaps.is_empty() {
        "one of them has gaps"
    } else if offset & value.align.wrapping_sub(1) != 0 {
        "its offset is not aligned"
    } else {
        return Ok(());
    };
    Err(PlanError::InvalidAlias {
        value: index,
        of,
        reason,
    })
}
