//! What takes a process of its own: its start, its end, and what kills it.

#![cfg(target_os = "linux")]
#![allow(
    unsafe_code,
    clippy::multiple_unsafe_ops_per_block,
    reason = "the tests call a C interface"
)]

mod support;

use std::os::unix::process::ExitStatusExt;
use std::process::Output;

use cudarc::driver::{result, sys};
use fakecuda::{FakeCuda, InstallError};
use support::{alloc, child, code, free, retain};

fn passes(test: &str) {
    let output = child(test, &[]);
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("1 passed"), "{}", text(&output));
}

fn text(output: &Output) -> String {
    let (out, error) = (&output.stdout, &output.stderr);
    format!(
        "{}{}",
        String::from_utf8_lossy(out),
        String::from_utf8_lossy(error)
    )
}

fn fresh() -> FakeCuda {
    FakeCuda::install().unwrap()
}

fn open(name: &std::ffi::CStr) -> *mut std::ffi::c_void {
    // SAFETY: the name ends with a zero.
    unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY) }
}

#[test]
fn a_host_access_to_device_memory_ends_the_process() {
    let output = child("child_reads_device_memory", &[]);

    // A sanitizer handles the signal and says so.
    let told = text(&output).contains("AddressSanitizer: SEGV");
    let killed = output.status.signal() == Some(libc::SIGSEGV);
    assert!(killed || told, "{}", text(&output));
}

#[test]
#[ignore = "run by another test"]
fn child_reads_device_memory() {
    let fake = fresh();
    result::init().unwrap();
    // SAFETY: the context is retained.
    unsafe { result::ctx::set_current(retain(0)) }.unwrap();
    let ptr = alloc(8);
    assert_eq!(fake.read(ptr, 1), Some(vec![0xCD]));
    // SAFETY: this is wrong, and what the test is about.
    unsafe { std::ptr::with_exposed_provenance::<u8>(ptr as usize).read_volatile() };
}

#[test]
fn nothing_is_shadowed_before_it_is_installed() {
    passes("child_opens_before_install");
}

#[test]
#[ignore = "run by another test"]
fn child_opens_before_install() {
    // A machine with a driver has this; it must not be the simulation.
    let before = open(c"libcuda.so");
    if before.is_null() {
        fresh();
        assert!(!open(c"libcuda.so").is_null());
        return;
    }
    // SAFETY: the library is loaded, and the name ends with a zero.
    let symbol = unsafe { libc::dlsym(before, c"fakecuda_version".as_ptr()) };
    assert!(symbol.is_null());
    let error = FakeCuda::install().unwrap_err();
    assert_eq!(error, InstallError::DriverLoaded { name: "libcuda.so" });
}

#[test]
fn a_file_that_is_not_there_is_an_error() {
    let error = InstallError::NotFound { tried: Vec::new() };

    assert_eq!(error.to_string(), "libfakecuda.so is in none of []");
}

#[test]
fn a_driver_can_refuse_to_begin_in_every_way() {
    passes("child_begins_badly");
}

#[test]
#[ignore = "run by another test"]
fn child_begins_badly() {
    let fake = fresh();
    let mut count = 0;
    // SAFETY: the pointer is to what is written.
    let early = unsafe { sys::cuDeviceGetCount(&raw mut count) };
    assert_eq!(code(early.result()), 3);
    for refused in [34, 100, 803, 999] {
        fake.fail("cuInit", 1, refused);
        assert_eq!(code(result::init()), refused);
    }
    fake.set_devices(0);
    assert_eq!(code(result::init()), 100);
    fake.set_devices(3);
    fake.set_driver_version(11_030);
    assert_eq!(code(result::init()), 0);
    assert_eq!(result::device::get_count().unwrap(), 3);
    assert_eq!(code(result::device::get(3)), 101);
    let mut version = 0;
    // SAFETY: the pointer is to what is written.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }
        .result()
        .unwrap();
    assert_eq!(version, 11_030);
    fake.reset();
    assert_eq!(code(result::device::get_count()), 3);
    assert_eq!(code(result::init()), 0);
    assert_eq!(result::device::get_count().unwrap(), 1);
}

#[test]
fn what_is_alive_at_exit_is_told_when_asked_for() {
    let leaking = child("child_leaks", &[("FAKECUDA_LEAK_EXIT", "42")]);
    let silent = child("child_leaks", &[]);
    let clean = child("child_begins_badly", &[("FAKECUDA_LEAK_EXIT", "42")]);

    assert_eq!(leaking.status.code(), Some(42), "{}", text(&leaking));
    let leak = text(&leaking);
    assert!(leak.contains("device 1 77 77 0 1"), "{leak}");
    assert!(silent.status.success(), "{}", text(&silent));
    assert!(clean.status.success(), "{}", text(&clean));
}

#[test]
#[ignore = "run by another test"]
fn child_leaks() {
    fresh();
    result::init().unwrap();
    // SAFETY: the context is retained.
    unsafe { result::ctx::set_current(retain(0)) }.unwrap();
    alloc(77);
}

#[test]
fn what_was_done_wrong_is_told_at_exit_when_asked_for() {
    let asked = [("FAKECUDA_VIOLATION_EXIT", "43")];
    let wrong = child("child_frees_twice", &asked);
    let silent = child("child_frees_twice", &[]);
    let right = child("child_leaks", &asked);

    assert_eq!(wrong.status.code(), Some(43), "{}", text(&wrong));
    assert!(text(&wrong).contains("double free"), "{}", text(&wrong));
    assert!(silent.status.success(), "{}", text(&silent));
    assert!(right.status.success(), "{}", text(&right));
}

#[test]
#[ignore = "run by another test"]
fn child_frees_twice() {
    fresh();
    result::init().unwrap();
    // SAFETY: the context is retained.
    unsafe { result::ctx::set_current(retain(0)) }.unwrap();
    let ptr = alloc(77);
    assert_eq!((free(ptr), free(ptr)), (0, 1));
}

#[test]
fn the_driver_is_shut_down_when_the_process_exits() {
    let output = child("child_frees_at_exit", &[]);

    assert_eq!(output.status.code(), Some(4), "{}", text(&output));
}

#[test]
#[ignore = "run by another test"]
fn child_frees_at_exit() {
    extern "C" fn last() {
        // SAFETY: the process is at its end.
        unsafe { libc::_exit(free(1)) };
    }
    // SAFETY: the function lives as long as the program.
    unsafe { libc::atexit(last) };
    fresh();
    result::init().unwrap();
}

#[test]
fn a_forked_child_gets_nothing_from_the_driver() {
    passes("child_forks");
}

#[test]
#[ignore = "run by another test"]
fn child_forks() {
    let fake = fresh();
    result::init().unwrap();
    // SAFETY: the context is retained.
    unsafe { result::ctx::set_current(retain(0)) }.unwrap();
    let ptr = alloc(8);
    fake.clear_calls();
    // SAFETY: the child only calls what needs no other thread, and exits.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let counted = fake.count("cuMemFree_v2");
        let freed = free(ptr);
        let violations = fake.violations();
        let right = (counted, freed, violations.len(), fake.count("cuMemFree_v2"));
        let right = right == (0, 3, 1, 1) && violations[0].contains("forked child");
        // SAFETY: this is the child.
        unsafe { libc::_exit(i32::from(!right)) };
    }
    let mut status = 0;
    // SAFETY: the pointer is to what is written.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(status, 0);
    assert_eq!(free(ptr), 0);
    assert!(fake.violations().is_empty());
}

#[test]
fn a_process_can_be_configured_from_outside() {
    let output = child(
        "child_has_five_devices",
        &[(
            "FAKECUDA_COMMANDS",
            "devices 5; attribute 0 115 0; schedule delayed",
        )],
    );

    assert!(output.status.success(), "{}", text(&output));
}

#[test]
#[ignore = "run by another test"]
fn child_has_five_devices() {
    fresh();
    result::init().unwrap();
    assert_eq!(result::device::get_count().unwrap(), 5);
}

#[test]
fn an_old_driver_lacks_functions() {
    passes("child_has_an_old_driver");
}

#[test]
#[ignore = "run by another test"]
fn child_has_an_old_driver() {
    let hidden = ["cuMemAllocAsync", "cuMemFreeAsync"];
    match FakeCuda::install_without(&hidden) {
        Ok(_) => {}
        // Sanitizers make the library look up its own functions.
        Err(InstallError::Load { message, .. }) if message.contains("undefined symbol: #") => {
            return;
        }
        Err(error) => panic!("{error}"),
    }
    let library = open(c"libcuda.so");
    for (name, there) in [
        (c"cuMemAllocAsync", false),
        (c"cuMemFreeAsync", false),
        (c"#uMemFreeAsync", false),
        (c"cuMemAllocFromPoolAsync", true),
        (c"cuMemAlloc_v2", true),
    ] {
        // SAFETY: the library is loaded, and the name ends with a zero.
        let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
        assert_eq!(!symbol.is_null(), there, "{name:?}");
    }
    result::init().unwrap();
    // SAFETY: the context is retained.
    unsafe { result::ctx::set_current(retain(0)) }.unwrap();
    assert_eq!(free(alloc(8)), 0);
}
