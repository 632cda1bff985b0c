//! A line, or an event, for each allocation and free.
//!
//! Rank 4. Imports `observe` and the words.
//!
//! An allocation is told of after the layer below gave it, a free before the layer
//! below gets it, so that of two blocks at one address the first is freed in the
//! log before the second is allocated.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::address::DevicePtr;
use crate::device::{Device, DeviceIndex};
use crate::error::{Error, Result};
use crate::layout::DeviceLayout;
use crate::observe::{Block, Observed, Observer};
use crate::process::ProcessGeneration;
use crate::sync::{AtomicU64, Mutex, Ordering};
use crate::unwind::caught;

/// An allocator that writes down what it gives and takes back.
///
/// Made with [`csv`](Observed::csv) it writes lines that the tools of RMM read,
/// with [`calling`](Observed::calling) it calls the program. Writing runs under no
/// lock and may use the allocator. What can not be written is counted
/// ([`lost`](Logger::lost)) and fails no allocation.
///
/// An event costs a look at the clock, a place in a queue under a lock, and what the
/// sink does. While one thread writes, the events of others are written by it too,
/// so that a slow sink slows one thread. In a forked child nothing is written.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use device_memory::adaptor::Log;
/// use device_memory::{DeviceMemoryBuffer, DeviceLayout, HostAllocator};
///
/// let file = std::fs::File::create(std::env::temp_dir().join("device-memory-log.csv"))?;
/// let log = Arc::new(Log::csv(HostAllocator, file));
/// let layout = DeviceLayout::from_size(64)?;
///
/// drop(DeviceMemoryBuffer::create_with(log.clone(), layout, 0)?);
/// log.flush();
///
/// assert_eq!(log.lost(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type Log<A> = Observed<A, Logger>;

/// What happened to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Action {
    /// It was allocated.
    Allocate,
    /// It could not be allocated.
    AllocateFailure,
    /// It is being freed.
    Free,
    /// It could not be freed, and is still allocated.
    FreeFailure,
}

/// Something that happened to a block, at a time, on a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// The thread, by a number of this process.
    pub thread: u64,
    /// When, by the system's clock.
    pub time: SystemTime,
    /// What happened.
    pub action: Action,
    /// The block, or `None` if there was none.
    pub ptr: Option<DevicePtr>,
    /// What was asked for.
    pub layout: DeviceLayout,
    /// Where.
    pub device: Device,
}

/// What the events of a [`Log`] go through.
pub struct Logger {
    queue: Mutex<Queue>,
    lost: AtomicU64,
    generation: ProcessGeneration,
}

/// Events that wait for the sink, which is away while one thread writes.
struct Queue {
    events: VecDeque<Event>,
    sink: Option<Box<dyn Sink>>,
}

/// Where events go.
trait Sink: Send {
    fn take(&mut self, event: &Event) -> io::Result<()>;

    fn flush(&mut self) -> io::Result<()>;
}

/// Lines for a writer.
struct Lines<W> {
    writer: W,
    begun: bool,
}

/// Events for the program.
struct Calls<F>(F);

/// The line above all others.
const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream";

/// More waiting events than this are lost: the sink does not come back.
const MOST_WAITING: usize = 1 << 20;

impl<A> Observed<A, Logger> {
    /// Writes lines of comma-separated values to `writer`, with the columns
    /// `Thread,Time,Action,Pointer,Size,Stream` and a first line that names them.
    ///
    /// The time is that of the day, in UTC, with microseconds. The action is one of
    /// `allocate`, `allocate failure`, `free` and `free failure`; the last, which RMM
    /// does not write, says that the free before it did not happen. The stream is
    /// always `0x0`. A log holds the events of all devices; put one over the
    /// allocator of each to have them apart.
    ///
    /// A line is one call of the writer, so a file is best wrapped in a
    /// [`BufWriter`](io::BufWriter).
    #[must_use]
    pub fn csv(upstream: A, writer: impl Write + Send + 'static) -> Self {
        let lines = Lines {
            writer,
            begun: false,
        };
        Self::new(upstream, Logger::new(Box::new(lines)))
    }

    /// Calls `call` with each event, one at a time. It runs under no lock: events
    /// that come while it runs, also its own, are told when it returns; one that
    /// allocates through the log for each event it is told of never ends.
    #[must_use]
    pub fn calling(upstream: A, call: impl FnMut(&Event) + Send + 'static) -> Self {
        Self::new(upstream, Logger::new(Box::new(Calls(call))))
    }
}

impl Logger {
    fn new(sink: Box<dyn Sink>) -> Self {
        Self {
            queue: Mutex::new(Queue {
                events: VecDeque::new(),
                sink: Some(sink),
            }),
            lost: AtomicU64::new(0),
            generation: ProcessGeneration::current(),
        }
    }

    /// How many events could not be written: the writer failed, the call panicked,
    /// or the process is a forked child.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Has the writer write out what it holds back. Where another thread is writing,
    /// that one goes on and nothing is done here.
    pub fn flush(&self) {
        if self.generation.is_current() {
            self.with_sink(|sink| sink.flush().is_ok());
        }
    }

    fn tell(&self, action: Action, ptr: Option<DevicePtr>, layout: DeviceLayout, device: Device) {
        let event = Event {
            thread: thread_number(),
            time: SystemTime::now(),
            action,
            ptr,
            layout,
            device,
        };
        if !self.generation.is_current() || !self.enqueue(event) {
            self.lose();
            return;
        }
        self.with_sink(|_| true);
    }

    fn enqueue(&self, event: Event) -> bool {
        let mut queue = self.queue.lock();
        let room = queue.events.len() < MOST_WAITING;
        if room {
            queue.events.push_back(event);
        }
        room
    }

    fn lose(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes the sink, unless another is at it, lets it take all that waits and then
    /// `last`, and puts it back. No lock is held while the sink works.
    fn with_sink(&self, last: impl FnOnce(&mut dyn Sink) -> bool) {
        let Some(mut sink) = self.queue.lock().sink.take() else {
            return;
        };
        let mut last = Some(last);
        loop {
            let event = {
                let mut queue = self.queue.lock();
                match queue.events.pop_front() {
                    Some(event) => Some(event),
                    None if last.is_some() => None,
                    None => {
                        queue.sink = Some(sink);
                        return;
                    }
                }
            };
            let done = match event {
                Some(event) => caught(|| sink.take(&event).is_ok()),
                None => last
                    .take()
                    .map(|last| caught(|| last(&mut *sink)) == Some(true)),
            };
            if done != Some(true) {
                self.lose();
            }
        }
    }
}

impl Drop for Logger {
    fn drop(&mut self) {
        if self.generation.is_current() {
            self.flush();
        } else if let Some(sink) = self.queue.get_mut().sink.take() {
            // What it holds back is the parent's to write.
            std::mem::forget(sink);
        }
    }
}

impl Observer for Logger {
    fn allocated(&self, block: &Block) {
        self.tell(
            Action::Allocate,
            Some(block.ptr),
            block.layout,
            block.device,
        );
    }

    fn allocate_failed(&self, device: Device, layout: DeviceLayout, _: &mut Error) {
        self.tell(Action::AllocateFailure, None, layout, device);
    }

    fn before_free(&self, block: &Block) -> Result<()> {
        self.tell(Action::Free, Some(block.ptr), block.layout, block.device);
        Ok(())
    }

    fn free_failed(&self, block: &Block) {
        self.tell(
            Action::FreeFailure,
            Some(block.ptr),
            block.layout,
            block.device,
        );
    }
}

impl<W: Write + Send> Sink for Lines<W> {
    fn take(&mut self, event: &Event) -> io::Result<()> {
        if !self.begun {
            self.writer.write_all(format!("{HEADER}\n").as_bytes())?;
            self.begun = true;
        }
        self.writer.write_all(format!("{event}\n").as_bytes())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

impl<F: FnMut(&Event) + Send> Sink for Calls<F> {
    fn take(&mut self, event: &Event) -> io::Result<()> {
        (self.0)(event);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Event {
    /// The device's index, for those who keep events of devices apart.
    #[must_use]
    pub fn index(&self) -> DeviceIndex {
        self.device.index()
    }
}

/// As a line of a log.
impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = self.time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let seconds = since.as_secs();
        let part = |unit: u64, of: u64| {
            let units = seconds.checked_div(unit).unwrap_or(0);
            units.checked_rem(of).unwrap_or(0)
        };
        write!(
            f,
            "{},{:02}:{:02}:{:02}.{:06},{},{:#x},{},0x0",
            self.thread,
            part(3600, 24),
            part(60, 60),
            part(1, 60),
            since.subsec_micros(),
            self.action,
            self.ptr.map_or(0, DevicePtr::addr),
            self.layout.size()
        )
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allocate => "allocate",
            Self::AllocateFailure => "allocate failure",
            Self::Free => "free",
            Self::FreeFailure => "free failure",
        })
    }
}

impl fmt::Debug for Logger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut logger = f.debug_struct("Logger");
        logger.field("lost", &self.lost()).finish_non_exhaustive()
    }
}

/// A number for the calling thread, the same for as long as it lives.
fn thread_number() -> u64 {
    use std::sync::atomic::AtomicU64;

    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}
