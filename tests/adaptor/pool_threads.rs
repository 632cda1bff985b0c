//! Threads that find no memory in a pool at once: what one has on its way, others wait
//! for, but not for ever.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use device_memory::adaptor::{Block, Limit, Observed, Observer, Pool, PoolBuilder};
use device_memory::testing::FakeDevice;
use device_memory::{
    Device, DeviceAllocator, DeviceLayout, DeviceMemoryBuffer, DeviceType, Operation, Result,
};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

fn create<A: DeviceAllocator + 'static>(pool: &Pool<A>, size: usize) -> Result<DeviceMemoryBuffer> {
    let layout = DeviceLayout::from_size(size).unwrap();
    DeviceMemoryBuffer::create_with(Arc::new(pool.clone()), layout, 0)
}

/// Stops the first of the calls that it is told of: until another thread has come, and
/// then for a while.
#[derive(Debug)]
struct Stop {
    at: Operation,
    stopped: AtomicBool,
    met: Arc<Barrier>,
    pause: Duration,
}

impl Stop {
    fn at(&self, operation: Operation) {
        if operation == self.at && !self.stopped.swap(true, Ordering::Relaxed) {
            self.met.wait();
            thread::sleep(self.pause);
        }
    }
}

impl Observer for Stop {
    fn allocated(&self, _: &Block) {
        self.at(Operation::Allocate);
    }

    fn before_free(&self, _: &Block) -> Result<()> {
        self.at(Operation::Deallocate);
        Ok(())
    }
}

/// A pool that takes the only MiB that there is at once, and what is met where it stops.
fn stopping(at: Operation, pause: u64) -> (Pool<Observed<Limit<FakeDevice>, Stop>>, Arc<Barrier>) {
    let met = Arc::new(Barrier::new(2));
    let stop = Stop {
        at,
        stopped: AtomicBool::new(false),
        met: Arc::clone(&met),
        pause: Duration::from_millis(pause),
    };
    let limit = Limit::over(FakeDevice::new(DeviceType::Cuda, 1), MIB);
    let pool = PoolBuilder::new().growth(MIB);
    (pool.build(Observed::new(limit, stop)), met)
}

#[test]
fn memory_that_another_thread_gives_back_is_waited_for() {
    let (pool, met) = stopping(Operation::Deallocate, 30);
    drop(create(&pool, 100 * KIB).unwrap());

    thread::scope(|scope| {
        let trimmed = scope.spawn(|| pool.trim(0));
        met.wait();

        // Out of the pool, and not yet back in the layer below.
        let made = create(&pool, MIB);

        assert_eq!(made.unwrap().size(), MIB);
        assert_eq!(trimmed.join().unwrap().unwrap(), MIB);
    });
}

#[test]
fn room_that_another_thread_takes_is_waited_for_beyond_patience() {
    let (pool, met) = stopping(Operation::Allocate, 150);

    thread::scope(|scope| {
        let first = scope.spawn(|| create(&pool, 100 * KIB));
        met.wait();

        // Out of the layer below, and not yet in the pool.
        let second = create(&pool, 100 * KIB);

        assert!(second.is_ok());
        assert!(first.join().unwrap().is_ok());
    });
    assert_eq!(pool.counters(0).unwrap().grown, 1);
}

/// A layer below that takes its time.
#[derive(Debug)]
struct Slow;

impl Observer for Slow {
    fn before_allocate(&self, _: Device, _: DeviceLayout) -> Result<()> {
        thread::sleep(Duration::from_millis(10));
        Ok(())
    }
}

#[test]
fn threads_that_are_out_of_memory_at_once_take_what_they_need_together() {
    const THREADS: usize = 8;
    let device = FakeDevice::new(DeviceType::Cuda, 1);
    let pool = PoolBuilder::new().growth(MIB);
    let pool = pool.build(Observed::new(device, Slow));
    let begin = Barrier::new(THREADS);

    let held: Vec<_> = thread::scope(|scope| {
        let asked = || {
            begin.wait();
            create(&pool, 100 * KIB).unwrap()
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(asked)).collect();
        let held = threads.into_iter().map(|thread| thread.join().unwrap());
        held.collect()
    });

    // One holds what all ask for. On a machine that stalls, another may be taken.
    let grown = pool.counters(0).unwrap().grown;
    assert!((1..=2).contains(&grown), "{grown}");
    drop(held);
}
