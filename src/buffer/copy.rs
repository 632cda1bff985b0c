//! Copies to, from and between whole buffers and parts of them.
//!
//! Rank 6. Part of `buffer`. Each is the copy of a view.

use crate::buffer::DeviceMemoryBuffer;
use crate::error::Result;
use crate::span::DeviceSpan;

impl DeviceMemoryBuffer {
    /// Copies from the host to all bytes. Returns when `src` may be reused.
    ///
    /// # Errors
    ///
    /// - [`LengthMismatch`](crate::ErrorKind::LengthMismatch): `src` is not as long as the buffer.
    /// - [`ForkedProcess`](crate::ErrorKind::ForkedProcess): the memory is a parent process's.
    /// - what the allocator returns; the bytes are unspecified then.
    #[inline]
    pub fn copy_from_host(&mut self, src: &[u8]) -> Result<()> {
        self.as_span_mut().copy_from_host(src)
    }

    /// Copies from the host to the bytes from `offset` on. Returns when `src` may
    /// be reused.
    ///
    /// # Errors
    ///
    /// - [`OutOfBounds`](crate::ErrorKind::OutOfBounds): the range passes the end.
    /// - [`ForkedProcess`](crate::ErrorKind::ForkedProcess): the memory is a parent process's.
    /// - what the allocator returns; the bytes are unspecified then.
    #[inline]
    pub fn copy_from_host_at(&mut self, offset: usize, src: &[u8]) -> Result<()> {
        self.as_span_mut()
            .into_subspan(offset, src.len())?
            .copy_from_host(src)
    }

    /// Copies all bytes to the host. Returns when `dst` may be read.
    ///
    /// # Errors
    ///
    /// - [`LengthMismatch`](crate::ErrorKind::LengthMismatch): `dst` is not as long as the buffer.
    /// - [`ForkedProcess`](crate::ErrorKind::ForkedProcess): the memory is a parent process's.
    /// - what the allocator returns; `dst` is unspecified then.
    #[inline]
    pub fn copy_to_host(&self, dst: &mut [u8]) -> Result<()> {
        self.as_span().copy_to_host(dst)
    }

    /// Copies the bytes from `offset` on to the host. Returns when `dst` may be
    /// read.
    ///
    /// # Errors
    ///
    /// - [`OutOfBounds`](crate::ErrorKind::OutOfBounds): the range passes the end.
    /// - [`ForkedProcess`](crate::ErrorKind::ForkedProcess): the memory is a parent process's.
    /// - what the allocator returns; `dst` is unspecified then.
    #[inline]
    pub fn copy_to_host_at(&self, offset: usize, dst: &mut [u8]) -> Result<()> {
        self.as_span().subspan(offset, dst.len())?.copy_to_host(dst)
    }

    /// All bytes, copied to the host.
    ///
    /// # Errors
    ///
    /// As [`copy_to_host`](Self::copy_to_host), and
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory) of the host.
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        self.as_span().to_vec()
    }

    /// Copies all bytes from a view of the same length, on any device.
    ///
    /// # Errors
    ///
    /// - [`LengthMismatch`](crate::ErrorKind::LengthMismatch): `src` is not as long as the buffer.
    /// - [`ForkedProcess`](crate::ErrorKind::ForkedProcess): the memory is a parent process's.
    /// - what an allocator returns; the bytes are unspecified then.
    #[inline]
    pub fn copy_from(&mut self, src: DeviceSpan<'_>) -> Result<()> {
        self.as_span_mut().copy_from(src)
    }

    /// Sets all bytes to `byte`.
    ///
    /// # Errors
    ///
    /// - [`ForkedProcess`](crate::ErrorKind::ForkedProcess): the memory is a parent process's.
    /// - what the allocator returns; the bytes are unspecified then.
    #[inline]
    pub fn fill(&mut self, byte: u8) -> Result<()> {
        self.as_span_mut().fill(byte)
    }
}
