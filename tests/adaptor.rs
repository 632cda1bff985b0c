//! Allocators over allocators.
#![cfg(feature = "testing")]

#[macro_use]
#[path = "support/forward.rs"]
mod forward;

#[path = "adaptor/limit.rs"]
mod limit;
#[path = "adaptor/observed.rs"]
mod observed;
#[path = "adaptor/recorder.rs"]
mod recorder;
#[path = "adaptor/recorder_forms.rs"]
mod recorder_forms;
#[path = "adaptor/stacks.rs"]
mod stacks;
#[path = "adaptor/statistics.rs"]
mod statistics;
#[path = "adaptor/tracking.rs"]
mod tracking;
