//! The reader of ExecuTorch programs, on real, malformed and mutated files.

#![cfg(feature = "pte")]

#[path = "pte/bad.rs"]
mod bad;
#[path = "pte/expect.rs"]
mod expect;
#[path = "support/heap.rs"]
mod heap;
#[path = "pte/memory.rs"]
mod memory;
#[path = "pte/messages.rs"]
mod messages;
#[path = "pte/mutate.rs"]
mod mutate;
#[path = "pte/overwrite.rs"]
mod overwrite;
#[path = "pte/patched.rs"]
mod patched;
#[path = "pte/replan.rs"]
mod replan;
#[path = "pte/support.rs"]
mod support;
