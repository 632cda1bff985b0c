//! The program is asked to make room as often as said, and never within itself.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use device_memory::adaptor::{Limit, Retry};
use device_memory::testing::{FakeDevice, FaultInjector};
use device_memory::{
    Attempt, DeviceAllocator, DeviceLayout, DeviceMemoryBuffer, DeviceType, ErrorKind, Operation,
};

fn layout(size: usize) -> DeviceLayout {
    DeviceLayout::from_size(size).unwrap()
}

fn limited(bytes: usize) -> Limit<FakeDevice> {
    Limit::over(FakeDevice::new(DeviceType::Cuda, 1), bytes)
}

type Cache = Arc<Mutex<Vec<DeviceMemoryBuffer>>>;

#[test]
fn what_the_hook_frees_is_had() {
    let cache = Cache::default();
    let evicted = cache.clone();
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = told.clone();
    let retry = Arc::new(Retry::over(limited(100), move |report| {
        tell.lock().unwrap().push(report.to_string());
        evicted.lock().unwrap().pop().is_some()
    }));
    for _ in 0..2 {
        let buffer = DeviceMemoryBuffer::create_with(retry.clone(), layout(50), 0).unwrap();
        cache.lock().unwrap().push(buffer);
    }

    let buffer = DeviceMemoryBuffer::create_with(retry.clone(), layout(100), 0).unwrap();

    assert_eq!(
        *told.lock().unwrap(),
        [
            "out of memory on cuda:0: 100 bytes requested (align 64), 100 in use, limit 100",
            "out of memory on cuda:0: 100 bytes requested (align 64), 50 in use, limit 100",
        ]
    );
    drop(buffer);
    assert_eq!(retry.inner().in_use(0), 0);
}

#[test]
fn a_hook_that_frees_nothing_is_called_once_and_the_report_says_so() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let retry = Arc::new(Retry::over(limited(100), move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        false
    }));

    let error = DeviceMemoryBuffer::create_with(retry, layout(101), 0).unwrap_err();

    assert_eq!(calls.load(Ordering::Relaxed), 1);
    assert_eq!(error.out_of_memory().unwrap().tried, [Attempt::Hook]);
}

#[test]
fn a_hook_that_promises_too_much_is_called_as_often_as_said() {
    for most in [0, 1, 5] {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        let retry = Retry::over(limited(100), move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            true
        });
        let retry = Arc::new(retry.max_calls(most));

        let error = DeviceMemoryBuffer::create_with(retry, layout(101), 0).unwrap_err();

        assert_eq!(calls.load(Ordering::Relaxed), most);
        let tried = &error.out_of_memory().unwrap().tried;
        assert_eq!(tried.contains(&Attempt::Hook), most > 0);
    }
}

#[test]
fn a_hook_that_panics_freed_nothing() {
    let retry = Arc::new(Retry::over(limited(100), |_| panic!("no room")));

    let error = DeviceMemoryBuffer::create_with(retry.clone(), layout(101), 0).unwrap_err();

    assert!(error.is_out_of_memory());
    assert!(DeviceMemoryBuffer::create_with(retry, layout(100), 0).is_ok());
}

#[test]
fn an_error_that_is_no_lack_of_memory_calls_no_hook() {
    let injector = FaultInjector::new(FakeDevice::new(DeviceType::Cuda, 1));
    let faults = injector.faults();
    let retry = Arc::new(Retry::over(injector, |_| panic!("called")));

    let absent = DeviceMemoryBuffer::create_with(retry.clone(), layout(1), 9).unwrap_err();
    let buffer = DeviceMemoryBuffer::create_with(retry, layout(1), 0).unwrap();
    faults.fail_nth(Operation::Deallocate, 1);
    let failure = buffer.free().unwrap_err();

    assert!(!absent.is_out_of_memory());
    assert!(!failure.error.is_out_of_memory());
}

#[test]
fn a_failure_of_another_kind_at_the_last_try_is_passed_on_as_it_is() {
    let injector = FaultInjector::new(FakeDevice::new(DeviceType::Cuda, 1));
    let faults = injector.faults();
    faults.fail_nth(Operation::Allocate, 1);
    let retry = Retry::over(injector, move |_| {
        faults.panic_on(Operation::Allocate, 1);
        true
    });

    let error = retry.max_calls(1).allocate(layout(1), 0).unwrap_err();

    assert!(matches!(error.kind(), ErrorKind::AllocatorPanicked { .. }));
}

#[test]
fn what_a_hook_asks_for_itself_calls_no_hook() {
    let slot: Arc<OnceLock<Weak<Retry<Limit<FakeDevice>>>>> = Arc::default();
    let calls = Arc::new(AtomicUsize::new(0));
    let (own, counted) = (slot.clone(), calls.clone());
    let retry = Arc::new(Retry::over(limited(100), move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        let retry = own.get().and_then(Weak::upgrade).unwrap();
        let error = DeviceMemoryBuffer::create_with(retry, layout(200), 0).unwrap_err();
        assert_eq!(error.out_of_memory().unwrap().tried, []);
        false
    }));
    slot.set(Arc::downgrade(&retry)).unwrap();

    let error = DeviceMemoryBuffer::create_with(retry, layout(101), 0).unwrap_err();

    assert_eq!(calls.load(Ordering::Relaxed), 1);
    assert_eq!(error.out_of_memory().unwrap().tried, [Attempt::Hook]);
}
