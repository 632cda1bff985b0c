//! The kit itself: what it records, what it reports, and what it finds.

#![cfg(feature = "testing")]

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};

use device_memory::testing::conformance::{self, Conformance, Promise};
use device_memory::testing::{
    ExhaustionError, FakeDevice, FaultInjector, InjectedFault, MAX_ROUNDS, Misuse, Violation,
    fail_each_call, fail_each_call_of, panic_each_call,
};
use device_memory::{
    Device, DeviceAllocator, DeviceIndex, DeviceLayout, DevicePtr, DeviceType, Error, ErrorKind,
    HostAllocator, MemoryInfo, Operation, Result,
};

const CUDA: DeviceType = DeviceType::Cuda;

/// Asks the address sanitizer, where the test is built with it, to refuse an
/// allocation that is too large instead of stopping the process.
#[unsafe(no_mangle)]
#[expect(unsafe_code, reason = "the sanitizer looks this name up")]
extern "C" fn __asan_default_options() -> *const std::ffi::c_char {
    c"allocator_may_return_null=1".as_ptr()
}

fn layout(size: usize) -> DeviceLayout {
    DeviceLayout::from_size(size).unwrap()
}

fn addr(addr: usize) -> DevicePtr {
    DevicePtr::from_addr(addr).unwrap()
}

/// Calls the unsafe methods for tests that break the contract on purpose. The
/// allocators under test check all they are given.
struct Raw<'a>(&'a dyn DeviceAllocator);

#[expect(
    unsafe_code,
    reason = "host ranges are slices or ones that a fake refuses to read; the rest is checked"
)]
impl Raw<'_> {
    fn free(&self, ptr: DevicePtr, layout: DeviceLayout, index: DeviceIndex) -> Result<()> {
        // SAFETY: the allocator checks the block itself.
        unsafe { self.0.deallocate(ptr, layout, index) }
    }

    fn write(&self, dst: DevicePtr, bytes: &[u8], index: DeviceIndex) -> Result<()> {
        self.write_from(dst, bytes.as_ptr(), bytes.len(), index)
    }

    fn write_from(
        &self,
        dst: DevicePtr,
        src: *const u8,
        size: usize,
        index: DeviceIndex,
    ) -> Result<()> {
        // SAFETY: `src` is a slice of `size` bytes, or an address which the fake
        // refuses; it checks `dst` itself.
        unsafe { self.0.copy_host_to_device(dst, src, size, index) }
    }

    fn read(&self, src: DevicePtr, size: usize, index: DeviceIndex) -> Result<Vec<u8>> {
        let mut bytes = vec![0; size];
        self.read_to(bytes.as_mut_ptr(), src, size, index)?;
        Ok(bytes)
    }

    fn read_to(&self, dst: *mut u8, src: DevicePtr, size: usize, index: DeviceIndex) -> Result<()> {
        // SAFETY: as for `write_from`.
        unsafe { self.0.copy_device_to_host(dst, src, size, index) }
    }

    fn copy(
        &self,
        (dst, dst_index): (DevicePtr, DeviceIndex),
        (src, src_index): (DevicePtr, DeviceIndex),
        size: usize,
    ) -> Result<()> {
        // SAFETY: the allocator checks both ranges itself.
        unsafe {
            self.0
                .copy_device_to_device(dst, dst_index, src, src_index, size)
        }
    }

    fn fill(&self, dst: DevicePtr, byte: u8, size: usize, index: DeviceIndex) -> Result<()> {
        // SAFETY: the allocator checks the range itself.
        unsafe { self.0.fill(dst, byte, size, index) }
    }
}

/// The violation inside an error, which is the only one the fake kept.
fn misuse(fake: &FakeDevice, outcome: Result<()>) -> Misuse {
    let error = outcome.unwrap_err();
    let ErrorKind::Backend { source, .. } = error.kind() else {
        panic!("{error:?}");
    };
    let violation = source.downcast_ref::<Violation>().unwrap();
    let kept = fake.violations();
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].to_string(), violation.to_string());
    assert!(!fake.calls().last().unwrap().succeeded);
    fake.clear_violations();
    violation.misuse.clone()
}

mod violations {
    use super::*;

    #[test]
    fn a_double_free_names_both_calls_and_frees_once() {
        let fake = FakeDevice::new(CUDA, 1);
        let ptr = fake.allocate(layout(64), 0).unwrap();
        Raw(&fake).free(ptr, layout(64), 0).unwrap();

        let found = misuse(&fake, Raw(&fake).free(ptr, layout(64), 0));

        assert!(matches!(
            found,
            Misuse::DoubleFree {
                allocated: 1,
                freed: 2,
                ..
            }
        ));
        assert_eq!((fake.deallocations(), fake.live_blocks()), (1, 0));
    }

    #[test]
    fn pointers_that_the_fake_never_gave_are_foreign() {
        let fake = FakeDevice::new(CUDA, 1);
        let other = FakeDevice::new(CUDA, 1);
        let ptr = fake.allocate(layout(64), 0).unwrap();
        let theirs = other.allocate(layout(64), 0).unwrap();
        let beyond = ptr.checked_add(1 << 20).unwrap();

        for foreign in [theirs, beyond] {
            let found = misuse(&fake, Raw(&fake).free(foreign, layout(64), 0));
            assert!(matches!(found, Misuse::Foreign { .. }), "{found}");
            let found = misuse(&fake, Raw(&fake).fill(foreign, 0, 1, 0));
            assert!(matches!(found, Misuse::Foreign { .. }), "{found}");
        }
        assert_eq!((fake.live_blocks(), other.live_blocks()), (1, 1));
    }

    #[test]
    fn a_free_inside_a_block_is_reported() {
        let fake = FakeDevice::new(CUDA, 1);
        let ptr = fake.allocate(layout(64), 0).unwrap();
        let inside = ptr.checked_add(8).unwrap();

        let found = misuse(&fake, Raw(&fake).free(inside, layout(56), 0));

        assert!(matches!(found, Misuse::NotTheStart { block, .. } if block == ptr));
        assert_eq!(fake.live_blocks(), 1);
    }

    #[test]
    fn a_free_with_another_layout_is_reported() {
        let fake = FakeDevice::new(CUDA, 1);
        let ptr = fake.allocate(layout(64), 0).unwrap();

        for wrong in [layout(65), DeviceLayout::new(64, 32).unwrap()] {
            let found = misuse(&fake, Raw(&fake).free(ptr, wrong, 0));
            assert!(matches!(found, Misuse::WrongLayout { found, .. } if found == wrong));
        }
        assert_eq!(fake.live_blocks(), 1);
    }

    #[test]
    fn another_index_than_that_of_the_block_is_reported() {
        let fake = FakeDevice::new(CUDA, 2);
        let ptr = fake.allocate(layout(64), 1).unwrap();

        let freed = misuse(&fake, Raw(&fake).free(ptr, layout(64), 0));
        let written = misuse(&fake, Raw(&fake).write(ptr, b"abc", 0));

        let there = Device::new(CUDA, 1);
        assert!(
            matches!(freed, Misuse::WrongDevice { expected, index: 0, .. } if expected == there)
        );
        assert!(matches!(written, Misuse::WrongDevice { .. }));
        assert_eq!(fake.contents(ptr, 3).unwrap(), [0xCD; 3]);
    }

    fn is_invalid(outcome: &Result<()>) -> bool {
        let kind = outcome.as_ref().map_err(Error::kind);
        matches!(kind, Err(ErrorKind::InvalidDevice { count: 2, .. }))
    }

    #[test]
    fn an_index_that_no_device_has_is_invalid_and_a_violation_where_it_is_unsafe() {
        let fake = FakeDevice::new(CUDA, 2);
        let ptr = fake.allocate(layout(64), 0).unwrap();

        assert!(is_invalid(&fake.allocate(layout(64), 2).map(drop)));
        assert!(fake.violations().is_empty());
        assert!(is_invalid(&Raw(&fake).free(ptr, layout(64), 2)));
        assert!(matches!(
            fake.violations()[0].misuse,
            Misuse::InvalidIndex { index: 2, count: 2 }
        ));
        assert_eq!(fake.live_blocks(), 1);
    }

    #[test]
    fn ranges_that_pass_the_end_of_a_block_are_reported_and_not_done() {
        let fake = FakeDevice::new(CUDA, 1);
        let ptr = fake.allocate(layout(64), 0).unwrap();
        let at_60 = ptr.checked_add(60).unwrap();

        let raw = Raw(&fake);
        for outcome in [
            raw.write(at_60, b"12345", 0),
            raw.fill(at_60, 1, 5, 0),
            raw.fill(at_60, 1, usize::MAX, 0),
            raw.read(at_60, 5, 0).map(drop),
            raw.copy((ptr, 0), (at_60, 0), 5),
            raw.copy((at_60, 0), (ptr, 0), 5),
        ] {
            // Violations of the others are there too, so this is checked by hand.
            let text = outcome.unwrap_err().to_string();
            assert!(text.contains("pass the end of the block"), "{text}");
        }

        assert_eq!(fake.violations().len(), 6);
        assert_eq!(fake.contents(ptr, 64).unwrap(), [0xCD; 64]);
    }

    #[test]
    fn a_range_over_two_blocks_is_reported() {
        let fake = FakeDevice::new(CUDA, 1);
        let one = fake.allocate(layout(64), 0).unwrap();
        let two = fake.allocate(layout(64), 0).unwrap();
        let size = two.addr() - one.addr() + 1;

        let found = misuse(&fake, Raw(&fake).fill(one, 1, size, 0));

        assert!(
            matches!(found, Misuse::SpansBlocks { first, second, .. } if (first, second) == (one, two))
        );
        assert_eq!(fake.contents(two, 1).unwrap(), [0xCD]);
    }

    #[test]
    fn a_use_after_free_is_reported() {
        let fake = FakeDevice::new(CUDA, 1);
        let ptr = fake.allocate(layout(64), 0).unwrap();
        Raw(&fake).free(ptr, layout(64), 0).unwrap();
        let inside = ptr.checked_add(63).unwrap();

        let found = misuse(&fake, Raw(&fake).write(inside, b"a", 0));

        assert!(matches!(found, Misuse::UseAfterFree { freed: 2, .. }));
    }

    #[test]
    fn host_addresses_for_device_memory_are_reported() {
        let fake = FakeDevice::new(CUDA, 1);
        let mut local = *b"local";
        let host = DevicePtr::from_raw(local.as_mut_ptr()).unwrap();

        let written = misuse(&fake, Raw(&fake).write(host, b"abc", 0));
        let freed = misuse(&fake, Raw(&fake).free(host, layout(5), 0));

        assert!(matches!(written, Misuse::HostAddress { addr } if addr == host.addr()));
        assert!(matches!(freed, Misuse::HostAddress { .. }));
        assert_eq!(&local, b"local");
    }

    #[test]
    fn device_addresses_for_host_memory_are_reported_before_they_are_used() {
        let fake = FakeDevice::new(CUDA, 1);
        let other = FakeDevice::new(CUDA, 1);
        let ptr = fake.allocate(layout(64), 0).unwrap();
        let to = fake.allocate(layout(64), 0).unwrap();
        let theirs = other.allocate(layout(64), 0).unwrap();

        let raw = Raw(&fake);
        let read = misuse(&fake, raw.write_from(to, ptr.as_raw(), 8, 0));
        let written = misuse(&fake, raw.read_to(ptr.as_raw(), to, 8, 0));
        let theirs = misuse(&fake, raw.write_from(to, theirs.as_raw(), 8, 0));
        let null = misuse(&fake, raw.write_from(to, std::ptr::null(), 8, 0));

        assert!(matches!(read, Misuse::DeviceAddress { addr } if addr == ptr.addr()));
        assert!(matches!(written, Misuse::DeviceAddress { .. }));
        assert!(matches!(theirs, Misuse::DeviceAddress { .. }));
        assert!(matches!(null, Misuse::NullHostPointer));
        assert_eq!(fake.contents(to, 8).unwrap(), [0xCD; 8]);
    }

    #[test]
    fn a_copy_onto_itself_is_reported() {
        let fake = FakeDevice::new(CUDA, 1);
        let ptr = fake.allocate(layout(64), 0).unwrap();
        let next = ptr.checked_add(7).unwrap();

        let found = misuse(&fake, Raw(&fake).copy((next, 0), (ptr, 0), 8));
        let apart = Raw(&fake).copy((next, 0), (ptr, 0), 7);

        assert!(matches!(found, Misuse::Overlap { size: 8, .. }));
        assert!(apart.is_ok());
    }

    #[test]
    fn calls_with_no_bytes_are_reported() {
        let fake = FakeDevice::new(CUDA, 1);
        let ptr = fake.allocate(layout(64), 0).unwrap();

        let allocated = misuse(&fake, fake.allocate(layout(0), 0).map(drop));
        let written = misuse(&fake, Raw(&fake).write(ptr, b"", 0));

        assert!(matches!(allocated, Misuse::Empty));
        assert!(matches!(written, Misuse::Empty));
    }

    #[test]
    fn every_misuse_has_a_text_with_its_values() {
        let (ptr, block, second) = (addr(0x40), addr(0x20), addr(0x80));
        let nowhere = || Arc::new(std::backtrace::Backtrace::disabled());
        let texts = [
            (
                Misuse::DoubleFree {
                    ptr,
                    allocated: 1,
                    freed: 2,
                    freed_at: nowhere(),
                },
                "double free of 0x40: allocated by call 1, freed by call 2",
            ),
            (
                Misuse::UseAfterFree {
                    ptr,
                    allocated: 1,
                    freed: 2,
                    freed_at: nowhere(),
                },
                "use of 0x40 after free: allocated by call 1, freed by call 2",
            ),
            (
                Misuse::Foreign { ptr },
                "foreign pointer 0x40: in no block of this device",
            ),
            (
                Misuse::NotTheStart { ptr, block },
                "free of 0x40: inside the block at 0x20, not its start",
            ),
            (
                Misuse::WrongDevice {
                    ptr,
                    expected: Device::new(CUDA, 1),
                    index: 0,
                },
                "wrong device index 0: 0x40 is on cuda:1",
            ),
            (
                Misuse::WrongLayout {
                    ptr,
                    expected: layout(8),
                    found: layout(9),
                },
                "wrong layout of 0x40: allocated 8 bytes (align 64), freed as 9 bytes (align 64)",
            ),
            (
                Misuse::OutOfBounds {
                    ptr,
                    size: 9,
                    block,
                    len: 40,
                },
                "9 bytes at 0x40 pass the end of the block at 0x20 of 40 bytes",
            ),
            (
                Misuse::SpansBlocks {
                    ptr,
                    size: 99,
                    first: block,
                    second,
                },
                "99 bytes at 0x40 reach from the block at 0x20 into the block at 0x80",
            ),
            (
                Misuse::HostAddress { addr: 0x40 },
                "host address 0x40 where a device address is due",
            ),
            (
                Misuse::DeviceAddress { addr: 0x40 },
                "device address 0x40 where a host address is due",
            ),
            (
                Misuse::NullHostPointer,
                "null pointer where a host address is due",
            ),
            (
                Misuse::Overlap {
                    dst: ptr,
                    src: block,
                    size: 64,
                },
                "copy of 64 bytes from 0x20 to 0x40 overlaps itself",
            ),
            (
                Misuse::InvalidIndex { index: 3, count: 2 },
                "device index 3 of 2",
            ),
            (Misuse::Empty, "a call with no bytes"),
        ];
        for (misuse, text) in texts {
            assert_eq!(misuse.to_string(), text);
        }
    }

    #[test]
    fn assert_clean_names_leaks_and_violations() {
        let fake = FakeDevice::new(CUDA, 1);
        fake.assert_clean();
        let ptr = fake.allocate(layout(64), 0).unwrap();
        let _ = Raw(&fake).free(ptr, layout(65), 0);

        let watched = fake.clone();
        let panicked = thread::spawn(move || watched.assert_clean()).join();

        let message = *panicked.unwrap_err().downcast::<String>().unwrap();
        assert!(message.contains("wrong layout"), "{message}");
        assert!(message.contains("is not freed"), "{message}");
    }
}

mod fake_device {
    use super::*;

    #[test]
    fn calls_are_recorded_in_order_with_what_they_name() {
        let fake = FakeDevice::new(CUDA, 2);
        let layout = DeviceLayout::new(100, 256).unwrap();
        let raw = Raw(&fake);

        let one = fake.allocate(layout, 0).unwrap();
        let two = fake.allocate(layout, 1).unwrap();
        raw.write(one, b"abc", 0).unwrap();
        raw.copy((two, 1), (one, 0), 3).unwrap();
        raw.fill(two, 7, 50, 1).unwrap();
        fake.synchronize(1).unwrap();
        raw.free(one, layout, 0).unwrap();

        let calls = fake.calls();
        let seen: Vec<_> = calls
            .iter()
            .map(|call| (call.sequence, call.operation))
            .collect();
        assert_eq!(
            seen,
            [
                (1, Operation::Allocate),
                (2, Operation::Allocate),
                (3, Operation::CopyHostToDevice),
                (4, Operation::CopyDeviceToDevice),
                (5, Operation::Fill),
                (6, Operation::Synchronize),
                (7, Operation::Deallocate),
            ]
        );
        assert!(calls.iter().all(|call| call.succeeded));
        assert_eq!(
            (calls[1].ptr, calls[1].index, calls[1].align),
            (Some(two), 1, Some(256))
        );
        assert_eq!((calls[3].ptr, calls[3].source), (Some(two), Some((one, 0))));
        assert_eq!(
            calls[3].to_string(),
            format!(
                "call 4: copy from device to device of 3 bytes at {two} on index 1 from {one} on index 0"
            )
        );
        fake.clear_calls();
        fake.synchronize(0).unwrap();
        assert_eq!(fake.calls()[0].sequence, 8);
    }

    #[test]
    fn counters_follow_the_blocks() {
        let fake = FakeDevice::new(CUDA, 2);
        let one = fake.allocate(layout(100), 0).unwrap();
        let two = fake.allocate(layout(28), 1).unwrap();
        Raw(&fake).free(one, layout(100), 0).unwrap();

        assert_eq!((fake.allocations(), fake.deallocations()), (2, 1));
        assert_eq!((fake.live_blocks(), fake.outstanding()), (1, 1));
        assert_eq!((fake.live_bytes(), fake.peak_bytes()), (28, 128));
        let live = fake.live();
        assert_eq!((live[0].ptr, live[0].layout), (two, layout(28)));
        assert_eq!(live[0].device, Device::new(CUDA, 1));
    }

    #[test]
    fn clones_are_one_device_and_others_are_not() {
        let fake = FakeDevice::new(CUDA, 1);
        let clone = fake.clone();
        let other = FakeDevice::new(CUDA, 1);

        let mine = clone.allocate(layout(64), 0).unwrap();
        let theirs = other.allocate(layout(64), 0).unwrap();

        assert_eq!((fake.live_blocks(), other.live_blocks()), (1, 1));
        assert_ne!(mine, theirs);
    }

    #[test]
    fn terabytes_cost_nothing() {
        let fake = FakeDevice::builder(CUDA)
            .devices(2)
            .capacity(1 << 42)
            .build();
        let raw = Raw(&fake);
        let all = layout(1 << 42);

        let one = fake.allocate(all, 0).unwrap();
        let two = fake.allocate(all, 1).unwrap();
        let last = one.checked_add((1 << 42) - 3).unwrap();
        raw.fill(one, 7, 1 << 42, 0).unwrap();
        raw.write(last, b"end", 0).unwrap();
        raw.copy((two, 1), (one, 0), 1 << 42).unwrap();

        let last = two.checked_add((1 << 42) - 5).unwrap();
        assert_eq!(raw.read(last, 5, 1).unwrap(), [7, 7, b'e', b'n', b'd']);
        raw.free(one, all, 0).unwrap();
        raw.free(two, all, 1).unwrap();
        fake.assert_clean();
    }

    #[test]
    fn over_the_capacity_is_out_of_memory_with_a_full_report_and_changes_nothing() {
        let fake = FakeDevice::builder(CUDA).capacity(100).build();
        let ptr = fake.allocate(layout(60), 0).unwrap();

        let error = fake.allocate(layout(41), 0).unwrap_err();

        let report = error.out_of_memory().unwrap();
        assert_eq!((report.requested, report.align), (41, 64));
        assert_eq!((report.in_use, report.limit), (Some(60), Some(100)));
        assert_eq!(
            (report.device_free, report.device_total),
            (Some(40), Some(100))
        );
        assert_eq!(report.largest_free, Some(40));
        let info = fake.memory_info(0).unwrap().unwrap();
        assert_eq!(
            info,
            MemoryInfo {
                free: 40,
                total: 100
            }
        );
        assert!(fake.allocate(layout(40), 0).is_ok());
        Raw(&fake).free(ptr, layout(60), 0).unwrap();
        assert_eq!(fake.memory_info(0).unwrap().unwrap().free, 60);
    }

    #[test]
    fn without_a_capacity_only_addresses_are_limited() {
        let fake = FakeDevice::new(CUDA, 1);
        let most = DeviceLayout::new(isize::MAX.unsigned_abs(), 1).unwrap();

        assert_eq!(fake.memory_info(0).unwrap(), None);
        assert!(fake.allocate(most, 0).unwrap_err().is_out_of_memory());
        assert!(fake.allocate(layout(1 << 30), 0).is_ok());
    }

    #[test]
    fn blocks_are_aligned_as_asked_and_to_no_more() {
        let fake = FakeDevice::new(CUDA, 2);
        for index in [0, 1] {
            for exponent in 0..=30 {
                let align = 1 << exponent;
                let layout = DeviceLayout::new(3, align).unwrap();
                let ptr = fake.allocate(layout, index).unwrap();

                assert!(ptr.is_aligned_to(align) && !ptr.is_aligned_to(2 * align));
            }
        }
    }

    #[test]
    fn fresh_memory_is_poison_also_at_an_address_that_comes_again() {
        let fake = FakeDevice::builder(CUDA).reuse_addresses(true).build();
        let raw = Raw(&fake);
        let first = fake.allocate(layout(64), 0).unwrap();
        raw.fill(first, 0, 64, 0).unwrap();
        raw.free(first, layout(64), 0).unwrap();

        let second = fake.allocate(layout(32), 0).unwrap();

        assert_eq!(first, second);
        assert_eq!(raw.read(second, 32, 0).unwrap(), [0xCD; 32]);
        raw.free(first, layout(32), 0).unwrap();
        fake.assert_clean();
    }

    #[test]
    fn without_reuse_no_address_comes_twice() {
        let fake = FakeDevice::new(CUDA, 1);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..1000 {
            let ptr = fake.allocate(layout(64), 0).unwrap();
            assert!(seen.insert(ptr));
            Raw(&fake).free(ptr, layout(64), 0).unwrap();
        }
    }

    #[test]
    fn addresses_come_again_rather_than_run_out() {
        let fake = FakeDevice::new(CUDA, 1);
        let half = layout(1 << 43);
        for _ in 0..4 {
            let ptr = fake.allocate(half, 0).unwrap();
            Raw(&fake).free(ptr, half, 0).unwrap();
        }
        fake.assert_clean();
    }

    #[test]
    fn delayed_work_is_done_in_order_and_not_before_it_is_seen() {
        let fake = FakeDevice::builder(CUDA).delayed_copies(true).build();
        let raw = Raw(&fake);
        let one = fake.allocate(layout(4), 0).unwrap();
        let two = fake.allocate(layout(4), 0).unwrap();

        let mut source = *b"abcd";
        raw.write(one, &source, 0).unwrap();
        source.fill(b'x');
        raw.copy((two, 0), (one, 0), 4).unwrap();
        raw.fill(one, b'z', 2, 0).unwrap();

        assert_eq!(fake.pending(), 3);
        assert_eq!(fake.contents(two, 4).unwrap(), [0xCD; 4]);
        assert_eq!(raw.read(two, 4, 0).unwrap(), b"abcd");
        assert_eq!(fake.pending(), 1);
        assert_eq!(raw.read(one, 4, 0).unwrap(), b"zzcd");
        assert_eq!(fake.pending(), 0);
    }

    #[test]
    fn delayed_work_is_done_by_synchronize_by_copies_across_and_before_a_free() {
        let fake = FakeDevice::builder(CUDA)
            .devices(2)
            .delayed_copies(true)
            .build();
        let raw = Raw(&fake);
        let here = fake.allocate(layout(4), 0).unwrap();
        let copy = fake.allocate(layout(4), 0).unwrap();
        let there = fake.allocate(layout(4), 1).unwrap();

        raw.fill(here, 1, 4, 0).unwrap();
        raw.fill(there, 2, 4, 1).unwrap();
        fake.synchronize(1).unwrap();
        assert_eq!(
            (fake.pending(), fake.contents(there, 1).unwrap()),
            (1, vec![2])
        );
        raw.copy((there, 1), (here, 0), 3).unwrap();
        assert_eq!(raw.read(there, 4, 1).unwrap(), [1, 1, 1, 2]);
        raw.copy((copy, 0), (here, 0), 4).unwrap();
        raw.free(here, layout(4), 0).unwrap();

        assert_eq!(fake.contents(copy, 4).unwrap(), [1; 4]);
        assert!(fake.violations().is_empty());
    }

    #[test]
    fn after_shut_down_every_call_says_so_and_a_second_free_is_still_found() {
        let fake = FakeDevice::builder(CUDA).capacity(1 << 20).build();
        let raw = Raw(&fake);
        let ptr = fake.allocate(layout(64), 0).unwrap();
        fake.shut_down();

        for outcome in [
            fake.allocate(layout(64), 0).map(drop),
            raw.write(ptr, b"abc", 0),
            raw.read(ptr, 3, 0).map(drop),
            raw.fill(ptr, 0, 3, 0),
            raw.copy((ptr, 0), (ptr.checked_add(8).unwrap(), 0), 3),
            fake.memory_info(0).map(drop),
            fake.synchronize(0),
            fake.trim(0).map(drop),
            raw.free(ptr, layout(64), 0),
        ] {
            assert!(
                matches!(
                    outcome.as_ref().unwrap_err().kind(),
                    ErrorKind::ShutDown { .. }
                ),
                "{outcome:?}"
            );
        }

        assert_eq!((fake.live_blocks(), fake.deallocations()), (0, 0));
        let found = misuse(&fake, raw.free(ptr, layout(64), 0));
        assert!(matches!(found, Misuse::DoubleFree { .. }));
    }

    #[test]
    fn printing_does_not_wait_for_the_lock() {
        let fake = FakeDevice::new(DeviceType::Custom(3), 1);

        let text = format!("{fake:?}");

        assert!(text.starts_with("FakeDevice { device_type: Custom(3), device_count: 1"));
    }
}

#[cfg(unix)]
mod processes {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;

    use super::*;

    const SIGNALS: [i32; 2] = [libc::SIGSEGV, libc::SIGBUS];

    #[test]
    #[ignore = "ends its process; run by the test below"]
    #[expect(unsafe_code, reason = "the fault is the point")]
    fn child_that_reads_a_fake_address() {
        let fake = FakeDevice::new(CUDA, 1);
        let ptr = fake.allocate(layout(64), 0).unwrap();

        // SAFETY: none; on purpose. The process is expected to end here.
        let byte = unsafe { ptr.as_raw().read_volatile() };

        panic!("read {byte} from {ptr}");
    }

    #[test]
    #[cfg_attr(miri, ignore = "starts a process")]
    fn a_host_read_of_a_fake_address_ends_the_process_with_a_signal() {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "processes::child_that_reads_a_fake_address"])
            .args(["--ignored", "--test-threads=1"])
            // Address sanitizers would turn the signal into an exit status.
            .env("ASAN_OPTIONS", "handle_segv=0:handle_sigbus=0")
            .output()
            .unwrap();

        let signal = child.status.signal();
        assert!(
            signal.is_some_and(|signal| SIGNALS.contains(&signal)),
            "{child:?}"
        );
    }

    #[test]
    #[ignore = "fails; run by the test below"]
    fn child_that_frees_twice() {
        let fake = FakeDevice::new(CUDA, 1);
        let ptr = fake.allocate(layout(64), 0).unwrap();
        Raw(&fake).free(ptr, layout(64), 0).unwrap();
        let _ = Raw(&fake).free(ptr, layout(64), 0);

        fake.assert_clean();
    }

    #[test]
    #[cfg_attr(miri, ignore = "starts a process")]
    fn a_double_free_comes_with_both_places_where_backtraces_are_enabled() {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "processes::child_that_frees_twice"])
            .args(["--ignored", "--test-threads=1", "--nocapture"])
            .env("RUST_BACKTRACE", "1")
            .output()
            .unwrap();

        let text = String::from_utf8_lossy(&child.stderr);
        assert!(text.contains("double free"), "{text}");
        assert!(text.contains("called at:\n"), "{text}");
        assert!(text.contains("first freed at:\n"), "{text}");
        assert!(
            text.matches("child_that_frees_twice").count() >= 2,
            "{text}"
        );
    }

    fn is_forked(error: &Error) -> bool {
        matches!(error.kind(), ErrorKind::ForkedProcess { .. })
    }

    #[test]
    #[ignore = "forks; run alone in a process by the test below"]
    #[expect(unsafe_code, reason = "forks")]
    fn child_that_forks() {
        let fake = FakeDevice::new(CUDA, 1);
        let ptr = fake.allocate(layout(64), 0).unwrap();

        // SAFETY: the child only uses the fake, whose lock no other thread
        // holds, and ends without running anything else.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let raw = Raw(&fake);
            let refused = [
                fake.allocate(layout(64), 0).map(drop),
                raw.fill(ptr, 0, 1, 0),
                raw.read(ptr, 1, 0).map(drop),
                raw.free(ptr, layout(64), 0),
            ]
            .iter()
            .all(|outcome| outcome.as_ref().is_err_and(is_forked));
            let recorded = fake.calls().len() == 5 && fake.live_blocks() == 1;
            let code = if refused && recorded { 0 } else { 1 };
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above; `status` is ours.
        unsafe { libc::waitpid(pid, &raw mut status, 0) };
        assert_eq!(status, 0);
        assert!(Raw(&fake).free(ptr, layout(64), 0).is_ok());
    }

    #[test]
    #[cfg_attr(miri, ignore = "starts a process")]
    fn a_forked_child_is_refused_and_recorded() {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "processes::child_that_forks"])
            .args(["--ignored", "--test-threads=1"])
            .output()
            .unwrap();

        assert!(child.status.success(), "{child:?}");
    }
}

mod fault_injector {
    use super::*;

    const ALL: [Operation; 9] = [
        Operation::Allocate,
        Operation::Deallocate,
        Operation::CopyHostToDevice,
        Operation::CopyDeviceToHost,
        Operation::CopyDeviceToDevice,
        Operation::Fill,
        Operation::MemoryInfo,
        Operation::Synchronize,
        Operation::Trim,
    ];

    /// Makes one call of an operation.
    fn call(allocator: &dyn DeviceAllocator, operation: Operation, ptr: DevicePtr) -> Result<()> {
        let raw = Raw(allocator);
        let half = ptr.checked_add(32).unwrap();
        match operation {
            Operation::Allocate => allocator.allocate(layout(64), 0).map(drop),
            Operation::Deallocate => raw.free(ptr, layout(64), 0),
            Operation::CopyHostToDevice => raw.write(ptr, b"abc", 0),
            Operation::CopyDeviceToHost => raw.read(ptr, 3, 0).map(drop),
            Operation::CopyDeviceToDevice => raw.copy((half, 0), (ptr, 0), 3),
            Operation::Fill => raw.fill(ptr, 0, 3, 0),
            Operation::MemoryInfo => allocator.memory_info(0).map(drop),
            Operation::Synchronize => allocator.synchronize(0),
            Operation::Trim => allocator.trim(0).map(drop),
            other => panic!("{other}"),
        }
    }

    fn fixture() -> (FakeDevice, FaultInjector<FakeDevice>, DevicePtr) {
        let fake = FakeDevice::builder(CUDA).capacity(1 << 20).build();
        let allocator = FaultInjector::new(fake.clone());
        let ptr = allocator.allocate(layout(64), 0).unwrap();
        fake.clear_calls();
        (fake, allocator, ptr)
    }

    #[test]
    fn each_operation_fails_once_and_does_not_reach_the_allocator() {
        for operation in ALL {
            let (fake, allocator, ptr) = fixture();
            allocator.fail_nth(operation, 1);

            let error = call(&allocator, operation, ptr).unwrap_err();

            assert!(fake.calls().is_empty());
            match error.kind() {
                ErrorKind::OutOfMemory(report) => {
                    assert_eq!(operation, Operation::Allocate);
                    assert_eq!((report.requested, report.align), (64, 64));
                }
                ErrorKind::Backend { source, .. } => {
                    let fault = source.downcast_ref::<InjectedFault>().unwrap();
                    assert_eq!((fault.operation, fault.call), (operation, 2));
                }
                other => panic!("{other:?}"),
            }
            assert!(call(&allocator, operation, ptr).is_ok());
            assert_eq!((allocator.calls(), fake.calls().len()), (3, 1));
        }
    }

    #[test]
    fn calls_are_counted_from_arming_and_by_their_kind() {
        let (_, allocator, ptr) = fixture();
        allocator.fail_nth(Operation::Fill, 2);
        allocator.fail_nth_call(4);

        let outcomes = [
            Operation::Synchronize,
            Operation::Fill,
            Operation::Fill,
            Operation::Trim,
            Operation::Fill,
        ]
        .map(|operation| call(&allocator, operation, ptr).is_ok());

        assert_eq!(outcomes, [true, true, false, false, true]);
        let fired: Vec<_> = allocator.faults().fired();
        assert_eq!((fired[0].call, fired[1].call), (4, 5));
    }

    #[test]
    fn all_calls_of_a_kind_fail_until_disarmed_also_through_a_handle() {
        let (_, allocator, ptr) = fixture();
        let faults = allocator.faults();
        let shared: Arc<dyn DeviceAllocator> = Arc::new(allocator.clone());
        faults.fail_all(Operation::Deallocate);

        for _ in 0..3 {
            assert!(call(&*shared, Operation::Deallocate, ptr).is_err());
        }
        faults.disarm();

        assert!(call(&*shared, Operation::Deallocate, ptr).is_ok());
    }

    #[test]
    fn the_zeroth_call_never_fails() {
        let (_, allocator, ptr) = fixture();
        allocator.fail_nth(Operation::Fill, 0);
        allocator.fail_nth_call(0);

        assert!(call(&allocator, Operation::Fill, ptr).is_ok());
    }

    #[test]
    fn a_panic_comes_in_the_call_it_is_ordered_for_and_leaves_the_injector_usable() {
        let (fake, allocator, ptr) = fixture();
        allocator.panic_on(Operation::Fill, 1);

        let caught = catch_unwind(AssertUnwindSafe(|| call(&allocator, Operation::Fill, ptr)));

        let message = *caught.unwrap_err().downcast::<String>().unwrap();
        assert_eq!(message, "injected fault in call 2: fill");
        assert!(fake.calls().is_empty());
        assert!(call(&allocator, Operation::Fill, ptr).is_ok());
    }
}

mod exhaustion {
    use super::*;

    /// Allocates, fills and frees, keeping to the contract on every path.
    fn careful(allocator: &Arc<FaultInjector<FakeDevice>>) -> Result<()> {
        let raw = Raw(&**allocator);
        let ptr = allocator.allocate(layout(64), 0)?;
        let filled = raw.fill(ptr, 0, 64, 0);
        raw.free(ptr, layout(64), 0)?;
        filled
    }

    #[test]
    fn careful_code_is_run_through_to_its_end() {
        let fake = FakeDevice::builder(CUDA).capacity(64).build();

        let found = fail_each_call(&fake, careful).unwrap();

        assert_eq!(found.calls, 3);
        fake.assert_clean();
    }

    #[test]
    fn a_leak_on_an_error_path_is_found_with_its_call() {
        let fake = FakeDevice::new(CUDA, 1);

        let found = fail_each_call(&fake, |allocator| -> Result<()> {
            let raw = Raw(&**allocator);
            let one = allocator.allocate(layout(64), 0)?;
            let two = allocator.allocate(layout(64), 0);
            raw.free(one, layout(64), 0)?;
            raw.fill(two.as_ref().copied().unwrap_or(one), 0, 64, 0)?;
            raw.free(two?, layout(64), 0)
        });

        // Round 2 uses `one` after it is freed, before round 3 leaks.
        let found = found.unwrap_err();
        let text = found.to_string();
        assert!(
            text.starts_with("misuse in round 2: call 3, fill on cuda:0: use of"),
            "{text}"
        );
        let ExhaustionError::Misused { violation, .. } = found else {
            panic!("{found:?}");
        };
        assert!(matches!(violation.misuse, Misuse::UseAfterFree { .. }));

        let fake = FakeDevice::new(CUDA, 1);
        let found = fail_each_call(&fake, |allocator| -> Result<()> {
            let raw = Raw(&**allocator);
            let ptr = allocator.allocate(layout(64), 0)?;
            raw.write(ptr, b"abc", 0)?;
            raw.free(ptr, layout(64), 0)
        });
        let Err(ExhaustionError::Leaked { fault, blocks: 1 }) = found else {
            panic!("{found:?}");
        };
        assert_eq!(
            (fault.call, fault.operation),
            (2, Operation::CopyHostToDevice)
        );
    }

    #[test]
    fn a_leak_where_nothing_fails_is_found() {
        let fake = FakeDevice::new(CUDA, 1);

        let found = fail_each_call(&fake, |allocator| allocator.allocate(layout(64), 0));

        assert_eq!(
            found.unwrap_err().to_string(),
            "1 block(s) leaked though no call failed"
        );
    }

    #[test]
    fn what_is_returned_is_dropped_in_the_round() {
        struct Owner(Arc<FaultInjector<FakeDevice>>, DevicePtr);
        impl Drop for Owner {
            fn drop(&mut self) {
                let _ = Raw(&*self.0).free(self.1, layout(64), 0);
            }
        }
        let fake = FakeDevice::new(CUDA, 1);

        let found = fail_each_call(&fake, |allocator| -> Result<Owner> {
            let ptr = allocator.allocate(layout(64), 0)?;
            Ok(Owner(Arc::clone(allocator), ptr))
        });

        assert_eq!(found.unwrap().calls, 2);
    }

    #[test]
    fn code_that_fails_on_its_own_or_never_ends_is_said_to() {
        let fake = FakeDevice::new(CUDA, 1);

        let failed = fail_each_call(&fake, |_| -> Result<(), String> { Err("no".into()) });
        let endless = fail_each_call_of(
            HostAllocator,
            || 0,
            |allocator| -> Result<()> {
                while allocator.synchronize(0).is_ok() {}
                Ok(())
            },
        );

        assert_eq!(
            failed.unwrap_err().to_string(),
            "round 1 failed though no call did: no"
        );
        assert_eq!(
            endless.unwrap_err().to_string(),
            format!("still making more calls after {MAX_ROUNDS} rounds")
        );
    }

    /// Does two things and does not catch what they do.
    fn heedless(allocator: &Arc<FaultInjector<FakeDevice>>) -> Result<()> {
        allocator.synchronize(0)?;
        allocator.trim(0).map(drop)
    }

    #[test]
    fn calls_that_panic_are_run_through_as_well() {
        let fake = FakeDevice::new(CUDA, 1);

        let let_through = panic_each_call(&fake, heedless).unwrap();
        let caught = panic_each_call(&fake, |allocator| {
            let caught = catch_unwind(AssertUnwindSafe(|| heedless(allocator)));
            caught.map_err(|_| "panicked".to_owned())
        })
        .unwrap();

        assert_eq!((let_through.calls, let_through.unwound), (2, 2));
        assert_eq!((caught.calls, caught.unwound), (2, 0));
    }

    #[test]
    fn a_leak_of_code_that_unwinds_is_found() {
        let fake = FakeDevice::new(CUDA, 1);

        let found = panic_each_call(&fake, careful).unwrap_err();

        assert_eq!(
            found.to_string(),
            "1 block(s) leaked after injected fault in call 2: fill"
        );
    }

    #[test]
    fn a_panic_of_the_round_itself_goes_on() {
        let fake = FakeDevice::new(CUDA, 1);

        let caught = catch_unwind(AssertUnwindSafe(|| {
            panic_each_call(&fake, |_| -> Result<()> { panic!("of its own") })
        }));

        assert_eq!(
            *caught.unwrap_err().downcast::<&str>().unwrap(),
            "of its own"
        );
    }
}

mod conformance_suite {
    use super::*;

    /// Limits that keep the runs on broken allocators short.
    fn short(allocator: &dyn DeviceAllocator) -> Conformance<'_> {
        Conformance::new(allocator)
            .max_size(1 << 13)
            .max_align(1 << 13)
    }

    #[test]
    fn the_host_allocator_keeps_its_promises() {
        let report = conformance::run(&HostAllocator).unwrap();

        assert_eq!(report.devices, [Device::CPU]);
        assert!(report.host_accessible && !report.memory_info);
        assert!(report.blocks > 100);
    }

    #[test]
    fn fakes_keep_their_promises_with_every_option() {
        let options = [
            (1, false, false),
            (1, true, false),
            (1, false, true),
            (2, true, true),
            (8, false, false),
        ];
        for (devices, delayed, reuse) in options {
            let fake = FakeDevice::builder(DeviceType::Custom(1))
                .devices(devices)
                .capacity(1 << 20)
                .delayed_copies(delayed)
                .reuse_addresses(reuse)
                .build();

            let report = short(&fake).run().unwrap();

            assert_eq!(report.devices.len(), devices);
            assert!(report.memory_info);
            fake.assert_clean();
        }
    }

    #[test]
    fn a_fake_without_options_keeps_its_promises_at_full_size() {
        let fake = FakeDevice::new(CUDA, 1);

        conformance::run(&fake).unwrap();

        fake.assert_clean();
    }

    #[test]
    fn no_devices_have_no_promises_to_break() {
        let report = conformance::run(&FakeDevice::new(CUDA, 0)).unwrap();

        assert!(report.devices.is_empty());
    }

    #[test]
    fn an_injector_without_orders_keeps_the_promises_of_what_it_wraps() {
        let fake = FakeDevice::new(CUDA, 2);

        short(&FaultInjector::new(fake.clone())).run().unwrap();
        short(&FaultInjector::new(HostAllocator)).run().unwrap();

        fake.assert_clean();
    }

    #[test]
    fn the_devices_named_are_the_ones_used() {
        let fake = FakeDevice::new(CUDA, 4);

        let report = short(&fake).devices([3, 1]).threads(2).run().unwrap();

        assert_eq!(report.devices, [Device::new(CUDA, 3), Device::new(CUDA, 1)]);
        let done = fake.calls().into_iter().filter(|call| call.succeeded);
        assert!(done.into_iter().all(|call| matches!(call.index, 1 | 3)));
    }

    #[test]
    fn every_operation_that_fails_is_a_failure_of_that_operation_and_leaves_no_block() {
        for operation in [
            Operation::Allocate,
            Operation::Deallocate,
            Operation::CopyHostToDevice,
            Operation::CopyDeviceToHost,
            Operation::CopyDeviceToDevice,
            Operation::Fill,
            Operation::MemoryInfo,
            Operation::Synchronize,
            Operation::Trim,
        ] {
            let fake = FakeDevice::builder(CUDA).capacity(1 << 20).build();
            let allocator = FaultInjector::new(fake.clone());
            // The first two calls of some kinds are on indices that must fail.
            allocator.fail_nth(operation, 3);

            let failure = short(&allocator).threads(0).run().unwrap_err();

            assert_eq!(failure.promise, Promise::Method(operation), "{failure}");
            assert!(failure.error.is_some());
            let left = usize::from(operation == Operation::Deallocate);
            assert_eq!(fake.live_blocks(), left, "{operation}");
        }
    }

    /// How a broken allocator is broken.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Fault {
        TypeChanges,
        CountFalls,
        AccessChanges,
        Misaligned,
        SmallBlocksOverlap,
        BlocksOfOtherThreadsOverlap,
        FreeSpoilsOthers,
        TrimSpoilsAll,
        CopyDoesNothing,
        CopyIsLate,
        SourceIsReadLate,
        ReadStopsShort,
        FillStopsShort,
        FillGoesFurther,
        DeviceCopyDoesNothing,
        PeerCopyDoesNothing,
        AnyIndexIsTaken,
        SynchronizeTakesAnyIndex,
        GivesWhatNoDeviceHas,
        RefusesForTheWrongReason,
        RefusalTakesMemory,
        FreeAboveTotal,
        FreedMemoryIsLost,
        LargeAlignmentsAreRefused,
        PanicsOnOtherThreads,
    }

    const ALL: [(Fault, Promise); 25] = [
        (
            Fault::PanicsOnOtherThreads,
            Promise::Method(Operation::Allocate),
        ),
        (Fault::TypeChanges, Promise::Type),
        (Fault::CountFalls, Promise::Type),
        (Fault::AccessChanges, Promise::HostAccess),
        (Fault::Misaligned, Promise::Alignment),
        (Fault::SmallBlocksOverlap, Promise::Disjointness),
        (Fault::BlocksOfOtherThreadsOverlap, Promise::Disjointness),
        (Fault::FreeSpoilsOthers, Promise::Validity),
        (Fault::TrimSpoilsAll, Promise::Validity),
        (Fault::CopyDoesNothing, Promise::Completion),
        (Fault::CopyIsLate, Promise::Completion),
        (Fault::SourceIsReadLate, Promise::Completion),
        (Fault::ReadStopsShort, Promise::Completion),
        (Fault::FillStopsShort, Promise::Completion),
        (Fault::FillGoesFurther, Promise::Completion),
        (Fault::DeviceCopyDoesNothing, Promise::Completion),
        (Fault::PeerCopyDoesNothing, Promise::Completion),
        (Fault::AnyIndexIsTaken, Promise::Method(Operation::Allocate)),
        (
            Fault::SynchronizeTakesAnyIndex,
            Promise::Method(Operation::Synchronize),
        ),
        (Fault::GivesWhatNoDeviceHas, Promise::Validity),
        (
            Fault::RefusesForTheWrongReason,
            Promise::Method(Operation::Allocate),
        ),
        (Fault::RefusalTakesMemory, Promise::Failure),
        (
            Fault::FreeAboveTotal,
            Promise::Method(Operation::MemoryInfo),
        ),
        (
            Fault::FreedMemoryIsLost,
            Promise::Method(Operation::Deallocate),
        ),
        (
            Fault::LargeAlignmentsAreRefused,
            Promise::Method(Operation::Allocate),
        ),
    ];

    #[test]
    fn every_broken_promise_is_found_under_its_number() {
        for (fault, promise) in ALL {
            let broken = Broken::new(fault);

            let failure = short(&broken).run().unwrap_err();

            assert_eq!(failure.promise, promise, "{fault:?}: {failure}");
            let shared = usize::from(broken.state().shared.is_some());
            assert_eq!(broken.fake.live_blocks(), shared, "{fault:?}: {failure}");
        }
    }

    #[test]
    fn failures_say_what_was_found() {
        let failure = short(&Broken::new(Fault::CopyDoesNothing)).run();
        let text = failure.unwrap_err().to_string();
        assert!(
            text.starts_with("promise 6 (completion) on cuda:0: byte 0 of 4099 is 0xcd instead of"),
            "{text}"
        );

        let failure = short(&Broken::new(Fault::Misaligned)).run();
        let text = failure.unwrap_err().to_string();
        assert!(text.contains("which is no multiple of 128"), "{text}");
    }

    #[test]
    fn refused_alignments_are_accepted_where_the_options_say_so() {
        let broken = Broken::new(Fault::LargeAlignmentsAreRefused);

        let report = short(&broken).may_refuse_alignments_above(4096).run();

        assert!(report.unwrap().refused_alignments > 0);
    }

    #[test]
    fn devices_that_others_use_may_have_less_memory_afterwards() {
        let broken = Broken::new(Fault::FreedMemoryIsLost);

        assert!(short(&broken).shared_devices(true).run().is_ok());
    }

    #[test]
    fn host_access_that_copies_do_not_see_is_found() {
        let mirror = Mirror::default();

        let failure = short(&mirror).run().unwrap_err();

        assert_eq!(failure.promise, Promise::HostAccess, "{failure}");
    }

    /// A fake device behind a wrapper that breaks one promise.
    #[derive(Debug)]
    struct Broken {
        fake: FakeDevice,
        fault: Fault,
        home: ThreadId,
        asked: AtomicUsize,
        state: Mutex<State>,
    }

    #[derive(Debug, Default)]
    struct State {
        /// The block that overlapping ones are given.
        shared: Option<DevicePtr>,
        /// Copies that are put off: where to, and the bytes.
        late: Vec<(DevicePtr, Vec<u8>, DeviceIndex)>,
        /// Copies whose source is read later: where to, address and size.
        unread: Vec<(DevicePtr, usize, usize, DeviceIndex)>,
        lost: usize,
    }

    impl Broken {
        fn new(fault: Fault) -> Self {
            Self {
                fake: FakeDevice::builder(CUDA)
                    .devices(2)
                    .capacity(1 << 20)
                    .build(),
                fault,
                home: thread::current().id(),
                asked: AtomicUsize::new(0),
                state: Mutex::default(),
            }
        }

        fn state(&self) -> std::sync::MutexGuard<'_, State> {
            self.state.lock().unwrap_or_else(PoisonError::into_inner)
        }

        /// Whether one of the answers that never change has been asked for often.
        fn changes(&self, fault: Fault) -> bool {
            self.fault == fault && self.asked.fetch_add(1, Ordering::Relaxed) > 4
        }

        /// Whether a block of this layout is the shared one, on this thread.
        fn overlaps(&self, layout: DeviceLayout) -> bool {
            match self.fault {
                Fault::SmallBlocksOverlap => layout.size() < 4,
                Fault::BlocksOfOtherThreadsOverlap => thread::current().id() != self.home,
                _ => false,
            }
        }

        fn shared(&self) -> DevicePtr {
            let mut state = self.state();
            *state.shared.get_or_insert_with(|| {
                let layout = DeviceLayout::new(1 << 13, 1 << 13).unwrap();
                self.fake.allocate(layout, 0).unwrap()
            })
        }

        /// Sets the bytes of all live blocks but one.
        fn spoil(&self, but: Option<DevicePtr>) {
            for block in self.fake.live() {
                if Some(block.ptr) != but {
                    let index = block.device.index();
                    let _ = Raw(&self.fake).fill(block.ptr, 0x99, block.layout.size(), index);
                }
            }
        }

        fn is_misaligned(&self, layout: DeviceLayout) -> bool {
            self.fault == Fault::Misaligned && layout.align() > 64
        }
    }

    // SAFETY: it breaks one promise each, on purpose. What is underneath checks
    // all addresses, so no memory of the process is touched but that of copies,
    // whose sources the suite keeps until it has synchronized.
    #[expect(unsafe_code, reason = "implements an unsafe trait")]
    unsafe impl DeviceAllocator for Broken {
        fn device_type(&self) -> DeviceType {
            if self.changes(Fault::TypeChanges) {
                DeviceType::CudaManaged
            } else {
                CUDA
            }
        }

        fn device_count(&self) -> usize {
            if self.changes(Fault::CountFalls) {
                1
            } else {
                2
            }
        }

        fn is_host_accessible(&self) -> bool {
            self.changes(Fault::AccessChanges)
        }

        fn allocate(&self, layout: DeviceLayout, index: DeviceIndex) -> Result<DevicePtr> {
            let index = match self.fault {
                Fault::AnyIndexIsTaken => index & 1,
                _ => index,
            };
            self.fake.check_index(index)?;
            if self.fault == Fault::PanicsOnOtherThreads {
                assert_eq!(thread::current().id(), self.home);
            }
            let huge = layout.size() > 1 << 30;
            match self.fault {
                Fault::GivesWhatNoDeviceHas if huge => return Ok(addr(1 << 13)),
                Fault::RefusesForTheWrongReason if huge => {
                    let device = Device::new(CUDA, index);
                    return Err(ErrorKind::NotHostAccessible { device }.into());
                }
                Fault::RefusalTakesMemory if huge => self.state().lost += 64,
                Fault::LargeAlignmentsAreRefused if layout.align() > 4096 => {
                    return Err(ErrorKind::NotSupported {
                        device: Device::new(CUDA, index),
                        operation: Operation::Allocate,
                    }
                    .into());
                }
                _ => {}
            }
            if self.overlaps(layout) && index == 0 && !huge {
                return Ok(self.shared());
            }
            if self.is_misaligned(layout) && !huge {
                let larger = DeviceLayout::new(layout.size() + 1, layout.align()).unwrap();
                let ptr = self.fake.allocate(larger, index)?;
                return Ok(ptr.checked_add(1).unwrap());
            }
            self.fake.allocate(layout, index)
        }

        unsafe fn deallocate(
            &self,
            ptr: DevicePtr,
            layout: DeviceLayout,
            index: DeviceIndex,
        ) -> Result<()> {
            let index = match self.fault {
                Fault::AnyIndexIsTaken => index & 1,
                _ => index,
            };
            if self.state().shared == Some(ptr) || ptr.addr() == 1 << 13 {
                return Ok(());
            }
            if self.fault == Fault::FreedMemoryIsLost {
                self.state().lost += 1;
            }
            if self.fault == Fault::FreeSpoilsOthers {
                self.spoil(Some(ptr));
            }
            if self.is_misaligned(layout) {
                let larger = DeviceLayout::new(layout.size() + 1, layout.align()).unwrap();
                return Raw(&self.fake).free(addr(ptr.addr() - 1), larger, index);
            }
            Raw(&self.fake).free(ptr, layout, index)
        }

        unsafe fn copy_host_to_device(
            &self,
            dst: DevicePtr,
            src: *const u8,
            size: usize,
            index: DeviceIndex,
        ) -> Result<()> {
            // SAFETY: the caller promises `size` bytes at `src`.
            let bytes = unsafe { std::slice::from_raw_parts(src, size) };
            match self.fault {
                Fault::CopyDoesNothing => Ok(()),
                Fault::CopyIsLate => {
                    self.state().late.push((dst, bytes.to_vec(), index));
                    Ok(())
                }
                Fault::SourceIsReadLate => {
                    let src = src.expose_provenance();
                    self.state().unread.push((dst, src, size, index));
                    Ok(())
                }
                _ => Raw(&self.fake).write(dst, bytes, index),
            }
        }

        unsafe fn copy_device_to_host(
            &self,
            dst: *mut u8,
            src: DevicePtr,
            size: usize,
            index: DeviceIndex,
        ) -> Result<()> {
            for (dst, src, size, index) in std::mem::take(&mut self.state().unread) {
                let src = std::ptr::with_exposed_provenance(src);
                Raw(&self.fake).write_from(dst, src, size, index)?;
            }
            let size = match self.fault {
                Fault::ReadStopsShort if size > 1 => size - 1,
                _ => size,
            };
            Raw(&self.fake).read_to(dst, src, size, index)
        }

        unsafe fn copy_device_to_device(
            &self,
            dst: DevicePtr,
            dst_index: DeviceIndex,
            src: DevicePtr,
            src_index: DeviceIndex,
            size: usize,
        ) -> Result<()> {
            match self.fault {
                Fault::DeviceCopyDoesNothing => Ok(()),
                Fault::PeerCopyDoesNothing if dst_index != src_index => Ok(()),
                _ => Raw(&self.fake).copy((dst, dst_index), (src, src_index), size),
            }
        }

        unsafe fn fill(
            &self,
            dst: DevicePtr,
            byte: u8,
            size: usize,
            index: DeviceIndex,
        ) -> Result<()> {
            let size = match self.fault {
                Fault::FillStopsShort if size > 1 => size - 1,
                Fault::FillGoesFurther if size < 4 => size + 1,
                _ => size,
            };
            let done = Raw(&self.fake).fill(dst, byte, size, index);
            if self.fault == Fault::FillGoesFurther {
                Ok(())
            } else {
                done
            }
        }

        fn memory_info(&self, index: DeviceIndex) -> Result<Option<MemoryInfo>> {
            let Some(mut info) = self.fake.memory_info(index)? else {
                return Ok(None);
            };
            info.free -= self.state().lost;
            if self.fault == Fault::FreeAboveTotal {
                info.free = info.total + 1;
            }
            Ok(Some(info))
        }

        fn synchronize(&self, index: DeviceIndex) -> Result<()> {
            for (dst, bytes, index) in std::mem::take(&mut self.state().late) {
                Raw(&self.fake).write(dst, &bytes, index)?;
            }
            match self.fault {
                Fault::SynchronizeTakesAnyIndex => Ok(()),
                _ => self.fake.synchronize(index),
            }
        }

        fn trim(&self, index: DeviceIndex) -> Result<usize> {
            let trimmed = self.fake.trim(index)?;
            if self.fault == Fault::TrimSpoilsAll {
                self.spoil(None);
            }
            Ok(trimmed)
        }
    }

    /// Claims host access, but copies to and from a device the host can not see.
    #[derive(Debug)]
    struct Mirror {
        fake: FakeDevice,
        /// The device's block for each host block.
        pairs: Mutex<BTreeMap<DevicePtr, DevicePtr>>,
    }

    impl Default for Mirror {
        fn default() -> Self {
            Self {
                fake: FakeDevice::new(DeviceType::Cpu, 1),
                pairs: Mutex::default(),
            }
        }
    }

    impl Mirror {
        /// Where the device keeps what the host has at `ptr`.
        fn mirrored(&self, ptr: DevicePtr) -> DevicePtr {
            let pairs = self.pairs.lock().unwrap();
            let (host, device) = pairs.range(..=ptr).next_back().unwrap();
            device.checked_add(ptr.addr() - host.addr()).unwrap()
        }
    }

    // SAFETY: blocks are those of the host allocator. What is broken is that
    // copies do not go there.
    #[expect(unsafe_code, reason = "implements an unsafe trait")]
    unsafe impl DeviceAllocator for Mirror {
        fn device_type(&self) -> DeviceType {
            DeviceType::Cpu
        }

        fn device_count(&self) -> usize {
            1
        }

        fn is_host_accessible(&self) -> bool {
            true
        }

        fn allocate(&self, layout: DeviceLayout, index: DeviceIndex) -> Result<DevicePtr> {
            let host = HostAllocator.allocate(layout, index)?;
            let device = self.fake.allocate(layout, index)?;
            self.pairs.lock().unwrap().insert(host, device);
            Ok(host)
        }

        unsafe fn deallocate(
            &self,
            ptr: DevicePtr,
            layout: DeviceLayout,
            index: DeviceIndex,
        ) -> Result<()> {
            let device = self.pairs.lock().unwrap().remove(&ptr).unwrap();
            Raw(&self.fake).free(device, layout, index)?;
            Raw(&HostAllocator).free(ptr, layout, index)
        }

        unsafe fn copy_host_to_device(
            &self,
            dst: DevicePtr,
            src: *const u8,
            size: usize,
            index: DeviceIndex,
        ) -> Result<()> {
            Raw(&self.fake).write_from(self.mirrored(dst), src, size, index)
        }

        unsafe fn copy_device_to_host(
            &self,
            dst: *mut u8,
            src: DevicePtr,
            size: usize,
            index: DeviceIndex,
        ) -> Result<()> {
            Raw(&self.fake).read_to(dst, self.mirrored(src), size, index)
        }
    }
}
