//! Freeing, and what becomes of a buffer that can not be freed.
//!
//! Rank 6. Part of `buffer`.

use crate::allocator::guarded;
use crate::buffer::DeviceMemoryBuffer;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::free_failure::{self, FreeFailure};
use crate::unwind::caught;

impl DeviceMemoryBuffer {
    /// Frees the memory and says whether that worked.
    ///
    /// A driver that is already shut down counts as success.
    ///
    /// # Errors
    ///
    /// A [`FreeError`] with the buffer, which still owns the memory, and the
    /// reason:
    ///
    /// - [`AllocatorPanicked`](ErrorKind::AllocatorPanicked): the allocator panicked.
    /// - [`ForkedProcess`](ErrorKind::ForkedProcess): the memory is a parent process's.
    /// - what the allocator returns.
    #[expect(unsafe_code, reason = "see SAFETY")]
    pub fn free(mut self) -> Result<(), FreeError> {
        if self.size != 0 && !self.generation.is_current() {
            let device = self.device;
            return Err(FreeError {
                buffer: self,
                error: ErrorKind::ForkedProcess { device }.into(),
            });
        }
        let mut failure = None;
        // SAFETY: `self` is owned here, so no view of it is left. It is not freed
        // again: either its size is set to 0 below, or this failed.
        unsafe { self.deallocate(|error| failure = Some(error)) };
        match failure {
            None => {
                self.size = 0;
                Ok(())
            }
            Some(error) => Err(FreeError {
                buffer: self,
                error,
            }),
        }
    }

    /// The one place that frees. `failed` is told of a failure other than that
    /// the driver is shut down.
    ///
    /// # Safety
    ///
    /// Nothing uses the memory any more, and this is not called again if it
    /// succeeds.
    #[inline]
    #[expect(unsafe_code, reason = "see SAFETY")]
    pub(super) unsafe fn deallocate(&self, failed: impl FnOnce(Error)) {
        if self.size == 0 {
            return;
        }
        let allocator = self.allocator();
        let freed = guarded(self.device, Operation::Deallocate, || {
            // SAFETY: `ptr` came from this allocator with this layout and index
            // (invariant 1) and no free of it succeeded (invariant 2). The caller
            // promises that nothing uses it any more.
            unsafe { allocator.deallocate(self.ptr, self.layout(), self.device.index()) }
        });
        if let Err(error) = freed
            && let Some(error) = unless_shut_down(error)
        {
            failed(error);
        }
    }

    /// Tells the hook of a failed free. The memory is leaked.
    #[cold]
    pub(super) fn report(&self, error: Error) {
        free_failure::report(FreeFailure {
            device: self.device,
            ptr: self.ptr,
            layout: self.layout(),
            error,
        });
    }
}

/// The error, unless it says that the memory is gone with its driver.
#[cold]
fn unless_shut_down(error: Error) -> Option<Error> {
    if error.is_shut_down() {
        // An error of the allocator's own may panic when it is dropped.
        let _ = caught(|| drop(error));
        return None;
    }
    Some(error)
}

/// A buffer that could not be freed, and why.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct FreeError {
    /// The buffer, which still owns its memory.
    pub buffer: DeviceMemoryBuffer,
    /// Why it could not be freed.
    #[source]
    pub error: Error,
}

impl From<FreeError> for Error {
    /// Keeps the reason and drops the buffer, which tries to free once more.
    fn from(failure: FreeError) -> Self {
        failure.error
    }
}
