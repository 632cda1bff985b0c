#![doc = include_str!("../README.md")]
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

pub mod adaptor;
pub mod backend;
pub mod book;
#[cfg(feature = "dlpack")]
pub mod dlpack;
pub mod graph;
pub mod plan;
#[cfg(feature = "pte")]
pub mod pte;
pub mod runner;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(feature = "safetensors")]
pub mod weights;

mod address;
mod allocator;
mod block_pool;
mod buffer;
mod device;
mod error;
mod escape;
mod free_failure;
mod free_space;
mod hierarchical;
mod layout;
mod ledger;
mod make_room;
mod observe;
mod planned;
mod process;
#[cfg(any(feature = "cuda", feature = "safetensors"))]
mod reading;
mod registry;
mod scalar;
mod shape;
mod span;
mod stream;
mod sync;
mod table;
mod tensor;
mod units;
mod unwind;

pub use crate::address::DevicePtr;
pub use crate::allocator::{AllocatorHandle, DeviceAllocator, MemoryInfo};
pub use crate::backend::host::HostAllocator;
pub use crate::block_pool::{Block, BlockPool};
pub use crate::buffer::{DeviceMemoryBuffer, FreeError, RawDeviceMemory};
pub use crate::device::{Device, DeviceIndex, DeviceType, ParseDeviceError};
pub use crate::error::{
    AllocatorFault, Attempt, Error, ErrorKind, GraphFault, InvalidProgram, InvalidWeights,
    Operation, OutOfMemory, OverCapacity, PlacementError, PlanError, Result,
};
pub use crate::free_failure::{
    FreeFailure, FreeFailureHook, free_failure_count, set_free_failure_hook,
};
pub use crate::hierarchical::{DeviceAddress, HierarchicalAllocator};
pub use crate::layout::{DeviceLayout, LayoutError, Tag, TagError};
pub use crate::plan::{MemoryPlan, Placement, PlanOptions, PlanRequest, PlanValue, PlannedBuffer};
pub use crate::planned::PlannedMemory;
pub use crate::process::ProcessGeneration;
pub use crate::registry::DeviceAllocatorRegistry;
pub use crate::scalar::ScalarType;
pub use crate::shape::{ShapeDynamism, TensorSpec};
pub use crate::span::{DeviceSpan, DeviceSpanMut};
pub use crate::tensor::{DeviceTensor, TensorView, TensorViewMut};

#[cfg(all(loom, test))]
#[path = "../tests/loom/models.rs"]
mod models;
