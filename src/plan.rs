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
