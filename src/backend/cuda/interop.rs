//! Memory that passes between this crate and cudarc.
//!
//! Rank 7. Part of `backend::cuda`. Imports `buffer`, `span`, `allocator` and the
//! words.
//!
//! | from | to | by |
//! | --- | --- | --- |
//! | a view | a `CudaSlice`, for a while | [`lend()`], [`lend_mut`], [`BorrowedCudaSlice`] |
//! | a `CudaSlice` | a buffer | [`CudaAllocator::adopt`](crate::backend::cuda::CudaAllocator::adopt) |
//! | a buffer | a `CudaSlice` | [`CudaAllocator::into_cuda_slice`](crate::backend::cuda::CudaAllocator::into_cuda_slice) |
//!
//! cudarc frees every slice that is dropped, by `cuMemFreeAsync` on its stream if
//! the device has memory pools and by `cuMemFree` if not. So memory is given away
//! only where that is the right way, and what is lent is never dropped.

mod adopt;
mod give_away;
mod lend;
mod plain;
mod shell;

pub use adopt::AdoptError;
pub use give_away::GiveAwayError;
pub use lend::{BorrowedCudaSlice, BorrowedCudaSliceMut, lend, lend_mut};
pub use plain::PlainData;
