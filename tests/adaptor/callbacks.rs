//! Whatever is called while an allocator works may use it, on its own thread and by
//! way of another that it waits for: no lock is held.

use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak, mpsc};
use std::thread;
use std::time::Duration;

use device_memory::adaptor::{
    Arena, Block, Limit, Log, Observed, Observer, Poison, PoolBuilder, Retry, Statistics, Tracking,
};
use device_memory::testing::{FakeDevice, FaultInjector};
use device_memory::{
    Device, DeviceAllocator, DeviceLayout, DeviceMemoryBuffer, DeviceType, Error, Operation,
    Result, set_free_failure_hook,
};

use crate::pool_streams::on_stream;
use crate::stacks::{ADAPTORS, Adaptor, Allocator};

/// What the device of each stack has.
const CAPACITY: usize = 4 << 20;

/// Devices of this type have memory that can not be freed.
const LOSSY: DeviceType = DeviceType::Custom(9);

fn layout(size: usize) -> DeviceLayout {
    DeviceLayout::from_size(size).unwrap()
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
        _ => assert!(thread.join().is_ok(), "{name} failed"),
    }
}

/// What every callback does, whoever calls it: use the allocator that it is a part of.
#[derive(Clone, Debug)]
struct Callback {
    /// The whole stack, which is there only after it is made. The callback does not
    /// keep it alive.
    stack: Arc<OnceLock<Weak<dyn DeviceAllocator>>>,
    way: Way,
    begun: Arc<AtomicUsize>,
    done: Arc<AtomicUsize>,
}

/// On which thread a callback does what it does.
type Way = fn(&(dyn Fn() + Sync));

const WAYS: [(&str, Way); 2] = [
    ("on its own thread", |work| work()),
    ("on another thread", |work| {
        thread::scope(|scope| scope.spawn(work).join().unwrap());
    }),
];

/// Events of its own calls come to a callback as well: it ends at some time.
const USES: usize = 3;

impl Callback {
    fn new(way: Way) -> Self {
        Self {
            stack: Arc::default(),
            way,
            begun: Arc::default(),
            done: Arc::default(),
        }
    }

    fn call(&self) {
        let Some(stack) = self.stack.get().and_then(Weak::upgrade) else {
            return;
        };
        if self.begun.fetch_add(1, Ordering::Relaxed) < USES {
            (self.way)(&|| self.use_it(&stack));
        }
    }

    /// Allocates, uses, frees and asks.
    fn use_it(&self, stack: &Allocator) {
        let made = DeviceMemoryBuffer::create_with(stack.clone(), layout(8), 0);
        if let Ok(mut buffer) = made {
            buffer.fill(1).unwrap();
        }
        stack.memory_info(0).unwrap();
        stack.trim(0).unwrap();
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// Has whatever calls back call: small blocks come and go, one is written past its
    /// ends, and memory is out.
    fn work(&self, stack: &Allocator, device: &FakeDevice) {
        self.stack.set(Arc::downgrade(stack)).unwrap();
        for size in [64, CAPACITY + 1, 64] {
            let made = DeviceMemoryBuffer::create_with(stack.clone(), layout(size), 0);
            assert_eq!(made.is_ok(), size < CAPACITY);
            overwrite(device);
            drop(made);
            stack.trim(0).unwrap();
        }

        let begun = self.begun.load(Ordering::Relaxed);
        assert_ne!(begun, 0, "nothing was called");
        assert_eq!(self.done.load(Ordering::Relaxed), begun.min(USES));
    }
}

fn device() -> Arc<FakeDevice> {
    let device = FakeDevice::builder(DeviceType::Cuda).capacity(CAPACITY);
    Arc::new(device.build())
}

/// Writes all over the device: past the ends of every block that lies in one of it.
fn overwrite(device: &FakeDevice) {
    for live in device.live() {
        #[expect(unsafe_code, reason = "a stray write, into red zones as well")]
        // SAFETY: the block is live, and nobody else uses it now.
        unsafe {
            device.fill(live.ptr, 1, live.layout.size(), 0).unwrap();
        }
    }
}

/// A writer that calls back.
struct Busy(Callback);

impl Write for Busy {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.call();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.call();
        Ok(())
    }
}

/// An observer that calls back whatever it is told.
#[derive(Debug)]
struct Meddling(Callback);

impl Observer for Meddling {
    fn before_allocate(&self, _: Device, _: DeviceLayout) -> Result<()> {
        self.0.call();
        Ok(())
    }

    fn allocated(&self, _: &Block) {
        self.0.call();
    }

    fn allocate_failed(&self, _: Device, _: DeviceLayout, _: &mut Error) {
        self.0.call();
    }

    fn before_free(&self, _: &Block) -> Result<()> {
        self.0.call();
        Ok(())
    }

    fn freed(&self, _: &Block) {
        self.0.call();
    }

    fn trimmed(&self, _: Device, _: usize) {
        self.0.call();
    }
}

/// An observer that has a buffer lost with each allocation.
#[derive(Debug)]
struct Losing;

impl Observer for Losing {
    fn before_allocate(&self, _: Device, _: DeviceLayout) -> Result<()> {
        let lossy = Arc::new(FaultInjector::new(FakeDevice::new(LOSSY, 1)));
        let lost = DeviceMemoryBuffer::create_with(lossy.clone(), layout(8), 0)?;
        lossy.fail_all(Operation::Deallocate);
        drop(lost);
        Ok(())
    }
}

/// What calls back, by name, and how it is put over another allocator.
type Calling = (&'static str, fn(Allocator, Callback) -> Allocator);

/// All that calls back.
const CALLBACKS: &[Calling] = &[
    ("hook of Retry", |below, callback| {
        Arc::new(Retry::over(below, move |_| {
            callback.call();
            false
        }))
    }),
    ("call of Log", |below, callback| {
        Arc::new(Log::calling(below, move |_| callback.call()))
    }),
    ("writer of Log", |below, callback| {
        Arc::new(Log::csv(below, Busy(callback)))
    }),
    ("Observer", |below, callback| {
        Arc::new(Observed::new(below, Meddling(callback)))
    }),
    ("hook of Poison", |below, callback| {
        Arc::new(Poison::over(below).on_damage(move |_| callback.call()))
    }),
    ("hook of Pool", |below, callback| {
        let pool = PoolBuilder::new().growth(1024).on_out_of_memory(move |_| {
            callback.call();
            false
        });
        Arc::new(pool.build(below))
    }),
    ("hook for failed frees", |below, callback| {
        // It is the process's: of the stacks of this line there is one at a time.
        set_free_failure_hook(Some(Arc::new(move |failure| {
            if failure.device.device_type() == LOSSY {
                callback.call();
            }
        })));
        Arc::new(Observed::new(below, Losing))
    }),
];

/// How a stack with a callback in it is put over a device.
type Stack = Box<dyn FnOnce(Allocator, Callback) -> Allocator + Send>;

/// What callbacks are put over and under.
fn adaptors() -> impl Iterator<Item = Adaptor> {
    let deep: fn(Allocator) -> Allocator = |below| {
        let arena = Arena::over(Limit::over(below, 1 << 50), 1024);
        Arc::new(Statistics::over(Tracking::over(arena)))
    };
    let others = [
        ("PoolOnStream", on_stream as fn(Allocator) -> Allocator),
        ("a deep stack", deep),
    ];
    ADAPTORS.iter().copied().chain(others)
}

// https://github.com/pytorch/pytorch/issues/97833
#[test]
fn whatever_is_called_back_may_use_the_allocator_over_and_under_each_adaptor() {
    thread::scope(|scope| {
        for &(called, calling) in CALLBACKS {
            scope.spawn(move || {
                for (adaptor, over) in adaptors() {
                    for (how, way) in WAYS {
                        let check = |place: &str, stack: Stack| {
                            let name = format!("{called} {place} {adaptor} {how}");
                            in_time(&name, move || {
                                let (device, callback) = (device(), Callback::new(way));
                                let stack = stack(device.clone(), callback.clone());
                                callback.work(&stack, &device);
                            });
                        };
                        check(
                            "under",
                            Box::new(move |below, callback| over(calling(below, callback))),
                        );
                        check(
                            "over",
                            Box::new(move |below, callback| calling(over(below), callback)),
                        );
                    }
                }
            });
        }
    });
    set_free_failure_hook(None);
}

#[test]
fn nothing_that_a_writer_is_told_is_lost_while_it_uses_the_allocator() {
    in_time("a writer", || {
        let (_, way) = WAYS[1];
        let device = device();
        let callback = Callback::new(way);
        let log = Arc::new(Log::csv(device.clone(), Busy(callback.clone())));
        let stack: Allocator = log.clone();

        callback.work(&stack, &device);

        log.flush();
        assert_eq!(log.lost(), 0);
    });
}
