//! A trace served by a peer: how fast, from how much memory, and in how many
//! pieces that leaves the rest.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::rc::Rc;

use crate::lap::{Lap, lap};
use crate::peer::{Peer, Room, UNIT};
use crate::traces::{Step, Trace};

/// A trace and the handles of its blocks.
struct Session<P: Peer> {
    peer: P,
    blocks: Vec<Option<P::Block>>,
}

impl<P: Peer> Session<P> {
    fn new(trace: &Trace, room: &Room) -> Self {
        Self {
            peer: P::over(room),
            blocks: Vec::with_capacity(trace.blocks()),
        }
    }

    /// Serves all of it, or says that there was no room. `after` sees each step.
    #[inline(always)]
    fn run(&mut self, trace: &Trace, mut after: impl FnMut(usize, Step, &mut Self)) -> bool {
        self.blocks.clear();
        for (at, step) in trace.steps().iter().enumerate() {
            match *step {
                Step::Allocate { size, .. } => match self.peer.allocate(size) {
                    Some(block) => self.blocks.push(Some(black_box(block))),
                    None => {
                        self.end();
                        return false;
                    }
                },
                Step::Free { block } => {
                    let block = self.blocks[block].take().expect("a live block");
                    self.peer.free(block);
                }
            }
            after(at, *step, self);
        }
        true
    }

    fn end(&mut self) {
        for block in self.blocks.drain(..).flatten() {
            self.peer.free(block);
        }
    }

    /// The part that is looked at from outside: see `instructions`.
    #[inline(never)]
    fn counted(&mut self, trace: &Trace) -> bool {
        self.run(trace, |_, _, _| ())
    }
}

/// Enough for any peer.
fn ample(trace: &Trace) -> Room {
    Room::new((trace.peak_bytes() * 4).next_power_of_two(), trace.blocks())
}

/// Laps over the trace, all by one peer.
pub(crate) fn laps<P: Peer>(trace: &Rc<Trace>) -> Lap {
    let trace = Rc::clone(trace);
    let mut session = Session::<P>::new(&trace, &ample(&trace));
    lap(move || {
        assert!(session.counted(&trace), "{} has no room", P::NAME);
        trace.steps().len()
    })
}

/// Serves the trace twice, the second time in [`Session::counted`] alone.
pub(crate) fn twice<P: Peer>(trace: &Trace) {
    let mut session = Session::<P>::new(trace, &ample(trace));
    assert!(session.run(trace, |_, _, _| ()), "{} has no room", P::NAME);
    assert!(session.counted(trace), "{} has no room", P::NAME);
}

/// The memory that a trace costs, in bytes.
pub(crate) struct Memory {
    /// The least that the device can have.
    pub(crate) least: Option<usize>,
    /// What is taken of a device with more than enough, if that is decided as it
    /// is needed.
    pub(crate) taken: Option<usize>,
    /// The [`fragmentation`] of that device.
    pub(crate) fragmentation: Option<f64>,
}

pub(crate) fn memory<P: Peer>(trace: &Trace) -> Memory {
    let peak = trace.peak_bytes();
    let serves = |bytes: usize| {
        let room = Room::new(bytes, trace.blocks());
        Session::<P>::new(trace, &room).run(trace, |_, _, _| ())
    };
    let (mut low, mut high) = (peak / UNIT, peak * 4 / UNIT);
    let least = serves(high * UNIT).then(|| {
        while high - low > peak / UNIT / 2000 {
            let middle = low + (high - low) / 2;
            match serves(middle * UNIT) {
                true => high = middle,
                false => low = middle,
            }
        }
        high * UNIT
    });
    let taken = P::GROWS.then(|| {
        let room = ample(trace);
        let served = Session::<P>::new(trace, &room).run(trace, |_, _, _| ());
        assert!(served, "{} has no room", P::NAME);
        room.device.peak_bytes()
    });
    Memory {
        least,
        taken,
        fragmentation: least.and_then(|bytes| fragmentation::<P>(trace, bytes)),
    }
}

/// How many steps pass between two looks at the memory.
const LOOK: usize = 251;

/// How much of what is held of a device with so many bytes, and in no block, is not in the
/// largest piece; the mean over the trace, if all of it is served.
pub(crate) fn fragmentation<P: Peer>(trace: &Trace, bytes: usize) -> Option<f64> {
    let room = Room::new(bytes, trace.blocks());
    let mut session = Session::<P>::new(trace, &room);
    let mut places = Vec::with_capacity(trace.blocks());
    let mut live = BTreeMap::new();
    let (mut sum, mut looks) = (0.0, 0_u32);
    let served = session.run(trace, |at, step, session| {
        match step {
            Step::Allocate { size, .. } => {
                let block = session.blocks[places.len()].as_ref().expect("a live block");
                let place = session.peer.address(block);
                live.insert(place, size.next_multiple_of(UNIT));
                places.push(place);
            }
            Step::Free { block } => {
                live.remove(&places[block]);
            }
        }
        if at % LOOK == 0 {
            let (free, largest) = free_pieces(&room, &live);
            if free > 0 {
                sum += 1.0 - largest as f64 / free as f64;
                looks += 1;
            }
        }
    });
    served.then(|| sum / f64::from(looks))
}

/// How much of the segments is in no block, and how much of that in one piece.
fn free_pieces(room: &Room, live: &BTreeMap<usize, usize>) -> (usize, usize) {
    let (mut free, mut largest) = (0, 0);
    for segment in room.device.live() {
        let mut from = segment.ptr.addr();
        let end = from + segment.layout.size();
        let blocks = live.range(from..end).map(|(&place, &size)| (place, size));
        for (place, size) in blocks.chain([(end, 0)]) {
            // A block may end beyond its place rounded up, at the end of a segment.
            let piece = place.saturating_sub(from);
            free += piece;
            largest = largest.max(piece);
            from = place + size;
        }
    }
    (free, largest)
}
