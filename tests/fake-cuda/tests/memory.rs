//! Device memory, pinned memory and what is said of it.

#![cfg(target_os = "linux")]
#![allow(
    unsafe_code,
    clippy::multiple_unsafe_ops_per_block,
    reason = "the tests call a C interface"
)]

mod support;

use std::ffi::c_void;

use cudarc::driver::{result, sys};
use support::{alloc, code, driver, free, read, write};

#[test]
fn what_is_written_is_read_and_what_is_not_is_poison() {
    let fake = driver();
    let ptr = alloc(1000);

    write(ptr + 8, &[1, 2, 3]);

    assert_eq!(read(ptr + 7, 5), [0xCD, 1, 2, 3, 0xCD]);
    assert_eq!(fake.read(ptr + 8, 3), Some(vec![1, 2, 3]));
    assert_eq!(fake.live().device_bytes(), 1000);
    assert_eq!(free(ptr), 0);
    assert!(fake.live().is_clean());
    assert!(fake.violations().is_empty());
}

#[test]
fn addresses_are_aligned_as_promised_and_no_better() {
    let _fake = driver();

    for size in [1, 255, 256, 257, 1 << 20] {
        let ptr = alloc(size);
        assert_eq!((ptr % 256, ptr % 512), (0, 256));
        assert_eq!(free(ptr), 0);
    }
}

#[test]
fn large_blocks_cost_nothing_until_written() {
    let fake = driver();
    fake.set_total_memory(16 << 30);
    let ptr = alloc(12 << 30);

    write(ptr + (11 << 30), &[7; 3]);

    assert_eq!(read(ptr + (11 << 30) + 2, 2), [7, 0xCD]);
    assert_eq!(free(ptr), 0);
    fake.set_total_memory(4 << 30);
}

#[test]
fn copies_and_fills_between_devices() {
    let fake = driver();
    let (a, b) = (alloc(64), alloc(64));

    // SAFETY: the driver is a simulation, which checks what it is told.
    unsafe {
        result::memset_d8_sync(a, 5, 64).unwrap();
        sys::cuMemsetD32_v2(a + 4, 0x0403_0201, 2).result().unwrap();
        result::memcpy_dtod_sync(b + 1, a, 32).unwrap();
    }

    assert_eq!(read(b, 14), [0xCD, 5, 5, 5, 5, 1, 2, 3, 4, 1, 2, 3, 4, 5]);
    assert_eq!((free(a), free(b)), (0, 0));
    assert!(fake.violations().is_empty());
}

#[test]
fn double_frees_and_foreign_pointers_are_refused_and_reported() {
    let fake = driver();
    let ptr = alloc(64);
    let on_host = [0_u8; 4];

    let inside = free(ptr + 8);
    let first = free(ptr);
    let second = free(ptr);
    let foreign = free(on_host.as_ptr().addr() as u64);

    assert_eq!([inside, first, second, foreign], [1, 0, 1, 1]);
    let violations = fake.violations();
    assert_eq!(violations.len(), 3);
    assert!(violations[0].contains("inside the block"), "{violations:?}");
    assert!(violations[1].contains("double free"), "{violations:?}");
    assert!(violations[2].contains("no device memory"), "{violations:?}");
}

#[test]
fn ranges_past_the_end_and_freed_ones_are_refused_and_reported() {
    let fake = driver();
    let ptr = alloc(64);

    // SAFETY: the driver is a simulation, which checks what it is told.
    let past = code(unsafe { result::memset_d8_sync(ptr + 60, 0, 5) });
    free(ptr);
    // SAFETY: as above.
    let freed = code(unsafe { result::memset_d8_sync(ptr, 0, 5) });

    assert_eq!([past, freed], [1, 1]);
    let violations = fake.violations();
    assert!(violations[0].contains("pass the end"), "{violations:?}");
    assert!(violations[1].contains("use after free"), "{violations:?}");
}

#[test]
fn a_device_that_is_full_says_so_and_changes_nothing() {
    let fake = driver();
    fake.set_total_memory(1000);
    let ptr = alloc(600);

    // SAFETY: the driver is a simulation, which checks what it is told.
    let more = code(unsafe { result::malloc_sync(401) });
    let info = result::mem_get_info().unwrap();

    assert_eq!(more, 2);
    assert_eq!(info, (400, 1000));
    assert_eq!(fake.live().device_blocks(), 1);
    assert_eq!(free(ptr), 0);
    fake.set_total_memory(4 << 30);
}

#[test]
fn no_bytes_are_an_invalid_value() {
    let _fake = driver();

    // SAFETY: the driver is a simulation, which checks what it is told.
    assert_eq!(code(unsafe { result::malloc_sync(0) }), 1);
}

#[test]
fn freed_addresses_come_again_only_when_asked_for() {
    let fake = driver();
    let first = alloc(64);
    free(first);
    let fresh = alloc(64);
    free(fresh);
    fake.set_reuse(true);
    let kept = alloc(64);
    free(kept);
    let again = alloc(60);

    assert_ne!(first, fresh);
    assert_eq!(kept, again);
    assert_eq!(read(again, 1), [0xCD]);
    free(again);
}

#[test]
fn pinned_and_managed_memory_is_memory_of_the_host() {
    let fake = driver();

    // SAFETY: the memory is used within its bounds and freed once.
    unsafe {
        let pinned = result::malloc_host(100, 0).unwrap().cast::<u8>();
        assert_eq!(pinned.read(), 0xCD);
        pinned.write(1);
        let managed = result::malloc_managed(8, sys::CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL);
        let managed = managed.unwrap();
        result::memset_d8_sync(managed, 9, 8).unwrap();
        result::ctx::synchronize().unwrap();
        let on_host = std::ptr::with_exposed_provenance::<u8>(managed as usize);
        assert_eq!(on_host.read(), 9);
        let live = fake.live();
        assert_eq!((live.pinned, live.pinned_bytes, live.managed), (1, 100, 1));
        result::free_host(pinned.cast()).unwrap();
        result::free_sync(managed).unwrap();
    }

    assert!(fake.live().is_clean());
    assert!(fake.violations().is_empty());
}

#[test]
fn the_driver_knows_whose_an_address_is() {
    let _fake = driver();
    let ptr = alloc(640);
    let ask = |attribute: sys::CUpointer_attribute, addr: u64| {
        let mut value = 0_u64;
        let out = (&raw mut value).cast::<c_void>();
        // SAFETY: eight bytes are enough for each attribute asked for.
        let done = unsafe { sys::cuPointerGetAttribute(out, attribute, addr) };
        done.result().map(|()| value)
    };
    use sys::CUpointer_attribute as Attribute;

    let kind = ask(Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr + 639);
    let ordinal = ask(Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr);
    let start = ask(Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, ptr + 3);
    let size = ask(Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE, ptr + 3);
    let unknown = ask(Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr + 640);

    assert_eq!(
        (kind, ordinal, start, size),
        (Ok(2), Ok(0), Ok(ptr), Ok(640))
    );
    assert_eq!(code(unknown), 1);
    let (mut base, mut len) = (0, 0);
    // SAFETY: both pointers are to what is written.
    unsafe { sys::cuMemGetAddressRange_v2(&raw mut base, &raw mut len, ptr + 9) }
        .result()
        .unwrap();
    assert_eq!((base, len), (ptr, 640));
    free(ptr);
}
