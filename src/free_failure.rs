//! What happens to errors that `drop` can not return.
//!
//! Rank 2. Imports the words.
//!
//! A failed free is told to the hook of the process and counted, and to nobody
//! else: never to a later, unrelated call.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::address::DevicePtr;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::layout::DeviceLayout;
use crate::unwind::caught;

/// A block that could not be given back when its owner was dropped. It is leaked.
#[derive(Debug)]
#[non_exhaustive]
pub struct FreeFailure {
    /// Where the block is.
    pub device: Device,
    /// Its address.
    pub ptr: DevicePtr,
    /// Its size and alignment.
    pub layout: DeviceLayout,
    /// Why it could not be given back.
    pub error: Error,
}

/// What is called for each failed free.
pub type FreeFailureHook = Arc<dyn Fn(&FreeFailure) + Send + Sync>;

static HOOK: RwLock<Option<FreeFailureHook>> = RwLock::new(None);
static COUNT: AtomicU64 = AtomicU64::new(0);

/// How deep hooks may be nested whose own frees fail.
const MAX_DEPTH: u8 = 4;

thread_local! {
    /// How many reports this thread is in the midst of.
    static DEPTH: Cell<u8> = const { Cell::new(0) };
}

/// Sets what is called for each failed free of the process, and returns what was.
///
/// The hook runs on the thread that dropped the buffer, under no lock, and may
/// itself allocate, free and set hooks. A hook that panics is cut short. A hook
/// whose own frees fail is told of them up to four deep; below that they are only
/// counted.
///
/// Without a hook, and with one too, failures are counted
/// ([`free_failure_count`]) and, with the feature `tracing`, told as events.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use device_memory::set_free_failure_hook;
///
/// let before = set_free_failure_hook(Some(Arc::new(|failure| {
///     let _ = (failure.device, failure.ptr, &failure.error);
/// })));
/// set_free_failure_hook(before);
/// ```
pub fn set_free_failure_hook(hook: Option<FreeFailureHook>) -> Option<FreeFailureHook> {
    std::mem::replace(&mut *HOOK.write(), hook)
}

/// How many frees have failed in this process.
#[must_use]
pub fn free_failure_count() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

/// Reports a block that has no owner who could be told that it was not given back, if it
/// was not. With a driver that is gone it is.
pub(crate) fn report_lost(device: Device, ptr: DevicePtr, layout: DeviceLayout, freed: Result<()>) {
    match freed {
        Err(error) if !error.is_shut_down() => report(FreeFailure {
            device,
            ptr,
            layout,
            error,
        }),
        _ => {}
    }
}

/// Counts a failed free and tells it to the hook. Does not panic.
#[cold]
pub(crate) fn report(failure: FreeFailure) {
    COUNT.fetch_add(1, Ordering::Relaxed);
    let depth = DEPTH.get();
    DEPTH.set(depth.saturating_add(1));
    // A hook that panics is cut short, and has no one to tell; nor has an error of
    // the allocator's own that panics when it is dropped.
    let _ = caught(move || {
        if depth >= MAX_DEPTH {
            return;
        }
        #[cfg(feature = "tracing")]
        tracing::error!(
            device = %failure.device,
            ptr = %failure.ptr,
            size = failure.layout.size(),
            error = %failure.error,
            "device memory could not be freed"
        );
        let hook = HOOK.read().clone();
        if let Some(hook) = hook {
            hook(&failure);
        }
    });
    DEPTH.set(depth);
}
