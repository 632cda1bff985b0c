//! Every call failing or panicking in turn.

use std::convert::Infallible;
use std::io::{self, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use device_memory::testing::{FakeDevice, fail_each_call, panic_each_call};
use device_memory::weights::{PlainUploader, WeightsHeader, WeightsLoader};
use device_memory::{DeviceAllocatorRegistry, DeviceType, Error, Tag};

use crate::support::{GPU, SMALL, check, file, load, rig};

/// Loads in both ways, in small pieces, from an allocator that may fail.
fn round(
    allocator: Arc<impl device_memory::DeviceAllocator + 'static>,
    bytes: &[u8],
) -> Result<(), Error> {
    let registry = DeviceAllocatorRegistry::new();
    registry.register(allocator)?;
    for separate in [false, true] {
        let (header, data) = WeightsHeader::parse(bytes)?;
        let plan = if separate {
            header.separate(GPU, 64)?
        } else {
            header.arena(GPU, 8)?
        };
        let mut uploader = PlainUploader::new(std::num::NonZeroUsize::new(6).unwrap());
        let weights = WeightsLoader::new(&registry)
            .with_uploader(&mut uploader)
            .load(header, plan, data)?;
        assert_eq!(weights.span("tail")?.to_vec()?.len(), 5);
    }
    Ok(())
}

#[test]
fn nothing_leaks_whichever_call_fails() {
    let fake = FakeDevice::new(DeviceType::Cuda, 1);
    let bytes = file(SMALL, 17);

    let failed = fail_each_call(&fake, |allocator| round(Arc::clone(allocator), &bytes)).unwrap();
    let panicked = panic_each_call(&fake, |allocator| round(Arc::clone(allocator), &bytes));

    assert!(failed.calls > 14, "{failed:?}");
    assert_eq!(
        panicked.unwrap().unwound,
        0,
        "panics of allocators are errors"
    );
    fake.assert_clean();
}

#[test]
fn what_was_loaded_before_is_not_touched_by_a_load_that_fails() {
    let bytes = file(SMALL, 17);
    let (fake, registry) = rig();
    let kept = load(&registry, &bytes, GPU).unwrap();

    load(&registry, &bytes[..bytes.len() - 1], GPU).unwrap_err();

    check(&kept, &bytes);
    assert_eq!(fake.live_blocks(), 1);
}

#[test]
fn too_little_memory_is_out_of_memory_with_the_tag_and_nothing_is_left() {
    let fake = FakeDevice::builder(DeviceType::Cuda).capacity(16).build();
    let registry = DeviceAllocatorRegistry::new();
    registry.register(Arc::new(fake.clone())).unwrap();

    let error = load(&registry, &file(SMALL, 17), GPU).unwrap_err();

    assert!(error.is_out_of_memory(), "{error}");
    assert_eq!(fake.allocations(), 0);
    assert_eq!(error.out_of_memory().unwrap().tag, Tag::WEIGHTS);
}

/// Panics when read.
struct Panics;

impl Read for Panics {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        panic!("the reader panics")
    }
}

#[test]
fn a_panic_of_the_reader_or_of_the_progress_frees_everything() {
    let bytes = file(SMALL, 17);
    let (fake, registry) = rig();
    let (header, data) = WeightsHeader::parse(&bytes).unwrap();
    let plan = header.arena(GPU, 64).unwrap();
    let load = |panics_in_progress: bool| -> Result<Infallible, _> {
        let mut progress = |_, _| panic!("the progress panics");
        let loader = WeightsLoader::new(&registry);
        let (header, plan) = (header.clone(), plan.clone());
        catch_unwind(AssertUnwindSafe(|| {
            if panics_in_progress {
                let loader = loader.with_progress(&mut progress);
                loader.load(header, plan, data).map(drop).unwrap();
            } else {
                loader.load(header, plan, Panics).map(drop).unwrap();
            }
            unreachable!("it panicked")
        }))
    };

    for panics_in_progress in [false, true] {
        let payload = load(panics_in_progress).unwrap_err();

        let text = payload.downcast_ref::<&str>().copied().unwrap();
        assert!(text.ends_with("panics"), "{text}");
        assert_eq!(fake.live_blocks(), 0);
    }
    assert_eq!(fake.allocations(), 2);
    fake.assert_clean();
}
