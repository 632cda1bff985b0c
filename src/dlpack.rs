//! Tensors that pass to and from other libraries as DLPack (feature `dlpack`).
//!
//! Rank 8. Imports `tensor`, `buffer`, `registry`, `span`, `shape` and the words.
//! The one module that names dlpack-ffi, and no type of it is public: what passes
//! is an untyped pointer to a `DLManagedTensorVersioned`.
//!
//! | from | to | by |
//! | --- | --- | --- |
//! | a tensor or a buffer | DLPack | [`ExportedTensor::from_tensor`], [`ExportedTensor::from_buffer`] |
//! | a view, and what keeps it alive | DLPack | [`ExportedTensor::lend`], [`ExportedTensor::lend_mut`] |
//! | a copy of a view | DLPack | [`ExportedTensor::copy_of`] |
//! | DLPack | a tensor to view | [`ImportedTensor::from_raw`] |
//!
//! Whoever holds a tensor calls its deleter once; both types do so when they are
//! dropped, on any thread. In a child of the process that they were made in they do
//! nothing, as all owners of memory.
//!
//! Only versioned tensors are understood, of any version 1.x. Tensors of the time
//! before (`DLManagedTensor`, capsules named `dltensor`) are not.
//!
//! DLPack carries no stream. Copies of this crate are complete when they return;
//! with work of other kinds, the two sides agree on a stream or wait.
//!
//! # Examples
//!
//! ```
//! use device_memory::dlpack::{ExportedTensor, ImportedTensor};
//! use device_memory::{Device, DeviceAllocatorRegistry, DeviceTensor, ScalarType, TensorSpec};
//!
//! let spec = TensorSpec::contiguous(ScalarType::Short, &[2, 2], Device::CPU)?;
//! let tensor = DeviceTensor::from_host(spec.clone(), &[1, 0, 2, 0, 3, 0, 4, 0])?;
//!
//! let raw = ExportedTensor::from_tensor(tensor)?.into_raw();
//! // Another library would take the pointer here, and call the deleter when done.
//! let registry = DeviceAllocatorRegistry::global();
//! // SAFETY: the tensor is sound and ours, and its memory is the host's.
//! let back = unsafe { ImportedTensor::from_raw(raw, registry) }?;
//!
//! assert_eq!(back.spec(), &spec);
//! assert_eq!(back.view()?.to_vec()?, [1, 0, 2, 0, 3, 0, 4, 0]);
//! # Ok::<(), device_memory::Error>(())
//! ```

mod describe;
mod element;
mod export;
mod import;
mod managed;
mod order;

use std::ffi::CStr;

pub use export::ExportedTensor;
pub use import::ImportedTensor;

/// The name of a Python capsule that holds a tensor nobody has taken yet.
pub const CAPSULE_NAME: &CStr = c"dltensor_versioned";

/// The name that a consumer gives the capsule when it takes the tensor.
pub const USED_CAPSULE_NAME: &CStr = c"used_dltensor_versioned";
