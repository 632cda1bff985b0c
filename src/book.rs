//! How to use this crate, by subject.
//!
//! Rank 10. Documentation only.
//!
//! Each chapter stands alone, and its examples are tests. The front page has the
//! rules and the cost.
//!
//! 1. [`start`]: memory, its device, its errors.
//! 2. [`ownership`]: who frees, and who may look.
//! 3. [`devices`]: which memory, and in which order.
//! 4. [`planning`]: a model's memory, known before it runs.
//! 5. [`adaptor::guide`](crate::adaptor::guide): which stack of adaptors, measured.
#![cfg_attr(
    feature = "testing",
    doc = "6. [`allocator`]: what one promises, and how to show that it keeps that."
)]
#![cfg_attr(not(feature = "testing"), doc = "6. `allocator` (feature `testing`).")]
//! 7. [`connect`]: cudarc, candle, ExecuTorch, DLPack, C.
//! 8. [`give_back`]: who keeps unused memory, and how to get at it.
//! 9. [`out_of_memory`]: what was asked, what there was, what was tried.
#![cfg_attr(
    feature = "testing",
    doc = "10. [`simulated`]: what a green test says, and what it does not."
)]
#![cfg_attr(not(feature = "testing"), doc = "10. `simulated` (feature `testing`).")]

#[doc = include_str!("../docs/book/start.md")]
pub mod start {}

#[doc = include_str!("../docs/book/ownership.md")]
pub mod ownership {}

#[doc = include_str!("../docs/book/devices.md")]
#[cfg_attr(feature = "cuda", doc = include_str!("../docs/book/devices_cuda.md"))]
pub mod devices {}

#[doc = include_str!("../docs/book/planning.md")]
#[doc = "\n<div>"]
#[doc = include_str!("../docs/plan-greedy.svg")]
#[doc = include_str!("../docs/plan-auto.svg")]
#[doc = "</div>"]
pub mod planning {}

#[cfg(feature = "testing")]
#[doc = include_str!("../docs/book/allocator.md")]
pub mod allocator {}

#[doc = include_str!("../docs/book/connect.md")]
#[cfg_attr(feature = "cuda", doc = include_str!("../docs/book/connect_cuda.md"))]
#[cfg_attr(feature = "dlpack", doc = include_str!("../docs/book/connect_dlpack.md"))]
#[cfg_attr(feature = "pte", doc = include_str!("../docs/book/connect_pte.md"))]
pub mod connect {}

#[doc = include_str!("../docs/book/give_back.md")]
pub mod give_back {}

#[doc = include_str!("../docs/book/out_of_memory.md")]
pub mod out_of_memory {}

#[cfg(feature = "testing")]
#[doc = include_str!("../docs/book/simulated.md")]
pub mod simulated {}
