//! A slice of cudarc's over memory that cudarc did not allocate.
//!
//! Rank 7. Part of `backend::cuda::interop`.

use std::any::type_name;

use cudarc::driver::CudaSlice;

use crate::address::DevicePtr;
use crate::backend::cuda::allocator::address;
use crate::backend::cuda::event::Event;
use crate::backend::cuda::lane::Lane;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::unwind::caught;

/// How many values of `T` the `size` bytes from `ptr` on are.
pub(super) fn count<T>(lane: &Lane, ptr: DevicePtr, size: usize) -> Result<usize> {
    let element = size_of::<T>();
    let rest = size.checked_rem(element);
    if rest != Some(0) {
        return Err(ErrorKind::LengthMismatch {
            device: lane.device(),
            expected: size.saturating_sub(rest.unwrap_or(size)),
            found: size,
        }
        .into());
    }
    let align = align_of::<T>();
    if size != 0 && !ptr.is_aligned_to(align) {
        let misaligned = Misaligned {
            ptr,
            align,
            name: type_name::<T>(),
        };
        return Err(Error::backend(lane.device(), Operation::Open, misaligned));
    }
    Ok(size.checked_div(element).unwrap_or(0))
}

/// An address at which a type can not lie.
#[derive(Debug, thiserror::Error)]
#[error("{ptr} is not aligned to {align} bytes, as {name} has to be")]
struct Misaligned {
    ptr: DevicePtr,
    align: usize,
    name: &'static str,
}

/// Gives back what a slice has but its memory. Its stream waits for the uses that
/// cudarc keeps track of; if that fails, this waits for all work of the device.
pub(super) fn discard<T>(lane: &Lane, slice: CudaSlice<T>) {
    let (_, failed) = quietly(lane, || slice.leak());
    if failed {
        // If no way of waiting works, the context is lost and does no more work.
        let _ = lane.settle_context();
    }
}

/// Calls functions of cudarc's that keep their failures for somebody else's call,
/// and says whether there was one. What was kept before is kept again.
///
/// The context is current meanwhile, so that cudarc does not set it.
pub(super) fn quietly<R>(lane: &Lane, call: impl FnOnce() -> R) -> (R, bool) {
    let context = lane.stream().context();
    let entered = lane.enter();
    let earlier = context.check_err();
    let result = call();
    let failed = context.check_err().is_err();
    context.record_err(earlier);
    drop(entered);
    (result, failed)
}

/// A slice of `len` values from `ptr` on, for which nothing is allocated but the
/// events that cudarc wants.
///
/// cudarc panics where it can not make them, also where a failure of earlier is
/// still to be told to someone. So that is set aside first, and events are made
/// and destroyed to see whether they can be. Should it panic even so, that is
/// caught.
///
/// # Safety
///
/// As for `CudaStream::upgrade_device_ptr`; nothing is freed if this fails.
#[expect(unsafe_code, reason = "see SAFETY")]
pub(super) unsafe fn over<T>(
    lane: &Lane,
    ptr: DevicePtr,
    len: usize,
    operation: Operation,
) -> Result<CudaSlice<T>> {
    let context = lane.stream().context();
    if context.is_event_tracking() {
        lane.call(operation, |lane| {
            let first = Event::new(lane)?;
            Event::new(lane).map(|second| drop((first, second)))
        })?;
    }
    let (made, _) = quietly(lane, || {
        caught(|| {
            // SAFETY: the caller's promises are those of the function.
            unsafe { lane.stream().upgrade_device_ptr(address(ptr), len) }
        })
    });
    let device = lane.device();
    made.ok_or_else(|| Error::backend(device, operation, "cudarc could not make an event"))
}
