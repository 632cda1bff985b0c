//! Asynchronous copies and memory that passes to and from cudarc, on the
//! simulated driver of `tests/fake-cuda`. Nothing here says anything about a GPU.

#![cfg(all(feature = "cuda", target_os = "linux"))]

#[path = "cuda_transfers/adopt.rs"]
mod adopt;
#[path = "cuda_transfers/example.rs"]
mod example;
#[path = "cuda_transfers/forked.rs"]
mod forked;
#[path = "cuda_transfers/give_away.rs"]
mod give_away;
#[path = "cuda_transfers/lend.rs"]
mod lend;
#[path = "cuda_transfers/moved.rs"]
mod moved;
#[path = "cuda_transfers/peers.rs"]
mod peers;
#[path = "cuda_transfers/scope.rs"]
mod scope;
#[path = "cuda_transfers/support.rs"]
mod support;
#[path = "cuda_transfers/uploader.rs"]
mod uploader;
