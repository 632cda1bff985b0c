//! Uploads from readers.

use std::error::Error as _;
use std::io::{self, Read};
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use device_memory::backend::cuda::StagedUploader;
use device_memory::{ErrorKind, Operation};
use fakecuda::{Run, Schedule};

use crate::support::{FAULT, Rig};

fn uploader(rig: &Rig, piece: usize) -> StagedUploader {
    let piece = NonZeroUsize::new(piece).unwrap();
    StagedUploader::new(&rig.stream, Arc::clone(&rig.host), piece).unwrap()
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from(at % 251).unwrap()).collect()
}

/// Gives at most `most` bytes at a time, with an interruption before each.
struct Trickle<'a> {
    rest: &'a [u8],
    most: usize,
    interrupted: bool,
}

impl Read for Trickle<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.interrupted = !self.interrupted;
        if self.interrupted {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let most = self.most.min(into.len());
        self.rest.read(&mut into[..most])
    }
}

#[test]
fn all_bytes_arrive_whatever_the_pieces_and_the_schedule() {
    for schedule in Schedule::all(3) {
        let rig = Rig::new();
        rig.fake.set_schedule(schedule);
        for (piece, len) in [
            (16, 0),
            (16, 1),
            (16, 16),
            (16, 17),
            (16, 95),
            (7, 64),
            (128, 64),
        ] {
            let source = bytes(len);
            let mut device = rig.device(len);
            let trickle = Trickle {
                rest: &source,
                most: 5,
                interrupted: false,
            };

            uploader(&rig, piece)
                .upload(device.as_span_mut(), trickle, |_, _| {})
                .unwrap();

            assert_eq!(
                device.to_vec().unwrap(),
                source,
                "{piece} {len} {schedule:?}"
            );
        }
        rig.check();
    }
}

#[test]
fn it_fills_a_part_of_a_buffer_and_reads_no_more() {
    let rig = Rig::new();
    rig.fake.set_schedule(Schedule::Delayed);
    let mut device = rig.device(64);
    device.fill(0xEE).unwrap();
    let source = bytes(100);
    let mut rest = source.as_slice();

    let part = device.as_span_mut().into_subspan(10, 40).unwrap();
    uploader(&rig, 16)
        .upload(part, &mut rest, |_, _| {})
        .unwrap();

    let found = device.to_vec().unwrap();
    assert_eq!(&found[10..50], &source[..40]);
    assert!(
        found[..10]
            .iter()
            .chain(&found[50..])
            .all(|byte| *byte == 0xEE)
    );
    assert_eq!(rest.len(), 60);
    rig.check();
}

#[test]
fn the_next_piece_is_read_while_the_last_is_copied() {
    let rig = Rig::new();
    rig.fake.set_schedule(Schedule::Delayed);
    let mut device = rig.device(48);
    let mut waiting = Vec::new();
    let source = bytes(48);
    let mut at = 0;
    let reader = ReadWith(|into: &mut [u8]| {
        waiting.push(rig.fake.live().pending > 0);
        into.copy_from_slice(&source[at..at + into.len()]);
        at += into.len();
        Ok(into.len())
    });

    uploader(&rig, 16)
        .upload(device.as_span_mut(), reader, |_, _| {})
        .unwrap();

    assert_eq!(waiting, [false, true, true]);
    assert_eq!(device.to_vec().unwrap(), source);
}

struct ReadWith<F>(F);

impl<F: FnMut(&mut [u8]) -> io::Result<usize>> Read for ReadWith<F> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        (self.0)(into)
    }
}

#[test]
fn progress_never_falls_and_is_no_more_than_what_arrived() {
    let rig = Rig::new();
    rig.fake.set_schedule(Schedule::Delayed);
    let mut device = rig.device(100);
    device.fill(0).unwrap();
    let ptr = device.ptr().addr() as u64;
    let mut told = Vec::new();

    uploader(&rig, 16)
        .upload(device.as_span_mut(), io::repeat(1), |done, total| {
            let arrived = rig
                .fake
                .read(ptr, 100)
                .unwrap()
                .iter()
                .filter(|byte| **byte == 1)
                .count();
            assert!(arrived as u64 >= done);
            told.push((done, total));
        })
        .unwrap();

    assert!(told.is_sorted());
    assert!(told.iter().all(|(_, total)| *total == 100));
    assert_eq!(told.last(), Some(&(100, 100)));
    assert!(told.len() > 3);
}

#[test]
fn a_source_that_is_too_short_is_an_error_with_the_numbers() {
    let rig = Rig::new();
    rig.fake.set_schedule(Schedule::Delayed);
    let mut uploader = uploader(&rig, 16);
    let mut device = rig.device(100);

    let short = bytes(41);
    let error = uploader
        .upload(device.as_span_mut(), short.as_slice(), |_, _| {})
        .unwrap_err();

    assert_eq!(
        error.to_string(),
        "length mismatch on cuda:0: expected 100 bytes, found 41"
    );
    assert_eq!(rig.fake.live().pending, 0, "the stream was waited for");
    uploader
        .upload(device.as_span_mut(), bytes(100).as_slice(), |_, _| {})
        .unwrap();
    assert_eq!(device.to_vec().unwrap(), bytes(100));
    rig.check();
}

#[test]
fn an_error_of_the_reader_is_the_source() {
    let rig = Rig::new();
    rig.fake.set_schedule(Schedule::Delayed);
    let mut device = rig.device(100);
    let broken = ReadWith(|_: &mut [u8]| Err(io::Error::other("disk on fire")));

    let error = uploader(&rig, 16)
        .upload(
            device.as_span_mut(),
            bytes(30).as_slice().chain(broken),
            |_, _| {},
        )
        .unwrap_err();

    assert!(matches!(
        error.kind(),
        ErrorKind::Backend {
            operation: Operation::CopyHostToDevice,
            ..
        }
    ));
    assert_eq!(error.source().unwrap().to_string(), "disk on fire");
    assert_eq!(rig.fake.live().pending, 0);
    rig.check();
}

#[test]
fn a_reader_that_lies_or_panics_does_no_harm() {
    let rig = Rig::new();
    let before = rig.alive();
    rig.fake.set_schedule(Schedule::Delayed);
    let mut device = rig.device(100);
    let mut pieces = uploader(&rig, 16);

    let lies = ReadWith(|into: &mut [u8]| Ok(into.len() + 1));
    let lie = pieces.upload(device.as_span_mut(), lies, |_, _| {});
    let panics = ReadWith(|_: &mut [u8]| panic!("user"));
    let payload = catch_unwind(AssertUnwindSafe(|| {
        pieces.upload(
            device.as_span_mut(),
            bytes(30).as_slice().chain(panics),
            |_, _| {},
        )
    }));

    assert!(lie.is_err());
    assert_eq!(payload.unwrap_err().downcast_ref(), Some(&"user"));
    assert_eq!(rig.fake.live().pending, 0);
    pieces
        .upload(device.as_span_mut(), io::repeat(3), |_, _| {})
        .unwrap();
    assert_eq!(device.to_vec().unwrap(), [3; 100]);
    drop((pieces, device));
    assert_eq!(rig.alive(), before);
    rig.check();
}

#[test]
fn every_call_may_fail_and_the_next_upload_is_whole() {
    let rig = Rig::new();
    let mut pieces = uploader(&rig, 16);
    let mut device = rig.device(70);

    let calls = rig.fail_each_call(|| {
        let result = pieces.upload(device.as_span_mut(), io::repeat(1), |_, _| {});
        rig.fake.disarm();
        if result.is_ok() {
            assert_eq!(rig.peek(&device), [1; 70]);
        }
        pieces
            .upload(device.as_span_mut(), io::repeat(2), |_, _| {})
            .unwrap();
        rig.fake.run_schedule(Run::All);
        assert_eq!(rig.peek(&device), [2; 70]);
    });

    assert!(calls > 15, "{calls}");
}

#[test]
fn making_one_may_fail_at_any_call() {
    let rig = Rig::new();
    let piece = NonZeroUsize::new(16).unwrap();

    let calls = rig.fail_each_call(|| {
        let made = StagedUploader::new(&rig.stream, Arc::clone(&rig.host), piece);
        rig.fake.disarm();
        drop(made);
    });

    assert!(calls > 6, "{calls}");
}

#[test]
fn buffers_that_can_not_be_waited_for_are_not_used_again() {
    let rig = Rig::new();
    rig.keep();
    rig.fake.set_schedule(Schedule::Delayed);
    let mut pieces = uploader(&rig, 16);
    let before = rig.alive();
    let mut device = rig.device(16);
    for call in [
        "cuStreamSynchronize",
        "cuEventSynchronize",
        "cuCtxSynchronize",
    ] {
        rig.fake.fail(call, 0, FAULT);
    }

    let lost = pieces.upload(device.as_span_mut(), io::repeat(1), |_, _| {});

    rig.fake.disarm();
    assert!(lost.is_err());
    assert_eq!(rig.alive().pinned, before.pinned);
    pieces
        .upload(device.as_span_mut(), io::repeat(2), |_, _| {})
        .unwrap();
    assert_eq!(rig.alive().pinned, before.pinned + 2);
    assert_eq!(device.to_vec().unwrap(), [2; 16]);
    rig.check();
}

#[test]
fn a_mark_that_was_not_set_is_not_taken_for_the_end() {
    let rig = Rig::new();
    rig.fake.set_schedule(Schedule::Delayed);
    let mut pieces = uploader(&rig, 16);
    let mut device = rig.device(16);
    rig.fake.fail("cuEventRecord", 1, FAULT);
    rig.fake.fail("cuStreamSynchronize", 0, FAULT);

    let result = pieces.upload(device.as_span_mut(), io::repeat(1), |_, _| {});

    assert!(result.is_err());
    assert_eq!(rig.fake.live().pending, 0, "the context was waited for");
    rig.check();
}
