//! A kit for people who write allocators, or code that uses them.
//!
//! Rank 7. Imports `allocator`, `process` and the words.

mod exhaustion;
mod fake_device;
mod fault_injector;

pub use exhaustion::{
    Exhaustion, ExhaustionError, MAX_ROUNDS, fail_each_call, fail_each_call_of, panic_each_call,
};
pub use fake_device::{Call, FakeDevice, FakeDeviceBuilder, LiveBlock, Misuse, Violation};
pub use fault_injector::{FaultInjector, Faults, InjectedFault};
