//! Keys of sets of jobs, by which those that failed are known again.
//!
//! Rank 2. Part of `plan`.
//!
//! Two sets with one key would be taken for each other: a plan could be missed, and a
//! capacity be called impossible that is not. Keys have 64 bits, well mixed, so among a
//! billion sets the odds of that are one in forty.

use std::hash::Hasher;

use super::bound::Entry;
use super::lane::Lane;

/// What tells a set of jobs to be placed from any other: where each may be at
/// lowest, and which were passed over.
pub(super) fn key<T: Lane>(entries: &[Entry<T>], first: Option<(T, u16)>) -> u64 {
    let sum = entries.iter().fold(0_u64, |sum, entry| {
        let name = u32::from(entry.rank).rotate_left(16) | u32::from(entry.id);
        sum.wrapping_add(mix(entry.release.get(), name))
    });
    let first = first.map_or(0, |(release, rank)| mix(release.get(), u32::from(rank)));
    sum ^ first.rotate_left(32)
}

/// A number with the bits of both mixed.
#[inline(always)]
fn mix(release: u64, name: u32) -> u64 {
    let mut bits = release.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ u64::from(name);
    bits ^= bits >> 32;
    bits = bits.wrapping_mul(0xD6E8_FEB8_6659_FD93);
    bits ^ (bits >> 32)
}

/// Keys are mixed already.
#[derive(Debug, Default)]
pub(super) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::mix;

    #[test]
    fn all_bits_of_a_release_count() {
        let releases = (0..63).map(|bit| 1_u64 << bit);
        let mixed = releases.flat_map(|release| [7, 1 << 16].map(|name| mix(release, name)));

        assert_eq!(mixed.collect::<HashSet<_>>().len(), 126);
    }
}
