//! Whatever is called while an allocator works may use it: no lock is held.

use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak, mpsc};
use std::thread;
use std::time::Duration;

use device_memory::adaptor::{
    Arena, Block, Limit, Log, Observed, Observer, Poison, PoolBuilder, Retry, Statistics, Tracking,
};
use device_memory::testing::FakeDevice;
use device_memory::{
    Device, DeviceAllocator, DeviceLayout, DeviceMemoryBuffer, DeviceType, Error, HostAllocator,
    Result,
};

/// The allocator that a callback uses, which is there only after it is made. The
/// callback is part of it and does not keep it alive.
type Slot = Arc<OnceLock<Weak<dyn DeviceAllocator>>>;

/// How often a callback has used the allocator.
type Uses = Arc<AtomicUsize>;

fn layout(size: usize) -> DeviceLayout {
    DeviceLayout::from_size(size).unwrap()
}

/// What every callback does: allocate, use, free and ask.
fn use_it(slot: &Slot, uses: &Uses) {
    // Events of its own calls come to a callback as well.
    let first = uses.fetch_add(1, Ordering::Relaxed) < 3;
    let Some(allocator) = slot.get().filter(|_| first).and_then(Weak::upgrade) else {
        return;
    };
    let made = DeviceMemoryBuffer::create_with(allocator.clone(), layout(8), 0);
    if let Ok(mut buffer) = made {
        buffer.fill(1).unwrap();
    }
    allocator.memory_info(0).unwrap();
    allocator.trim(0).unwrap();
}

/// Fails if `case` is not done in time.
pub(crate) fn in_time(name: &str, case: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    let thread = thread::spawn(move || {
        case();
        let _ = done.send(());
    });
    match wait.recv_timeout(Duration::from_secs(60)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{name} is stuck"),
        _ => thread.join().unwrap(),
    }
}

/// Puts the allocator where the callback finds it, and works with it.
fn work(slot: &Slot, uses: &Uses, allocator: Arc<dyn DeviceAllocator>, size: usize) {
    slot.set(Arc::downgrade(&allocator)).unwrap();
    let buffer = DeviceMemoryBuffer::create_with(allocator.clone(), layout(size), 0);
    drop(buffer);
    allocator.trim(0).unwrap();
    assert!(uses.load(Ordering::Relaxed) > 0, "nothing was called");
}

/// A log that calls back with each event.
fn log_that_uses(slot: &Slot, uses: &Uses) -> Log<FakeDevice> {
    let (slot, uses) = (slot.clone(), uses.clone());
    let device = FakeDevice::new(DeviceType::Cuda, 1);
    Log::calling(device, move |_| use_it(&slot, &uses))
}

// https://github.com/pytorch/pytorch/issues/97833
#[test]
fn a_hook_that_makes_room_may_use_the_allocator_through_all_layers() {
    in_time("retry", || {
        let (slot, uses) = (Slot::default(), Uses::default());
        let (seen, counted) = (slot.clone(), uses.clone());
        let device = Limit::over(FakeDevice::new(DeviceType::Cuda, 1), 4096);
        let retry = Retry::over(device, move |_| {
            use_it(&seen, &counted);
            false
        });
        let stack = Statistics::over(Tracking::over(Arena::over(retry, 1024)));

        work(&slot, &uses, Arc::new(stack), 5000);
    });
}

/// On its own thread: another that finds nothing free waits for the turn of this one.
#[test]
fn a_hook_below_a_pool_may_use_the_pool() {
    in_time("retry below a pool", || {
        let (slot, uses) = (Slot::default(), Uses::default());
        let (seen, counted) = (slot.clone(), uses.clone());
        let device = Limit::over(FakeDevice::new(DeviceType::Cuda, 1), 4096);
        let retry = Retry::over(device, move |_| {
            use_it(&seen, &counted);
            false
        });
        let pool = PoolBuilder::new().growth(1024).build(retry);

        work(&slot, &uses, Arc::new(Tracking::over(pool)), 5000);
    });
}

#[test]
fn what_a_log_below_a_pool_calls_may_use_the_pool() {
    in_time("log below a pool", || {
        let (slot, uses) = (Slot::default(), Uses::default());
        let log = log_that_uses(&slot, &uses);
        let pool = PoolBuilder::new().growth(1024).build(log);

        work(&slot, &uses, Arc::new(Statistics::over(pool)), 64);
    });
}

#[test]
fn what_a_log_calls_may_use_the_allocator() {
    in_time("log", || {
        let (slot, uses) = (Slot::default(), Uses::default());
        let log = log_that_uses(&slot, &uses);

        work(
            &slot,
            &uses,
            Arc::new(Arena::over(Tracking::over(log), 64)),
            64,
        );
    });
}

/// A writer that allocates.
struct Busy(Slot, Uses);

impl Write for Busy {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        use_it(&self.0, &self.1);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        use_it(&self.0, &self.1);
        Ok(())
    }
}

#[test]
fn a_writer_of_a_log_may_use_the_allocator() {
    in_time("log to a writer", || {
        let (slot, uses) = (Slot::default(), Uses::default());
        let writer = Busy(slot.clone(), uses.clone());
        let log = Arc::new(Log::csv(FakeDevice::new(DeviceType::Cuda, 1), writer));

        work(&slot, &uses, log.clone(), 64);

        log.flush();
        assert_eq!(log.lost(), 0);
    });
}

/// An observer that allocates whatever it is told.
#[derive(Debug)]
struct Meddling(Slot, Uses);

impl Observer for Meddling {
    fn before_allocate(&self, _: Device, _: DeviceLayout) -> Result<()> {
        use_it(&self.0, &self.1);
        Ok(())
    }

    fn allocated(&self, _: &Block) {
        use_it(&self.0, &self.1);
    }

    fn allocate_failed(&self, _: Device, _: DeviceLayout, _: &mut Error) {
        use_it(&self.0, &self.1);
    }

    fn before_free(&self, _: &Block) -> Result<()> {
        use_it(&self.0, &self.1);
        Ok(())
    }

    fn freed(&self, _: &Block) {
        use_it(&self.0, &self.1);
    }

    fn trimmed(&self, _: Device, _: usize) {
        use_it(&self.0, &self.1);
    }
}

#[test]
fn an_observer_may_use_the_allocator_above_and_below_others() {
    in_time("observer", || {
        let (slot, uses) = (Slot::default(), Uses::default());
        let device = FakeDevice::builder(DeviceType::Cuda).capacity(4096).build();
        let meddling = || Meddling(slot.clone(), uses.clone());
        let below = Observed::new(Limit::over(device, 4096), meddling());
        let stack = Statistics::over(Tracking::over(Arena::over(below, 64)));

        work(
            &slot,
            &uses,
            Arc::new(Observed::new(stack, meddling())),
            5000,
        );
    });
}

#[test]
fn a_hook_for_damage_may_use_the_allocator() {
    in_time("poison", || {
        let (slot, uses) = (Slot::default(), Uses::default());
        let (seen, counted) = (slot.clone(), uses.clone());
        let poison = Poison::over(HostAllocator).on_damage(move |_| use_it(&seen, &counted));
        let poison: Arc<dyn DeviceAllocator> = Arc::new(poison);
        let buffer = DeviceMemoryBuffer::create_with(poison.clone(), layout(8), 0).unwrap();
        let after = buffer.ptr().checked_add(8).unwrap();
        #[expect(unsafe_code, reason = "a stray write, into a red zone")]
        // SAFETY: the red zone after the block is allocated, and nothing uses it.
        unsafe {
            after.as_raw().write(1);
        };
        drop(buffer);

        work(&slot, &uses, poison, 64);
    });
}
