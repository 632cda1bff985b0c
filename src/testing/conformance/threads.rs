//! All of it from many threads at once.
//!
//! Rank 8. Part of `testing::conformance`.

use std::collections::BTreeMap;
use std::thread;

use parking_lot::Mutex;

use super::block::Block;
use super::report::{Failure, Promise};
use super::suite::{Random, Suite, pattern};
use crate::device::DeviceIndex;
use crate::error::Operation;

/// How often each thread allocates.
const ROUNDS: usize = 60;

/// What the threads share: the live blocks, and those that anyone may take over.
struct Shared<'a> {
    suite: &'a Suite<'a>,
    /// The ends of all live blocks by device and start.
    live: Mutex<BTreeMap<(DeviceIndex, usize), usize>>,
    bag: Mutex<Vec<Owned<'a>>>,
}

/// A block and the seed of what it holds.
struct Owned<'a> {
    block: Block<'a>,
    seed: u64,
}

/// Threads allocate, write, pass on, check and give back blocks of all devices.
pub(super) fn check(suite: &Suite<'_>, indices: &[DeviceIndex]) -> Result<(), Failure> {
    let shared = Shared {
        suite,
        live: Mutex::new(BTreeMap::new()),
        bag: Mutex::new(Vec::new()),
    };
    thread::scope(|scope| {
        let seeds = (1..).take(suite.options.threads);
        let threads: Vec<_> = seeds
            .map(|seed| {
                let shared = &shared;
                let body = move || work(shared, indices, seed);
                thread::Builder::new().spawn_scoped(scope, body)
            })
            .collect();
        let mut outcome = Ok(());
        for thread in threads {
            let what = match thread.map(thread::ScopedJoinHandle::join) {
                Ok(Ok(done)) => {
                    outcome = outcome.and(done);
                    continue;
                }
                Ok(Err(_)) => "a call panicked on another thread",
                Err(_) => "the suite can not make a thread",
            };
            let promise = Promise::Method(Operation::Allocate);
            outcome = outcome.and(Err(suite.failure(promise, 0, what)));
        }
        outcome
    })?;
    for owned in shared.bag.lock().drain(..) {
        shared.finish(owned)?;
    }
    Ok(())
}

/// What one thread does.
fn work(shared: &Shared<'_>, indices: &[DeviceIndex], seed: u64) -> Result<(), Failure> {
    let mut random = Random::new(seed);
    for _ in 0..ROUNDS {
        let index = indices.get(random.below(indices.len())).copied();
        let owned = shared.make(&mut random, index.unwrap_or(0))?;
        let mut bag = shared.bag.lock();
        let other = match random.below(bag.len()) {
            position if position < bag.len() => Some(bag.swap_remove(position)),
            _ => None,
        };
        bag.push(owned);
        drop(bag);
        if let Some(other) = other {
            shared.finish(other)?;
        }
        shared.suite.check_type()?;
    }
    Ok(())
}

impl<'a> Shared<'a> {
    /// Allocates and writes a block.
    fn make(&self, random: &mut Random, index: DeviceIndex) -> Result<Owned<'a>, Failure> {
        let size = random.below(8192).saturating_add(1);
        let block = self.suite.block(size, 16, index)?;
        self.enter(&block)?;
        let seed = random.next();
        if seed & 1 == 0 {
            block.fill(0, size, 0)?;
        }
        block.write(0, &pattern(size, seed))?;
        Ok(Owned { block, seed })
    }

    /// Checks a block that any thread may have made, and gives it back.
    fn finish(&self, owned: Owned<'_>) -> Result<(), Failure> {
        let Owned { block, seed } = owned;
        let bytes = pattern(block.size(), seed);
        let when = "after another thread wrote it";
        let held = block.expect(0, &bytes, Promise::Completion, when);
        let key = (block.index(), block.ptr().addr());
        self.live.lock().remove(&key);
        held?;
        block.free()
    }

    /// Notes a live block, which must not overlap another.
    fn enter(&self, block: &Block<'_>) -> Result<(), Failure> {
        let start = block.ptr().addr();
        let end = start.saturating_add(block.size());
        let mut live = self.live.lock();
        let before = live.range(..(block.index(), end)).next_back();
        if let Some((&(index, other), &other_end)) = before
            && index == block.index()
            && other_end > start
        {
            let what = format!(
                "{} bytes at {} and a block of another thread at {other:#x}",
                block.size(),
                block.ptr()
            );
            return Err(block.failure(Promise::Disjointness, what));
        }
        live.insert((block.index(), start), end);
        Ok(())
    }
}
