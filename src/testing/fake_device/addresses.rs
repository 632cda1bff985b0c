//! The addresses that fake devices hand out.
//!
//! Rank 8. Part of `testing::fake_device`. Imports nothing from this crate.
//!
//! The host can not read any of them: on 64-bit targets they are addresses that
//! the processor refuses whatever is mapped. Every device of every fake has a
//! slot of addresses of its own, so a pointer tells where it came from.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Bits that are set in every address of a fake device.
///
/// Bits 56 and 47 are set and bit 63 is not, which no paging mode of `x86_64`
/// takes; bit 55 puts the address in the kernel's half on `aarch64`, which does
/// not look at the bits above it.
#[cfg(target_pointer_width = "64")]
const MARK: usize = 0x0180_8000_0000_0000;

/// Where the number of the slot is kept: how many bits, from which bit on.
#[cfg(target_pointer_width = "64")]
const FIELDS: [(u32, u32); 3] = [(3, 44), (7, 48), (6, 57)];

/// The size of a slot as an exponent of two.
#[cfg(target_pointer_width = "64")]
const SLOT_LOG2: u32 = 44;

/// On 32-bit targets every address is one that may be mapped. The highest
/// quarter belongs to the kernel on most.
#[cfg(not(target_pointer_width = "64"))]
const MARK: usize = 0xC000_0000;

#[cfg(not(target_pointer_width = "64"))]
const FIELDS: [(u32, u32); 1] = [(6, 24)];

#[cfg(not(target_pointer_width = "64"))]
const SLOT_LOG2: u32 = 24;

/// How many bytes of addresses a device has.
pub(super) const SLOT_SIZE: usize = 1 << SLOT_LOG2;

/// How many slots there are.
#[cfg(target_pointer_width = "64")]
pub(super) const SLOT_COUNT: usize = 1 << 16;

#[cfg(not(target_pointer_width = "64"))]
pub(super) const SLOT_COUNT: usize = 1 << 6;

/// The slots of one fake: one for each of its devices.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots {
    first: usize,
    count: usize,
}

/// What an address is, seen from one fake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In the slot of one of its devices.
    Device(usize),
    /// In the slot of another fake.
    OtherFake,
    /// No address of a fake.
    Host,
}

impl Slots {
    /// Takes the next `count` slots. They come round again after 65,536.
    pub(super) fn take(count: usize) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        Self {
            first: NEXT.fetch_add(count, Ordering::Relaxed) % SLOT_COUNT,
            count,
        }
    }

    /// The first address of the slot of `device`.
    pub(super) fn base(self, device: usize) -> usize {
        base(self.first.wrapping_add(device) % SLOT_COUNT)
    }

    /// Where `addr` is.
    pub(super) fn locate(self, addr: usize) -> Place {
        let Some(slot) = slot(addr) else {
            return Place::Host;
        };
        let device = slot.wrapping_sub(self.first) % SLOT_COUNT;
        if device < self.count {
            Place::Device(device)
        } else {
            Place::OtherFake
        }
    }
}

/// Whether any of `size` bytes from `addr` has an address of a fake device.
pub(super) fn touches_fake(addr: usize, size: usize) -> bool {
    let last = addr.saturating_add(size.saturating_sub(1));
    slot(addr).is_some() || slot(last).is_some()
}

/// The first address of a slot.
fn base(slot: usize) -> usize {
    let mut rest = slot;
    let mut addr = MARK;
    for (bits, shift) in FIELDS {
        addr |= (rest & low_bits(bits)).wrapping_shl(shift);
        rest = rest.wrapping_shr(bits);
    }
    addr
}

/// The slot that `addr` is in.
fn slot(addr: usize) -> Option<usize> {
    let mut slot: usize = 0;
    let mut used: u32 = 0;
    let mut free = low_bits(SLOT_LOG2);
    for (bits, shift) in FIELDS {
        slot |= (addr.wrapping_shr(shift) & low_bits(bits)).wrapping_shl(used);
        used = used.wrapping_add(bits);
        free |= low_bits(bits).wrapping_shl(shift);
    }
    (addr & !free == MARK).then_some(slot)
}

/// A number of which the lowest `bits` bits are set.
fn low_bits(bits: u32) -> usize {
    1_usize.wrapping_shl(bits).wrapping_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_is_found_again_from_its_first_and_last_address() {
        for number in 0..SLOT_COUNT {
            let first = base(number);

            assert_eq!(slot(first), Some(number));
            assert_eq!(slot(first + (SLOT_SIZE - 1)), Some(number));
        }
    }

    #[test]
    fn host_addresses_are_in_no_slot() {
        let on_stack = 0_u8;

        assert_eq!(slot(0), None);
        assert_eq!(slot(usize::MAX), None);
        assert_eq!(slot(std::ptr::from_ref(&on_stack).addr()), None);
    }

    #[test]
    fn slots_that_come_round_still_belong_to_their_fake() {
        let slots = Slots {
            first: SLOT_COUNT - 1,
            count: 2,
        };

        assert_eq!(slots.locate(slots.base(0)), Place::Device(0));
        assert_eq!(slots.locate(slots.base(1)), Place::Device(1));
        assert_eq!(slots.locate(base(1)), Place::OtherFake);
    }
}
