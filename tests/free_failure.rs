//! Frees that fail where nobody can be told: the hook and the counter of the
//! process. Tests of these run one at a time.

#![cfg(feature = "testing")]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use device_memory::adaptor::Poison;
use device_memory::testing::{FakeDevice, FaultInjector, Faults};
use device_memory::{
    Device, DeviceAllocatorRegistry, DeviceLayout, DeviceMemoryBuffer, DevicePtr, DeviceType,
    ErrorKind, FreeFailureHook, Operation, free_failure_count, set_free_failure_hook,
};

const CUDA: DeviceType = DeviceType::Cuda;

/// What a hook was told.
type Told = (Device, DevicePtr, DeviceLayout, String);

/// The right to use the hook and the counter; without a hook at both ends.
struct Alone {
    _guard: MutexGuard<'static, ()>,
    before: u64,
}

impl Alone {
    fn new() -> Self {
        static LOCK: Mutex<()> = Mutex::new(());
        let guard = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        set_free_failure_hook(None);
        Self {
            _guard: guard,
            before: free_failure_count(),
        }
    }

    /// How many frees failed since.
    fn failures(&self) -> u64 {
        free_failure_count() - self.before
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        set_free_failure_hook(None);
    }
}

/// Sets a hook that keeps what it is told.
fn listen() -> Arc<Mutex<Vec<Told>>> {
    let told: Arc<Mutex<Vec<Told>>> = Arc::default();
    let heard = Arc::clone(&told);
    set_free_failure_hook(Some(Arc::new(move |failure| {
        let error = failure.error.to_string();
        let entry = (failure.device, failure.ptr, failure.layout, error);
        heard.lock().unwrap().push(entry);
    })));
    told
}

fn layout(size: usize) -> DeviceLayout {
    DeviceLayout::from_size(size).unwrap()
}

/// A fake of two devices behind orders to fail.
fn rig() -> (FakeDevice, Faults, Arc<FaultInjector<FakeDevice>>) {
    let fake = FakeDevice::new(CUDA, 2);
    let allocator = FaultInjector::new(fake.clone());
    (fake, allocator.faults(), Arc::new(allocator))
}

fn create(
    allocator: &Arc<FaultInjector<FakeDevice>>,
    size: usize,
    index: u16,
) -> DeviceMemoryBuffer {
    DeviceMemoryBuffer::create_with(Arc::clone(allocator), layout(size), index).unwrap()
}

#[test]
fn a_failed_free_is_counted_and_told_once_with_all_that_is_known() {
    let alone = Alone::new();
    let told = listen();
    let (fake, faults, allocator) = rig();
    let buffer = create(&allocator, 48, 1);
    let ptr = buffer.ptr();
    faults.fail_nth(Operation::Deallocate, 1);

    drop(buffer);

    let error = "deallocate on cuda:1 failed: injected fault in call 2: deallocate".to_owned();
    let expected = (Device::new(CUDA, 1), ptr, layout(48), error);
    assert_eq!(*told.lock().unwrap(), [expected]);
    assert_eq!(alone.failures(), 1);
    assert_eq!(fake.live_blocks(), 1);
}

#[test]
fn without_a_hook_it_is_counted() {
    let alone = Alone::new();
    let (_, faults, allocator) = rig();
    let buffers = [create(&allocator, 1, 0), create(&allocator, 2, 0)];
    faults.fail_all(Operation::Deallocate);

    drop(buffers);

    assert_eq!(alone.failures(), 2);
}

/// One that nobody has seen, for its zones could not be filled, and one that is kept.
#[test]
fn what_poison_can_not_give_back_is_told_as_the_layer_below_knows_it() {
    let alone = Alone::new();
    let told = listen();
    let (fake, faults, allocator) = rig();
    let poison = Arc::new(Poison::over(allocator));
    let create = |size| DeviceMemoryBuffer::create_with(poison.clone(), layout(size), 0);
    drop(create(100).unwrap());
    faults.fail_all(Operation::Deallocate);
    faults.fail_nth(Operation::Fill, 1);

    let unfilled = create(10).unwrap_err();
    assert_eq!(alone.failures(), 1);
    drop(poison);

    assert!(matches!(unfilled.kind(), ErrorKind::Backend { .. }));
    let lost = told.lock().unwrap();
    let lost = lost.iter().map(|&(_, ptr, layout, _)| (ptr, layout));
    let live = fake.live();
    let live = live.iter().map(|live| (live.ptr, live.layout));
    // The one that was made last was told first.
    assert!(lost.eq(live.rev()));
    assert_eq!((alone.failures(), fake.live_blocks()), (2, 2));
}

#[test]
fn a_free_that_works_is_told_to_nobody() {
    let alone = Alone::new();
    let told = listen();
    let (fake, _, allocator) = rig();

    drop(create(&allocator, 1, 0));
    drop(create(&allocator, 0, 0));
    drop(DeviceMemoryBuffer::default());
    drop(DeviceMemoryBuffer::create(8, DeviceType::Cpu, 0).unwrap());

    assert_eq!((alone.failures(), told.lock().unwrap().len()), (0, 0));
    fake.assert_clean();
}

#[test]
fn an_explicit_free_that_fails_is_told_to_its_caller_alone() {
    let alone = Alone::new();
    let told = listen();
    let (fake, faults, allocator) = rig();
    faults.fail_nth(Operation::Deallocate, 1);

    let failure = create(&allocator, 1, 0).free().unwrap_err();

    assert_eq!((alone.failures(), told.lock().unwrap().len()), (0, 0));
    drop(failure);
    fake.assert_clean();
}

#[test]
fn an_explicit_free_that_fails_twice_is_told_when_the_buffer_is_dropped() {
    let alone = Alone::new();
    let told = listen();
    let (_, faults, allocator) = rig();
    faults.fail_all(Operation::Deallocate);

    let failure = create(&allocator, 1, 0).free().unwrap_err();
    drop(failure);

    assert_eq!((alone.failures(), told.lock().unwrap().len()), (1, 1));
}

// https://github.com/chelsea0x3b/cudarc/issues/277
#[test]
fn a_failed_free_while_unwinding_leaves_the_panic_of_the_user() {
    let alone = Alone::new();
    let told = listen();
    let (_, faults, allocator) = rig();
    faults.fail_nth(Operation::Deallocate, 1);

    let caught = catch_unwind(AssertUnwindSafe(|| {
        let _buffer = create(&allocator, 64, 0);
        resume_unwind(Box::new("user"));
    }));

    assert_eq!(caught.unwrap_err().downcast_ref(), Some(&"user"));
    assert_eq!((alone.failures(), told.lock().unwrap().len()), (1, 1));
}

#[test]
fn a_free_that_panics_while_unwinding_leaves_the_panic_of_the_user() {
    let alone = Alone::new();
    let told = listen();
    let (fake, faults, allocator) = rig();
    faults.panic_on(Operation::Deallocate, 1);

    let caught = catch_unwind(AssertUnwindSafe(|| {
        let _buffer = create(&allocator, 64, 1);
        resume_unwind(Box::new("user"));
    }));

    assert_eq!(caught.unwrap_err().downcast_ref(), Some(&"user"));
    assert_eq!(alone.failures(), 1);
    let told = told.lock().unwrap();
    assert_eq!(told[0].3, "allocator panicked during deallocate on cuda:1");
    assert_eq!(fake.live_blocks(), 1);
}

#[test]
fn a_free_that_panics_is_no_panic_of_drop() {
    let alone = Alone::new();
    let (fake, faults, allocator) = rig();
    let buffer = create(&allocator, 64, 0);
    faults.panic_on(Operation::Deallocate, 1);

    drop(buffer);

    assert_eq!((alone.failures(), fake.live_blocks()), (1, 1));
}

// https://github.com/chelsea0x3b/cudarc/issues/590
#[test]
fn a_failed_free_does_not_poison_any_later_call() {
    let alone = Alone::new();
    let told = listen();
    let (fake, faults, allocator) = rig();
    let lost = create(&allocator, 64, 0);
    let ptr = lost.ptr();
    faults.fail_nth(Operation::Deallocate, 1);
    drop(lost);

    for index in [0, 1] {
        let mut buffer = create(&allocator, 4, index);
        buffer.copy_from_host(b"next").unwrap();
        buffer.fill(7).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [7; 4]);
        buffer.free().unwrap();
    }

    assert_eq!(alone.failures(), 1);
    let told = told.lock().unwrap();
    let (device, found, size, _) = &told[0];
    assert_eq!(
        (*device, *found, size.size()),
        (Device::new(CUDA, 0), ptr, 64)
    );
    assert_eq!(fake.violations().len(), 0);
}

// https://github.com/rapidsai/rmm/issues/2366
#[test]
fn a_driver_that_is_shut_down_is_silent() {
    let alone = Alone::new();
    let told = listen();
    let (fake, _, allocator) = rig();
    let buffers = [create(&allocator, 1, 0), create(&allocator, 2, 1)];
    fake.shut_down();

    drop(buffers);

    assert_eq!((alone.failures(), told.lock().unwrap().len()), (0, 0));
}

#[test]
fn a_failure_on_another_thread_is_told_there() {
    let alone = Alone::new();
    let (sender, receiver) = mpsc::channel();
    let sender = Mutex::new(sender);
    set_free_failure_hook(Some(Arc::new(move |_| {
        let _ = sender.lock().unwrap().send(thread::current().id());
    })));
    let (_, faults, allocator) = rig();
    let buffer = create(&allocator, 1, 0);
    faults.fail_nth(Operation::Deallocate, 1);

    let dropper = thread::spawn(move || {
        drop(buffer);
        thread::current().id()
    });

    assert_eq!(dropper.join().unwrap(), receiver.recv().unwrap());
    assert_eq!(alone.failures(), 1);
}

#[test]
fn a_hook_that_panics_is_cut_short_and_the_next_failure_is_told() {
    let alone = Alone::new();
    let (_, faults, allocator) = rig();
    let buffers = [create(&allocator, 1, 0), create(&allocator, 2, 0)];
    faults.fail_all(Operation::Deallocate);
    let calls = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&calls);
    set_free_failure_hook(Some(Arc::new(move |_| {
        *counted.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        resume_unwind(Box::new("hook"));
    })));

    drop(buffers);

    assert_eq!(*calls.lock().unwrap(), 2);
    assert_eq!(alone.failures(), 2);
}

// https://github.com/pytorch/pytorch/issues/97833
#[test]
fn a_hook_may_allocate_free_fail_and_set_hooks_without_deadlock() {
    let alone = Alone::new();
    let (fake, faults, allocator) = rig();
    let buffer = create(&allocator, 8, 0);
    faults.fail_nth(Operation::Deallocate, 1);
    let (sender, receiver) = mpsc::channel();
    let sender = Mutex::new(sender);
    let again = Arc::clone(&allocator);
    set_free_failure_hook(Some(Arc::new(move |failure| {
        let registry = DeviceAllocatorRegistry::global();
        registry.replace(Arc::clone(&again)).unwrap();
        let mut buffer = create(&again, failure.layout.size(), 1);
        buffer.fill(1).unwrap();
        buffer.free().unwrap();
        registry.unregister(CUDA);
        let count = free_failure_count();
        let old = set_free_failure_hook(None);
        let _ = sender.lock().unwrap().send((count, old.is_some()));
    })));

    let dropper = thread::spawn(move || drop(buffer));

    let Ok((count, was_set)) = receiver.recv_timeout(Duration::from_secs(60)) else {
        // The hook waits for itself, and so would the end of this test.
        std::process::exit(101);
    };
    dropper.join().unwrap();
    assert_eq!(count, alone.before + 1);
    assert!(was_set);
    assert_eq!(fake.live_blocks(), 1);
}

#[test]
fn a_failure_inside_the_hook_is_told_to_the_hook() {
    let alone = Alone::new();
    let (_, faults, allocator) = rig();
    let buffer = create(&allocator, 1, 0);
    faults.fail_nth(Operation::Deallocate, 1);
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&sizes);
    set_free_failure_hook(Some(Arc::new(move |failure| {
        seen.lock().unwrap().push(failure.layout.size());
        if failure.layout.size() == 1 {
            let inner = create(&allocator, 2, 0);
            faults.fail_nth(Operation::Deallocate, 1);
            drop(inner);
        }
    })));

    drop(buffer);

    assert_eq!(*sizes.lock().unwrap(), [1, 2]);
    assert_eq!(alone.failures(), 2);
}

#[test]
fn setting_a_hook_returns_the_one_before() {
    let _alone = Alone::new();
    let first: FreeFailureHook = Arc::new(|_| {});
    let second: FreeFailureHook = Arc::new(|_| {});

    assert!(set_free_failure_hook(Some(Arc::clone(&first))).is_none());
    let before = set_free_failure_hook(Some(Arc::clone(&second))).unwrap();

    assert!(Arc::ptr_eq(&before, &first));
    let before = set_free_failure_hook(None).unwrap();
    assert!(Arc::ptr_eq(&before, &second));
}

#[test]
fn a_constructor_that_fails_and_can_not_give_back_returns_its_own_error() {
    let alone = Alone::new();
    let told = listen();
    let device_type = DeviceType::Custom(77);
    let fake = FakeDevice::new(device_type, 1);
    let injector = FaultInjector::new(fake.clone());
    injector.fail_nth(Operation::CopyHostToDevice, 1);
    injector.fail_nth(Operation::Deallocate, 1);
    DeviceAllocatorRegistry::global()
        .replace(Arc::new(injector))
        .unwrap();

    let error = DeviceMemoryBuffer::from_host(b"abc", device_type, 0).unwrap_err();

    assert!(matches!(
        error.kind(),
        ErrorKind::Backend {
            operation: Operation::CopyHostToDevice,
            ..
        }
    ));
    assert_eq!((alone.failures(), told.lock().unwrap().len()), (1, 1));
    assert_eq!(fake.live_blocks(), 1);
}
