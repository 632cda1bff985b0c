//! Allocators over allocators.
#![cfg(feature = "testing")]

#[macro_use]
#[path = "support/forward.rs"]
mod forward;

#[path = "adaptor/observed.rs"]
mod observed;
#[path = "adaptor/recorder.rs"]
mod recorder;
#[path = "adaptor/recorder_forms.rs"]
mod recorder_forms;
