//! Copies of borrowed memory, which end with a scope.
//!
//! Rank 7. Part of `backend::cuda::transfer`.

use std::cell::{Cell, OnceCell};
use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUcontext;

use crate::backend::cuda::allocator::address;
use crate::backend::cuda::driver;
use crate::backend::cuda::event::Event;
use crate::backend::cuda::lane::{Lane, Unsettled};
use crate::backend::cuda::status::Outcome;
use crate::device::Device;
use crate::error::{ErrorKind, Operation, Result};
use crate::span::{DeviceSpan, DeviceSpanMut};

/// Runs `body`, which may start copies on `stream` of memory that is borrowed for
/// longer than the scope, and waits for the stream before it returns.
///
/// The copies are in the order of the stream. The stream is waited for whether
/// `body` succeeds, fails or panics, so afterwards all memory is the caller's
/// again. A copy is only faster than one that is waited for at once if the side
/// of the host is page-locked: of a [`CudaHostAllocator`](crate::backend::cuda::CudaHostAllocator).
///
/// # Errors
///
/// - the driver's failure to wait for the stream: then what was copied is
///   unspecified, whatever `body` returned. Other ways to wait are tried before
///   this returns; if all fail, the driver has lost the context, which does no
///   more work.
/// - what `body` returns.
/// - as [`CudaAllocator::open`](crate::backend::cuda::CudaAllocator::open), before `body` is run.
/// - [`ForkedProcess`](ErrorKind::ForkedProcess): the driver is a parent process's.
///
/// # Examples
///
/// ```no_run
/// use device_memory::backend::cuda::cudarc::driver::CudaContext;
/// use device_memory::backend::cuda::transfer_scope;
/// use device_memory::{DeviceMemoryBuffer, DeviceType};
///
/// let stream = CudaContext::new(0)?.new_stream()?;
/// let weights = DeviceMemoryBuffer::create(1 << 20, DeviceType::CudaHost, 0)?;
/// let mut device = DeviceMemoryBuffer::create(1 << 20, DeviceType::Cuda, 0)?;
/// let mut back = vec![0; 16];
///
/// transfer_scope(&stream, |scope| {
///     scope.copy_to_device(device.as_span_mut(), weights.as_slice()?)?;
///     // Something else is done while the copy goes on.
///     Ok(())
/// })?;
/// transfer_scope(&stream, |scope| {
///     scope.copy_to_host(&mut back, device.as_span().subspan(0, 16)?)
/// })?;
///
/// assert_eq!(back, [0; 16]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// What a copy reads can not be written before the scope ends:
///
/// ```compile_fail,E0506
/// use std::sync::Arc;
/// use device_memory::backend::cuda::cudarc::driver::CudaStream;
/// use device_memory::backend::cuda::transfer_scope;
/// use device_memory::{DeviceSpanMut, Result};
///
/// fn f(stream: &Arc<CudaStream>, dst: DeviceSpanMut<'_>) -> Result<()> {
///     let mut bytes = [1; 4];
///     transfer_scope(stream, |scope| {
///         scope.copy_to_device(dst, &bytes)?;
///         bytes[0] = 9;
///         Ok(())
///     })
/// }
/// ```
///
/// Nor can it be less long-lived than the scope:
///
/// ```compile_fail,E0597
/// use std::sync::Arc;
/// use device_memory::backend::cuda::cudarc::driver::CudaStream;
/// use device_memory::backend::cuda::transfer_scope;
/// use device_memory::{DeviceSpanMut, Result};
///
/// fn f(stream: &Arc<CudaStream>, dst: DeviceSpanMut<'_>) -> Result<()> {
///     transfer_scope(stream, |scope| {
///         let bytes = [1; 4];
///         scope.copy_to_device(dst, &bytes)
///     })
/// }
/// ```
///
/// What a copy writes can not be read before the scope ends:
///
/// ```compile_fail,E0503
/// use std::sync::Arc;
/// use device_memory::backend::cuda::cudarc::driver::CudaStream;
/// use device_memory::backend::cuda::transfer_scope;
/// use device_memory::{DeviceSpan, Result};
///
/// fn f(stream: &Arc<CudaStream>, src: DeviceSpan<'_>) -> Result<u8> {
///     let mut bytes = [1; 4];
///     transfer_scope(stream, |scope| {
///         scope.copy_to_host(&mut bytes, src)?;
///         Ok(bytes[0])
///     })
/// }
/// ```
///
/// And the scope can not be kept:
///
/// ```compile_fail,E0521
/// use std::sync::Arc;
/// use device_memory::backend::cuda::cudarc::driver::CudaStream;
/// use device_memory::backend::cuda::{TransferScope, transfer_scope};
/// use device_memory::Result;
///
/// fn f<'a>(stream: &Arc<CudaStream>, kept: &mut Option<&'a TransferScope<'a>>) -> Result<()> {
///     transfer_scope(stream, |scope| {
///         *kept = Some(scope);
///         Ok(())
///     })
/// }
/// ```
pub fn transfer_scope<'env, T>(
    stream: &Arc<CudaStream>,
    body: impl for<'scope> FnOnce(&'scope TransferScope<'env>) -> Result<T>,
) -> Result<T> {
    let scope = TransferScope {
        lane: Lane::new(stream)?,
        fence: OnceCell::new(),
        pending: Cell::new(Pending::Nothing),
        borrowed: PhantomData,
    };
    let end = End(&scope);
    let result = body(&scope);
    end.now()?;
    result
}

/// Where copies of borrowed memory can be started; see [`transfer_scope`].
///
/// Neither `Send` nor `Sync`: the handle of a per-thread stream means another
/// stream on another thread, and the one that is waited for is this thread's.
///
/// ```compile_fail,E0277
/// fn is_send<T: Send>() {}
/// is_send::<device_memory::backend::cuda::TransferScope<'static>>();
/// ```
pub struct TransferScope<'env> {
    lane: Lane,
    /// Marks the end of the copies, for when the stream can not be waited for.
    fence: OnceCell<Event>,
    pending: Cell<Pending>,
    /// Invariant, so that `'env` can not be taken to be shorter than the scope.
    borrowed: PhantomData<*mut &'env ()>,
}

/// What the stream may not have done yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pending {
    /// No copy was started, or all were waited for.
    Nothing,
    /// Copies, and the fence does not mark the end of them.
    Copies,
    /// Copies, and the fence marks the end of them.
    FencedCopies,
}

impl<'env> TransferScope<'env> {
    /// Starts to copy from the host to the whole of `dst`.
    ///
    /// `src` may be the [slice](DeviceSpan::as_slice) of page-locked memory.
    ///
    /// # Errors
    ///
    /// - [`LengthMismatch`](ErrorKind::LengthMismatch): they are not of one length.
    /// - [`DeviceMismatch`](ErrorKind::DeviceMismatch): `dst` is not on the device
    ///   of the stream.
    /// - [`ContextMismatch`](ErrorKind::ContextMismatch): the stream is not of the
    ///   primary context of its device.
    /// - [`NotSupported`](ErrorKind::NotSupported): the allocator of `dst` is none
    ///   of CUDA's and does not wrap one.
    /// - [`Capturing`](ErrorKind::Capturing): the stream is recording a graph.
    /// - [`ForkedProcess`](ErrorKind::ForkedProcess): the memory or the driver is a
    ///   parent process's.
    /// - [`Driver`](ErrorKind::Driver): the driver failed; `dst` is unspecified.
    #[expect(unsafe_code, reason = "calls the driver")]
    pub fn copy_to_device(&self, dst: DeviceSpanMut<'env>, src: &'env [u8]) -> Result<()> {
        let operation = Operation::CopyHostToDevice;
        check_len(dst.device(), dst.len(), src.len())?;
        self.check(dst.as_span(), operation)?;
        let (to, from) = (address(dst.ptr()), src.as_ptr().cast::<c_void>());
        self.start(operation, src.len(), |lane| {
            // SAFETY: both are valid for `'env`, `dst` exclusively, and the
            // stream is waited for before that ends: `'env` outlives the call of
            // `transfer_scope`, which does not return before.
            unsafe { driver::copy_to_device_async(to, from, src.len(), lane.handle()) }
        })
    }

    /// Starts to copy the whole of `src` to the host.
    ///
    /// `dst` may be the [slice](DeviceSpanMut::into_slice_mut) of page-locked
    /// memory.
    ///
    /// # Errors
    ///
    /// As [`copy_to_device`](Self::copy_to_device), with the sides exchanged.
    #[expect(unsafe_code, reason = "calls the driver")]
    pub fn copy_to_host(&self, dst: &'env mut [u8], src: DeviceSpan<'env>) -> Result<()> {
        let operation = Operation::CopyDeviceToHost;
        check_len(src.device(), src.len(), dst.len())?;
        self.check(src, operation)?;
        let (size, from) = (dst.len(), address(src.ptr()));
        let to = dst.as_mut_ptr().cast::<c_void>();
        self.start(operation, size, |lane| {
            // SAFETY: as for the other direction; `dst` is exclusive for `'env`.
            unsafe { driver::copy_to_host_async(to, from, size, lane.handle()) }
        })
    }

    /// Starts to copy the whole of `src` to `dst`, of which one is on the device of
    /// the stream and the other on any.
    ///
    /// Between devices that are not peers, the driver goes through the host.
    ///
    /// # Errors
    ///
    /// As [`copy_to_device`](Self::copy_to_device), for both sides;
    /// [`DeviceMismatch`](ErrorKind::DeviceMismatch) if neither is on the device of
    /// the stream.
    #[expect(unsafe_code, reason = "calls the driver")]
    pub fn copy_device_to_device(
        &self,
        dst: DeviceSpanMut<'env>,
        src: DeviceSpan<'env>,
    ) -> Result<()> {
        let operation = Operation::CopyDeviceToDevice;
        check_len(dst.device(), dst.len(), src.len())?;
        if dst.device() != self.lane.device() {
            self.lane.check_device(src.device())?;
        }
        let to_context = self.follow(dst.as_span(), operation)?;
        let from_context = self.follow(src, operation)?;
        let (size, to, from) = (src.len(), address(dst.ptr()), address(src.ptr()));
        self.start(operation, size, |lane| {
            if dst.device() == src.device() {
                // SAFETY: as for copies from the host; `dst` is exclusive, so they
                // do not overlap.
                unsafe { driver::copy_on_device_async(to, from, size, lane.handle()) }
            } else {
                // SAFETY: as above; each address is of the context beside it, which
                // the allocator of its view keeps.
                unsafe {
                    driver::copy_peer_async(to, to_context, from, from_context, size, lane.handle())
                }
            }
        })
    }

    /// Checks that work on the stream may use the memory of `span`, which is on its
    /// device.
    fn check(&self, span: DeviceSpan<'_>, operation: Operation) -> Result<()> {
        self.lane.check_device(span.device())?;
        self.follow(span, operation).map(drop)
    }

    /// Makes the stream wait until the memory of `span` is allocated, and returns
    /// the context that it is of: null for no memory, of which nothing is copied.
    fn follow(&self, span: DeviceSpan<'_>, operation: Operation) -> Result<CUcontext> {
        self.lane.check_process()?;
        span.check_process()?;
        if span.is_empty() {
            return Ok(ptr::null_mut());
        }
        self.lane.follow(span, operation)
    }

    /// Gives the stream a copy of `size` bytes, and marks the end of it.
    fn start(
        &self,
        operation: Operation,
        size: usize,
        copy: impl FnOnce(&Lane) -> Outcome<()>,
    ) -> Result<()> {
        if size == 0 {
            return Ok(());
        }
        self.lane.call(operation, |lane| {
            let fence = match self.fence.get() {
                Some(fence) => fence,
                None => {
                    let fence = Event::new(lane)?;
                    self.fence.get_or_init(|| fence)
                }
            };
            // A failed call may have begun its work.
            self.pending.set(Pending::Copies);
            copy(lane)?;
            fence.record()?;
            self.pending.set(Pending::FencedCopies);
            Ok(())
        })
    }

    /// Waits for what the stream may not have done yet.
    fn settle(&self) -> Result<(), Unsettled> {
        let fence = match self.pending.replace(Pending::Nothing) {
            Pending::Nothing => return Ok(()),
            Pending::Copies => None,
            Pending::FencedCopies => self.fence.get(),
        };
        self.lane.settle(fence)
    }
}

/// Waits at the end of a scope, also when its body panics. It lies in
/// [`transfer_scope`] and nowhere else, so nobody can forget it.
struct End<'a, 'env>(&'a TransferScope<'env>);

impl End<'_, '_> {
    /// Waits, and says whether that worked.
    fn now(self) -> Result<()> {
        let lane = &self.0.lane;
        let settled = self.0.settle();
        lane.check_process()?;
        settled.map_err(|failed| lane.error(failed.status, Operation::Synchronize))
    }
}

impl Drop for End<'_, '_> {
    fn drop(&mut self) {
        // The panic is what the caller is told of.
        let _ = self.0.settle();
    }
}

/// Checks that both sides of a copy are of one length.
pub(super) fn check_len(device: Device, expected: usize, found: usize) -> Result<()> {
    if expected == found {
        Ok(())
    } else {
        Err(ErrorKind::LengthMismatch {
            device,
            expected,
            found,
        }
        .into())
    }
}

impl fmt::Debug for TransferScope<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransferScope")
            .field("lane", &self.lane)
            .field("pending", &self.pending.get())
            .finish_non_exhaustive()
    }
}
