//! Each layer that knows something says it, in one line.

use std::sync::{Arc, Mutex};

use device_memory::adaptor::{
    Aligned, Arena, Binning, Limit, Log, Observed, Observer, Poison, PoolBuilder, Recorded,
    RecordedSegments, Recorder, Retry, Shared, Statistics, Tracking,
};
use device_memory::testing::{FakeDevice, FaultInjector};
use device_memory::{
    Attempt, Device, DeviceAllocator, DeviceLayout, DeviceMemoryBuffer, DeviceType, Error,
    Operation, OutOfMemory, Tag,
};

// https://github.com/EricLBuehler/mistral.rs/issues/1446
// https://github.com/rapidsai/rmm/issues/1134
#[test]
fn a_deep_stack_reports_on_one_line() {
    let device = FakeDevice::builder(DeviceType::Cuda)
        .capacity(10_000)
        .build();
    let limit = Limit::over(device, 8192);
    let arena = Arena::over(Statistics::over(limit), 4096);
    let aligned = Aligned::over(Log::csv(arena, std::io::sink()), 256).unwrap();
    let stack = Arc::new(Tracking::over(Retry::over(aligned, |_| false)));
    let layout = |size| {
        let layout = DeviceLayout::from_size(size).unwrap();
        layout.with_tag(Tag::KV_CACHE)
    };
    let kept = DeviceMemoryBuffer::create_with(stack.clone(), layout(3000), 0).unwrap();

    let error = DeviceMemoryBuffer::create_with(stack, layout(5000), 0).unwrap_err();

    assert_eq!(
        error.to_string(),
        "out of memory on cuda:0: 5000 bytes requested (align 64, tag kv_cache), 3000 in use, \
         4096 reserved, limit 8192, largest free block 1096, 5904 of 10000 free on the device; \
         tried search, upstream, trim, hook"
    );
    let report = error.out_of_memory().unwrap();
    assert_eq!(report.tag, Tag::KV_CACHE);
    assert_eq!(report.tried.last(), Some(&Attempt::Hook));
    drop(kept);
}

#[test]
fn layers_that_ask_for_more_report_what_was_asked_of_them() {
    let device = FakeDevice::builder(DeviceType::Cuda).capacity(1000).build();
    let stack = Poison::over(
        Aligned::over(device, 4096)
            .unwrap()
            .native_align(64)
            .unwrap(),
    );
    let layout = DeviceLayout::new(10, 8).unwrap();

    let error = DeviceMemoryBuffer::create_with(Arc::new(stack), layout, 0).unwrap_err();

    let report = error.out_of_memory().unwrap();
    assert_eq!((report.requested, report.align), (10, 8));
    assert_eq!(
        (report.device_free, report.device_total),
        (Some(1000), Some(1000))
    );
}

type Allocator = Arc<dyn DeviceAllocator>;

/// The bytes in use, reserved, of the limit and of the largest free block.
type Fields = [Option<usize>; 4];

/// An adaptor by name, how it is put over an allocator, what it says itself while a block
/// of 1,000 bytes is in use, and whether it divides what the layer below gives.
type Adaptor = (&'static str, fn(Allocator) -> Allocator, Fields, bool);

const IN_USE: Fields = [Some(1000), None, None, None];
const NOTHING: Fields = [None; 4];

const ADAPTORS: &[Adaptor] = &[
    (
        "Aligned",
        |below| Arc::new(Aligned::over(below, 256).unwrap()),
        NOTHING,
        false,
    ),
    (
        "Arena",
        |below| Arc::new(Arena::over(below, 4096)),
        [Some(1000), Some(4096), None, Some(3096)],
        true,
    ),
    (
        "Binning",
        |below| Arc::new(Binning::over(below.clone()).bin(64, below).unwrap()),
        IN_USE,
        false,
    ),
    (
        "Limit",
        |below| Arc::new(Limit::over(below, 1 << 30)),
        [Some(1000), None, Some(1 << 30), None],
        false,
    ),
    (
        "Log",
        |below| Arc::new(Log::csv(below, std::io::sink())),
        NOTHING,
        false,
    ),
    (
        "Poison",
        |below| Arc::new(Poison::over(below)),
        NOTHING,
        false,
    ),
    (
        "Pool",
        |below| Arc::new(PoolBuilder::new().growth(4096).limit(1 << 29).build(below)),
        [Some(1024), Some(4096), Some(1 << 29), Some(3072)],
        true,
    ),
    (
        "Recorded",
        |below| Arc::new(Recorded::over(below, &Recorder::new(9))),
        NOTHING,
        false,
    ),
    (
        "RecordedSegments",
        |below| Arc::new(RecordedSegments::over(below, &Recorder::new(9))),
        NOTHING,
        false,
    ),
    (
        "Retry",
        |below| Arc::new(Retry::over(below, |_| false)),
        NOTHING,
        false,
    ),
    (
        "Shared",
        |below| Arc::new(Shared::from(below)),
        NOTHING,
        false,
    ),
    (
        "Statistics",
        |below| Arc::new(Statistics::over(below)),
        IN_USE,
        false,
    ),
    (
        "Tracking",
        |below| Arc::new(Tracking::over(below)),
        IN_USE,
        false,
    ),
];

fn fields(report: &OutOfMemory) -> Fields {
    [
        report.in_use,
        report.reserved,
        report.limit,
        report.largest_free,
    ]
}

/// The report of a request that the device refuses while 1,000 bytes are in use.
fn refusal(stack: &Allocator, refuse: impl FnOnce()) -> OutOfMemory {
    let create = |size| {
        let layout = DeviceLayout::from_size(size).unwrap();
        DeviceMemoryBuffer::create_with(stack.clone(), layout, 0)
    };
    let kept = create(1000).unwrap();
    refuse();
    let error = create(1 << 21).unwrap_err();
    drop(kept);
    error.out_of_memory().unwrap().clone()
}

#[test]
fn over_a_device_that_says_nothing_each_adaptor_says_what_it_knows() {
    for (name, over, knows, _) in ADAPTORS {
        let injector = FaultInjector::new(FakeDevice::new(DeviceType::Cuda, 1));
        let faults = injector.faults();

        let report = refusal(&over(Arc::new(injector)), || {
            faults.fail_all(Operation::Allocate)
        });

        assert_eq!(fields(&report), *knows, "{name}");
        assert_eq!(
            (report.device_free, report.device_total),
            (None, None),
            "{name}"
        );
        assert_eq!(report.requested, 1 << 21, "{name}");
    }
}

/// Keeps the report that passed last.
#[derive(Debug)]
struct Heard(Arc<Mutex<Option<OutOfMemory>>>);

impl Observer for Heard {
    fn allocate_failed(&self, _: Device, _: DeviceLayout, error: &mut Error) {
        *self.0.lock().unwrap() = error.out_of_memory().cloned();
    }
}

#[test]
fn no_adaptor_says_less_than_the_one_below_it_nor_other_things_unless_it_divides() {
    for (outer, over, knows, divides) in ADAPTORS {
        for (inner, below, ..) in ADAPTORS {
            let name = format!("{outer} over {inner}");
            let device = FakeDevice::builder(DeviceType::Cuda)
                .capacity(1 << 20)
                .build();
            let heard = Arc::new(Mutex::new(None));
            let watched = Observed::new(below(Arc::new(device)), Heard(heard.clone()));

            let report = refusal(&over(Arc::new(watched)), || {});

            let heard = heard.lock().unwrap().take().unwrap();
            let (said, before) = (fields(&report), fields(&heard));
            for field in 0..4 {
                let (said, before, known) = (said[field], before[field], knows[field]);
                let (is_limit, is_free) = (field == 2, field == 3);
                match (before, known) {
                    (None, None) => assert_eq!(said, None, "{name}: {report}"),
                    (Some(_), Some(_)) if is_free => {
                        assert!(said >= before, "{name}: {report}");
                    }
                    (Some(_), Some(_)) if *divides && !is_limit => {
                        assert_eq!(said, known, "{name}: {report}");
                    }
                    (Some(_), _) => assert_eq!(said, before, "{name}: {report}"),
                    (None, Some(_)) => assert_eq!(said, known, "{name}: {report}"),
                }
            }
            assert_eq!(report.device_total, Some(1 << 20), "{name}");
            assert_eq!(report.device_free, heard.device_free, "{name}");
            assert!(report.tried.len() >= heard.tried.len(), "{name}");
        }
    }
}

/// What makes an adaptor refuse by itself.
type Refusing = (&'static str, fn(FakeDevice) -> Allocator, DeviceLayout);

#[test]
fn what_a_layer_refuses_by_itself_says_what_the_device_has() {
    let plain = DeviceLayout::new(5000, 64).unwrap();
    let largest = DeviceLayout::new(isize::MAX.unsigned_abs() - 64, 64).unwrap();
    let refusing: [Refusing; 5] = [
        ("Limit", |below| Arc::new(Limit::over(below, 4096)), plain),
        ("Arena", |below| Arc::new(Arena::fixed(below, 4096)), plain),
        (
            "Pool",
            |below| Arc::new(PoolBuilder::new().limit(4096).build(below)),
            plain,
        ),
        ("Poison", |below| Arc::new(Poison::over(below)), largest),
        (
            "Aligned",
            |below| {
                Arc::new(
                    Aligned::over(below, 4096)
                        .unwrap()
                        .native_align(64)
                        .unwrap(),
                )
            },
            largest,
        ),
    ];
    for (name, over, layout) in refusing {
        let device = FakeDevice::builder(DeviceType::Cuda)
            .capacity(1 << 20)
            .build();

        let error = DeviceMemoryBuffer::create_with(over(device), layout, 0).unwrap_err();

        let report = error.out_of_memory().unwrap();
        let device = (report.device_free, report.device_total);
        assert_eq!(device, (Some(1 << 20), Some(1 << 20)), "{name}");
        assert_eq!(report.requested, layout.size(), "{name}");
    }
}
