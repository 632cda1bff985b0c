//! Through page-locked memory, on the simulated driver of `tests/fake-cuda`.
//! Nothing here says anything about a GPU.

use std::io::{self, Read};
use std::num::NonZeroUsize;
use std::sync::Arc;

use device_memory::backend::cuda::StagedUploader;
use device_memory::weights::{Weights, WeightsHeader, WeightsLoader};
use device_memory::{DeviceAllocatorRegistry, Result};
use fakecuda::Schedule;

use crate::support::{GPU, SMALL, check, file};

#[expect(dead_code, reason = "the tests of transfers use more of it")]
#[path = "../cuda_transfers/support.rs"]
mod transfers;

use transfers::Rig;

/// Reads from a slice, and calls something before.
struct ReadWith<'a, F>(&'a [u8], F);

impl<F: FnMut()> Read for ReadWith<'_, F> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        (self.1)();
        self.0.read(into)
    }
}

/// Loads in pieces of 16 bytes, and calls something before each is read.
fn load(rig: &Rig, bytes: &[u8], before: impl FnMut()) -> Result<Weights> {
    let registry = DeviceAllocatorRegistry::new();
    registry.register(Arc::clone(&rig.cuda))?;
    let piece = NonZeroUsize::new(16).unwrap();
    let mut uploader = StagedUploader::new(&rig.stream, Arc::clone(&rig.host), piece)?;
    let (header, data) = WeightsHeader::parse(bytes)?;
    let plan = header.arena(GPU, 8)?;
    WeightsLoader::new(&registry)
        .with_uploader(&mut uploader)
        .load(header, plan, ReadWith(data, before))
}

#[test]
fn tensors_are_read_while_those_before_are_copied() {
    let rig = Rig::new();
    let bytes = file(SMALL, 17);
    rig.fake.set_schedule(Schedule::Delayed);

    let mut pending = Vec::new();
    let weights = load(&rig, &bytes, || pending.push(rig.fake.live().pending > 0)).unwrap();

    assert_eq!(
        pending,
        [false, true],
        "the second piece overlaps the first"
    );
    check(&weights, &bytes);
    drop(weights);
    rig.check();
}

#[test]
fn whichever_call_fails_memory_of_both_kinds_events_and_streams_are_given_back() {
    let rig = Rig::new();
    let bytes = file(SMALL, 17);
    let mut failures = 0;

    let calls = rig.fail_each_call(|| failures += u64::from(load(&rig, &bytes, || ()).is_err()));

    // What fails to be given back, of which a load is told nothing, is not among them.
    assert!(calls > 20 && failures > 10, "{failures} of {calls}");
    check(&load(&rig, &bytes, || ()).unwrap(), &bytes);
    rig.check();
}
