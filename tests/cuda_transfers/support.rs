//! What these tests share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use device_memory::backend::cuda::cudarc::driver::{CudaContext, CudaStream};
use device_memory::backend::cuda::{CudaAllocator, CudaHostAllocator};
use device_memory::{
    DeviceIndex, DeviceLayout, DeviceMemoryBuffer, ErrorKind, set_free_failure_hook,
};
use fakecuda::{Exclusive, FakeCuda, Run, Schedule};

/// A code that says nothing in particular.
pub(crate) const FAULT: i32 = 999;

/// Calls whose failure leaks what they were to give back.
const GIVE_BACK: [&str; 3] = ["cuEventDestroy_v2", "cuMemFreeHost", "cuMemFreeAsync"];

/// The allocators and a stream, on a driver of one test's own. Device 1 has no
/// memory pools.
pub(crate) struct Rig {
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) context: Arc<CudaContext>,
    pub(crate) cuda: Arc<CudaAllocator>,
    pub(crate) host: Arc<CudaHostAllocator>,
    pub(crate) fake: Exclusive,
}

/// What must be as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Alive {
    pub(crate) blocks: usize,
    pub(crate) pinned: usize,
    pub(crate) streams: usize,
    pub(crate) events: usize,
}

impl Rig {
    pub(crate) fn new() -> Self {
        static PREPARED: OnceLock<()> = OnceLock::new();
        let fake = FakeCuda::install().unwrap().lock();
        PREPARED.get_or_init(|| {
            fake.set_devices(2);
            fake.set_pools(1, false);
        });
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        let cuda = Arc::new(CudaAllocator::open().unwrap());
        let host = Arc::new(CudaHostAllocator::open().unwrap());
        let rig = Self {
            stream,
            context,
            cuda,
            host,
            fake,
        };
        // All that is opened on first use.
        drop((rig.device(16), rig.device_at(16, 1), rig.pinned(&[1; 16])));
        rig.fake.clear();
        rig
    }

    /// Memory of device 0.
    pub(crate) fn device(&self, size: usize) -> DeviceMemoryBuffer {
        self.device_at(size, 0)
    }

    /// Memory of a device.
    pub(crate) fn device_at(&self, size: usize, index: DeviceIndex) -> DeviceMemoryBuffer {
        let layout = DeviceLayout::from_size(size).unwrap();
        DeviceMemoryBuffer::create_with(Arc::clone(&self.cuda), layout, index).unwrap()
    }

    /// Page-locked memory with these bytes.
    pub(crate) fn pinned(&self, bytes: &[u8]) -> DeviceMemoryBuffer {
        let layout = DeviceLayout::from_size(bytes.len()).unwrap();
        let host = Arc::clone(&self.host);
        let mut buffer = DeviceMemoryBuffer::create_with(host, layout, 0).unwrap();
        buffer.as_slice_mut().unwrap().copy_from_slice(bytes);
        buffer
    }

    /// Keeps what a test leaks on purpose within reach, for leak checkers.
    pub(crate) fn keep(&self) {
        type Kept = (Arc<CudaStream>, Arc<CudaAllocator>, Arc<CudaHostAllocator>);
        static KEPT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());
        let (cuda, host) = (Arc::clone(&self.cuda), Arc::clone(&self.host));
        KEPT.lock()
            .unwrap()
            .push((Arc::clone(&self.stream), cuda, host));
    }

    /// A stream of the other device.
    pub(crate) fn other_stream(&self) -> Arc<CudaStream> {
        CudaContext::new(1).unwrap().new_stream().unwrap()
    }

    pub(crate) fn alive(&self) -> Alive {
        self.fake.run_schedule(Run::All);
        let live = self.fake.live();
        Alive {
            blocks: live.device_blocks(),
            pinned: live.pinned,
            streams: live.streams,
            events: live.events,
        }
    }

    /// The device's bytes as they are, without waiting for work.
    pub(crate) fn peek(&self, buffer: &DeviceMemoryBuffer) -> Vec<u8> {
        let ptr = u64::try_from(buffer.ptr().addr()).unwrap();
        self.fake.read(ptr, buffer.size()).unwrap()
    }

    /// That nothing was done wrong.
    #[track_caller]
    pub(crate) fn check(&self) {
        self.fake.run_schedule(Run::All);
        assert_eq!(self.fake.violations(), Vec::<String>::new());
    }

    /// Fails the calls of `run` one by one, until there is none left to fail, and
    /// checks each time that nothing is left alive but what could not be given back,
    /// that the current context is what it was, and that cudarc's context keeps no
    /// failure for somebody else. Returns how many calls there were.
    pub(crate) fn fail_each_call(&self, mut run: impl FnMut()) -> u64 {
        let not_freed = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&not_freed);
        // Of this driver: other tests of the program may have frees that fail.
        set_free_failure_hook(Some(Arc::new(move |failure| {
            let driver = matches!(failure.error.root(), ErrorKind::Driver { .. });
            told.fetch_or(driver, Ordering::Relaxed);
        })));
        let mut alive = self.alive();
        let current = self.fake.current_context();
        for nth in 1..500 {
            self.fake.clear();
            self.fake.set_schedule(Schedule::Delayed);
            self.fake.set_recording(true);
            self.fake.fail_call_number(nth, FAULT);

            run();

            let reached = self.fake.fired() > 0;
            self.fake.disarm();
            let calls = self.fake.calls();
            let failed = calls.iter().find(|call| call.code == FAULT);
            let name = failed.map_or("", |call| call.name.as_str());
            let now = self.alive();
            assert_eq!(
                self.fake.violations(),
                Vec::<String>::new(),
                "{nth}: {name}"
            );
            assert_eq!(self.fake.current_context(), current, "{nth}: {name}");
            self.context
                .check_err()
                .map_err(|error| error.0 as i32)
                .unwrap();
            let not_freed = not_freed.swap(false, Ordering::Relaxed);
            if not_freed || GIVE_BACK.contains(&name) {
                assert!(now.total() <= alive.total() + 1, "{nth}: {name}: {now:?}");
                alive = now;
            }
            assert_eq!(now, alive, "{nth}: {name}");
            if !reached {
                set_free_failure_hook(None);
                return nth - 1;
            }
        }
        panic!("no end");
    }
}

impl Alive {
    fn total(self) -> usize {
        self.blocks + self.pinned + self.streams + self.events
    }
}
