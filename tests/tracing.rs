//! What a subscriber is told of a failed free.

#![cfg(all(feature = "tracing", feature = "testing"))]

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};

use device_memory::testing::{FakeDevice, FaultInjector};
use device_memory::{DeviceLayout, DeviceMemoryBuffer, DeviceType, Operation};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Keeps the events it is told of as text.
#[derive(Clone, Default)]
struct Keeping(Arc<Mutex<Vec<String>>>);

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
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The fields of an event, one after the other.
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

#[test]
fn a_failed_free_is_one_error_event_with_device_address_size_and_reason() {
    let fake = FakeDevice::new(DeviceType::Cuda, 1);
    let injector = Arc::new(FaultInjector::new(fake.clone()));
    let layout = DeviceLayout::from_size(24).unwrap();
    let buffer = DeviceMemoryBuffer::create_with(Arc::clone(&injector), layout, 0).unwrap();
    let ptr = buffer.ptr();
    let keeping = Keeping::default();

    tracing::subscriber::with_default(keeping.clone(), || {
        injector.fail_nth(Operation::Deallocate, 1);
        drop(buffer);
    });

    let events = keeping.0.lock().unwrap();
    let [event] = events.as_slice() else {
        panic!("{events:?}");
    };
    assert!(event.starts_with(Level::ERROR.as_str()), "{event}");
    for part in [
        "device=cuda:0".to_owned(),
        format!("ptr={ptr}"),
        "size=24".to_owned(),
        "deallocate on cuda:0 failed".to_owned(),
    ] {
        assert!(event.contains(&part), "{event} lacks {part}");
    }
}
