//! What planning yields: the plan, and how good each arena is.
//!
//! Rank 2. Part of `plan`.

use crate::device::Device;

use super::memory_plan::MemoryPlan;

/// How good an arena is known to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PlanStatus {
    /// No plan of the arena is smaller.
    Optimal,
    /// A plan; whether a smaller one exists was not asked.
    Feasible,
    /// A plan; the search for a smaller one ended with its budget, ended without a proof
    /// where gaps of values have windows, would have taken more memory than it may, or was
    /// not begun: an arena of more than 6000 values is not searched, what is reserved
    /// counted as one.
    BudgetExhausted,
}

/// One arena of a plan: a buffer and the values in it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArenaReport {
    /// The device.
    pub device: Device,
    /// The buffer, counted from 0.
    pub memory_id: u32,
    /// The end of the highest value or of what is reserved, in bytes, without padding.
    pub peak: usize,
    /// What the peak can not be less than, in bytes: the largest sum of what is needed in
    /// one step, of sizes rounded up to the alignment of the device, and of what is
    /// reserved; or the end of a value that can not lie lower.
    pub lower_bound: usize,
    /// What the peak was proved not to be less than: the lower bound, or more after a
    /// search.
    pub proved: usize,
    /// Which algorithm made the plan that was kept.
    pub algorithm: &'static str,
    /// How good it is known to be.
    pub status: PlanStatus,
    /// How many nodes the search visited.
    pub nodes: u64,
}

impl ArenaReport {
    /// How far the peak is above the lower bound, in bytes.
    #[must_use]
    pub fn gap(&self) -> usize {
        self.peak.saturating_sub(self.lower_bound)
    }
}

/// The arenas of a plan as an ExecuTorch program lists them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExecutorchLayout {
    /// The sizes in bytes by `memory_id`: slot 0 is reserved, and there is a slot 1 in
    /// any case.
    pub sizes: Vec<usize>,
    /// The `memory_id` and the device of each arena that is not on `cpu:0`.
    pub devices: Vec<(usize, Device)>,
}

/// A plan and what is known about it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlanReport {
    /// The buffers, and one placement for each value, in the order of the values.
    pub plan: MemoryPlan,
    /// One entry for each buffer of the plan, in the same order.
    pub arenas: Vec<ArenaReport>,
}

impl PlanReport {
    /// The arenas as an ExecuTorch program lists them: what is memory id 0 here is 1
    /// there.
    ///
    /// # Examples
    ///
    /// ```
    /// use device_memory::plan::{PlanOptions, PlanRequest, PlanValue};
    ///
    /// let mut request = PlanRequest::new();
    /// request.push(PlanValue::new(48, 0..=1).on("cuda:0".parse()?));
    /// request.push(PlanValue::new(32, 0..=1));
    /// let report = request.plan(&PlanOptions::default())?;
    ///
    /// let layout = report.executorch_layout();
    ///
    /// assert_eq!(layout.sizes, [0, 64, 64]);
    /// assert_eq!(layout.devices, [(2, "cuda:0".parse()?)]);
    /// # Ok::<(), device_memory::Error>(())
    /// ```
    #[must_use]
    pub fn executorch_layout(&self) -> ExecutorchLayout {
        let buffers = self.plan.buffers();
        let mut sizes = vec![0];
        sizes.extend(buffers.iter().map(|buffer| buffer.size));
        sizes.resize(sizes.len().max(2), 0);
        let devices = (1..).zip(buffers.iter().map(|buffer| buffer.device));
        ExecutorchLayout {
            sizes,
            devices: devices
                .filter(|(_, device)| *device != Device::CPU)
                .collect(),
        }
    }
}
