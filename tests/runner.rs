//! Running planned graphs, on the host, on fake devices and on the fake driver.

#![cfg(feature = "testing")]

#[path = "support/graphs.rs"]
mod graphs;
#[path = "runner/model.rs"]
mod model;
#[path = "runner/support.rs"]
mod support;
