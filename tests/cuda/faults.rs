//! Every call of the driver failing in turn, on the fake driver, a simulation.

use std::sync::Arc;

use device_memory::backend::cuda::{CudaAllocator, CudaHostAllocator, CudaManagedAllocator};
use device_memory::{DeviceAllocator, DeviceLayout, DeviceMemoryBuffer, Error, ErrorKind, Result};
use fakecuda::{CallRecord, FakeCuda, Schedule};

use crate::support::{FreeFailures, address, driver, layout, make_none_current, restart, stream};

/// Codes to fail with: a wrong argument, no memory, no context, one that breaks
/// the device for good, and one that says nothing.
const CODES: [i32; 5] = [2, 1, 201, 700, 999];
const BREAKS_THE_DEVICE: i32 = 700;

/// Calls that give something back: what they do not do stays.
const GIVE_BACK: [&str; 5] = [
    "cuCtxPopCurrent_v2",
    "cuEventDestroy_v2",
    "cuMemPoolDestroy",
    "cuStreamDestroy_v2",
    "cuDevicePrimaryCtxRelease_v2",
];

/// An allocator that is to be tested, and what to do with it.
struct Subject {
    name: &'static str,
    pools: bool,
    open: fn() -> Result<Box<dyn DeviceAllocator>>,
}

/// Creates, writes, fills, clones, reads, copies and frees.
fn use_all(allocator: &Arc<dyn DeviceAllocator>) -> Result<()> {
    let last = u16::try_from(allocator.device_count()).unwrap() - 1;
    let mut first = DeviceMemoryBuffer::create_with(Arc::clone(allocator), layout(64), 0)?;
    first.copy_from_host(&[7; 64])?;
    first.fill(5)?;
    let clone = first.try_clone()?;
    let mut other = DeviceMemoryBuffer::create_with(Arc::clone(allocator), layout(64), last)?;
    other.copy_from(clone.as_span())?;
    let aligned = DeviceLayout::new(64, if first.as_slice().is_ok() { 256 } else { 512 })?;
    let aligned = DeviceMemoryBuffer::create_with(Arc::clone(allocator), aligned, 0)?;
    assert_eq!(other.to_vec()?, [5; 64]);
    allocator.memory_info(0)?;
    allocator.synchronize(0)?;
    drop((aligned, other));
    clone.free().map_err(Error::from)?;
    drop(first);
    allocator.trim(0)?;
    Ok(())
}

/// The calls that failed with a code, first the one that was made to. Others may
/// follow, of a device that is broken.
fn failed_calls(fake: &FakeCuda, code: i32) -> Vec<CallRecord> {
    let calls = fake.calls().into_iter();
    calls.filter(|call| call.code == code).collect()
}

/// Checks that an error says what failed: the call, its code and its name.
#[track_caller]
fn assert_says(error: &Error, failed: &[CallRecord], what: &str) {
    let expected = failed[0].code;
    match error.root() {
        ErrorKind::OutOfMemory(report) => {
            assert_eq!(expected, 2, "{what}");
            assert!(report.requested > 0, "{what}");
            assert!(error.to_string().contains("out of memory on"), "{what}");
        }
        ErrorKind::Driver {
            call, code, name, ..
        } => {
            assert!(
                failed.iter().any(|failed| failed.name == *call),
                "{what}: {call}"
            );
            assert_eq!(i32::try_from(*code), Ok(expected), "{what}");
            let expected = match code {
                1 => "INVALID_VALUE",
                2 => "OUT_OF_MEMORY",
                201 => "INVALID_CONTEXT",
                700 => "ILLEGAL_ADDRESS",
                _ => "UNKNOWN",
            };
            assert_eq!(*name, expected, "{what}");
            let text = error.to_string();
            let said = format!("{call} returned {code} ({expected})");
            assert!(text.ends_with(&said), "{what}: {text}");
        }
        other => panic!("{what}: {other:?}"),
    }
}

/// Opens and uses with the `nth` call failing, and says whether there was one.
fn nth_fails(fake: &FakeCuda, subject: &Subject, nth: u64, code: i32) -> bool {
    let failures = FreeFailures::watch();
    restart(fake, 2, subject.pools);
    fake.set_recording(true);
    fake.fail_call_number(nth, code);
    let opened = (subject.open)().map(Arc::<dyn DeviceAllocator>::from);
    let outcome = match &opened {
        Ok(allocator) => use_all(allocator),
        Err(_) => Ok(()),
    };
    let fired = fake.fired() > 0;
    fake.disarm();
    make_none_current();
    if !fired {
        opened.unwrap();
        outcome.unwrap();
        return false;
    }
    let all_failed = failed_calls(fake, code);
    let failed = &all_failed[0];
    let what = format!(
        "{}: call {nth}, {}, fails with {code}",
        subject.name, failed.name
    );

    // A failure that is told to nobody is one of a call that gives back.
    let told = failures.take();
    match (&opened, &outcome) {
        (Err(error), _) | (_, Err(error)) => assert_says(error, &all_failed, &what),
        (Ok(_), Ok(())) => {
            // An allocation that finds no room may be tried once more.
            let allocating = [
                "cuMemAllocAsync",
                "cuMemAllocFromPoolAsync",
                "cuMemAlloc_v2",
            ];
            let called = failed.name.as_str();
            let retried =
                code == 2 && (allocating.contains(&called) || called == "cuStreamSynchronize");
            let silent = retried || GIVE_BACK.contains(&failed.name.as_str());
            assert!(silent || !told.is_empty(), "{what}: nobody is told");
        }
    }

    // Nothing is leaked but what the driver refused to free, and that is told.
    let broken = code == BREAKS_THE_DEVICE;
    let live = fake.live();
    let blocks = live.device_blocks() + live.pinned + live.managed;
    fake.run_schedule(fakecuda::Run::All);
    let frees = all_failed
        .iter()
        .filter(|call| call.name.starts_with("cuMemFree"));
    let refused = told.len() + if broken { frees.count() } else { 0 };
    assert!(blocks <= refused, "{what}: {blocks} blocks, {told:?}");
    assert!(broken || told.len() <= 1, "{what}: {told:?}");
    for (device, _, text) in &told {
        assert!(
            text.contains(&format!("deallocate on {device} failed")),
            "{text}"
        );
    }

    // No later call is poisoned.
    if let Ok(allocator) = &opened
        && !broken
    {
        use_all(allocator).unwrap_or_else(|error| panic!("{what}: then {error}"));
        assert_eq!(failures.take(), [], "{what}");
    }

    // Closing leaves nothing; opening may be tried again, also after a breakdown.
    drop(opened);
    make_none_current();
    let live = fake.live();
    let kept = failed.name == "cuDevicePrimaryCtxRelease_v2" || broken;
    assert!(kept || live.primary_retains() == 0, "{what}: {live:?}");
    let complaints = fake.violations();
    let lost = complaints
        .iter()
        .filter(|line| line.contains("is destroyed with"));
    assert!(refused > 0 || lost.count() == 0, "{what}: {complaints:?}");
    if !kept {
        fake.clear_violations();
        let again = (subject.open)().map(Arc::<dyn DeviceAllocator>::from);
        let again = again.unwrap_or_else(|error| panic!("{what}: opening again: {error}"));
        use_all(&again).unwrap_or_else(|error| panic!("{what}: again: {error}"));
        drop(again);
        make_none_current();
        let live = fake.live();
        assert!(live.is_clean(), "{what}: {live:?}");
        assert_eq!(fake.violations(), Vec::<String>::new(), "{what}");
    }
    true
}

#[track_caller]
fn each_call_fails(fake: &FakeCuda, subject: &Subject) {
    for code in CODES {
        let mut nth = 1;
        while nth_fails(fake, subject, nth, code) {
            nth += 1;
        }
        assert!(nth > 20, "{}: only {nth} calls", subject.name);
    }
}

#[test]
fn of_device_memory_each_call_may_fail_with_and_without_pools() {
    let fake = driver(2);
    for pools in [true, false] {
        let open = || Ok(CudaAllocator::open().map(Box::new)? as _);
        each_call_fails(
            &fake,
            &Subject {
                name: "device",
                pools,
                open,
            },
        );
    }
}

#[test]
fn of_a_pool_of_its_own_each_call_may_fail() {
    let fake = driver(2);
    let open = || Ok(Box::new(CudaAllocator::builder().release_threshold(1 << 20).open()?) as _);
    each_call_fails(
        &fake,
        &Subject {
            name: "own pool",
            pools: true,
            open,
        },
    );
}

#[test]
fn of_page_locked_memory_each_call_may_fail() {
    let fake = driver(2);
    let open = || Ok(CudaHostAllocator::open().map(Box::new)? as _);
    each_call_fails(
        &fake,
        &Subject {
            name: "page-locked",
            pools: true,
            open,
        },
    );
}

#[test]
fn of_managed_memory_each_call_may_fail() {
    let fake = driver(2);
    let open = || Ok(CudaManagedAllocator::open().map(Box::new)? as _);
    each_call_fails(
        &fake,
        &Subject {
            name: "managed",
            pools: true,
            open,
        },
    );
}

/// What a handle on a stream is used for, with a use recorded on another one.
fn use_on_stream(handle: &CudaAllocator) -> Result<()> {
    let allocator = Arc::new(handle.clone());
    let mut buffer = DeviceMemoryBuffer::create_with(allocator, layout(64), 0)?;
    buffer.copy_from_host(&[5; 64])?;
    let clone = buffer.try_clone()?;
    assert_eq!(clone.to_vec()?, [5; 64]);
    handle.synchronize(0)?;
    clone.free().map_err(Error::from)?;
    Ok(())
}

#[test]
fn of_a_handle_on_a_stream_each_call_may_fail_and_no_event_is_left() {
    let fake = driver(1);
    let failures = FreeFailures::watch();
    for pools in [true, false] {
        for code in CODES.into_iter().filter(|code| *code != BREAKS_THE_DEVICE) {
            for nth in 1.. {
                restart(&fake, 1, pools);
                fake.set_recording(true);
                let allocator = CudaAllocator::open().unwrap();
                let [own, other] = [0; 2].map(stream);
                let handle = allocator.on_stream(&own).unwrap();
                let kept = crate::support::filled(&handle, &[1; 64], 0);
                CudaAllocator::record_use(kept.as_span(), &other).unwrap();
                fake.clear_calls();
                fake.fail_call_number(nth, code);

                let outcome = use_on_stream(&handle).and_then(|()| {
                    let freed = kept.free();
                    freed.map_err(|failure| failure.error)
                });

                let fired = fake.fired() > 0;
                fake.disarm();
                if !fired {
                    outcome.unwrap();
                    assert!(nth > 20, "only {nth} calls");
                    break;
                }
                let all_failed = failed_calls(&fake, code);
                let failed = &all_failed[0];
                let what = format!("call {nth}, {}, fails with {code}", failed.name);
                if let Err(error) = &outcome {
                    assert_says(error, &all_failed, &what);
                }
                make_none_current();
                failures.take();
                use_on_stream(&handle).unwrap_or_else(|error| panic!("{what}: then {error}"));
                fake.run_schedule(fakecuda::Run::All);
                let events = usize::from(failed.name == "cuEventDestroy_v2");
                assert_eq!(fake.live().events, events, "{what}");
                assert_eq!(fake.violations(), Vec::<String>::new(), "{what}");
            }
        }
    }
}

#[test]
fn a_failed_allocation_gives_its_block_back_in_every_schedule() {
    let fake = driver(1);
    for schedule in Schedule::all(2) {
        restart(&fake, 1, true);
        fake.set_schedule(schedule);
        let allocator = CudaAllocator::open().unwrap();
        allocator.synchronize(0).unwrap();
        for align in [64, 1 << 12] {
            fake.fail("cuStreamSynchronize", 1, 999);
            let layout = DeviceLayout::new(64, align).unwrap();

            let error = allocator.allocate(layout, 0).unwrap_err();

            assert!(error.to_string().contains("cuStreamSynchronize"), "{error}");
            crate::support::assert_no_memory(&fake);
        }
        let shown = format!("{allocator:?}");
        assert!(shown.contains("starts: Mutex { data: {} }"), "{shown}");
    }
}

#[test]
fn a_failed_copy_leaves_the_buffer_usable() {
    let fake = driver(1);
    let allocator = CudaAllocator::open().unwrap();
    let mut buffer = crate::support::filled(&allocator, &[1; 64], 0);
    type Copy = fn(&mut DeviceMemoryBuffer) -> Result<()>;
    let copies: [(&str, Copy); 4] = [
        ("cuMemcpyHtoDAsync_v2", |buffer| {
            buffer.copy_from_host(&[2; 64])
        }),
        ("cuMemcpyDtoHAsync_v2", |buffer| buffer.to_vec().map(drop)),
        ("cuMemcpyDtoDAsync_v2", |buffer| {
            buffer.try_clone().map(drop)
        }),
        ("cuMemsetD8Async", |buffer| buffer.fill(3)),
    ];
    for (call, copy) in copies {
        fake.fail(call, 1, 1);

        let error = copy(&mut buffer).unwrap_err();

        assert!(error.to_string().contains(call), "{error}");
        assert_eq!(error.code(), 0x01);
        assert_eq!(fake.read(address(&buffer), 64), Some(vec![1; 64]));
        assert_eq!(buffer.to_vec().unwrap(), [1; 64]);
    }
    drop(buffer);
    crate::support::assert_no_memory(&fake);
}

#[test]
fn a_driver_that_is_shut_down_makes_frees_silent_and_everything_else_an_error() {
    let fake = driver(1);
    let failures = FreeFailures::watch();
    let allocator = CudaAllocator::open().unwrap();
    let [dropped, freed, kept] = [(); 3].map(|()| crate::support::filled(&allocator, b"abc", 0));
    fake.set_shut_down(true);

    drop(dropped);
    let freed = freed.free();
    let read = kept.to_vec().unwrap_err();
    let made = allocator.allocate(layout(8), 0).unwrap_err();
    let opened = CudaAllocator::open().unwrap_err();

    assert!(freed.is_ok());
    assert!(read.is_shut_down() && made.is_shut_down() && opened.is_shut_down());
    assert_eq!(made.to_string(), "driver of cuda:0 is shut down");
    assert_eq!(opened.code(), 0x02);
    drop((kept, allocator));
    assert_eq!(failures.take(), []);
    fake.set_shut_down(false);
}
