//! RAII owners of device memory, for people who write inference runtimes.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::as_conversions,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::missing_errors_doc,
        clippy::missing_panics_doc,
        clippy::panic,
        clippy::unwrap_used
    )
)]

pub mod backend;

mod address;
mod allocator;
mod device;
mod error;
mod layout;
mod plan;
mod process;
mod scalar;
mod shape;
mod span;

pub use crate::address::DevicePtr;
pub use crate::allocator::{AllocatorHandle, DeviceAllocator, MemoryInfo};
pub use crate::backend::host::HostAllocator;
pub use crate::device::{Device, DeviceIndex, DeviceType, ParseDeviceError};
pub use crate::error::{AllocatorFault, Error, InvalidProgram, Operation, OutOfMemory, Result};
pub use crate::layout::{DeviceLayout, LayoutError};
pub use crate::plan::{MemoryPlan, Placement, PlannedBuffer};
pub use crate::process::ProcessGeneration;
pub use crate::scalar::ScalarType;
pub use crate::shape::{ShapeDynamism, TensorSpec};
pub use crate::span::{DeviceSpan, DeviceSpanMut};
