//! Parts of what is left that share no section, and ranks inside one.
//!
//! Rank 2. Part of `plan`.

use std::cmp::Reverse;

use super::bound::Entry;
use super::lane::Lane;

/// How many jobs begin and how many ended at a section, and the part it is in.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cover {
    begin: u32,
    end: u32,
    part: u32,
}

/// Ranks `entries` by the largest total of a section each crosses, then by id.
pub(super) fn rank_by_total<T: Lane>(entries: &mut [Entry<T>], totals: &mut [i64]) {
    totals.fill(0);
    let size = |entry: &Entry<T>| i64::try_from(entry.size.get()).unwrap_or(i64::MAX);
    for entry in entries.iter() {
        let run = usize::from(entry.from)..usize::from(entry.to);
        for total in totals.get_mut(run).unwrap_or(&mut []) {
            *total = total.saturating_add(size(entry));
        }
    }
    let fullest = |entry: &Entry<T>| {
        let run = usize::from(entry.from)..usize::from(entry.to);
        let totals = totals.get(run).unwrap_or(&[]);
        Reverse(totals.iter().copied().max())
    };
    entries.sort_by_cached_key(|entry| (fullest(entry), entry.id));
    for (rank, entry) in (0..).zip(entries) {
        entry.rank = rank;
    }
}

/// Numbers the parts of `entries` that share no section, in `cover` by section, and
/// returns how many there are.
pub(super) fn number_parts<T: Lane>(entries: &[Entry<T>], cover: &mut [Cover]) -> u32 {
    cover.fill(Cover::default());
    for entry in entries {
        if let Some(section) = cover.get_mut(usize::from(entry.from)) {
            section.begin = section.begin.wrapping_add(1);
        }
        if let Some(section) = cover.get_mut(usize::from(entry.to)) {
            section.end = section.end.wrapping_add(1);
        }
    }
    let (mut alive, mut count) = (0_u32, 0_u32);
    for section in cover {
        alive = alive.wrapping_sub(section.end);
        count = count.wrapping_add(u32::from(alive == 0 && section.begin > 0));
        alive = alive.wrapping_add(section.begin);
        section.part = count;
    }
    count
}

/// The part that a job is in.
pub(super) fn part_of<T: Lane>(entry: &Entry<T>, cover: &[Cover]) -> u32 {
    let section = cover.get(usize::from(entry.from));
    section.map_or(0, |section| section.part)
}
