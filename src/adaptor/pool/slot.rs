//! A place for one free block.
//!
//! Rank 4. Part of `adaptor::pool`. Imports `sync` and the words.
//!
//! A slot has two words, a block and its size, and the first is the key to both: who
//! exchanges it for [`BUSY`] has the slot to itself until it stores another. Whoever
//! finds a slot busy goes on as if it was of no use, so nobody waits.

use std::ptr;

use crate::address::DevicePtr;
use crate::sync::{AtomicPtr, AtomicUsize, Ordering};

/// In place of a block while somebody changes a slot. No block is there.
const BUSY: *mut u8 = ptr::without_provenance_mut(1);

/// A block that is kept, or none.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// A block, or null, or [`BUSY`].
    block: AtomicPtr<u8>,
    /// The size of the block in units. Written only by who has the slot.
    units: AtomicUsize,
}

impl Slot {
    /// Keeps a block of so many units, if the slot is empty.
    #[inline]
    pub(super) fn keep(&self, units: usize, block: DevicePtr) -> bool {
        let empty = ptr::null_mut();
        let is_claimed = self.block.load(Ordering::Relaxed).is_null() && self.claim(empty);
        if is_claimed {
            self.fill(units, block);
        }
        is_claimed
    }

    /// Takes the block out, if it is of so many units.
    #[inline]
    pub(super) fn take(&self, units: usize) -> Option<DevicePtr> {
        if self.units.load(Ordering::Relaxed) != units {
            return None;
        }
        let block = self.block.load(Ordering::Relaxed);
        if !is_block(block) || !self.claim(block) {
            return None;
        }
        // Since the look above it may have been taken, joined with its neighbours, cut
        // to another size, and kept here again.
        if self.units.load(Ordering::Relaxed) != units {
            self.release(block);
            return None;
        }
        self.units.store(0, Ordering::Relaxed);
        self.release(ptr::null_mut());
        DevicePtr::from_raw(block)
    }

    /// Takes the block out, of whatever size.
    #[inline]
    pub(super) fn take_any(&self) -> Option<DevicePtr> {
        let block = self.block.load(Ordering::Relaxed);
        if !is_block(block) || !self.claim(block) {
            return None;
        }
        self.release(ptr::null_mut());
        DevicePtr::from_raw(block)
    }

    /// Keeps a block in place of another. Returns that; or the block, if somebody else
    /// changes the slot.
    pub(super) fn exchange(&self, units: usize, block: DevicePtr) -> Option<DevicePtr> {
        let gone = self.block.load(Ordering::Relaxed);
        if gone == BUSY || !self.claim(gone) {
            return Some(block);
        }
        self.fill(units, block);
        DevicePtr::from_raw(gone)
    }

    /// The size in units of the block, if there is one.
    pub(super) fn units(&self) -> Option<usize> {
        let is_full = is_block(self.block.load(Ordering::Acquire));
        is_full.then(|| self.units.load(Ordering::Relaxed))
    }

    /// Has the slot to itself, if `found` is what is in it.
    ///
    /// Pairs with the release in [`release`](Self::release): what was done with the block
    /// before it was freed comes before what is done with it now, and what was done with
    /// the slot before comes before what is done with it now.
    #[inline]
    fn claim(&self, found: *mut u8) -> bool {
        let order = (Ordering::Acquire, Ordering::Relaxed);
        let claimed = self.block.compare_exchange(found, BUSY, order.0, order.1);
        claimed.is_ok()
    }

    /// Puts a block into the slot, which is the caller's, and lets it go.
    #[inline]
    fn fill(&self, units: usize, block: DevicePtr) {
        self.units.store(units, Ordering::Relaxed);
        self.release(block.as_raw());
    }

    /// Lets the slot go.
    #[inline]
    fn release(&self, block: *mut u8) {
        self.block.store(block, Ordering::Release);
    }
}

/// Whether what is in a slot is a block.
#[inline]
fn is_block(found: *mut u8) -> bool {
    found.addr() > BUSY.addr()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn block(addr: usize) -> DevicePtr {
        DevicePtr::from_addr(addr).expect("not null")
    }

    #[test]
    fn a_block_is_had_once_and_by_its_size() {
        let slot = Slot::default();
        assert!(slot.keep(3, block(256)));
        assert!(!slot.keep(3, block(512)), "full");
        assert_eq!(slot.units(), Some(3));

        assert_eq!(slot.take(4), None);
        assert_eq!(slot.take(3), Some(block(256)));
        assert_eq!(
            (slot.take(3), slot.take(0), slot.take_any()),
            (None, None, None)
        );
        assert_eq!(slot.units(), None);
    }

    #[test]
    fn a_block_gives_way_to_another() {
        let slot = Slot::default();
        assert_eq!(slot.exchange(3, block(256)), None);
        assert_eq!(slot.exchange(4, block(512)), Some(block(256)));
        assert_eq!((slot.take(3), slot.take_any()), (None, Some(block(512))));
    }

    #[test]
    fn a_slot_that_somebody_changes_is_left_alone() {
        let slot = Slot::default();
        assert!(slot.keep(3, block(256)));
        assert!(slot.claim(block(256).as_raw()));

        assert!(!slot.keep(3, block(512)));
        assert_eq!(slot.exchange(3, block(512)), Some(block(512)));
        assert_eq!(
            (slot.take(3), slot.take_any(), slot.units()),
            (None, None, None)
        );

        slot.release(block(256).as_raw());
        assert_eq!(slot.take(3), Some(block(256)));
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// While one thread asks for a size, another takes that block and keeps it again as
    /// one of another size, as the pool does with what it joined and cut anew.
    #[test]
    fn a_block_that_changed_its_size_meanwhile_is_not_mistaken() {
        loom::model(|| {
            let slot = Arc::new(Slot::default());
            let block = DevicePtr::from_addr(256).expect("not null");
            assert!(slot.keep(1, block));
            let other = {
                let slot = slot.clone();
                thread::spawn(move || match slot.take(1) {
                    Some(block) => {
                        assert!(slot.keep(2, block));
                        false
                    }
                    None => true,
                })
            };

            let first = slot.take(1);
            let refused = other.join().expect("no panic");

            assert_eq!(first.is_some(), refused, "one of them has it");
            let left = slot.take(2);
            assert_eq!(left.is_some(), first.is_none());
            assert_eq!(slot.take_any(), None);
        });
    }
}
