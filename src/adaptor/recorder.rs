//! Memory that one can look at: what was allocated when, by whom, and what for.
//!
//! Rank 4. Imports `observe` and the words.
//!
//! A recorder keeps the last events in a ring, and which blocks are live, which
//! does not depend on the ring. It is off until it is started. Nothing but its own
//! data is touched under its lock.

mod chrome;
mod event;
mod history;
mod page;
mod pickle;
mod pytorch;
mod recording;
mod report;
mod scale;

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::device::Device;
use crate::error::Error;
use crate::error::Result;
use crate::layout::DeviceLayout;
use crate::observe::{Block, Observed, Observer};
use crate::process::ProcessGeneration;

pub use event::{Action, Event, Layer, RecordedBlock};
pub use recording::Recording;

/// An allocator whose blocks are recorded. Goes on top of a stack. Costs what
/// [`Recorder`] says.
pub type Recorded<A> = Observed<A, Recorder>;

/// An allocator whose blocks are recorded as the segments that a pool above it
/// divides. Goes below the pool. Costs what [`Recorder`] says, for each segment and
/// not for each block of it.
pub type RecordedSegments<A> = Observed<A, SegmentRecorder>;

impl<A> Recorded<A> {
    /// Records what `upstream` gives and takes back, once `recorder` is started.
    #[must_use]
    pub fn over(upstream: A, recorder: &Recorder) -> Self {
        Self::new(upstream, recorder.clone())
    }
}

impl<A> RecordedSegments<A> {
    /// Records what `upstream` gives and takes back as segments, once `recorder`
    /// is started.
    #[must_use]
    pub fn over(upstream: A, recorder: &Recorder) -> Self {
        Self::new(upstream, recorder.segments())
    }
}

/// Records allocations and frees, to be looked at in a viewer, a page or a text.
///
/// It is off until [`start`](Self::start). Then it keeps the last `capacity`
/// events, 72 bytes each, and every live block; what was allocated before is seen
/// when it is freed. Clones are handles of one recorder, which may watch many
/// allocators: at most one on top, as [`Recorded`], and one below each pool, as
/// [`RecordedSegments`].
///
/// Off, an allocation and its free take some 20 instructions more. On, they take some 1,180
/// more, two looks at the clock among them, and a lock that all allocators of the
/// recorder share. It may be used from any thread. In a forked child it records
/// nothing, can not be started, and has nothing recorded.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use device_memory::adaptor::{Recorded, Recorder};
/// use device_memory::{DeviceLayout, DeviceMemoryBuffer, HostAllocator, Tag};
///
/// let recorder = Recorder::new(100_000);
/// let allocator = Arc::new(Recorded::over(HostAllocator, &recorder));
///
/// recorder.start();
/// let layout = DeviceLayout::from_size(4096)?.with_tag(Tag::WEIGHTS);
/// let weights = DeviceMemoryBuffer::create_with(allocator, layout, 0)?;
///
/// let recording = recorder.recording();
/// assert_eq!(recording.events().len(), 1);
/// assert!(recording.report(10).contains("weights"));
/// assert!(recording.to_html().starts_with("<!doctype html>"));
/// # Ok::<(), device_memory::Error>(())
/// ```
#[derive(Clone)]
pub struct Recorder {
    shared: Arc<Shared>,
}

/// Records the segments that a pool divides; see [`RecordedSegments`].
#[derive(Clone, Debug)]
pub struct SegmentRecorder(Recorder);

/// What all handles of a recorder share.
struct Shared {
    on: AtomicBool,
    generation: ProcessGeneration,
    capacity: usize,
    state: Mutex<State>,
}

/// What was recorded since the start.
struct State {
    started: Instant,
    events: VecDeque<Event>,
    lost: u64,
    live: HashMap<(Layer, Device, usize), RecordedBlock>,
}

impl Recorder {
    /// A recorder of at most `capacity` events, which is off.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let state = State {
            started: Instant::now(),
            events: VecDeque::new(),
            lost: 0,
            live: HashMap::new(),
        };
        Self {
            shared: Arc::new(Shared {
                on: AtomicBool::new(false),
                generation: ProcessGeneration::current(),
                capacity,
                state: Mutex::new(state),
            }),
        }
    }

    /// Forgets what was recorded and records from now on.
    pub fn start(&self) {
        let Some(mut state) = self.state() else {
            return;
        };
        state.started = Instant::now();
        state.events.clear();
        state.lost = 0;
        state.live.clear();
        self.shared.on.store(true, Ordering::Relaxed);
    }

    /// Records no more. What was recorded stays as it is, for being looked at.
    pub fn stop(&self) {
        let state = self.state();
        self.shared.on.store(false, Ordering::Relaxed);
        drop(state);
    }

    /// Whether it records.
    #[inline]
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.shared.on.load(Ordering::Relaxed) && self.shared.generation.is_current()
    }

    /// What records segments for this recorder, for an [`Observed`] of one's own.
    #[must_use]
    pub fn segments(&self) -> SegmentRecorder {
        SegmentRecorder(self.clone())
    }

    /// A copy of what was recorded.
    #[must_use]
    pub fn recording(&self) -> Recording {
        let Some(state) = self.state() else {
            return Recording::new(Vec::new(), 0, std::iter::empty(), Duration::ZERO);
        };
        Recording::new(
            state.events.iter().copied().collect(),
            state.lost,
            state.live.iter().map(|(key, block)| (key.0, *block)),
            state.started.elapsed(),
        )
    }

    /// What was recorded, or `None` in a forked child, where a thread that is not
    /// there may hold the lock.
    fn state(&self) -> Option<MutexGuard<'_, State>> {
        let here = self.shared.generation.is_current();
        here.then(|| self.shared.state.lock())
    }

    /// Records one event, if this is on.
    fn record(
        &self,
        action: Action,
        layer: Layer,
        device: Device,
        layout: DeviceLayout,
        at: usize,
    ) {
        if !self.is_on() {
            return;
        }
        let thread = thread_number();
        let Some(mut state) = self.state() else {
            return;
        };
        // It may have been stopped since.
        if !self.shared.on.load(Ordering::Relaxed) {
            return;
        }
        // The clock is read under the lock, so that times do not go back.
        let event = Event {
            time: state.started.elapsed(),
            action,
            layer,
            device,
            address: at,
            size: layout.size(),
            tag: layout.tag(),
            thread,
        };
        state.note(event, self.shared.capacity);
    }

    fn failed(&self, layer: Layer, device: Device, layout: DeviceLayout, error: &Error) {
        let action = match error.out_of_memory() {
            Some(report) => Action::OutOfMemory {
                device_free: report.device_free,
            },
            None => Action::AllocateFailed,
        };
        self.record(action, layer, device, layout, 0);
    }

    #[inline]
    fn of_block(&self, action: Action, layer: Layer, block: &Block) {
        // What is off costs no call.
        if self.is_on() {
            self.record(action, layer, block.device, block.layout, block.ptr.addr());
        }
    }

    fn trimmed_bytes(&self, layer: Layer, device: Device, bytes: usize) {
        if let Ok(layout) = DeviceLayout::new(bytes, 1) {
            self.record(Action::Trim, layer, device, layout, 0);
        }
    }
}

thread_local! {
    /// The block that this thread gave back last, which may have been refused.
    static LEAVING: Cell<Option<RecordedBlock>> = const { Cell::new(None) };
}

impl State {
    fn note(&mut self, event: Event, capacity: usize) {
        let key = (event.layer, event.device, event.address);
        match event.action {
            Action::Allocate => {
                self.live.insert(key, RecordedBlock::of(&event));
            }
            Action::Free => LEAVING.set(self.live.remove(&key)),
            Action::FreeFailed => {
                let block = RecordedBlock::of(&event);
                // What was known before, unless the free freed another itself.
                let known = LEAVING.take().filter(|known| known.is_at(&block));
                self.live.insert(key, known.unwrap_or(block));
            }
            _ => {}
        }
        if self.events.len() >= capacity {
            self.lost = self.lost.saturating_add(1);
            if self.events.pop_front().is_none() {
                return;
            }
        }
        self.events.push_back(event);
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder")
            .field("on", &self.is_on())
            .field("capacity", &self.shared.capacity)
            .finish_non_exhaustive()
    }
}

/// The two kinds of observers differ in the layer they record.
macro_rules! observe_as {
    ($observer:ty, $layer:expr, $this:ident => $recorder:expr) => {
        impl Observer for $observer {
            #[inline]
            fn allocated(&$this, block: &Block) {
                $recorder.of_block(Action::Allocate, $layer, block);
            }

            fn allocate_failed(&$this, device: Device, layout: DeviceLayout, error: &mut Error) {
                $recorder.failed($layer, device, layout, error);
            }

            /// Recorded before the layer below has the block, or another thread's
            /// allocation of the same address might come first.
            #[inline]
            fn before_free(&$this, block: &Block) -> Result<()> {
                $recorder.of_block(Action::Free, $layer, block);
                Ok(())
            }

            fn free_failed(&$this, block: &Block) {
                $recorder.of_block(Action::FreeFailed, $layer, block);
            }

            fn trimmed(&$this, device: Device, bytes: usize) {
                $recorder.trimmed_bytes($layer, device, bytes);
            }
        }
    };
}

observe_as!(Recorder, Layer::Blocks, self => self);
observe_as!(SegmentRecorder, Layer::Segments, self => self.0);

/// The number of the calling thread: threads are numbered as they first record
/// something. It is kept in a variable of the thread that needs no destructor.
fn thread_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    thread_local! {
        static OWN: Cell<u32> = const { Cell::new(0) };
    }
    OWN.with(|own| {
        if own.get() == 0 {
            own.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        own.get()
    })
}

/// The largest event, for the sake of the documented cost.
const _: () = assert!(size_of::<Event>() <= 72);
