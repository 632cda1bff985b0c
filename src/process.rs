//! Which process a thing was made in.
//!
//! Rank 0. Imports nothing from this crate.
//!
//! A driver does not survive `fork`: a child that frees, copies or allocates
//! through a handle of its parent corrupts both. So every owner remembers the
//! [`ProcessGeneration`] it was made in, and a handler that runs in the child
//! of each `fork` moves the current one on. Comparing the two costs one relaxed
//! load and no system call.

use std::num::NonZeroU16;
use std::sync::atomic::{AtomicU16, Ordering};

/// The current generation; 0 until the handler is in place.
static CURRENT: AtomicU16 = AtomicU16::new(0);

/// How many times this process was forked off since the crate was first used.
///
/// Allocators that a child can not go on using keep the generation they were
/// made in and refuse work when it is no longer current.
///
/// Only `fork` is seen. A child made by a bare `clone` or `vfork` system call,
/// or the 65,535th nested one, counts as its parent.
///
/// # Examples
///
/// ```
/// use device_memory::ProcessGeneration;
///
/// let made_in = ProcessGeneration::current();
///
/// assert!(made_in.is_current());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessGeneration(NonZeroU16);

impl ProcessGeneration {
    /// The generation of the calling process.
    #[inline]
    #[must_use]
    pub fn current() -> Self {
        match NonZeroU16::new(CURRENT.load(Ordering::Relaxed)) {
            Some(generation) => Self(generation),
            None => arm(),
        }
    }

    /// Whether the calling process is the one this was taken in.
    #[inline]
    #[must_use]
    pub fn is_current(self) -> bool {
        // Not `current()`: the handler is in place, or `self` would not exist.
        self.0.get() == CURRENT.load(Ordering::Relaxed)
    }
}

/// Puts the handler in place and starts at generation 1.
#[cold]
fn arm() -> ProcessGeneration {
    static ARMED: std::sync::Once = std::sync::Once::new();
    ARMED.call_once(install_fork_handler);
    let first = NonZeroU16::MIN;
    match CURRENT.compare_exchange(0, first.get(), Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => ProcessGeneration(first),
        Err(now) => ProcessGeneration(NonZeroU16::new(now).unwrap_or(first)),
    }
}

#[cfg(unix)]
#[expect(unsafe_code, reason = "the handler is registered with the C library")]
fn install_fork_handler() {
    extern "C" fn in_child() {
        let next = CURRENT.load(Ordering::Relaxed).saturating_add(1);
        CURRENT.store(next, Ordering::Relaxed);
    }
    // SAFETY: `in_child` is `extern "C"`, lives as long as the program, and does
    // only atomic loads and stores, which is all that is allowed between `fork`
    // and `exec` in the child of a threaded process. A refusal (out of memory)
    // leaves the process without fork detection and nothing else.
    unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
    }
}

#[cfg(not(unix))]
fn install_fork_handler() {}
