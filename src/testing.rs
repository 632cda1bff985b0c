//! A kit for people who write allocators, or code that uses them.
//!
//! Rank 8. Imports `allocator`, `process` and the words.
//!
//! Nothing in it needs a device, and nothing in it is for production.
//!
//! - [`FakeDevice`]: devices without hardware that record what is asked of them
//!   and report what breaks the contract.
//! - [`FaultInjector`]: an allocator around another that fails when told to.
//! - [`fail_each_call`]: runs code with each of its calls failing in turn, and
//!   finds what it leaks.
//! - [`conformance`]: the contract of [`DeviceAllocator`](crate::DeviceAllocator)
//!   as a suite that any allocator can run.

pub mod conformance;

mod exhaustion;
mod fake_device;
mod fault_injector;

pub use exhaustion::{
    Exhaustion, ExhaustionError, MAX_ROUNDS, fail_each_call, fail_each_call_of, panic_each_call,
};
pub use fake_device::{Call, FakeDevice, FakeDeviceBuilder, LiveBlock, Misuse, Violation};
pub use fault_injector::{FaultInjector, Faults, InjectedFault};
