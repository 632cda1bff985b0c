//! A stream that waits until the test lets it go on.
//!
//! While a gate is closed, what the stream was given after it is not done. So
//! whether a call waits is seen without looking at the time.

#![expect(unsafe_code, reason = "calls the driver")]

use std::env;
use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use device_memory::backend::cuda::cudarc::driver::{CudaStream, result};

/// When a gate opens by itself, so that a call which waits fails its test rather
/// than stopping all of them. Far longer than a call takes that only is slow.
const PATIENCE: Duration = Duration::from_secs(20);

/// Says that no gate is to be closed, and whether a call waits not to be looked at:
/// tools that check each call may wait in it themselves.
const NO_GATES: &str = "DEVICE_MEMORY_GPU_NO_GATES";

/// A gate in a stream. It opens when it is dropped.
#[derive(Debug)]
pub(crate) struct Gate(Arc<State>);

#[derive(Debug, Default)]
struct State {
    /// Whether the stream may go on, and whether it did.
    flags: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Gate {
    /// Makes the stream wait, after what it was given before.
    pub(crate) fn close(stream: &Arc<CudaStream>) -> Self {
        let state = Arc::new(State::default());
        if Self::are_off() {
            return Self(state);
        }
        stream.context().bind_to_thread().unwrap();
        let argument = Arc::into_raw(Arc::clone(&state)).cast_mut().cast();
        // SAFETY: the function calls no driver, and frees its argument, which it
        // is given once.
        unsafe { result::stream::launch_host_function(stream.cu_stream(), wait, argument) }
            .unwrap();
        Self(state)
    }

    /// Lets the stream go on.
    pub(crate) fn open(&self) {
        self.0.flags().0 = true;
        self.0.changed.notify_all();
    }

    /// Whether the stream still waits here.
    pub(crate) fn holds(&self) -> bool {
        Self::are_off() || !self.0.flags().1
    }

    /// Whether the stream has gone on.
    pub(crate) fn is_passed(&self) -> bool {
        Self::are_off() || self.0.flags().1
    }

    /// Whether nothing waits at gates.
    pub(crate) fn are_off() -> bool {
        env::var_os(NO_GATES).is_some_and(|value| value == "1")
    }

    /// A handle for another thread.
    pub(crate) fn handle(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

impl State {
    fn flags(&self) -> MutexGuard<'_, (bool, bool)> {
        self.flags.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the stream runs.
unsafe extern "C" fn wait(argument: *mut c_void) {
    // SAFETY: the argument is what `close` made of an `Arc`, given away once.
    let state = unsafe { Arc::from_raw(argument.cast_const().cast::<State>()) };
    let closed = |flags: &mut (bool, bool)| !flags.0;
    let flags = state.flags();
    let waited = state.changed.wait_timeout_while(flags, PATIENCE, closed);
    waited.unwrap_or_else(PoisonError::into_inner).0.1 = true;
}
