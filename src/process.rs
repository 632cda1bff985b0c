//! Which process a thing was made in.
//!
//! Rank 0. Imports nothing from this crate.
//!
//! A driver does not survive `fork`: a child that frees, copies or allocates
//! through a handle of its parent corrupts both. So every owner remembers the
//! [`ProcessGeneration`] it was made in, and a handler that runs in the child
//! of each `fork` moves the current one on. Comparing the two costs one relaxed
//! load and no system call.

use std::sync::Once;
use std::sync::atomic::{AtomicU16, Ordering};

/// The generation of this process.
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
pub struct ProcessGeneration(u16);

impl ProcessGeneration {
    /// The generation of the calling process, which is watched for forks from
    /// now on.
    #[inline]
    #[must_use]
    pub fn current() -> Self {
        watch_forks();
        Self::of_watched_process()
    }

    /// [`current`](Self::current) where an allocator handle exists, so that the
    /// process is watched already.
    #[inline]
    pub(crate) fn of_watched_process() -> Self {
        Self(CURRENT.load(Ordering::Relaxed))
    }

    /// Whether the calling process is the one this was taken in.
    #[inline]
    #[must_use]
    pub fn is_current(self) -> bool {
        self == Self::of_watched_process()
    }
}

/// Puts the handler in place, once.
#[inline]
pub(crate) fn watch_forks() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(install_fork_handler);
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
