//! How bytes get from a reader to a device.
//!
//! Rank 9. Part of `weights`.

use std::io::Read;
use std::num::NonZeroUsize;

use crate::allocator::host_bytes;
#[cfg(feature = "cuda")]
use crate::backend::cuda::StagedUploader;
use crate::error::{ErrorKind, Result};
use crate::reading::fill;
use crate::span::DeviceSpanMut;

/// A way to fill device memory from a reader.
///
/// `StagedUploader` of the CUDA back end copies one piece while the next is read;
/// [`PlainUploader`] works on every device. A program that loads to several devices
/// at once writes one that looks at the device of the view.
pub trait Upload {
    /// Fills `dst` from `source`, and returns when all of it is on the device.
    ///
    /// `progress` is told how many of how many bytes are there, at last all of them.
    /// If this fails, the bytes of `dst` are unspecified and no work goes on there.
    ///
    /// # Errors
    ///
    /// - [`LengthMismatch`](ErrorKind::LengthMismatch): the source ends early.
    /// - [`Backend`](ErrorKind::Backend): the reader failed; its error is the source.
    /// - what the copy returns.
    fn upload(
        &mut self,
        dst: DeviceSpanMut<'_>,
        source: &mut dyn Read,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<()>;
}

/// Fills memory of any device, one piece after the other.
///
/// Memory that the host can write is read into directly; for other memory there is
/// one piece of host memory, kept for the next upload.
#[derive(Debug)]
pub struct PlainUploader {
    piece: NonZeroUsize,
    staging: Vec<u8>,
}

impl PlainUploader {
    /// Reads and copies `piece` bytes at a time.
    #[must_use]
    pub fn new(piece: NonZeroUsize) -> Self {
        Self {
            piece,
            staging: Vec::new(),
        }
    }
}

impl Default for PlainUploader {
    /// One mebibyte at a time.
    fn default() -> Self {
        const MEBIBYTE: NonZeroUsize = NonZeroUsize::MIN.saturating_add((1 << 20) - 1);
        Self::new(MEBIBYTE)
    }
}

impl Upload for PlainUploader {
    fn upload(
        &mut self,
        mut dst: DeviceSpanMut<'_>,
        mut source: &mut dyn Read,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<()> {
        let (device, total) = (dst.device(), dst.len());
        let mut tell = |done: usize| {
            let wide = |len: usize| u64::try_from(len).unwrap_or(u64::MAX);
            progress(wide(done), wide(total));
        };
        let mut done = 0_usize;
        match dst.as_slice_mut() {
            Ok(bytes) => {
                for piece in bytes.chunks_mut(self.piece.get()) {
                    fill(piece, &mut source, device, total, done)?;
                    done = done.saturating_add(piece.len());
                    tell(done);
                }
                return Ok(());
            }
            Err(error) if matches!(error.kind(), ErrorKind::NotHostAccessible { .. }) => {}
            Err(error) => return Err(error),
        }
        let len = self.piece.get().min(total);
        if self.staging.len() < len {
            self.staging = host_bytes(len, 0)?;
        }
        while done < total {
            let len = len.min(total.saturating_sub(done));
            let Some(piece) = self.staging.get_mut(..len) else {
                break;
            };
            fill(piece, &mut source, device, total, done)?;
            dst.subspan_mut(done, len)?.copy_from_host(piece)?;
            done = done.saturating_add(len);
            tell(done);
        }
        Ok(())
    }
}

#[cfg(feature = "cuda")]
impl Upload for StagedUploader {
    fn upload(
        &mut self,
        dst: DeviceSpanMut<'_>,
        source: &mut dyn Read,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<()> {
        Self::upload(self, dst, source, progress)
    }
}
