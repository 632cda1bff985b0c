//! What a stream does when it comes to a piece of work.
//!
//! Memory is looked up again then: what a call was allowed to name may be gone.

use std::ffi::c_void;

use super::allocate;
use super::bytes::FREED;
use super::call::Call;
use super::copy::{Spot, poke, take};

/// A piece of work.
#[derive(Debug)]
pub(super) enum Operation {
    /// Nothing but a place in the order.
    Mark,
    Copy {
        dst: Spot,
        src: Spot,
        len: usize,
    },
    Fill {
        dst: Spot,
        pattern: [u8; 4],
        len: usize,
    },
    /// A stream-ordered allocation.
    Make {
        device: usize,
        base: u64,
        id: u64,
    },
    /// A stream-ordered free.
    Release {
        device: usize,
        base: u64,
        id: u64,
    },
    /// A function of the program.
    Host {
        function: HostFunction,
    },
}

/// A function of the program with its argument.
#[derive(Debug)]
pub(super) struct HostFunction {
    /// # Invariants
    ///
    /// 0. The program gave `function` to be called once with `argument`, on any
    ///    thread.
    function: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
}

impl HostFunction {
    /// Takes what the program gave.
    ///
    /// # Safety
    ///
    /// `function` may be called once with `argument`, on any thread.
    pub(super) unsafe fn new(
        function: unsafe extern "C" fn(*mut c_void),
        argument: *mut c_void,
    ) -> Self {
        Self { function, argument }
    }

    /// Calls it.
    pub(super) fn run(self) {
        // SAFETY: it may be called so once (invariant 0), and `self` is gone.
        unsafe { (self.function)(self.argument) };
    }
}

// SAFETY: the program gave both to be used on any thread (invariant 0).
unsafe impl Send for HostFunction {}

impl Call {
    /// Does a piece of work that is no function of the program.
    pub(super) fn perform(&mut self, operation: Operation) {
        match operation {
            Operation::Mark | Operation::Host { .. } => {}
            Operation::Copy { dst, src, len } => {
                let bytes = take(self, src, len).unwrap_or_else(|| vec![FREED; len]);
                poke(self, &dst, &bytes);
            }
            Operation::Fill { dst, pattern, len } => {
                let bytes: Vec<u8> = pattern.iter().copied().cycle().take(len).collect();
                poke(self, &dst, &bytes);
            }
            Operation::Make { device, base, id } => {
                let memory = self
                    .devices
                    .get_mut(device)
                    .map(|device| &mut device.memory);
                if let Some(block) = memory.and_then(|memory| memory.block_mut(base, id)) {
                    block.made = true;
                }
            }
            Operation::Release { device, base, id } => {
                let reuse = self.settings.reuse;
                let memory = self.devices.get(device).map(|device| &device.memory);
                let made = memory
                    .and_then(|memory| memory.block(base, id))
                    .map(|block| block.made);
                match made {
                    Some(true) => {}
                    Some(false) => self.violate(format!(
                        "the free of {base:#x} is reached before its allocation (missing wait)"
                    )),
                    None => return,
                }
                allocate::release(self, device, base, id, reuse);
            }
        }
    }
}
