//! Threads that move segments of a device, one after another where that can be.
//!
//! Rank 4. Part of `adaptor::pool`. Imports nothing from this crate.
//!
//! Turns are a courtesy, not a lock: nothing is held while a thread moves segments,
//! and nobody waits for long. So what the layer below calls back may use the pool, and
//! may wait for other threads that do.

use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// How long a thread waits for others that move segments before it does so beside
/// them: longer than a layer below takes that waits for nothing, and short enough for
/// a callback that has another thread ask the pool, which waits in vain.
const PATIENCE: Duration = Duration::from_millis(100);

/// Who moves segments between the pool and the layer below.
#[derive(Debug, Default)]
pub(super) struct Turn {
    movers: Mutex<Vec<Mover>>,
    left: Condvar,
}

/// A thread that moves segments. One that is called back while it does is there twice.
#[derive(Debug)]
struct Mover {
    thread: ThreadId,
    crossed: bool,
}

/// The calling thread moves segments until this is dropped.
#[derive(Debug)]
pub(super) struct Moving<'a> {
    turn: &'a Turn,
    thread: ThreadId,
}

impl Turn {
    /// Waits until no other thread moves segments, if that is soon, and begins.
    pub(super) fn wait(&self) -> Moving<'_> {
        let thread = thread::current().id();
        let until = Instant::now().checked_add(PATIENCE);
        let mut movers = self.movers.lock();
        while others(&movers, thread) {
            let left = until.map(|until| self.left.wait_until(&mut movers, until));
            if left.is_none_or(|left| left.timed_out()) {
                break;
            }
        }
        self.enter(&mut movers, thread)
    }

    /// Begins at once.
    pub(super) fn take(&self) -> Moving<'_> {
        self.enter(&mut self.movers.lock(), thread::current().id())
    }

    fn enter(&self, movers: &mut Vec<Mover>, thread: ThreadId) -> Moving<'_> {
        let crossed = others(movers, thread);
        let met = movers.iter_mut().filter(|mover| mover.thread != thread);
        met.for_each(|mover| mover.crossed = true);
        movers.push(Mover { thread, crossed });
        Moving { turn: self, thread }
    }
}

impl Moving<'_> {
    /// Whether another thread moved segments since this one began, so that what was
    /// not found may have been on its way.
    pub(super) fn is_crossed(&self) -> bool {
        let movers = self.turn.movers.lock();
        let last = movers.iter().rfind(|mover| mover.thread == self.thread);
        last.is_some_and(|mover| mover.crossed)
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        let mut movers = self.turn.movers.lock();
        let last = movers.iter().rposition(|mover| mover.thread == self.thread);
        if let Some(last) = last {
            movers.remove(last);
        }
        self.turn.left.notify_all();
    }
}

fn others(movers: &[Mover], thread: ThreadId) -> bool {
    movers.iter().any(|mover| mover.thread != thread)
}
