//! Failing every call in turn.
//!
//! Rank 8. Part of `testing`. Imports `allocator`.
//!
//! Code that leaks on an error path does so on one path among many. Failing the
//! first call, then the second, and so on until nothing fails walks them all.

use std::error::Error as StdError;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

use super::fake_device::{FakeDevice, Violation};
use super::fault_injector::{FaultInjector, InjectedFault};
use crate::allocator::DeviceAllocator;
use crate::error::Operation;

/// The most rounds that are tried before code counts as never finishing.
pub const MAX_ROUNDS: u64 = 4096;

/// What [`fail_each_call`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exhaustion {
    /// How many calls the code makes when none fails; as many rounds were failed.
    pub calls: u64,
    /// In how many rounds an injected panic came through the code, which is 0 for
    /// code that catches them.
    pub unwound: u64,
}

/// What [`fail_each_call`] found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExhaustionError {
    /// A round left blocks behind after one of its calls failed.
    #[error("{blocks} block(s) leaked after {fault}")]
    Leaked {
        /// The call that failed, counted in its round.
        fault: InjectedFault,
        /// How many blocks are left.
        blocks: usize,
    },
    /// The round in which nothing failed left blocks behind.
    #[error("{blocks} block(s) leaked though no call failed")]
    LeakedWithoutFault {
        /// How many blocks are left.
        blocks: usize,
    },
    /// A round broke the contract of the allocator.
    #[error("misuse in round {round}: {violation}")]
    Misused {
        /// The round, which is the number of the call that failed in it.
        round: u64,
        /// What it did wrong.
        violation: Box<Violation>,
    },
    /// A round failed in which no call did.
    #[error("round {round} failed though no call did: {source}")]
    Failed {
        /// The round, counted from 1.
        round: u64,
        /// Why it failed.
        source: Box<dyn StdError + Send + Sync>,
    },
    /// There is always another call to fail.
    #[error("still making more calls after {rounds} rounds")]
    Unfinished {
        /// How many rounds were made.
        rounds: u64,
    },
}

/// Runs `round` with its first call failing, then with its second, and so on
/// until it makes fewer calls, and checks after each time that it left no block
/// behind and did nothing that `fake` reports.
///
/// What `round` returns is dropped before that check, and its drop is part of the
/// round. A block may be left if it was giving it back that failed; it is taken
/// back before the next round. A round may succeed in spite of a call that
/// fails.
///
/// # Errors
///
/// - [`Leaked`](ExhaustionError::Leaked),
///   [`LeakedWithoutFault`](ExhaustionError::LeakedWithoutFault): a block is left.
/// - [`Misused`](ExhaustionError::Misused): `fake` reports a violation.
/// - [`Failed`](ExhaustionError::Failed): `round` failed on its own.
/// - [`Unfinished`](ExhaustionError::Unfinished): after [`MAX_ROUNDS`] rounds the
///   last call is not reached.
///
/// # Examples
///
/// ```
/// use device_memory::testing::{FakeDevice, fail_each_call};
/// use device_memory::{DeviceAllocator, DeviceLayout, DeviceType};
///
/// let fake = FakeDevice::new(DeviceType::Cuda, 1);
///
/// let leak = fail_each_call(&fake, |allocator| {
///     let layout = DeviceLayout::from_size(64)?;
///     let ptr = allocator.allocate(layout, 0)?;
///     // SAFETY: the block is live, and nothing else uses it.
///     unsafe { allocator.fill(ptr, 0, 64, 0)? };
///     // SAFETY: the block is freed once, as it was allocated.
///     unsafe { allocator.deallocate(ptr, layout, 0) }
/// });
///
/// assert_eq!(
///     leak.unwrap_err().to_string(),
///     "1 block(s) leaked after injected fault in call 2: fill"
/// );
/// ```
pub fn fail_each_call<T, E>(
    fake: &FakeDevice,
    round: impl FnMut(&Arc<FaultInjector<FakeDevice>>) -> Result<T, E>,
) -> Result<Exhaustion, ExhaustionError>
where
    E: Into<Box<dyn StdError + Send + Sync>>,
{
    exhaust_fake(fake, false, round)
}

/// The same with calls that panic instead of failing.
///
/// A panic that comes through `round` is caught, counted, and held to the same
/// as a failure: what unwinds leaks nothing either. A panic of a round in which
/// no call did is not caught.
///
/// # Errors
///
/// Those of [`fail_each_call`].
pub fn panic_each_call<T, E>(
    fake: &FakeDevice,
    round: impl FnMut(&Arc<FaultInjector<FakeDevice>>) -> Result<T, E>,
) -> Result<Exhaustion, ExhaustionError>
where
    E: Into<Box<dyn StdError + Send + Sync>>,
{
    exhaust_fake(fake, true, round)
}

/// The same for any allocator, of which `outstanding` says how many blocks are
/// allocated.
///
/// # Errors
///
/// Those of [`fail_each_call`], but for [`Misused`](ExhaustionError::Misused).
pub fn fail_each_call_of<A, T, E>(
    allocator: A,
    mut outstanding: impl FnMut() -> usize,
    round: impl FnMut(&Arc<FaultInjector<A>>) -> Result<T, E>,
) -> Result<Exhaustion, ExhaustionError>
where
    A: DeviceAllocator,
    E: Into<Box<dyn StdError + Send + Sync>>,
{
    exhaust(allocator, false, &mut outstanding, &mut |_| Ok(()), round)
}

fn exhaust_fake<T, E>(
    fake: &FakeDevice,
    panics: bool,
    round: impl FnMut(&Arc<FaultInjector<FakeDevice>>) -> Result<T, E>,
) -> Result<Exhaustion, ExhaustionError>
where
    E: Into<Box<dyn StdError + Send + Sync>>,
{
    let at_start = fake.live();
    let known = fake.violations().len();
    let mut tidy = |round| {
        if let Some(violation) = fake.violations().into_iter().nth(known) {
            let violation = Box::new(violation);
            return Err(ExhaustionError::Misused { round, violation });
        }
        for block in fake.live() {
            if !at_start.contains(&block) {
                fake.reclaim(block.ptr);
            }
        }
        Ok(())
    };
    exhaust(
        fake.clone(),
        panics,
        &mut || fake.live_blocks(),
        &mut tidy,
        round,
    )
}

/// Runs the rounds. `tidy` is called after each that leaked nothing.
fn exhaust<A, T, E>(
    allocator: A,
    panics: bool,
    outstanding: &mut dyn FnMut() -> usize,
    tidy: &mut dyn FnMut(u64) -> Result<(), ExhaustionError>,
    mut round: impl FnMut(&Arc<FaultInjector<A>>) -> Result<T, E>,
) -> Result<Exhaustion, ExhaustionError>
where
    A: DeviceAllocator,
    E: Into<Box<dyn StdError + Send + Sync>>,
{
    let allocator = Arc::new(FaultInjector::new(allocator));
    let faults = allocator.faults();
    let mut unwound: u64 = 0;
    for number in 1..=MAX_ROUNDS {
        let before = outstanding();
        faults.restart();
        if panics {
            faults.panic_on_call(number);
        } else {
            faults.fail_nth_call(number);
        }
        // What the round returns may own blocks: it is dropped in the round.
        let mut run = || round(&allocator).map(drop).err();
        let error = if panics {
            match panic::catch_unwind(AssertUnwindSafe(run)) {
                Ok(error) => error,
                Err(payload) if faults.fired().is_empty() => panic::resume_unwind(payload),
                Err(_) => {
                    unwound = unwound.saturating_add(1);
                    None
                }
            }
        } else {
            run()
        };
        let failure = match faults.fired().is_empty() {
            true => error.map(Into::into),
            false => {
                drop(error);
                None
            }
        };
        faults.disarm();

        let fault = faults.fired().into_iter().next();
        let excused = match fault {
            Some(fault) if fault.operation == Operation::Deallocate => 1,
            _ => 0,
        };
        let left = outstanding().saturating_sub(before);
        let blocks = left.saturating_sub(excused);
        match fault {
            Some(fault) if blocks > 0 => return Err(ExhaustionError::Leaked { fault, blocks }),
            None if failure.is_none() && blocks > 0 => {
                return Err(ExhaustionError::LeakedWithoutFault { blocks });
            }
            _ => {}
        }
        tidy(number)?;
        if let Some(source) = failure {
            return Err(ExhaustionError::Failed {
                round: number,
                source,
            });
        }
        if fault.is_none() {
            return Ok(Exhaustion {
                calls: number.saturating_sub(1),
                unwound,
            });
        }
    }
    Err(ExhaustionError::Unfinished { rounds: MAX_ROUNDS })
}
