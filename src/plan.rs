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
//!
//! # Which algorithm
//!
//! Unless something speaks against it, [`Algorithm::Auto`]: heuristics until one meets
//! the lower bound, then the exact search for as long as [`PlanOptions::time`] or
//! [`PlanOptions::nodes`] allow, in arenas of at most 6000 values. Where it looks for the
//! smallest plan, it never makes a larger one of the same request than any heuristic here.
//!
//! | algorithm | peak over the lower bound, mean (worst) | for |
//! | --- | --- | --- |
//! | `optimal` | 1 where its budget is enough | plans made once, ahead of time, with a budget of seconds |
//! | `auto`, not searching | 1.18 (1.30) | everything else; a budget of no nodes takes time near-linear in the values |
//! | `greedy_by_size` | 1.36 (1.41) | a simple plan that other runtimes make too |
//! | `executorch_greedy` | 1.51 (1.81) | the offsets that ExecuTorch exports, byte for byte |
//! | `best_fit` | 1.57 (1.95) | what an allocator does that gets requests in their order |
//! | `greedy_by_breadth` | 1.58 (2.36) | the same as `greedy_by_size`, by steps |
//! | `first_fit` | 1.62 (2.27) | the same as `best_fit`, at the lowest address |
//! | `naive` | all values end to end | finding out whether a wrong result comes from shared bytes |
//!
//! The figures are of the eleven problems that MiniMalloc was published with, which are
//! hard. All honour alignments, fixed offsets, aliases and [`Gap`]s.
//!
//! ```
//! use device_memory::plan::{Algorithm, PlanOptions, PlanRequest, PlanStatus, PlanValue};
//!
//! // In the order of first uses the second value comes to lie in the way of the third.
//! let mut request = PlanRequest::new();
//! for (size, steps) in [(128, 0..=1), (64, 1..=3), (256, 2..=3)] {
//!     request.push(PlanValue::new(size, steps));
//! }
//!
//! let first_fit = request.plan(&PlanOptions::new(Algorithm::FirstFit))?;
//! assert_eq!((first_fit.arenas[0].peak, first_fit.arenas[0].lower_bound), (448, 320));
//!
//! let auto = request.plan(&PlanOptions::default())?;
//! assert_eq!(auto.arenas[0].peak, 320);
//! assert_eq!(auto.arenas[0].status, PlanStatus::Optimal);
//! # Ok::<(), device_memory::Error>(())
//! ```
//!
//! # Forms
//!
//! [`PlanTable`] reads and writes the CSV of MiniMalloc. With the feature `serde`,
//! [`PlanRequest`] and [`MemoryPlan`] are read from and written to JSON and whatever
//! else names its fields:
//!
//! ```
//! # #[cfg(feature = "serde")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use device_memory::plan::{PlanOptions, PlanRequest};
//!
//! let request: PlanRequest = serde_json::from_str(
//!     r#"{
//!         "values": [
//!             {"name": "input", "size": 100, "first_use": 0, "last_use": 1},
//!             {"size": 64, "align": 256, "first_use": 1, "last_use": 4, "device": "cuda:0",
//!              "pool": 0, "fixed_offset": 512, "tag": {"name": "scratch"}},
//!             {"size": 16, "first_use": 3, "last_use": 4, "device": "cuda:0",
//!              "alias": {"of": 1, "offset": 32}},
//!             {"size": 64, "first_use": 0, "last_use": 9,
//!              "gaps": [{"steps": [2, 5], "window": [0, 16]}, {"steps": [7, 7]}]}
//!         ],
//!         "default": {"align": 16, "padding": 0, "capacity": 65536},
//!         "devices": [{"device": "cuda:0", "options": {"align": 64}}],
//!         "reserved": [{"device": "cuda:0", "pool": 0, "size": 128}]
//!     }"#,
//! )?;
//! let plan = request.plan(&PlanOptions::default())?.plan;
//!
//! assert_eq!(
//!     serde_json::to_value(&plan)?,
//!     serde_json::json!({
//!         "buffers": [{"size": 176}, {"device": "cuda:0", "size": 576, "align": 256}],
//!         "placements": [
//!             {"memory_id": 0, "offset": 0, "size": 100},
//!             {"memory_id": 1, "offset": 512, "size": 64},
//!             {"memory_id": 1, "offset": 544, "size": 16},
//!             {"memory_id": 0, "offset": 112, "size": 64},
//!         ],
//!     })
//! );
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "serde"))]
//! # fn main() {}
//! ```
//!
//! Only `values` with `size`, `first_use` and `last_use`, and all fields of
//! placements have to be there. What is left out is what [`PlanValue::new`],
//! [`DeviceOptions::default`] and [`PlannedBuffer::new`] choose, on `cpu:0`; it is not
//! written either. Numbers are bytes, or steps of which the last counts, but a window
//! ends before its second number. Fields with other names are refused.
//!
//! What is read is checked: a request that [`plan`](PlanRequest::plan) would find
//! contradictory or too large, and a plan that [`MemoryPlan::new`] would refuse or no
//! memory can be allocated for, are errors of the reader that say which value, buffer
//! or placement is wrong. Tags are those that the process has
//! ([`Tag::find`](crate::Tag::find)).

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
#[cfg(feature = "serde")]
mod raw;
mod report;
mod request;
mod run;
mod search;
mod storage;
mod stretch;
mod table;
mod value;

pub use algorithm::{Algorithm, UnknownAlgorithm};
pub use check::{PlanFault, check};
pub use memory_plan::{MemoryPlan, Placement, PlannedBuffer};
pub use options::{Goal, PlanOptions};
pub use picture::PlanPage;
#[cfg(feature = "serde")]
pub(crate) use raw::DeviceName;
pub use report::{ArenaReport, ExecutorchLayout, PlanReport, PlanStatus};
pub use request::{DeviceOptions, PlanRequest};
pub use table::PlanTable;
pub use value::{Alias, Gap, PlanValue};
