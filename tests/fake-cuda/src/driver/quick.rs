//! The short way of functions that only look something up.
//!
//! In a driver such a function reads a few words of its thread. Here it would
//! take the lock and go through maps to find that nothing is the matter. So
//! whether anything is the matter is kept in a word that can be read without the
//! lock. Who changes what the word stands for calls [`refresh`] before it gives
//! the lock back.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::out::put;
use super::settings::Schedule;
use super::state::State;
use super::thread;

/// `0` while the short way may not be taken. Else a number that was not used
/// before something changed: what was found of a stream with another is out of
/// date.
static WORD: AtomicU64 = AtomicU64::new(0);

/// Whether this process is a child of the one that used the driver.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Whether this process is a child of the one that used the driver.
#[inline]
pub(super) fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Says that this process is such a child. Only stores to atomics.
pub(super) fn set_forked() {
    FORKED.store(true, Ordering::Relaxed);
    WORD.store(0, Ordering::Relaxed);
}

/// Looks whether the short way may be taken from now on, and makes what was
/// found of streams out of date.
pub(super) fn refresh(state: &State) {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let settings = &state.settings;
    let plain = state.initialized
        && state.faults.armed() == 0
        && state.captures == 0
        && !settings.record
        && !settings.shut_down
        && settings.schedule != Schedule::Random
        && settings.capture_status.is_none()
        && !is_forked();
    let word = if plain {
        LAST.fetch_add(1, Ordering::Relaxed) + 1
    } else {
        0
    };
    WORD.store(word, Ordering::Release);
}

/// `cuCtxGetCurrent`, if nothing is the matter.
///
/// # Safety
///
/// `out` is null or may be written.
#[inline]
pub(super) unsafe fn current(out: *mut u64) -> Option<i32> {
    if out.is_null() || WORD.load(Ordering::Acquire) == 0 {
        return None;
    }
    // A thread that runs host functions never has a context.
    let current = thread::current()?;
    // SAFETY: the caller's promise.
    let done = unsafe { put(out, current) };
    done.is_ok().then_some(0)
}

/// `cuStreamIsCapturing`, if nothing is the matter and this thread has asked
/// before.
///
/// # Safety
///
/// `out` is null or may be written.
#[inline]
pub(super) unsafe fn is_capturing(stream: u64, out: *mut u32) -> Option<i32> {
    let word = WORD.load(Ordering::Acquire);
    if out.is_null() || word == 0 || !thread::is_known_idle(stream, word) {
        return None;
    }
    // SAFETY: the caller's promise.
    let done = unsafe { put(out, 0) };
    done.is_ok().then_some(0)
}

/// Keeps that a stream can be used and is not capturing, for [`is_capturing`].
/// Called with the lock, so that this is so now.
pub(super) fn found_idle(stream: u64) {
    let word = WORD.load(Ordering::Relaxed);
    if word != 0 {
        thread::found_idle(stream, word);
    }
}
