//! Memory of NVIDIA GPUs, through cudarc (feature `cuda`).
//!
//! Rank 4. Imports `allocator` and the words. The one module that names cudarc.
//!
//! Building needs no toolkit, and running needs no driver: without one, what asks
//! for a device gets a typed error. The driver is found when it is first asked
//! for; a failure is not kept, so a later attempt may succeed.
//!
//! | type | memory | host access |
//! | --- | --- | --- |
//! | [`CudaAllocator`] | of a device, `Cuda` | no |
//! | [`CudaHostAllocator`] | page-locked host memory, `CudaHost` | yes |
//! | [`CudaManagedAllocator`] | managed memory, `CudaManaged` | yes |
//!
//! The version of CUDA and the way of linking are whatever the rest of the program
//! asks of cudarc; this crate asks for nothing in particular. A toolkit whose
//! version cudarc does not know stops its build script; set
//! `CUDARC_CUDA_VERSION=13040` in the environment then.
//!
//! Nothing here has run on a GPU yet; see `docs/gpu-results.md`.

mod allocator;
mod builder;
mod device;
mod devices;
mod driver;
mod event;
mod interop;
mod lane;
mod order;
mod ordered;
mod overaligned;
mod pool;
mod probe;
mod shared_memory;
mod slow;
mod status;
mod transfer;
mod uploader;
mod uses;

pub use allocator::CudaAllocator;
pub use builder::CudaAllocatorBuilder;
pub use cudarc;
pub use interop::{
    AdoptError, BorrowedCudaSlice, BorrowedCudaSliceMut, GiveAwayError, PlainData, lend, lend_mut,
};
pub use ordered::CudaOnStream;
pub use shared_memory::{CudaHostAllocator, CudaManagedAllocator};
pub use transfer::{Transfer, TransferError, TransferScope, download, transfer_scope, upload};
pub use uploader::StagedUploader;
