//! Copies that own both sides.

use std::sync::Mutex;

use device_memory::backend::cuda::{Transfer, download, upload};
use device_memory::{ErrorKind, free_failure_count};
use fakecuda::{Run, Schedule};

use crate::support::{FAULT, Rig};

#[test]
fn an_upload_gives_both_buffers_back_when_it_is_done() {
    for schedule in Schedule::all(4) {
        let rig = Rig::new();
        rig.fake.set_schedule(schedule);

        let transfer = upload(&rig.stream, rig.pinned(&[1; 64]), rig.device(64)).unwrap();
        let (mut host, device) = transfer.wait().unwrap();
        host.as_slice_mut().unwrap().fill(9);

        assert_eq!(device.to_vec().unwrap(), [1; 64], "{schedule:?}");
        rig.check();
    }
}

#[test]
fn a_download_fills_the_hosts_buffer() {
    let rig = Rig::new();
    rig.fake.set_schedule(Schedule::Delayed);
    let mut device = rig.device(4);
    device.copy_from_host(&[1, 2, 3, 4]).unwrap();

    let transfer = download(&rig.stream, rig.pinned(&[0; 4]), device).unwrap();
    let (host, _device) = transfer.wait().unwrap();

    assert_eq!(host.as_slice().unwrap(), [1, 2, 3, 4]);
    rig.check();
}

#[test]
fn it_says_whether_the_copy_is_done() {
    let rig = Rig::new();
    rig.fake.set_schedule(Schedule::Delayed);
    let transfer = upload(&rig.stream, rig.pinned(&[1; 4]), rig.device(4)).unwrap();

    let before = transfer.is_complete().unwrap();
    rig.fake.run_schedule(Run::All);
    let after = transfer.is_complete().unwrap();

    assert_eq!((before, after), (false, true));
}

#[test]
fn dropping_it_waits_and_frees_on_any_thread() {
    let rig = Rig::new();
    let before = rig.alive();
    rig.fake.set_schedule(Schedule::Delayed);
    let transfer = upload(&rig.stream, rig.pinned(&[1; 4]), rig.device(4)).unwrap();
    rig.fake.set_recording(true);

    std::thread::scope(|scope| scope.spawn(move || drop(transfer)).join()).unwrap();

    let calls = rig.fake.calls();
    let at = |name| calls.iter().position(|call| call.name == name).unwrap();
    assert!(at("cuEventSynchronize") < at("cuMemFreeHost").min(at("cuMemFreeAsync")));
    assert_eq!(rig.alive(), before);
    rig.check();
}

#[test]
fn forgetting_it_leaks_both_and_nothing_is_done_wrong() {
    let rig = Rig::new();
    rig.keep();
    let before = rig.alive();
    rig.fake.set_schedule(Schedule::Delayed);
    let transfer = upload(&rig.stream, rig.pinned(&[1; 4]), rig.device(4)).unwrap();

    std::mem::forget(transfer);

    let now = rig.alive();
    assert_eq!(
        (now.blocks, now.pinned),
        (before.blocks + 1, before.pinned + 1)
    );
    rig.check();
}

#[test]
fn what_can_not_be_copied_comes_back() {
    let rig = Rig::new();
    rig.fake.clear_calls();
    let before = rig.alive();

    let short = upload(&rig.stream, rig.pinned(&[1; 3]), rig.device(4)).unwrap_err();
    let elsewhere = upload(&rig.stream, rig.pinned(&[1; 4]), rig.device_at(4, 1)).unwrap_err();
    let no_host = upload(&rig.stream, rig.device(4), rig.device(4)).unwrap_err();

    assert!(matches!(
        short.error.kind(),
        ErrorKind::LengthMismatch {
            expected: 4,
            found: 3,
            ..
        }
    ));
    assert!(matches!(
        elsewhere.error.kind(),
        ErrorKind::DeviceMismatch { .. }
    ));
    assert!(matches!(
        no_host.error.kind(),
        ErrorKind::NotHostAccessible { .. }
    ));
    let (host, device) = short.buffers.as_ref().unwrap();
    assert_eq!((host.size(), device.size()), (3, 4));
    assert!(elsewhere.buffers.is_some() && no_host.buffers.is_some());
    drop((short, elsewhere, no_host));
    assert_eq!(rig.alive(), before);
    rig.check();
}

#[test]
fn a_copy_of_nothing_is_done_at_once() {
    let rig = Rig::new();

    let transfer = upload(&rig.stream, rig.pinned(&[]), rig.device(0)).unwrap();

    assert!(transfer.is_complete().unwrap());
    assert!(transfer.wait().unwrap().0.is_empty());
}

#[test]
fn every_call_may_fail_and_both_buffers_come_back() {
    let rig = Rig::new();
    let buffers = Mutex::new(Some((rig.pinned(&[1; 4]), rig.device(4))));

    let calls = rig.fail_each_call(|| {
        let (mut host, device) = buffers.lock().unwrap().take().unwrap();
        let ptr = device.ptr().addr() as u64;
        host.as_slice_mut().unwrap().fill(1);
        let outcome = upload(&rig.stream, host, device).and_then(Transfer::wait);
        let (mut host, device) = match outcome {
            Ok(both) => both,
            Err(failure) => failure.buffers.expect("only one call failed"),
        };
        host.as_slice_mut().unwrap().fill(9);
        rig.fake.run_schedule(Run::All);

        assert!(!rig.fake.read(ptr, 4).unwrap().contains(&9));
        *buffers.lock().unwrap() = Some((host, device));
    });

    assert!(calls > 6, "{calls}");
}

#[test]
fn buffers_that_can_not_be_waited_for_are_leaked_and_told_of() {
    let rig = Rig::new();
    rig.keep();
    rig.fake.set_schedule(Schedule::Delayed);
    let before = (rig.alive(), free_failure_count());
    let first = upload(&rig.stream, rig.pinned(&[1; 4]), rig.device(4)).unwrap();
    let second = upload(&rig.stream, rig.pinned(&[1; 4]), rig.device(4)).unwrap();
    for call in [
        "cuStreamSynchronize",
        "cuEventSynchronize",
        "cuCtxSynchronize",
    ] {
        rig.fake.fail(call, 0, FAULT);
    }

    let failure = first.wait().unwrap_err();
    drop(second);

    rig.fake.disarm();
    assert!(failure.buffers.is_none());
    assert!(matches!(
        failure.error.kind(),
        ErrorKind::Driver { code: 999, .. }
    ));
    assert_eq!(free_failure_count() - before.1, 4);
    let now = rig.alive();
    assert_eq!(
        (now.blocks, now.pinned),
        (before.0.blocks + 2, before.0.pinned + 2)
    );
    assert_eq!(now.events, before.0.events);
    rig.check();
}
