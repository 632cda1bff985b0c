//! Every adaptor alone, and every two in either order, keep the contract of an
//! allocator and lose nothing when calls fail.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use device_memory::adaptor::{
    Aligned, Arena, Binning, Limit, Log, Poison, PoolBuilder, Recorded, RecordedSegments, Recorder,
    Retry, Shared, Statistics, Tracking,
};
use device_memory::testing::conformance::Conformance;
use device_memory::testing::{FakeDevice, fail_each_call, panic_each_call};
use device_memory::{
    DeviceAllocator, DeviceIndex, DeviceLayout, DeviceMemoryBuffer, DeviceType, Error,
    HostAllocator, Tag,
};

use crate::pool_streams::on_stream;

/// What an adaptor is put over, and what it is.
pub(crate) type Allocator = Arc<dyn DeviceAllocator>;

/// An adaptor by name, and how it is put over another allocator.
pub(crate) type Adaptor = (&'static str, fn(Allocator) -> Allocator);

/// All adaptors: one line each, but for a pool in the order of a stream. That serves one
/// device, over an allocator that knows streams, and is put over and under each of
/// these by [`pairs_on_stream`].
pub(crate) const ADAPTORS: &[Adaptor] = &[
    ("Aligned", |below| {
        Arc::new(Aligned::over(below, 512).unwrap())
    }),
    ("Aligned of an allocator that aligns to 16", |below| {
        Arc::new(Aligned::over(below, 64).unwrap().native_align(16).unwrap())
    }),
    ("Arena", |below| Arc::new(Arena::over(below, 1 << 16))),
    ("Binning", |below| {
        let small: Allocator = Arc::new(Arena::over(below.clone(), 1 << 16));
        Arc::new(Binning::over(below).bin(4096, small).unwrap())
    }),
    ("Limit", |below| Arc::new(Limit::over(below, 1 << 50))),
    ("Log", |below| Arc::new(Log::csv(below, std::io::sink()))),
    ("Poison", |below| Arc::new(Poison::over(below))),
    ("Pool", |below| {
        Arc::new(PoolBuilder::new().growth(1 << 20).build(below))
    }),
    ("Recorded", |below| {
        Arc::new(Recorded::over(below, &recorder()))
    }),
    ("RecordedSegments", |below| {
        Arc::new(RecordedSegments::over(below, &recorder()))
    }),
    ("Retry", |below| Arc::new(Retry::over(below, |_| false))),
    ("Shared", |below| Arc::new(Shared::from(below))),
    ("Statistics", |below| Arc::new(Statistics::over(below))),
    ("Tracking", |below| Arc::new(Tracking::over(below))),
];

/// A recorder that is on.
fn recorder() -> Recorder {
    let recorder = Recorder::new(1000);
    recorder.start();
    recorder
}

const CAPACITY: usize = 1 << 30;

fn fake() -> FakeDevice {
    fakes(2)
}

fn one_device() -> FakeDevice {
    fakes(1)
}

fn fakes(devices: usize) -> FakeDevice {
    FakeDevice::builder(DeviceType::Cuda)
        .devices(devices)
        .capacity(CAPACITY)
        .reuse_addresses(true)
        .delayed_copies(true)
        .build()
}

/// Each two adaptors, the outer first, by their names.
fn pairs() -> impl Iterator<Item = (String, impl Fn(Allocator) -> Allocator)> {
    ADAPTORS.iter().flat_map(|outer| {
        ADAPTORS.iter().map(move |inner| {
            let name = format!("{} over {}", outer.0, inner.0);
            (name, |below| outer.1(inner.1(below)))
        })
    })
}

/// A pool in the order of a stream over each adaptor, and each adaptor over it.
fn pairs_on_stream() -> impl Iterator<Item = (String, Box<dyn Fn(Allocator) -> Allocator>)> {
    ADAPTORS.iter().flat_map(|&(name, over)| {
        let above = move |below| on_stream(over(below));
        let under = move |below| over(on_stream(below));
        let above: Box<dyn Fn(Allocator) -> Allocator> = Box::new(above);
        [
            (format!("PoolOnStream over {name}"), above),
            (format!("{name} over PoolOnStream"), Box::new(under)),
        ]
    })
}

fn free_bytes(fake: &FakeDevice) -> [usize; 2] {
    [0, 1].map(|index| fake.memory_info(index).unwrap().unwrap().free)
}

/// Blocks of several sizes, alignments and tags on the first device and the last, used
/// and freed out of order, and all that programs ask of a layer itself.
fn work(allocator: &Allocator) -> Result<(), Error> {
    let last = DeviceIndex::try_from(allocator.device_count() - 1).unwrap();
    let create = |size, align, tag, index| {
        let layout = DeviceLayout::new(size, align)?.with_tag(tag);
        DeviceMemoryBuffer::create_with(allocator.clone(), layout, index)
    };
    let mut weights = create(5000, 4096, Tag::WEIGHTS, 0)?;
    weights.fill(7)?;
    let mut small = create(3, 1, Tag::SCRATCH, 0)?;
    small.copy_from_host(b"abc")?;
    let other = create(70_000, 64, Tag::ACTIVATIONS, last)?;
    assert_eq!(small.to_vec()?, b"abc");
    drop(weights);
    let again = create(100, 64, Tag::NONE, 0)?;
    assert_eq!(small.to_vec()?, b"abc");
    small.free().map_err(|failure| failure.error)?;
    drop(other);
    allocator.memory_info(0)?;
    allocator.synchronize(last)?;
    allocator.trim(last)?;
    drop(again);
    allocator.trim(0)?;
    Ok(())
}

/// A new adaptor can not be forgotten here.
#[test]
fn the_list_has_every_adaptor_of_the_crate() {
    let source = include_str!("../../src/adaptor.rs");
    let modules = source.lines().filter_map(|line| {
        let module = line.trim_start_matches("pub ").strip_prefix("mod ")?;
        module.strip_suffix(';').filter(|module| *module != "guide")
    });
    let modules: Vec<&str> = modules.collect();

    let listed = |module: &&str| {
        // The recorder's is named for what it makes of an allocator.
        let stem = module.trim_end_matches("er");
        let named = |name: &str| name.to_lowercase().starts_with(stem);
        ADAPTORS.iter().any(|(name, _)| named(name))
    };

    assert!(modules.len() >= 12, "{modules:?}");
    for module in modules {
        assert!(listed(&module), "{module}");
    }
}

#[test]
fn each_adaptor_keeps_the_contract_on_a_device() {
    for (name, over) in ADAPTORS {
        let fake = fake();
        let before = free_bytes(&fake);

        let allocator = over(Arc::new(fake.clone()));
        // One that keeps memory may give it back when it is out of it.
        Conformance::new(&*allocator)
            .shared_devices(true)
            .run()
            .unwrap_or_else(|failure| panic!("{name}: {failure}"));
        drop(allocator);

        assert_eq!(free_bytes(&fake), before, "{name}");
        fake.assert_clean();
    }
}

#[test]
fn each_adaptor_keeps_the_contract_on_memory_that_the_host_can_read() {
    for (name, over) in ADAPTORS {
        let allocator = over(Arc::new(HostAllocator));

        let report = Conformance::new(&*allocator)
            .run()
            .unwrap_or_else(|failure| panic!("{name}: {failure}"));

        assert!(report.host_accessible, "{name}");
    }
}

/// Checks the contract of a stack, in short.
fn keeps_the_contract(name: &str, allocator: Allocator) {
    Conformance::new(&*allocator)
        .max_size(1 << 14)
        .max_align(1 << 13)
        .threads(2)
        .shared_devices(true)
        .run()
        .unwrap_or_else(|failure| panic!("{name}: {failure}"));
}

/// Checks that a stack has all back whichever call of the device fails or panics.
fn loses_nothing(name: &str, fake: &FakeDevice, over: impl Fn(Allocator) -> Allocator) {
    let failed = fail_each_call(fake, |injector| work(&over(injector.clone())));
    let panicked = panic_each_call(fake, |injector| work(&over(injector.clone())));

    let failed = failed.unwrap_or_else(|found| panic!("{name}, failing: {found}"));
    let panicked = panicked.unwrap_or_else(|found| panic!("{name}, panicking: {found}"));
    assert!(failed.calls >= 6, "{name}: {failed:?}");
    assert_eq!(panicked.unwound, 0, "{name}");
    fake.assert_clean();
}

#[test]
fn each_two_adaptors_keep_the_contract_in_either_order() {
    for (name, over) in pairs() {
        let fake = fake();
        let before = free_bytes(&fake);

        keeps_the_contract(&name, over(Arc::new(fake.clone())));

        assert_eq!(free_bytes(&fake), before, "{name}");
        fake.assert_clean();
    }
}

#[test]
fn each_two_adaptors_lose_nothing_whichever_call_fails() {
    for (name, over) in pairs() {
        loses_nothing(&name, &fake(), over);
    }
}

#[test]
fn a_pool_on_a_stream_keeps_the_contract_over_and_under_each_adaptor() {
    for (name, over) in pairs_on_stream() {
        let fake = one_device();

        keeps_the_contract(&name, over(Arc::new(fake.clone())));

        assert_eq!(fake.live_bytes(), 0, "{name}");
        fake.assert_clean();
    }
}

#[test]
fn a_pool_on_a_stream_loses_nothing_over_and_under_each_adaptor() {
    for (name, over) in pairs_on_stream() {
        loses_nothing(&name, &one_device(), over);
    }
}

#[test]
fn each_two_adaptors_go_on_after_a_failed_allocation_as_before_it() {
    for (name, over) in pairs() {
        let fake = fake();
        let allocator = over(Arc::new(fake.clone()));
        let layout = DeviceLayout::from_size(1000).unwrap();
        let mut kept = DeviceMemoryBuffer::create_with(allocator.clone(), layout, 0).unwrap();
        kept.fill(9).unwrap();
        let live = fake.live_bytes();

        let too_large = DeviceLayout::from_size(CAPACITY + 1).unwrap();
        let refused = DeviceMemoryBuffer::create_with(allocator.clone(), too_large, 0);

        let refused = refused.unwrap_err();
        let report = refused
            .out_of_memory()
            .unwrap_or_else(|| panic!("{name}: {refused}"));
        assert_eq!(
            (report.requested, report.align),
            (CAPACITY + 1, 64),
            "{name}"
        );
        assert_eq!(fake.live_bytes(), live, "{name}");
        assert_eq!(kept.to_vec().unwrap(), [9; 1000], "{name}");
        drop(DeviceMemoryBuffer::create_with(allocator.clone(), layout, 0).unwrap());
        drop(kept);
        drop(allocator);
        fake.assert_clean();
    }
}

/// Allocates and frees from eight threads, and checks that no byte is handed out
/// twice at one time.
fn stress(name: &str, allocator: &Allocator) {
    const ROUNDS: usize = 300;
    let taken: Mutex<HashSet<usize>> = Mutex::default();
    let allocated = AtomicUsize::new(0);

    thread::scope(|scope| {
        for thread in 0..8_usize {
            let (taken, allocated) = (&taken, &allocated);
            scope.spawn(move || {
                let mut held: Vec<DeviceMemoryBuffer> = Vec::new();
                for round in 0..ROUNDS {
                    let size = 64 * (1 + (round * 7 + thread) % 5);
                    let layout = DeviceLayout::from_size(size).unwrap();
                    let buffer =
                        DeviceMemoryBuffer::create_with(allocator.clone(), layout, 0).unwrap();
                    allocated.fetch_add(1, Ordering::Relaxed);
                    let base = buffer.ptr().addr();
                    let mut taken_now = taken.lock().unwrap();
                    for line in (base..base + size).step_by(64) {
                        assert!(taken_now.insert(line), "{name}: {line:#x} is taken");
                    }
                    drop(taken_now);
                    held.push(buffer);
                    if held.len() > 4 {
                        release(held.swap_remove(round % held.len()), taken);
                    }
                }
                for buffer in held {
                    release(buffer, taken);
                }
            });
        }
    });

    assert_eq!(allocated.into_inner(), 8 * ROUNDS);
    assert!(taken.into_inner().unwrap().is_empty());
}

fn release(buffer: DeviceMemoryBuffer, taken: &Mutex<HashSet<usize>>) {
    let base = buffer.ptr().addr();
    let mut taken = taken.lock().unwrap();
    for line in (base..base + buffer.size()).step_by(64) {
        assert!(taken.remove(&line));
    }
    drop(taken);
    buffer.free().unwrap();
}

#[test]
fn eight_threads_never_share_a_byte_and_leave_the_device_whole() {
    for (name, over) in ADAPTORS {
        let fake = fake();
        let before = free_bytes(&fake);

        let allocator = over(Arc::new(fake.clone()));
        stress(name, &allocator);
        drop(allocator);

        assert_eq!(free_bytes(&fake), before, "{name}");
        fake.assert_clean();
    }
}

// https://github.com/tensorflow/tensorflow/pull/27358
#[test]
fn each_adaptor_serves_terabytes() {
    for (name, over) in ADAPTORS {
        let fake = FakeDevice::builder(DeviceType::Cuda)
            .capacity(1 << 42)
            .build();
        let allocator = over(Arc::new(fake.clone()));
        let layout = DeviceLayout::from_size((1 << 40) + 5).unwrap();

        let buffer = DeviceMemoryBuffer::create_with(allocator.clone(), layout, 0);

        let mut buffer = buffer.unwrap_or_else(|error| panic!("{name}: {error}"));
        buffer.copy_from_host_at(1 << 40, b"end").unwrap();
        let mut end = [0; 3];
        buffer.copy_to_host_at(1 << 40, &mut end).unwrap();
        assert_eq!(&end, b"end", "{name}");
        drop(buffer);
        drop(allocator);
        assert_eq!(fake.live_bytes(), 0, "{name}");
        fake.assert_clean();
    }
}
