//! Slices of cudarc's that become buffers.
//!
//! Rank 7. Part of `backend::cuda::interop`.

use std::any::type_name;
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, DevicePtr as _};
use parking_lot::Mutex;

use super::shell;
use crate::address::DevicePtr;
use crate::allocator::{DeviceAllocator, MemoryInfo};
use crate::backend::cuda::allocator::{CudaAllocator, address, pointer};
use crate::backend::cuda::device::wait_for_context;
use crate::backend::cuda::driver;
use crate::backend::cuda::lane::Lane;
use crate::backend::cuda::status::Outcome;
use crate::buffer::DeviceMemoryBuffer;
use crate::device::{DeviceIndex, DeviceType};
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Error, Operation, Result};
use crate::layout::DeviceLayout;

/// The most that the alignment of an adopted slice is said to be.
const MAX_ALIGN: usize = 256;

/// A slice that could not be adopted, and why.
#[derive(thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct AdoptError<T> {
    /// The slice, which still owns its memory.
    pub slice: CudaSlice<T>,
    /// Why it could not be adopted.
    #[source]
    pub error: Error,
}

impl<T> fmt::Debug for AdoptError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdoptError")
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

impl<T> From<AdoptError<T>> for Error {
    /// Keeps the reason and drops the slice.
    fn from(failure: AdoptError<T>) -> Self {
        failure.error
    }
}

impl CudaAllocator {
    /// Makes a buffer of a slice of cudarc's, after all work of the device.
    ///
    /// The buffer is copied like one of this allocator, and frees the memory the
    /// way that the slice would have, but with errors to the hook for failed frees
    /// and not to a later call of cudarc's.
    ///
    /// # Errors
    ///
    /// An [`AdoptError`], with the slice and the reason:
    ///
    /// - [`DeviceMismatch`](ErrorKind::DeviceMismatch): this handle is of another
    ///   device.
    /// - [`ContextMismatch`](ErrorKind::ContextMismatch): the slice is not of the
    ///   primary context of its device.
    /// - [`Layout`](ErrorKind::Layout): it is longer than a buffer can be.
    /// - [`Capturing`](ErrorKind::Capturing): its stream is recording a graph.
    /// - [`ForkedProcess`](ErrorKind::ForkedProcess): the driver is a parent
    ///   process's.
    /// - [`Driver`](ErrorKind::Driver): the driver failed.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use device_memory::backend::cuda::CudaAllocator;
    /// use device_memory::backend::cuda::cudarc::driver::CudaContext;
    ///
    /// let allocator = CudaAllocator::open()?;
    /// let stream = CudaContext::new(0)?.new_stream()?;
    ///
    /// let buffer = allocator.adopt(stream.alloc_zeros::<f32>(4)?)?;
    ///
    /// assert_eq!(buffer.to_vec()?, [0; 16]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn adopt<T: 'static>(
        &self,
        slice: CudaSlice<T>,
    ) -> Result<DeviceMemoryBuffer, AdoptError<T>> {
        let (lane, start, layout) = match self.check_adoptable(&slice) {
            Ok(checked) => checked,
            Err(error) => return Err(AdoptError { slice, error }),
        };
        let index = lane.device().index();
        let adopted = Arc::new(Adopted {
            lane,
            start,
            layout,
            copies: self.clone(),
            state: Mutex::new(State::Kept(ManuallyDrop::new(slice))),
        });
        match DeviceMemoryBuffer::create_with(Arc::clone(&adopted), layout, index) {
            Ok(buffer) => Ok(buffer),
            Err(error) => match adopted.give_back() {
                Some(slice) => Err(AdoptError { slice, error }),
                // Not reached: the slice is there until it is freed.
                None => Ok(DeviceMemoryBuffer::default()),
            },
        }
    }

    /// Checks that the slice is of this allocator's context, and waits for all
    /// work that uses it.
    fn check_adoptable<T>(&self, slice: &CudaSlice<T>) -> Result<(Lane, DevicePtr, DeviceLayout)> {
        let operation = Operation::Allocate;
        let lane = Lane::new(slice.stream())?;
        // A handle on a stream serves the device of that stream only.
        self.memory_info(lane.device().index()).map(drop)?;
        self.check_context(&lane, operation)?;
        lane.call(operation, |_| Ok(()))?;
        let start = start_of(&lane, slice);
        let align = 1_usize
            .checked_shl(start.addr().trailing_zeros())
            .unwrap_or(1)
            .min(MAX_ALIGN);
        let layout = DeviceLayout::array::<T>(slice.len())?;
        let layout = DeviceLayout::new(layout.size(), align)?;
        lane.settle_context()
            .map_err(|failed| lane.error(failed.status, operation))?;
        Ok((lane, start, layout))
    }
}

/// Where a slice starts.
fn start_of<T>(lane: &Lane, slice: &CudaSlice<T>) -> DevicePtr {
    // The stream is made to wait for uses here, which may fail: the caller waits
    // for all of them.
    let (start, _) = shell::quietly(lane, || slice.device_ptr(lane.stream()).0);
    pointer(start).unwrap_or(DevicePtr::dangling(1))
}

/// The allocator of one block, which a slice of cudarc's owns.
///
/// What else is asked of it is done by an allocator of the same context.
struct Adopted<T> {
    lane: Lane,
    start: DevicePtr,
    layout: DeviceLayout,
    copies: CudaAllocator,
    state: Mutex<State<T>>,
}

/// What has become of the slice.
enum State<T> {
    /// It is here and owns its memory.
    Kept(ManuallyDrop<CudaSlice<T>>),
    /// It is here, and a buffer owns its memory.
    Handed(ManuallyDrop<CudaSlice<T>>),
    /// Its memory is freed, or it was given back.
    Gone,
}

impl<T> Adopted<T> {
    /// The slice, if it still owns its memory.
    fn give_back(&self) -> Option<CudaSlice<T>> {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, State::Gone) {
            State::Kept(slice) => Some(ManuallyDrop::into_inner(slice)),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Whether `ptr` is that of the slice, which a buffer owns.
    fn is_handed(&self, ptr: DevicePtr) -> bool {
        ptr == self.start && matches!(&*self.state.lock(), State::Handed(_))
    }

    /// Takes the slice to be a buffer's, if it still owns its memory.
    fn hand_over(&self) -> bool {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, State::Gone) {
            State::Kept(slice) => {
                *state = State::Handed(slice);
                true
            }
            other => {
                *state = other;
                false
            }
        }
    }

    /// Frees the way that the slice would, and says whether that worked. The
    /// context is current.
    #[expect(unsafe_code, reason = "calls the driver")]
    fn free(&self, start: u64) -> Outcome<()> {
        wait_for_context()?;
        if self.lane.stream().context().has_async_alloc() {
            // SAFETY: the slice owned the block, and cudarc allocates in stream
            // order where it can; the context has done all work.
            return unsafe { driver::free_async(start, self.lane.handle()) };
        }
        // SAFETY: as above, where cudarc can not.
        unsafe { driver::free(start) }
    }
}

impl<T> Drop for Adopted<T> {
    fn drop(&mut self) {
        if !self.lane.is_in_its_process() {
            return;
        }
        match std::mem::replace(self.state.get_mut(), State::Gone) {
            // An empty buffer, which frees nothing.
            State::Kept(slice) => {
                shell::quietly(&self.lane, || drop(ManuallyDrop::into_inner(slice)));
            }
            // Its free failed, and was told of.
            State::Handed(slice) => shell::discard(&self.lane, ManuallyDrop::into_inner(slice)),
            State::Gone => {}
        }
    }
}

// SAFETY: by number of the promises,
// 1. to 5. and 8. as for `CudaAllocator`, which does what is asked but for the one
//    block of the slice. That is the slice's until it is handed out, and is apart
//    from all others, as the driver allocated them all.
// 6. `CudaAllocator` does the copies.
// 7. The slice is taken apart only after its block is freed.
// 9. `drop` leaves the slice alone in a child, and a `Lane` its stream.
// 10. `copies` is of the same context as the slice.
#[expect(unsafe_code, reason = "implements an unsafe trait")]
unsafe impl<T: 'static> DeviceAllocator for Adopted<T> {
    fn device_type(&self) -> DeviceType {
        self.copies.device_type()
    }

    fn device_count(&self) -> usize {
        self.copies.device_count()
    }

    fn allocate(&self, layout: DeviceLayout, index: DeviceIndex) -> Result<DevicePtr> {
        let is_own = layout == self.layout && index == self.lane.device().index();
        if is_own && self.hand_over() {
            return Ok(self.start);
        }
        self.copies.allocate(layout, index)
    }

    unsafe fn deallocate(
        &self,
        ptr: DevicePtr,
        layout: DeviceLayout,
        index: DeviceIndex,
    ) -> Result<()> {
        if !self.is_handed(ptr) {
            // SAFETY: the block is not the slice's, so it came from `copies`.
            return unsafe { self.copies.deallocate(ptr, layout, index) };
        }
        self.lane
            .call(Operation::Deallocate, |_| self.free(address(ptr)))?;
        let mut state = self.state.lock();
        if let State::Handed(slice) = std::mem::replace(&mut *state, State::Gone) {
            drop(state);
            shell::discard(&self.lane, ManuallyDrop::into_inner(slice));
        }
        Ok(())
    }

    unsafe fn copy_host_to_device(
        &self,
        dst: DevicePtr,
        src: *const u8,
        size: usize,
        index: DeviceIndex,
    ) -> Result<()> {
        // SAFETY: the caller's promises are the same, for any block of the context.
        unsafe { self.copies.copy_host_to_device(dst, src, size, index) }
    }

    unsafe fn copy_device_to_host(
        &self,
        dst: *mut u8,
        src: DevicePtr,
        size: usize,
        index: DeviceIndex,
    ) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.copies.copy_device_to_host(dst, src, size, index) }
    }

    unsafe fn copy_device_to_device(
        &self,
        dst: DevicePtr,
        dst_index: DeviceIndex,
        src: DevicePtr,
        src_index: DeviceIndex,
        size: usize,
    ) -> Result<()> {
        let copies = &self.copies;
        // SAFETY: as above.
        unsafe { copies.copy_device_to_device(dst, dst_index, src, src_index, size) }
    }

    unsafe fn fill(&self, dst: DevicePtr, byte: u8, size: usize, index: DeviceIndex) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.copies.fill(dst, byte, size, index) }
    }

    fn memory_info(&self, index: DeviceIndex) -> Result<Option<MemoryInfo>> {
        self.copies.memory_info(index)
    }

    fn synchronize(&self, index: DeviceIndex) -> Result<()> {
        self.copies.synchronize(index)
    }

    fn trim(&self, index: DeviceIndex) -> Result<usize> {
        self.copies.trim(index)
    }

    fn upstream(&self) -> Option<&dyn DeviceAllocator> {
        Some(&self.copies)
    }
}

impl<T> fmt::Debug for Adopted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adopted")
            .field("type", &type_name::<T>())
            .field("lane", &self.lane)
            .finish_non_exhaustive()
    }
}
