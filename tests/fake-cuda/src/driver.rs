//! The driver: what `libfakecuda.so` exports, and the state behind it.
//!
//! One lock guards all of it. A call enters through [`call::enter`], which
//! counts it and applies faults, and works on the [`call::Call`] it is given. Two
//! functions that only look something up have a shorter way first, [`quick`].

#![allow(
    unsafe_code,
    reason = "the C functions of a driver take raw pointers, and its memory is mapped by hand"
)]

mod address;
mod allocate;
mod block;
mod bytes;
mod call;
mod capture;
mod code;
mod context;
mod control;
mod copy;
mod device;
mod event;
mod exports;
mod fault;
mod host;
mod memory;
mod operation;
mod out;
mod pointer;
mod pool;
mod quick;
mod report;
mod run;
mod settings;
mod state;
mod stream;
mod thread;
