//! What an adaptor says of itself is the same after an allocation that failed as
//! before it, whichever call below was the one that did.

use std::sync::Arc;

use device_memory::adaptor::{
    Arena, Limit, Log, Poison, Pool, Recorded, Recorder, Statistics, Tracking,
};
use device_memory::testing::{FakeDevice, FaultInjector, Faults};
use device_memory::{
    DeviceAllocator, DeviceLayout, DeviceMemoryBuffer, DeviceType, Operation, Tag,
};

/// What an adaptor is put over.
type Below = FaultInjector<FakeDevice>;

/// An adaptor, and how to read its figures.
struct Watched {
    allocator: Arc<dyn DeviceAllocator>,
    figures: Box<dyn Fn() -> String>,
}

impl Watched {
    /// Watches an adaptor through a function that reads it.
    fn new<A: DeviceAllocator + 'static>(
        adaptor: A,
        figures: impl Fn(&A) -> String + 'static,
    ) -> Self {
        let adaptor = Arc::new(adaptor);
        Self {
            allocator: adaptor.clone(),
            figures: Box::new(move || figures(&adaptor)),
        }
    }
}

/// An adaptor by name, and how it is put over a device.
type Adaptor = (&'static str, fn(Below) -> Watched);

/// The adaptors that have figures: one line each.
const ADAPTORS: &[Adaptor] = &[
    ("Arena", |below| {
        Watched::new(Arena::over(below, 4096), |arena| {
            arena.status(0).in_use.to_string()
        })
    }),
    ("Limit", |below| {
        Watched::new(Limit::over(below, 1 << 30), |limit| {
            let of_tag = limit.tag_in_use(0, Tag::KV_CACHE);
            format!("{} {of_tag} {}", limit.in_use(0), limit.limit(0))
        })
    }),
    ("Log", |below| {
        let log = Log::csv(below, std::io::sink());
        Watched::new(log, |log| log.lost().to_string())
    }),
    ("Poison", |below| {
        Watched::new(Poison::over(below), |poison| {
            format!("{:?}", poison.damages())
        })
    }),
    ("Pool", |below| {
        Watched::new(Pool::over(below), |pool| {
            pool.status(0).unwrap().in_use.to_string()
        })
    }),
    ("Recorded", |below| {
        let recorder = Recorder::new(100);
        recorder.start();
        Watched::new(Recorded::over(below, &recorder), |recorded| {
            format!("{:?}", recorded.recording().blocks())
        })
    }),
    ("Statistics", |below| {
        Watched::new(Statistics::over(below), |statistics| {
            let mut usages = [statistics.usage(0), statistics.tag_usage(0, Tag::KV_CACHE)];
            // Failures are counted, which is right.
            usages.iter_mut().for_each(|usage| usage.failures = 0);
            format!("{usages:?}")
        })
    }),
    ("Tracking", |below| {
        Watched::new(Tracking::over(below), |tracking| {
            tracking.report().to_string()
        })
    }),
];

/// Fails calls of the layer below: the n-th of a kind, or all.
type Fault = fn(&Faults, Operation, u64);

const FAULTS: [(&str, Fault); 3] = [
    ("fails", Faults::fail_nth),
    ("panics", Faults::panic_on),
    ("fails as all do", |faults, operation, _| {
        faults.fail_all(operation);
    }),
];

/// Allocates more than is kept anywhere while calls fail, and checks what is left.
/// Says whether the allocation failed.
fn fails(name: &str, over: fn(Below) -> Watched, fault: impl FnOnce(&Faults)) -> bool {
    let layout = |size| {
        let layout = DeviceLayout::from_size(size).unwrap();
        layout.with_tag(Tag::KV_CACHE)
    };
    let fake = FakeDevice::new(DeviceType::Cuda, 1);
    let injector = FaultInjector::new(fake.clone());
    let faults = injector.faults();
    let watched = over(injector);
    let create = |size| DeviceMemoryBuffer::create_with(watched.allocator.clone(), layout(size), 0);
    let mut kept = create(1000).unwrap();
    kept.fill(9).unwrap();
    let before = (watched.figures)();
    fault(&faults);

    let made = create(100 << 20);

    let failed = made.is_err();
    if failed {
        assert_eq!((watched.figures)(), before, "{name}");
    }
    faults.disarm();
    drop(made);
    assert_eq!(kept.to_vec().unwrap(), [9; 1000], "{name}");
    drop(create(100 << 20).unwrap());
    drop((kept, watched));
    fake.assert_clean();
    failed
}

#[test]
fn no_figure_is_changed_by_an_allocation_that_fails_at_any_call() {
    for (name, over) in ADAPTORS {
        let mut failures = 0;
        for (how, fault) in FAULTS {
            for operation in [Operation::Allocate, Operation::Fill] {
                for nth in 1..=4 {
                    let what = format!("{name}, call {nth} of {operation} {how}");
                    let failed = fails(&what, *over, |faults| fault(faults, operation, nth));
                    failures += usize::from(failed);
                }
            }
        }
        assert!(failures >= 5, "{name}: {failures}");
    }
}
