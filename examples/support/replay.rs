//! Doing the calls of a trace on an allocator over a fake device, and what came
//! of it.

#![allow(
    dead_code,
    reason = "each program that includes this uses a part of it"
)]

use std::time::{Duration, Instant};

use device_memory::testing::FakeDevice;
use device_memory::{DeviceLayout, DeviceMemoryBuffer, Error};

use crate::stack::Allocator;
use crate::traces::{Step, Trace};

/// What came of a replay. Sizes are in bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// How many allocations were asked for.
    pub(crate) allocations: usize,
    /// How many of them failed.
    pub(crate) failures: usize,
    /// The first failure, as a line of text.
    pub(crate) first_failure: Option<String>,
    /// How often the device was asked for memory with success.
    pub(crate) device_allocations: u64,
    /// The most that was asked for and given at one time.
    pub(crate) peak_asked: usize,
    /// The most that was taken from the device at one time.
    pub(crate) peak_taken: usize,
    /// The time in calls of the stack.
    pub(crate) time: Duration,
}

impl Outcome {
    /// The part of the allocations that did not reach the device.
    pub(crate) fn hit_rate(&self) -> f64 {
        let given = (self.allocations - self.failures) as f64;
        if given == 0.0 {
            return 0.0;
        }
        (1.0 - self.device_allocations as f64 / given).max(0.0)
    }

    /// The part of what was taken from the device, at most, that was more than
    /// what was asked for, at most.
    pub(crate) fn fragmentation(&self) -> f64 {
        if self.peak_taken == 0 {
            return 0.0;
        }
        (1.0 - self.peak_asked as f64 / self.peak_taken as f64).max(0.0)
    }

    /// The time of one call, in nanoseconds.
    pub(crate) fn nanoseconds_per_call(&self, steps: usize) -> f64 {
        self.time.as_nanos() as f64 / steps.max(1) as f64
    }
}

/// How many calls are done between two reports of progress.
const BATCH: usize = 1024;

/// Replays a trace; `progress` is told how many calls were done.
///
/// An allocation that fails for want of memory is counted, and its free left out.
/// What is live at the end is freed. Any other failure is an error.
pub(crate) fn replay(
    trace: &Trace,
    stack: &Allocator,
    device: &FakeDevice,
    progress: impl Fn(u64),
) -> Result<Outcome, Error> {
    let mut outcome = Outcome::default();
    let mut blocks: Vec<Option<DeviceMemoryBuffer>> = Vec::with_capacity(trace.blocks());
    let mut asked = 0;
    for batch in trace.steps().chunks(BATCH) {
        let begin = Instant::now();
        for step in batch {
            match *step {
                Step::Allocate { size, tag } => {
                    let layout = DeviceLayout::from_size(size)?.with_tag(tag);
                    outcome.allocations += 1;
                    match DeviceMemoryBuffer::create_with(stack.clone(), layout, 0) {
                        Ok(buffer) => {
                            asked += size;
                            blocks.push(Some(buffer));
                        }
                        Err(error) if error.is_out_of_memory() => {
                            outcome.failures += 1;
                            let first = &mut outcome.first_failure;
                            first.get_or_insert_with(|| error.to_string());
                            blocks.push(None);
                        }
                        Err(error) => return Err(error),
                    }
                    outcome.peak_asked = outcome.peak_asked.max(asked);
                }
                Step::Free { block } => {
                    if let Some(buffer) = blocks[block].take() {
                        asked -= buffer.size();
                        buffer.free().map_err(|failure| failure.error)?;
                    }
                }
            }
        }
        outcome.time += begin.elapsed();
        // The fake remembers every call until it is told to forget.
        device.clear_calls();
        progress(batch.len() as u64);
    }
    drop(blocks);
    outcome.device_allocations = device.allocations();
    outcome.peak_taken = device.peak_bytes();
    Ok(outcome)
}
