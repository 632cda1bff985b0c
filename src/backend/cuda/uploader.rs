//! Bytes from a reader to a device, by way of page-locked memory.
//!
//! Rank 7. Part of `backend::cuda`. Imports `buffer`, `span`, `allocator`
//! and the words.
//!
//! While the device copies one piece, the next is read into the other buffer.
//! Nothing here is ever freed or written while the device may read it.

use std::ffi::c_void;
use std::fmt;
use std::io::Read;
use std::num::NonZeroUsize;
use std::sync::Arc;

use cudarc::driver::CudaStream;

use super::allocator::address;
use super::driver;
use super::event::Event;
use super::lane::{Lane, Unsettled};
use super::transfer::leak;
use crate::allocator::AllocatorHandle;
use crate::buffer::DeviceMemoryBuffer;
use crate::error::{Operation, Result};
use crate::layout::DeviceLayout;
use crate::reading::fill;
use crate::span::DeviceSpanMut;

const OPERATION: Operation = Operation::CopyHostToDevice;

/// Copies from readers to a device through two page-locked buffers of its own.
///
/// It reads a piece while the device copies the one before, and keeps the
/// buffers and events for the next upload.
///
/// # Examples
///
/// The weights of a layer, read from a file into their place in a buffer:
///
/// ```no_run
/// use std::fs::File;
/// use std::num::NonZeroUsize;
/// use std::sync::Arc;
/// use device_memory::backend::cuda::cudarc::driver::CudaContext;
/// use device_memory::backend::cuda::{CudaHostAllocator, StagedUploader};
/// use device_memory::{DeviceMemoryBuffer, DeviceType};
///
/// let stream = CudaContext::new(0)?.new_stream()?;
/// let pinned = Arc::new(CudaHostAllocator::open()?);
/// let piece = NonZeroUsize::new(64 << 20).ok_or("no piece")?;
/// let mut uploader = StagedUploader::new(&stream, pinned, piece)?;
///
/// let mut weights = DeviceMemoryBuffer::create(1 << 30, DeviceType::Cuda, 0)?;
/// let layer = weights.as_span_mut().into_subspan(1 << 20, 4 << 20)?;
/// uploader.upload(layer, File::open("layer.bin")?, |done, total| {
///     assert!(done <= total);
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct StagedUploader {
    lane: Lane,
    staging: AllocatorHandle,
    layout: DeviceLayout,
    /// `None` after both were lost to a driver that could not be waited for.
    slots: Option<[Slot; 2]>,
}

/// A buffer and the mark of the copy that reads it.
#[derive(Debug)]
struct Slot {
    buffer: DeviceMemoryBuffer,
    event: Event,
    /// How many bytes of the upload are on the device when the event is done, if
    /// there is a copy to wait for.
    until: Option<usize>,
    /// Whether the event marks the end of that copy.
    marked: bool,
}

impl StagedUploader {
    /// Allocates two buffers of `piece` bytes from `staging`, a
    /// [`CudaHostAllocator`](crate::backend::cuda::CudaHostAllocator), and an event for each.
    ///
    /// # Errors
    ///
    /// - [`NotHostAccessible`](crate::ErrorKind::NotHostAccessible): the host can not
    ///   write the memory of `staging`.
    /// - those of [`DeviceMemoryBuffer::create_with`].
    /// - as [`CudaAllocator::open`](crate::backend::cuda::CudaAllocator::open).
    /// - [`Capturing`](crate::ErrorKind::Capturing): the stream is recording a graph.
    pub fn new(
        stream: &Arc<CudaStream>,
        staging: impl Into<AllocatorHandle>,
        piece: NonZeroUsize,
    ) -> Result<Self> {
        let mut uploader = Self {
            lane: Lane::new(stream)?,
            staging: staging.into(),
            layout: DeviceLayout::from_size(piece.get())?,
            slots: None,
        };
        uploader.slots = Some([uploader.slot()?, uploader.slot()?]);
        Ok(uploader)
    }

    fn slot(&self) -> Result<Slot> {
        let index = self.lane.device().index();
        let mut buffer = DeviceMemoryBuffer::create_with(self.staging.clone(), self.layout, index)?;
        buffer.as_slice_mut()?;
        Ok(Slot {
            buffer,
            event: self.lane.call(OPERATION, Event::new)?,
            until: None,
            marked: false,
        })
    }

    /// The bytes that are read and copied at a time.
    #[must_use]
    pub fn piece(&self) -> usize {
        self.layout.size()
    }

    /// Fills `dst` from `source`, and returns when all of it is on the device.
    ///
    /// As many bytes are read as `dst` is long, and no more. `progress` is told
    /// how many of how many bytes are known to be on the device, never fewer than
    /// before, and at last all of them.
    ///
    /// If anything fails or panics, the stream is waited for before this returns,
    /// and the bytes of `dst` are unspecified. The uploader can be used again.
    /// Should the driver refuse every way of waiting, the two buffers are leaked
    /// rather than used again, and the next upload allocates new ones.
    ///
    /// # Errors
    ///
    /// - [`LengthMismatch`](crate::ErrorKind::LengthMismatch): the source ends before
    ///   `dst` is full. The numbers are those of `dst` and of the bytes read.
    /// - [`Backend`](crate::ErrorKind::Backend): the reader failed; its error is the source.
    /// - [`DeviceMismatch`](crate::ErrorKind::DeviceMismatch): `dst` is not on the device
    ///   of the stream.
    /// - [`ContextMismatch`](crate::ErrorKind::ContextMismatch): the stream is not of the
    ///   primary context of its device.
    /// - [`NotSupported`](crate::ErrorKind::NotSupported): the allocator of `dst` is none
    ///   of CUDA's and does not wrap one.
    /// - [`Capturing`](crate::ErrorKind::Capturing): the stream is recording a graph.
    /// - [`ForkedProcess`](crate::ErrorKind::ForkedProcess): the memory or the driver is a
    ///   parent process's.
    /// - [`Driver`](crate::ErrorKind::Driver): the driver failed.
    pub fn upload(
        &mut self,
        dst: DeviceSpanMut<'_>,
        source: impl Read,
        progress: impl FnMut(u64, u64),
    ) -> Result<()> {
        self.lane.check_process()?;
        dst.as_span().check_process()?;
        self.lane.check_device(dst.device())?;
        if !dst.is_empty() {
            self.lane.follow(dst.as_span(), OPERATION)?;
        }
        let slots = match self.slots.take() {
            Some(slots) => slots,
            None => [self.slot()?, self.slot()?],
        };
        let mut upload = Upload {
            lane: self.lane.clone(),
            home: &mut self.slots,
            slots: Some(slots),
            dst,
            progress,
        };
        upload.copy_all(source)?;
        upload.settle()
    }
}

/// An upload that goes on. Dropping it waits; it is dropped in
/// [`StagedUploader::upload`] and nowhere else, so nobody can forget it.
struct Upload<'a, 'dst, P: FnMut(u64, u64)> {
    lane: Lane,
    /// Where the slots go when the stream no longer uses them.
    home: &'a mut Option<[Slot; 2]>,
    slots: Option<[Slot; 2]>,
    dst: DeviceSpanMut<'dst>,
    progress: P,
}

impl<P: FnMut(u64, u64)> Upload<'_, '_, P> {
    /// Reads and copies piece by piece, without waiting for the last two.
    fn copy_all(&mut self, mut source: impl Read) -> Result<()> {
        let total = self.dst.len();
        let mut done = 0;
        let mut turn = 0_usize;
        while done < total {
            let Some(slot) = self.slots.as_mut().and_then(|slots| slots.get_mut(turn)) else {
                break;
            };
            if let Some(until) = slot.until {
                wait(&self.lane, slot)?;
                tell(&mut self.progress, until, total);
            }
            let rest = total.saturating_sub(done);
            let room = slot.buffer.as_slice_mut()?;
            let len = room.len().min(rest);
            let Some(piece) = room.get_mut(..len) else {
                break;
            };
            fill(piece, &mut source, self.dst.device(), total, done)?;
            copy(&self.lane, slot, &mut self.dst, done, len)?;
            done = done.saturating_add(len);
            turn = usize::from(turn == 0);
        }
        Ok(())
    }

    /// Waits for the end, and says whether that worked.
    fn settle(mut self) -> Result<()> {
        let settled = self.wait_for_all();
        self.lane.check_process()?;
        settled.map_err(|failed| self.lane.error(failed.status, OPERATION))?;
        tell(&mut self.progress, self.dst.len(), self.dst.len());
        Ok(())
    }

    /// Waits for the stream, and gives the slots back if it does not use them.
    fn wait_for_all(&mut self) -> Result<(), Unsettled> {
        let Some(mut slots) = self.slots.take() else {
            return Ok(());
        };
        let busy = slots.iter().filter(|slot| slot.until.is_some());
        let last = busy.max_by_key(|slot| slot.until);
        let settled = match last {
            None => Ok(()),
            Some(slot) => self.lane.settle(slot.marked.then_some(&slot.event)),
        };
        match &settled {
            Err(failed) if !failed.done => {
                for slot in slots {
                    leak(slot.buffer, OPERATION);
                }
            }
            _ => {
                for slot in &mut slots {
                    slot.until = None;
                }
                *self.home = Some(slots);
            }
        }
        settled
    }
}

impl<P: FnMut(u64, u64)> Drop for Upload<'_, '_, P> {
    fn drop(&mut self) {
        // The first failure, or the panic, is what the caller is told of.
        let _ = self.wait_for_all();
    }
}

/// Waits until the device has read the buffer of a slot.
fn wait(lane: &Lane, slot: &mut Slot) -> Result<()> {
    lane.call(OPERATION, |_| slot.event.wait())?;
    slot.until = None;
    Ok(())
}

/// Gives the stream the copy of the first `len` bytes of a slot to `offset`.
#[expect(unsafe_code, reason = "calls the driver")]
fn copy(
    lane: &Lane,
    slot: &mut Slot,
    dst: &mut DeviceSpanMut<'_>,
    offset: usize,
    len: usize,
) -> Result<()> {
    let to = address(dst.subspan_mut(offset, len)?.ptr());
    let from = slot.buffer.ptr().as_raw().cast_const().cast::<c_void>();
    lane.call(OPERATION, |lane| {
        // A failed call may have begun its work.
        slot.until = Some(offset.saturating_add(len));
        slot.marked = false;
        // SAFETY: both ranges are valid; `dst` is exclusive until the upload ends,
        // and the slot's buffer is neither written nor freed before its event is
        // done, or all of the stream is.
        unsafe { driver::copy_to_device_async(to, from, len, lane.handle()) }?;
        slot.event.record()?;
        slot.marked = true;
        Ok(())
    })
}

fn tell(progress: &mut impl FnMut(u64, u64), done: usize, total: usize) {
    let wide = |len: usize| u64::try_from(len).unwrap_or(u64::MAX);
    progress(wide(done), wide(total));
}

impl fmt::Debug for StagedUploader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StagedUploader")
            .field("lane", &self.lane)
            .field("piece", &self.piece())
            .finish_non_exhaustive()
    }
}
