//! Graphs: what is valid, what the passes make of them, and how they are planned.

#[path = "graph/buffers.rs"]
mod buffers;
#[path = "graph/build.rs"]
mod build;
#[path = "graph/defects.rs"]
mod defects;
#[path = "graph/elision.rs"]
mod elision;
#[path = "graph/faults.rs"]
mod faults;
#[path = "support/graphs.rs"]
mod graphs;
#[path = "graph/insertion.rs"]
mod insertion;
#[cfg(feature = "serde")]
#[path = "graph/json.rs"]
mod json;
#[path = "graph/lifetimes.rs"]
mod lifetimes;
#[path = "graph/planning.rs"]
mod planning;
#[path = "graph/properties.rs"]
mod properties;
#[path = "graph/skips.rs"]
mod skips;
#[path = "graph/support.rs"]
mod support;
#[path = "graph/targets.rs"]
mod targets;
