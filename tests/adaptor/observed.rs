//! An observer is told in pairs, before and after, whatever fails in between.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use device_memory::adaptor::{Block, Observed, Observer};
use device_memory::testing::{FakeDevice, FaultInjector, Faults, conformance};
use device_memory::{
    Device, DeviceLayout, DeviceMemoryBuffer, DeviceType, Error, ErrorKind, Operation, Result, Tag,
    free_failure_count,
};

/// Notes what it is told, and panics or refuses when told to.
#[derive(Debug, Default)]
struct Diary {
    lines: Mutex<Vec<String>>,
    refuse: AtomicBool,
    panic: AtomicBool,
}

impl Diary {
    fn note(&self, what: &str) {
        self.lines.lock().unwrap().push(what.to_owned());
        assert!(!self.panic.load(Ordering::Relaxed), "{what}");
    }

    fn take(&self) -> Vec<String> {
        self.lines.lock().unwrap().drain(..).collect()
    }

    fn refusal(&self, device: Device, operation: Operation) -> Result<()> {
        if self.refuse.load(Ordering::Relaxed) {
            return Err(Error::from(ErrorKind::NotSupported { device, operation }));
        }
        Ok(())
    }
}

impl Observer for Diary {
    fn before_allocate(&self, device: Device, layout: DeviceLayout) -> Result<()> {
        self.lines
            .lock()
            .unwrap()
            .push(format!("before allocate {}", layout.size()));
        self.refusal(device, Operation::Allocate)
    }

    fn allocated(&self, block: &Block) {
        self.note(&format!(
            "allocated {} {}",
            block.device,
            block.layout.tag()
        ));
    }

    fn allocate_failed(&self, _: Device, _: DeviceLayout, error: &mut Error) {
        if let Some(report) = error.out_of_memory_mut() {
            report.in_use = Some(7);
        }
        self.note("allocate failed");
    }

    fn before_free(&self, block: &Block) -> Result<()> {
        self.lines.lock().unwrap().push("before free".to_owned());
        self.refusal(block.device, Operation::Deallocate)
    }

    fn freed(&self, _: &Block) {
        self.note("freed");
    }

    fn free_failed(&self, _: &Block) {
        self.note("free failed");
    }
}

type Watched = Observed<FaultInjector<FakeDevice>, Diary>;

fn watched() -> (Arc<Watched>, FakeDevice, Faults) {
    let fake = FakeDevice::new(DeviceType::Cuda, 2);
    let injector = FaultInjector::new(fake.clone());
    let faults = injector.faults();
    (
        Arc::new(Observed::new(injector, Diary::default())),
        fake,
        faults,
    )
}

fn layout() -> DeviceLayout {
    DeviceLayout::from_size(64).unwrap().with_tag(Tag::SCRATCH)
}

#[test]
fn it_keeps_the_contract_of_an_allocator() {
    let fake = FakeDevice::new(DeviceType::Cuda, 2);

    conformance::run(&Observed::new(fake.clone(), Diary::default())).unwrap();

    fake.assert_clean();
}

#[test]
fn an_allocation_and_its_free_are_told_of_in_order() {
    let (allocator, _, _) = watched();

    let buffer = DeviceMemoryBuffer::create_with(allocator.clone(), layout(), 1).unwrap();
    let first = allocator.take();
    drop(buffer);

    assert_eq!(first, ["before allocate 64", "allocated cuda:1 scratch"]);
    assert_eq!(allocator.take(), ["before free", "freed"]);
}

#[test]
fn a_refused_allocation_reaches_no_device() {
    let (allocator, fake, _) = watched();
    allocator.refuse.store(true, Ordering::Relaxed);

    let error = DeviceMemoryBuffer::create_with(allocator.clone(), layout(), 0).unwrap_err();

    assert!(error.is_not_supported());
    assert_eq!(fake.calls().len(), 0);
    assert_eq!(allocator.take(), ["before allocate 64"]);
}

#[test]
fn a_failed_allocation_is_told_of_and_its_report_added_to() {
    let (allocator, fake, faults) = watched();
    faults.fail_nth(Operation::Allocate, 1);

    let error = DeviceMemoryBuffer::create_with(allocator.clone(), layout(), 0).unwrap_err();

    assert_eq!(error.out_of_memory().unwrap().in_use, Some(7));
    assert_eq!(allocator.take(), ["before allocate 64", "allocate failed"]);
    assert_eq!(fake.live_blocks(), 0);
}

#[test]
fn a_panic_below_is_an_error_and_told_of() {
    let (allocator, fake, faults) = watched();
    faults.panic_on(Operation::Allocate, 1);

    let error = DeviceMemoryBuffer::create_with(allocator.clone(), layout(), 0).unwrap_err();

    assert!(matches!(error.kind(), ErrorKind::AllocatorPanicked { .. }));
    assert_eq!(allocator.take(), ["before allocate 64", "allocate failed"]);
    assert_eq!(fake.live_blocks(), 0);
}

#[test]
fn an_observer_that_panics_has_the_block_given_back() {
    let (allocator, fake, _) = watched();
    allocator.panic.store(true, Ordering::Relaxed);

    let error = DeviceMemoryBuffer::create_with(allocator.clone(), layout(), 0).unwrap_err();

    assert!(matches!(error.kind(), ErrorKind::AllocatorPanicked { .. }));
    assert_eq!(fake.live_blocks(), 0);
}

#[test]
fn a_block_that_can_not_be_given_back_then_is_told_to_the_hook_for_failed_frees() {
    let (allocator, fake, faults) = watched();
    allocator.panic.store(true, Ordering::Relaxed);
    faults.fail_all(Operation::Deallocate);
    let before = free_failure_count();

    DeviceMemoryBuffer::create_with(allocator, layout(), 0).unwrap_err();

    assert!(free_failure_count() > before);
    assert_eq!(fake.live_blocks(), 1);
}

#[test]
fn a_refused_free_leaves_the_block_allocated() {
    let (allocator, fake, _) = watched();
    let buffer = DeviceMemoryBuffer::create_with(allocator.clone(), layout(), 0).unwrap();
    allocator.refuse.store(true, Ordering::Relaxed);

    let failure = buffer.free().unwrap_err();

    assert_eq!(fake.live_blocks(), 1);
    allocator.refuse.store(false, Ordering::Relaxed);
    failure.buffer.free().unwrap();
    assert_eq!(fake.live_blocks(), 0);
}

#[test]
fn a_failed_free_is_told_of_and_can_be_tried_again() {
    let (allocator, fake, faults) = watched();
    let buffer = DeviceMemoryBuffer::create_with(allocator.clone(), layout(), 0).unwrap();
    allocator.take();
    faults.fail_nth(Operation::Deallocate, 1);

    let failure = buffer.free().unwrap_err();
    let told = allocator.take();
    failure.buffer.free().unwrap();

    assert_eq!(told, ["before free", "free failed"]);
    assert_eq!(allocator.take(), ["before free", "freed"]);
    assert_eq!(fake.live_blocks(), 0);
}

#[test]
fn an_observer_that_panics_after_a_free_does_not_undo_it() {
    let (allocator, fake, _) = watched();
    let buffer = DeviceMemoryBuffer::create_with(allocator.clone(), layout(), 0).unwrap();
    allocator.panic.store(true, Ordering::Relaxed);

    buffer.free().unwrap();

    assert_eq!(fake.live_blocks(), 0);
}
