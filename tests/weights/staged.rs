//! Through page-locked memory, on the simulated driver of `tests/fake-cuda`.
//! Nothing here says anything about a GPU.

use std::io::{self, Read};
use std::num::NonZeroUsize;
use std::sync::Arc;

use device_memory::DeviceAllocatorRegistry;
use device_memory::backend::cuda::cudarc::driver::CudaContext;
use device_memory::backend::cuda::{CudaAllocator, CudaHostAllocator, StagedUploader};
use device_memory::weights::{Weights, WeightsHeader, WeightsLoader};
use fakecuda::{FakeCuda, Run, Schedule};

use crate::support::{GPU, SMALL, check, file};

/// Reads from a slice, and calls something before.
struct ReadWith<'a, F>(&'a [u8], F);

impl<F: FnMut()> Read for ReadWith<'_, F> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        (self.1)();
        self.0.read(into)
    }
}

#[test]
fn tensors_are_read_while_those_before_are_copied_and_nothing_is_left_of_failures() {
    let fake = FakeCuda::install().unwrap().lock();
    fake.set_devices(1);
    let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
    let registry = DeviceAllocatorRegistry::new();
    registry
        .register(Arc::new(CudaAllocator::open().unwrap()))
        .unwrap();
    let pinned = Arc::new(CudaHostAllocator::open().unwrap());
    let piece = NonZeroUsize::new(16).unwrap();
    let mut uploader = StagedUploader::new(&stream, pinned, piece).unwrap();
    let bytes = file(SMALL, 17);
    fake.set_schedule(Schedule::Delayed);
    let mut load = |before: &mut dyn FnMut()| -> device_memory::Result<Weights> {
        let (header, data) = WeightsHeader::parse(&bytes)?;
        let plan = header.arena(GPU, 8)?;
        WeightsLoader::new(&registry)
            .with_uploader(&mut uploader)
            .load(header, plan, ReadWith(data, before))
    };

    let mut pending = Vec::new();
    let weights = load(&mut || pending.push(fake.live().pending > 0)).unwrap();
    check(&weights, &bytes);
    drop(weights);

    assert_eq!(
        pending,
        [false, true],
        "the second piece overlaps the first"
    );
    fake.run_schedule(Run::All);
    let at_rest = fake.live().device_blocks();
    for nth in 1.. {
        fake.clear();
        fake.set_schedule(Schedule::Delayed);
        fake.fail_call_number(nth, 999);
        let loaded = load(&mut || ());
        let reached = fake.fired() > 0;
        fake.disarm();
        if !reached {
            check(&loaded.unwrap(), &bytes);
            assert!(nth > 10, "{nth}");
            break;
        }
        drop(loaded);
        fake.run_schedule(Run::All);
        let left = fake.live().device_blocks();
        assert!(left <= at_rest + 1, "call {nth} leaks: {left} blocks");
        assert_eq!(fake.violations(), Vec::<String>::new(), "call {nth}");
    }
}
