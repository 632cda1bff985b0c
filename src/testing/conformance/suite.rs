//! What the checks of one run share.
//!
//! Rank 8. Part of `testing::conformance`. Imports `allocator` and the words.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::Options;
use super::block::Block;
use super::report::{Failure, Promise, Report};
use crate::allocator::{DeviceAllocator, MemoryInfo};
use crate::device::{Device, DeviceIndex, DeviceType};
use crate::error::{Error, ErrorKind, Operation};
use crate::layout::DeviceLayout;

/// One run: the allocator, the options, and what it answered at the start.
pub(super) struct Suite<'a> {
    pub(super) allocator: &'a dyn DeviceAllocator,
    pub(super) options: &'a Options,
    pub(super) device_type: DeviceType,
    pub(super) host_accessible: bool,
    count: usize,
    blocks: AtomicU64,
    refused: AtomicU64,
    tells_memory: AtomicBool,
}

impl<'a> Suite<'a> {
    pub(super) fn new(allocator: &'a dyn DeviceAllocator, options: &'a Options) -> Self {
        Self {
            allocator,
            options,
            device_type: allocator.device_type(),
            host_accessible: allocator.is_host_accessible(),
            count: allocator.device_count(),
            blocks: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            tells_memory: AtomicBool::new(false),
        }
    }

    pub(super) fn device(&self, index: DeviceIndex) -> Device {
        Device::new(self.device_type, index)
    }

    /// A failure that shows as `what`.
    pub(super) fn failure(
        &self,
        promise: Promise,
        index: DeviceIndex,
        what: impl Into<String>,
    ) -> Failure {
        Failure {
            promise,
            device: self.device(index),
            what: what.into(),
            error: None,
        }
    }

    /// A call that returned an error and should not have.
    pub(super) fn failed(
        &self,
        operation: Operation,
        index: DeviceIndex,
        what: impl Into<String>,
        error: Error,
    ) -> Failure {
        Failure {
            error: Some(error),
            ..self.failure(Promise::Method(operation), index, what)
        }
    }

    /// A layout that the suite wants, which is always valid.
    pub(super) fn layout(
        &self,
        size: usize,
        align: usize,
        index: DeviceIndex,
    ) -> Result<DeviceLayout, Failure> {
        DeviceLayout::new(size, align).map_err(|error| {
            let what = format!("the options ask for {size} bytes aligned to {align}");
            self.failed(Operation::Allocate, index, what, error.into())
        })
    }

    /// Allocates a block, which must succeed and be as asked.
    pub(super) fn block(
        &self,
        size: usize,
        align: usize,
        index: DeviceIndex,
    ) -> Result<Block<'_>, Failure> {
        let layout = self.layout(size, align, index)?;
        let block = Block::allocate(self, layout, index)?;
        self.blocks.fetch_add(1, Ordering::Relaxed);
        Ok(block)
    }

    /// The same, or `None` if the alignment is refused and may be.
    pub(super) fn block_if_aligned(
        &self,
        size: usize,
        align: usize,
        index: DeviceIndex,
    ) -> Result<Option<Block<'_>>, Failure> {
        let refusable = self
            .options
            .refusable_align
            .is_some_and(|limit| align > limit);
        match self.block(size, align, index) {
            Err(failure)
                if refusable && matches!(failure.kind(), Some(ErrorKind::NotSupported { .. })) =>
            {
                self.refused.fetch_add(1, Ordering::Relaxed);
                Ok(None)
            }
            other => other.map(Some),
        }
    }

    /// Checks that the answers which never change have not.
    pub(super) fn check_type(&self) -> Result<(), Failure> {
        let found = self.allocator.device_type();
        if found != self.device_type {
            let what = format!("device type {} became {found}", self.device_type);
            return Err(self.failure(Promise::Type, 0, what));
        }
        let found = self.allocator.device_count();
        if found < self.count {
            let what = format!("{} devices became {found}", self.count);
            return Err(self.failure(Promise::Type, 0, what));
        }
        let found = self.allocator.is_host_accessible();
        if found != self.host_accessible {
            let what = format!("host access {} became {found}", self.host_accessible);
            return Err(self.failure(Promise::HostAccess, 0, what));
        }
        Ok(())
    }

    /// Free and total memory, or `None` where the device does not tell.
    pub(super) fn memory_info(&self, index: DeviceIndex) -> Result<Option<MemoryInfo>, Failure> {
        match self.allocator.memory_info(index) {
            Ok(Some(info)) if info.free > info.total => {
                let what = format!("{} bytes free of {}", info.free, info.total);
                Err(self.failure(Promise::Method(Operation::MemoryInfo), index, what))
            }
            Ok(info) => {
                self.tells_memory
                    .fetch_or(info.is_some(), Ordering::Relaxed);
                Ok(info)
            }
            Err(error) => Err(self.failed(Operation::MemoryInfo, index, "valid index", error)),
        }
    }

    /// Checks that waiting and trimming succeed and leave blocks alone.
    pub(super) fn check_maintenance(&self, index: DeviceIndex) -> Result<(), Failure> {
        let block = self.block(4097, 1, index)?;
        let bytes = pattern(4097, 5);
        block.write(0, &bytes)?;
        self.synchronize(index)?;
        self.trim(index)?;
        block.expect(0, &bytes, Promise::Validity, "after synchronize and trim")?;
        block.free()
    }

    /// Checks that all memory is free again.
    pub(super) fn check_returned(
        &self,
        index: DeviceIndex,
        before: Option<MemoryInfo>,
    ) -> Result<(), Failure> {
        self.synchronize(index)?;
        self.trim(index)?;
        let after = self.memory_info(index)?;
        if self.options.shared || before == after {
            return Ok(());
        }
        let what = format!("{before:?} became {after:?} though all blocks were given back");
        Err(self.failure(Promise::Method(Operation::Deallocate), index, what))
    }

    pub(super) fn synchronize(&self, index: DeviceIndex) -> Result<(), Failure> {
        self.allocator
            .synchronize(index)
            .map_err(|error| self.failed(Operation::Synchronize, index, "valid index", error))
    }

    fn trim(&self, index: DeviceIndex) -> Result<(), Failure> {
        match self.allocator.trim(index) {
            Ok(_) => Ok(()),
            Err(error) => Err(self.failed(Operation::Trim, index, "valid index", error)),
        }
    }

    pub(super) fn report(&self, indices: &[DeviceIndex]) -> Report {
        Report {
            devices: indices.iter().map(|&index| self.device(index)).collect(),
            blocks: self.blocks.load(Ordering::Relaxed),
            host_accessible: self.host_accessible,
            memory_info: self.tells_memory.load(Ordering::Relaxed),
            refused_alignments: self.refused.load(Ordering::Relaxed),
        }
    }
}

/// `len` bytes that differ from place to place and from seed to seed.
pub(super) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let words = std::iter::repeat_with(|| random.next().to_le_bytes());
    words.flatten().take(len).collect()
}

/// A small generator of numbers that look random.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number from 0 to `limit`, the limit excluded, or 0.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        let bits = usize::try_from(self.next() & 0x7FFF_FFFF).unwrap_or(0);
        bits.checked_rem(limit).unwrap_or(0)
    }
}
