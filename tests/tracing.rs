//! What is told through `tracing`: failed frees, memory that is out, leaks.

#![cfg(all(feature = "testing", feature = "tracing"))]

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use device_memory::adaptor::{Limit, PoolBuilder, Retry, Tracking};
use device_memory::testing::{FakeDevice, FaultInjector};
use device_memory::{
    DeviceAllocator, DeviceLayout, DeviceMemoryBuffer, DeviceType, Operation, Tag,
};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// An event: its level, and its fields as text by their names.
type Told = (Level, BTreeMap<&'static str, String>);

/// Keeps the events it is told of.
#[derive(Clone, Default)]
struct Keeping(Arc<Mutex<Vec<Told>>>);

impl Subscriber for Keeping {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let told = (*event.metadata().level(), fields.0);
        self.0.lock().unwrap().push(told);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The fields of an event.
#[derive(Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

/// The events of `action`.
fn told_by(action: impl FnOnce()) -> Vec<Told> {
    let keeping = Keeping::default();
    tracing::subscriber::with_default(keeping.clone(), action);
    let told = keeping.0.lock().unwrap();
    told.clone()
}

/// An event with these fields.
fn event<const N: usize>(level: Level, fields: [(&'static str, &str); N]) -> Told {
    let fields = fields.map(|(name, value)| (name, value.to_owned()));
    (level, BTreeMap::from(fields))
}

/// The event of a request that a budget has no room for.
fn refused(report: &str) -> Told {
    event(
        Level::DEBUG,
        [("error", report), ("message", "device memory was refused")],
    )
}

/// The event of memory that is out after all tries.
fn out(report: &str) -> Told {
    event(
        Level::WARN,
        [("error", report), ("message", "device memory is out")],
    )
}

fn fake() -> FakeDevice {
    FakeDevice::new(DeviceType::Cuda, 2)
}

fn layout(size: usize) -> DeviceLayout {
    DeviceLayout::from_size(size).unwrap()
}

#[test]
fn a_failed_free_is_one_error_event_with_device_address_size_and_reason() {
    let injector = Arc::new(FaultInjector::new(fake()));
    let buffer = DeviceMemoryBuffer::create_with(Arc::clone(&injector), layout(24), 1).unwrap();
    let ptr = buffer.ptr().to_string();
    injector.fail_nth(Operation::Deallocate, 1);

    let told = told_by(|| drop(buffer));

    let [(level, fields)] = told.as_slice() else {
        panic!("{told:?}");
    };
    assert_eq!(*level, Level::ERROR);
    assert_eq!(fields["device"], "cuda:1");
    assert_eq!(fields["ptr"], ptr);
    assert_eq!(fields["size"], "24");
    assert!(
        fields["error"].starts_with("deallocate on cuda:1 failed: "),
        "{fields:?}"
    );
    assert_eq!(fields["message"], "device memory could not be freed");
}

#[test]
fn memory_that_is_out_after_all_tries_is_one_warning_with_the_report() {
    let retry = Retry::over(Limit::over(fake(), 100), |_| false);

    let told = told_by(|| {
        retry.allocate(layout(101), 0).unwrap_err();
    });

    let refusal = "out of memory on cuda:0: 101 bytes requested (align 64), 0 in use, limit 100";
    let report = format!("{refusal}; tried hook");
    assert_eq!(told, [refused(refusal), out(&report)]);
}

#[test]
fn a_reservation_that_passes_a_budget_is_an_event_with_what_the_device_has() {
    let device = FakeDevice::builder(DeviceType::Cuda).capacity(500).build();
    let limit = Limit::over(device, 100);

    let told = told_by(|| {
        limit.reserve(0, Tag::NONE, 101).unwrap_err();
    });

    let refusal = "out of memory on cuda:0: 101 bytes requested (align 1), 0 in use, limit 100, \
                   500 of 500 free on the device";
    assert_eq!(told, [refused(refusal)]);
}

#[test]
fn the_end_of_a_pools_ladder_is_one_warning_with_the_error() {
    let pool = PoolBuilder::new().limit(4096).build(fake());
    let mut error = String::new();

    let told = told_by(|| error = pool.allocate(layout(4097), 0).unwrap_err().to_string());

    assert!(error.contains("limit 4096"), "{error}");
    assert_eq!(told, [out(&error)]);
}

#[test]
fn memory_that_a_hook_makes_room_for_is_no_warning() {
    let cache: Arc<Mutex<Option<DeviceMemoryBuffer>>> = Arc::default();
    let evicted = Arc::clone(&cache);
    let hook = move |_: &_| evicted.lock().unwrap().take().is_some();
    let retry = Arc::new(Retry::over(Limit::over(fake(), 100), hook));
    let create = |size| DeviceMemoryBuffer::create_with(retry.clone(), layout(size), 0).unwrap();
    *cache.lock().unwrap() = Some(create(60));

    let told = told_by(|| drop(create(60)));

    let refusal = "out of memory on cuda:0: 60 bytes requested (align 64), 60 in use, limit 100";
    assert_eq!(told, [refused(refusal)]);
}

#[test]
fn a_pool_below_a_layer_with_another_way_leaves_the_warning_to_that() {
    let room: Arc<Mutex<bool>> = Arc::default();
    let made = Arc::clone(&room);
    let pool = |limit| PoolBuilder::new().growth(256).limit(limit).build(fake());
    let retry = Retry::over(pool(512), move |_| {
        std::mem::take(&mut *made.lock().unwrap())
    });
    let levels = |told: Vec<Told>| -> Vec<Level> { told.iter().map(|told| told.0).collect() };
    let too_much = || drop(retry.allocate(layout(513), 0).unwrap_err());

    let in_vain = told_by(too_much);
    *room.lock().unwrap() = true;
    let twice = told_by(too_much);
    let bare = told_by(|| drop(pool(512).allocate(layout(513), 0).unwrap_err()));
    let below = PoolBuilder::new().growth(256).build(pool(512));
    let in_a_pool = told_by(|| drop(below.allocate(layout(513), 0).unwrap_err()));

    assert_eq!(levels(in_vain), [Level::DEBUG, Level::WARN]);
    assert_eq!(levels(twice), [Level::DEBUG, Level::DEBUG, Level::WARN]);
    assert_eq!(levels(bare), [Level::WARN]);
    assert_eq!(levels(in_a_pool), [Level::DEBUG, Level::WARN]);
}

#[test]
fn what_a_hook_asks_for_in_vain_is_a_warning_though_there_is_another_way() {
    let mean = PoolBuilder::new().limit(512).build(fake());
    let hook = move |_: &_| mean.allocate(layout(513), 0).is_ok();
    let inner = Retry::over(Limit::over(fake(), 100), hook);
    let outer = Retry::over(inner, |_| false);

    let told = told_by(|| drop(outer.allocate(layout(101), 0).unwrap_err()));

    let levels: Vec<Level> = told.iter().map(|told| told.0).collect();
    // The limit, the pool of the hook, the layer whose hook it is, and the one above.
    assert_eq!(
        levels,
        [Level::DEBUG, Level::WARN, Level::DEBUG, Level::WARN]
    );
}

#[test]
fn each_block_that_is_live_when_its_ledger_goes_is_one_warning_with_all_that_is_known() {
    let tracking = Tracking::over(fake());
    let freed = tracking.allocate(layout(1), 0).unwrap();
    let named = tracking
        .allocate(layout(64).with_tag(Tag::WEIGHTS), 1)
        .unwrap();
    let plain = tracking.allocate(layout(32), 0).unwrap();
    assert!(tracking.set_name(1, named, "layer 3"));
    #[expect(unsafe_code, reason = "frees a block")]
    // SAFETY: the block is freed once, as it was allocated.
    unsafe { tracking.deallocate(freed, layout(1), 0) }.unwrap();

    let mut told = told_by(|| drop(tracking));

    told.sort_by_key(|(_, fields)| fields["number"].clone());
    let message = ("message", "device memory leaked");
    let (named, plain) = (named.to_string(), plain.to_string());
    let expected = [
        event(
            Level::WARN,
            [
                ("device", "cuda:1"),
                ("ptr", &named),
                ("size", "64"),
                ("tag", "weights"),
                ("name", "layer 3"),
                ("number", "2"),
                message,
            ],
        ),
        event(
            Level::WARN,
            [
                ("device", "cuda:0"),
                ("ptr", &plain),
                ("size", "32"),
                ("tag", "none"),
                ("number", "3"),
                message,
            ],
        ),
    ];
    assert_eq!(told, expected);
}

#[test]
fn a_ledger_without_live_blocks_goes_in_silence() {
    let told = told_by(|| {
        let tracking = Arc::new(Tracking::over(fake()));
        drop(DeviceMemoryBuffer::create_with(tracking, layout(64), 0).unwrap());
    });

    assert_eq!(told, []);
}
