//! A block that the suite allocated.
//!
//! Rank 8. Part of `testing::conformance`. Imports `allocator` and the words.
//!
//! The one place of the suite that calls unsafe methods. It keeps to the bounds
//! of its block, so a fault that shows is the allocator's.

use super::report::{Failure, Promise};
use super::suite::Suite;
use crate::address::DevicePtr;
use crate::device::DeviceIndex;
use crate::error::Operation;
use crate::layout::DeviceLayout;

/// A live block, which is given back at the latest when it is dropped.
pub(super) struct Block<'a> {
    /// # Invariants
    ///
    /// 0. `ptr` came from `suite.allocator.allocate(layout, index)`.
    /// 1. If `live`, it has not been passed to `deallocate`.
    ptr: DevicePtr,
    layout: DeviceLayout,
    index: DeviceIndex,
    live: bool,
    suite: &'a Suite<'a>,
}

impl<'a> Block<'a> {
    /// Allocates a block and checks its address.
    pub(super) fn allocate(
        suite: &'a Suite<'a>,
        layout: DeviceLayout,
        index: DeviceIndex,
    ) -> Result<Self, Failure> {
        let (size, align) = (layout.size(), layout.align());
        let ptr = suite.allocator.allocate(layout, index).map_err(|error| {
            let what = format!("{size} bytes aligned to {align}");
            suite.failed(Operation::Allocate, index, what, error)
        })?;
        let block = Self {
            ptr,
            layout,
            index,
            live: true,
            suite,
        };
        if !ptr.is_aligned_to(align) {
            let what = format!("{size} bytes at {ptr}, which is no multiple of {align}");
            return Err(block.failure(Promise::Alignment, what));
        }
        if ptr.checked_add(size).is_none() {
            let what = format!("{size} bytes at {ptr} pass the last address");
            return Err(block.failure(Promise::Validity, what));
        }
        Ok(block)
    }

    pub(super) fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    pub(super) fn size(&self) -> usize {
        self.layout.size()
    }

    pub(super) fn index(&self) -> DeviceIndex {
        self.index
    }

    /// A failure found on this block.
    pub(super) fn failure(&self, promise: Promise, what: impl Into<String>) -> Failure {
        self.suite.failure(promise, self.index, what)
    }

    /// The address of `len` bytes at `offset`, which must be inside the block.
    fn at(&self, offset: usize, len: usize) -> Result<DevicePtr, Failure> {
        let end = offset.checked_add(len);
        let inside = len > 0 && end.is_some_and(|end| end <= self.size());
        match self.ptr.checked_add(offset) {
            Some(ptr) if inside => Ok(ptr),
            _ => {
                let size = self.size();
                let what = format!("the suite itself uses {len} bytes at {offset} of {size}");
                Err(self.failure(Promise::Validity, what))
            }
        }
    }

    /// Copies bytes from the host to `offset`.
    #[expect(unsafe_code, reason = "see SAFETY")]
    pub(super) fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Failure> {
        let len = bytes.len();
        let dst = self.at(offset, len)?;
        let allocator = self.suite.allocator;
        // SAFETY: the range is inside this live block (`at`, invariants 0 and 1),
        // which only this thread uses; `bytes` is `len` bytes.
        let done = unsafe { allocator.copy_host_to_device(dst, bytes.as_ptr(), len, self.index) };
        done.map_err(|error| {
            let what = format!("{len} bytes to offset {offset} of {}", self.size());
            self.suite
                .failed(Operation::CopyHostToDevice, self.index, what, error)
        })
    }

    /// Copies bytes from `offset` over those of `out`.
    #[expect(unsafe_code, reason = "see SAFETY")]
    pub(super) fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Failure> {
        let len = out.len();
        let src = self.at(offset, len)?;
        let allocator = self.suite.allocator;
        // SAFETY: the range is inside this live block (`at`, invariants 0 and 1),
        // which only this thread uses; `out` is `len` bytes.
        let done = unsafe { allocator.copy_device_to_host(out.as_mut_ptr(), src, len, self.index) };
        done.map_err(|error| {
            let what = format!("{len} bytes from offset {offset} of {}", self.size());
            self.suite
                .failed(Operation::CopyDeviceToHost, self.index, what, error)
        })
    }

    /// Sets `len` bytes from `offset`.
    #[expect(unsafe_code, reason = "see SAFETY")]
    pub(super) fn fill(&self, offset: usize, len: usize, byte: u8) -> Result<(), Failure> {
        let dst = self.at(offset, len)?;
        // SAFETY: the range is inside this live block (`at`, invariants 0 and 1),
        // which only this thread uses.
        let done = unsafe { self.suite.allocator.fill(dst, byte, len, self.index) };
        done.map_err(|error| {
            let what = format!("{len} bytes at offset {offset} of {}", self.size());
            self.suite.failed(Operation::Fill, self.index, what, error)
        })
    }

    /// Copies `len` bytes at `from` of another block to `offset`.
    #[expect(unsafe_code, reason = "see SAFETY")]
    pub(super) fn copy(
        &self,
        offset: usize,
        other: &Self,
        from: usize,
        len: usize,
    ) -> Result<(), Failure> {
        let dst = self.at(offset, len)?;
        let src = other.at(from, len)?;
        if dst.addr().abs_diff(src.addr()) < len && self.index == other.index {
            let what = format!("the suite itself copies {len} bytes onto themselves");
            return Err(self.failure(Promise::Validity, what));
        }
        let allocator = self.suite.allocator;
        // SAFETY: both ranges are inside live blocks (`at`, invariants 0 and 1),
        // which only this thread uses, and do not overlap as checked above.
        let done =
            unsafe { allocator.copy_device_to_device(dst, self.index, src, other.index, len) };
        done.map_err(|error| {
            let source = self.suite.device(other.index);
            let what = format!("{len} bytes from {source}, offset {from} to {offset}");
            self.suite
                .failed(Operation::CopyDeviceToDevice, self.index, what, error)
        })
    }

    /// Checks that the bytes from `offset` are the expected ones. `when` ends the
    /// sentence of the failure.
    pub(super) fn expect(
        &self,
        offset: usize,
        expected: &[u8],
        promise: Promise,
        when: &str,
    ) -> Result<(), Failure> {
        // A copy that leaves bytes out must not leave right ones.
        let mut found: Vec<u8> = expected.iter().map(|byte| !byte).collect();
        self.read(offset, &mut found)?;
        self.compare(offset, &found, expected, promise, when)
    }

    /// Checks that bytes which were found at `offset` are the expected ones.
    pub(super) fn compare(
        &self,
        offset: usize,
        found: &[u8],
        expected: &[u8],
        promise: Promise,
        when: &str,
    ) -> Result<(), Failure> {
        if found == expected {
            return Ok(());
        }
        let mut pairs = found.iter().zip(expected).enumerate();
        let what = match pairs.find(|(_, (found, expected))| found != expected) {
            Some((at, (found, expected))) => format!(
                "byte {} of {} is {found:#04x} instead of {expected:#04x} {when}",
                offset.saturating_add(at),
                self.size(),
            ),
            None => format!("{} bytes instead of {} {when}", found.len(), expected.len()),
        };
        Err(self.failure(promise, what))
    }

    /// The bytes as the host has them.
    ///
    /// # Safety
    ///
    /// The memory is host accessible.
    #[expect(unsafe_code, reason = "see SAFETY")]
    pub(super) unsafe fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the allocator promises that the host can use the block like
        // memory of its own, and that its bytes are initialized. It is live and
        // borrowed exclusively (invariants 0 and 1).
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_raw(), self.layout.size()) }
    }

    /// Gives the block back, which must succeed.
    pub(super) fn free(mut self) -> Result<(), Failure> {
        self.release().map_err(|error| {
            let what = format!("{} bytes at {}", self.size(), self.ptr);
            self.suite
                .failed(Operation::Deallocate, self.index, what, error)
        })
    }

    #[expect(unsafe_code, reason = "see SAFETY")]
    fn release(&mut self) -> crate::error::Result<()> {
        self.live = false;
        let allocator = self.suite.allocator;
        // SAFETY: the block came from this allocator with this layout and index
        // (invariant 0), and is given back once: callers check or set `live`
        // (invariant 1).
        unsafe { allocator.deallocate(self.ptr, self.layout, self.index) }
    }
}

impl Drop for Block<'_> {
    fn drop(&mut self) {
        if self.live {
            // A check failed already, and says what went wrong first.
            let _ = self.release();
        }
    }
}
