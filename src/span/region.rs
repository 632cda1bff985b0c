//! What a view is, shared or exclusive.
//!
//! Rank 3. Part of `span`.

use std::fmt;

use crate::address::DevicePtr;
use crate::allocator::{DeviceAllocator, End, guarded};
use crate::device::{Device, DeviceIndex};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::process::ProcessGeneration;

/// What both kinds of view consist of.
///
/// # Invariants
///
/// 0. `ptr` to `ptr + len` lies in one block of `allocator` on `device.index()`
///    that stays allocated during `'a`, or `len` is 0.
/// 1. `device.device_type()` is the allocator's.
#[derive(Clone, Copy)]
pub(super) struct Region<'a> {
    pub(super) ptr: DevicePtr,
    pub(super) len: usize,
    pub(super) allocator: &'a dyn DeviceAllocator,
    pub(super) device: Device,
    pub(super) generation: ProcessGeneration,
}

impl<'a> Region<'a> {
    /// Checks that `offset` to `offset + size` lies within.
    #[inline]
    pub(super) fn subregion(self, offset: usize, size: usize) -> Result<Self> {
        match offset.checked_add(size) {
            Some(end) if end <= self.len => Ok(Self {
                ptr: self.ptr.saturating_add(offset),
                len: size,
                ..self
            }),
            _ => Err(self.out_of_bounds(offset, size)),
        }
    }

    /// What is before and from `offset` on.
    pub(super) fn split_at(self, offset: usize) -> Result<(Self, Self)> {
        let front = self.subregion(0, offset)?;
        let back = self.subregion(offset, self.len.saturating_sub(offset))?;
        Ok((front, back))
    }

    /// One side of a copy.
    pub(super) fn end(self) -> End<'a, dyn DeviceAllocator + 'a> {
        End {
            allocator: self.allocator,
            ptr: self.ptr,
            index: self.device.index(),
        }
    }

    #[cold]
    fn out_of_bounds(self, offset: usize, size: usize) -> Error {
        ErrorKind::OutOfBounds {
            device: self.device,
            offset,
            size,
            len: self.len,
        }
        .into()
    }

    pub(super) fn check_len(self, len: usize) -> Result<()> {
        if self.len == len {
            Ok(())
        } else {
            Err(ErrorKind::LengthMismatch {
                device: self.device,
                expected: self.len,
                found: len,
            }
            .into())
        }
    }

    pub(super) fn check_process(self) -> Result<()> {
        if self.generation.is_current() {
            Ok(())
        } else {
            Err(ErrorKind::ForkedProcess {
                device: self.device,
            }
            .into())
        }
    }

    pub(super) fn check_host_accessible(self) -> Result<()> {
        if self.len == 0 {
            return Ok(());
        }
        self.check_process()?;
        let accessible = guarded(self.device, Operation::HostAccess, || {
            Ok(self.allocator.is_host_accessible())
        })?;
        if accessible {
            Ok(())
        } else {
            Err(ErrorKind::NotHostAccessible {
                device: self.device,
            }
            .into())
        }
    }

    /// Makes one call of the allocator, in the process that the memory is of.
    pub(super) fn call(
        self,
        operation: Operation,
        call: impl FnOnce(&dyn DeviceAllocator, DeviceIndex) -> Result<()>,
    ) -> Result<()> {
        self.check_process()?;
        guarded(self.device, operation, || {
            call(self.allocator, self.device.index())
        })
    }

    /// Whether both are memory of one allocator, as far as can be told.
    ///
    /// Allocators without fields may share an address, so the type counts too; a
    /// type may have several vtables, and then the answer is no, which costs a
    /// detour and nothing else.
    pub(super) fn same_allocator(self, other: Region<'_>) -> bool {
        std::ptr::eq(self.allocator, other.allocator)
    }

    pub(super) fn fmt(self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("device", &format_args!("{}", self.device))
            .field("ptr", &format_args!("{}", self.ptr))
            .field("len", &self.len)
            .finish()
    }
}
