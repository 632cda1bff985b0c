//! The order of bookkeeping, over all interleavings of two threads.
//!
//! Built as a unit test of the crate with `--cfg loom`, for then the crate's own
//! atomics and locks are the ones that are modelled:
//! `RUSTFLAGS="--cfg loom" cargo test --release --lib models::`.
//!
//! The device below has one address, so that a block is another thread's as soon as
//! it is given back.

#![expect(unsafe_code, reason = "implements and calls an unsafe trait")]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

#[macro_use]
#[path = "../support/no_copies.rs"]
mod no_copies;

use crate::adaptor::{Aligned, Binning, Limit, Statistics, Tracking};
use crate::{
    DeviceAllocator, DeviceIndex, DeviceLayout, DevicePtr, DeviceType, OutOfMemory, Result,
};

/// A device with room for so many blocks, which all have the same address if it is one.
#[derive(Debug)]
struct Small {
    room: usize,
    live: AtomicUsize,
    passed: AtomicUsize,
}

impl Small {
    fn new(room: usize) -> Self {
        Self {
            room,
            live: AtomicUsize::new(0),
            passed: AtomicUsize::new(0),
        }
    }
}

// SAFETY: memory of it is never read or written, and blocks overlap only if the room
// is more than one, which the models that look at addresses do not have.
unsafe impl DeviceAllocator for Small {
    fn device_type(&self) -> DeviceType {
        DeviceType::Cuda
    }

    fn device_count(&self) -> usize {
        1
    }

    fn allocate(&self, layout: DeviceLayout, _: DeviceIndex) -> Result<DevicePtr> {
        let live = self.live.fetch_add(1, Ordering::AcqRel);
        if live >= self.room {
            self.live.fetch_sub(1, Ordering::AcqRel);
            self.passed.fetch_add(1, Ordering::AcqRel);
            return Err(OutOfMemory::new("cuda:0".parse().unwrap(), layout).into());
        }
        Ok(DevicePtr::from_addr(0x1000).unwrap())
    }

    unsafe fn deallocate(&self, _: DevicePtr, _: DeviceLayout, _: DeviceIndex) -> Result<()> {
        self.live.fetch_sub(1, Ordering::AcqRel);
        Ok(())
    }

    no_copies!();
}

fn layout() -> DeviceLayout {
    DeviceLayout::new(1, 1).unwrap()
}

/// Allocates, writes and frees once, if there is room, and says whether there was.
fn come_and_go(allocator: &impl DeviceAllocator) -> bool {
    let Ok(ptr) = allocator.allocate(layout(), 0) else {
        return false;
    };
    assert!(is_known(allocator, ptr));
    // SAFETY: the block is freed once, as it was allocated.
    unsafe { allocator.deallocate(ptr, layout(), 0) }.unwrap();
    true
}

/// Whether a byte can be written, which an adaptor that looks blocks up refuses where
/// it knows none.
fn is_known(allocator: &impl DeviceAllocator, ptr: DevicePtr) -> bool {
    // SAFETY: the device has no memory, so nothing is written.
    unsafe { allocator.copy_host_to_device(ptr, [0].as_ptr(), 1, 0) }.is_ok()
}

/// Runs `each` on two threads over one allocator, then `check`.
fn two_threads<A: DeviceAllocator + 'static>(
    make: impl Fn() -> A + Send + Sync + 'static,
    each: impl Fn(&A) + Send + Sync + Copy + 'static,
    check: impl Fn(&A) + Send + Sync + 'static,
) {
    loom::model(move || {
        let allocator = Arc::new(make());
        let other = {
            let allocator = allocator.clone();
            thread::spawn(move || each(&allocator))
        };
        each(&allocator);
        other.join().unwrap();
        check(&allocator);
    });
}

#[test]
fn a_limit_is_never_passed_below_and_comes_back_whole() {
    two_threads(
        || Limit::over(Small::new(1), 1),
        |limit| {
            come_and_go(limit);
        },
        |limit| {
            // Had the limit let two through at once, the device would have refused one.
            assert_eq!(limit.inner().passed.load(Ordering::Acquire), 0);
            assert_eq!(limit.in_use(0), 0);
            assert!(come_and_go(limit));
        },
    );
}

#[test]
fn a_peak_is_never_above_what_the_device_has() {
    two_threads(
        || Statistics::over(Small::new(1)),
        |statistics| {
            come_and_go(statistics);
        },
        |statistics| {
            let usage = statistics.usage(0);
            assert_eq!((usage.current, usage.peak), (0, 1));
            assert_eq!(usage.allocations, usage.frees);
            assert_eq!(usage.allocations + usage.failures, 2);
        },
    );
}

#[test]
fn a_block_is_known_though_another_thread_had_its_address_before() {
    two_threads(
        || Tracking::over(Small::new(1)),
        // A free of a block that was struck by the other thread would be refused.
        |tracking| {
            come_and_go(tracking);
        },
        |tracking| assert_eq!(tracking.live_blocks(), 0),
    );
}

#[test]
fn a_block_of_a_bin_is_known_until_it_is_given_back_though_its_address_is_had_again() {
    two_threads(
        || {
            let bins = Binning::over(Small::new(0)).bin(1, Small::new(1));
            bins.unwrap()
        },
        |binning| {
            come_and_go(binning);
        },
        |binning| {
            assert!(!is_known(binning, DevicePtr::from_addr(0x1000).unwrap()));
            assert!(come_and_go(binning));
        },
    );
}

#[test]
fn an_aligned_part_is_known_until_it_is_given_back_though_its_address_is_had_again() {
    two_threads(
        || {
            let aligned = Aligned::over(Small::new(1), 0x2000).unwrap();
            aligned.native_align(16).unwrap()
        },
        |aligned| {
            come_and_go(aligned);
        },
        |aligned| {
            assert_eq!(aligned.inner().live.load(Ordering::Acquire), 0);
            assert!(come_and_go(aligned));
        },
    );
}
