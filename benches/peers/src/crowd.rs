//! What a request costs among many live blocks.
//!
//! Blocks have 64 KiB to 448 KiB. Half as many again are allocated as stay, and of
//! all of them every third, by chance, is freed, so that there are holes; then a
//! block at random is freed and another is allocated.

use std::time::{Duration, Instant};

use crate::instructions;
use crate::lap::{Lap, lap};
use crate::peer::{Peer, Room};
use crate::random::Random;

/// Pairs of a lap, if there is time.
const PAIRS: usize = 20_000;
/// Pairs of which the instructions are counted.
const COUNTED: usize = 2_000;
/// The longest lap.
const LONGEST: Duration = Duration::from_millis(150);
/// The longest that a peer may take to get so far.
const PATIENCE: Duration = Duration::from_secs(15);

struct Crowd<P: Peer> {
    peer: P,
    blocks: Vec<P::Block>,
    random: Random,
}

impl<P: Peer> Crowd<P> {
    fn size(&mut self) -> usize {
        (64 << 10) + 1 + self.random.below(384 << 10)
    }

    fn allocate(&mut self) -> Option<()> {
        let size = self.size();
        self.blocks.push(self.peer.allocate(size)?);
        Some(())
    }

    fn free(&mut self) {
        let at = self.random.below(self.blocks.len());
        let block = self.blocks.swap_remove(at);
        self.peer.free(block);
    }

    /// With `count` live blocks, or `None` if that takes longer than `patience`.
    fn gather(count: usize, patience: Duration) -> Option<Self> {
        let begun = Instant::now();
        let most = count + count / 2;
        let bytes = (most * (300 << 10)).next_power_of_two();
        let mut crowd = Self {
            peer: P::over(&Room::new(bytes, most)),
            blocks: Vec::with_capacity(most + 1),
            random: Random::new(1),
        };
        let mut gathered = || {
            for at in 0..most {
                crowd.allocate()?;
                if at % 64 == 0 && begun.elapsed() > patience {
                    return None;
                }
            }
            for at in 0..most - count {
                crowd.free();
                if at % 64 == 0 && begun.elapsed() > patience {
                    return None;
                }
            }
            Some(())
        };
        let gathered = gathered();
        if gathered.is_none() {
            crowd.end();
        }
        gathered.map(|()| crowd)
    }

    fn replace(&mut self) {
        self.free();
        self.allocate().expect("room");
    }

    /// The part that is looked at from outside: see `instructions`.
    #[inline(never)]
    fn counted(&mut self) {
        (0..COUNTED).for_each(|_| self.replace());
    }

    fn end(&mut self) {
        for block in self.blocks.drain(..) {
            self.peer.free(block);
        }
    }
}

impl<P: Peer> Drop for Crowd<P> {
    fn drop(&mut self) {
        self.end();
    }
}

/// Laps among `count` live blocks, if the peer gets so far.
pub(crate) fn laps<P: Peer>(count: usize) -> Option<Lap> {
    let mut crowd = Crowd::<P>::gather(count, PATIENCE)?;
    Some(lap(move || {
        let begun = Instant::now();
        for pair in 0..PAIRS {
            crowd.replace();
            if pair % 64 == 63 && begun.elapsed() > LONGEST {
                return 2 * pair + 2;
            }
        }
        2 * PAIRS
    }))
}

/// Requests among `count` live blocks, in [`Crowd::counted`] alone.
pub(crate) fn among<P: Peer>(count: usize) -> Option<()> {
    Crowd::<P>::gather(count, Duration::MAX)?.counted();
    Some(())
}

/// The instructions of a request of this program's `form` among `count` live blocks.
pub(crate) fn instructions(form: &str, count: usize) -> Option<f64> {
    let total = instructions::of(&["among", form, &count.to_string()])?;
    Some(total as f64 / (2 * COUNTED) as f64)
}
