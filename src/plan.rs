//! Planning: from values with sizes and lives to offsets in one buffer a device.
//!
//! Rank 2. Imports the words: `device`, `layout`, `error`.
//!
//! Integers in, integers out: nothing here touches memory.
//!
//! A [`PlanRequest`] holds the values; [`PlanRequest::plan`] gives each an offset
//! so that values alive at the same step do not overlap, and makes the buffers as
//! small as the [`Algorithm`] can. [`PlanReport`] holds the [`MemoryPlan`] and says
//! for each arena how large it is, how small it can be at best, and what was done.
//! [`check()`] verifies any plan and shares no code with the planners.

mod algorithm;
mod capacity;
mod check;
mod exact;
mod fixed;
mod heuristic;
mod instance;
mod memory_plan;
mod options;
mod picture;
mod pressure;
mod problem;
mod report;
mod request;
mod run;
mod search;
mod table;
mod value;

pub use algorithm::{Algorithm, UnknownAlgorithm};
pub use check::{PlanFault, check};
pub use memory_plan::{MemoryPlan, Placement, PlannedBuffer};
pub use options::{Goal, PlanOptions};
pub use picture::PlanPage;
pub use report::{ArenaReport, ExecutorchLayout, PlanReport, PlanStatus};
pub use request::{DeviceOptions, PlanRequest};
pub use table::PlanTable;
pub use value::{Alias, Gap, PlanValue};
