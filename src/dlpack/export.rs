//! Tensors of this crate for other libraries.
//!
//! Rank 8. Part of `dlpack`.

use std::ffi::c_void;
use std::fmt;
use std::ptr::{self, NonNull};

use dlpack_ffi::{
    DLDataType, DLDevice, DLDeviceType, DLManagedTensorVersioned, DLPACK_FLAG_BITMASK_IS_COPIED,
    DLPACK_FLAG_BITMASK_READ_ONLY, DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION, DLPackVersion,
    DLTensor,
};

use crate::buffer::DeviceMemoryBuffer;
use crate::device::Device;
use crate::dlpack::describe::{Description, describe};
use crate::dlpack::managed::Managed;
use crate::error::Result;
use crate::registry::DeviceAllocatorRegistry;
use crate::scalar::ScalarType;
use crate::shape::TensorSpec;
use crate::tensor::{DeviceTensor, TensorView, TensorViewMut};
use crate::unwind::caught;

const READ_ONLY: u64 = widen(DLPACK_FLAG_BITMASK_READ_ONLY);
const IS_COPIED: u64 = widen(DLPACK_FLAG_BITMASK_IS_COPIED);

/// A tensor for another library, and what keeps its memory alive.
///
/// [`into_raw`](Self::into_raw) gives it away; otherwise dropping it drops the
/// owner of the memory.
pub struct ExportedTensor {
    managed: Managed,
}

/// What an export points into. It is freed by the deleter.
struct Parts<O> {
    tensor: DLManagedTensorVersioned,
    shape: Vec<i64>,
    strides: Vec<i64>,
    owner: O,
}

impl ExportedTensor {
    /// Lends what `view` sees in `owner`, to be read; the owner is kept until the
    /// deleter is called, on whatever thread that is.
    ///
    /// The owner may be shared: an `Arc` of planned memory or of weights. The tensor
    /// is flagged `READ_ONLY`, which consumers are bound by.
    ///
    /// # Errors
    ///
    /// The owner is dropped then.
    ///
    /// - [`InvalidTensor`](crate::ErrorKind::InvalidTensor): DLPack has no such type
    ///   of element or device.
    /// - [`ForkedProcess`](crate::ErrorKind::ForkedProcess): the memory is a parent
    ///   process's.
    /// - what `view` returns.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// use device_memory::dlpack::ExportedTensor;
    /// use device_memory::{Device, DeviceMemoryBuffer, DeviceType, ScalarType, TensorSpec, TensorView};
    ///
    /// let buffer = Arc::new(DeviceMemoryBuffer::create(64, DeviceType::Cpu, 0)?);
    /// let spec = TensorSpec::contiguous(ScalarType::Float, &[2, 3], Device::CPU)?;
    ///
    /// let lent = ExportedTensor::lend(Arc::clone(&buffer), |buffer| {
    ///     TensorView::bind(spec, buffer.as_span().subspan(32, 24)?)
    /// })?;
    ///
    /// assert_eq!(Arc::strong_count(&buffer), 2);
    /// drop(lent);
    /// assert_eq!(Arc::strong_count(&buffer), 1);
    /// # Ok::<(), device_memory::Error>(())
    /// ```
    pub fn lend<O: Send + 'static>(
        owner: O,
        view: impl FnOnce(&O) -> Result<TensorView<'_>>,
    ) -> Result<Self> {
        Self::new(owner, READ_ONLY, |owner| {
            let view = view(owner)?;
            describe(view.spec(), view.span())
        })
    }

    /// Lends what `view` sees in `owner`, to be read and written; the owner is kept
    /// until the deleter is called, on whatever thread that is.
    ///
    /// # Errors
    ///
    /// As [`lend`](Self::lend).
    pub fn lend_mut<O: Send + 'static>(
        owner: O,
        view: impl FnOnce(&mut O) -> Result<TensorViewMut<'_>>,
    ) -> Result<Self> {
        Self::new(owner, 0, |owner| {
            let view = view(owner)?;
            let view = view.as_view();
            describe(view.spec(), view.span())
        })
    }

    /// Gives a tensor away, to be read and written.
    ///
    /// # Errors
    ///
    /// As [`lend`](Self::lend).
    pub fn from_tensor(tensor: DeviceTensor) -> Result<Self> {
        Self::lend_mut(tensor, DeviceTensor::view_mut)
    }

    /// Gives a buffer away as a row of bytes, to be read and written.
    ///
    /// # Errors
    ///
    /// As [`lend`](Self::lend).
    pub fn from_buffer(buffer: DeviceMemoryBuffer) -> Result<Self> {
        let (size, device) = (buffer.size(), buffer.device());
        let spec = TensorSpec::contiguous(ScalarType::Byte, &[size], device)?;
        Self::lend_mut(buffer, |buffer| {
            TensorViewMut::bind(spec, buffer.as_span_mut())
        })
    }

    /// Gives away a copy of what `view` sees, on `device`, flagged `IS_COPIED`.
    ///
    /// # Errors
    ///
    /// As [`lend`](Self::lend), [`DeviceTensor::create_in`] and
    /// [`DeviceSpanMut::copy_from`](crate::DeviceSpanMut::copy_from).
    pub fn copy_of(
        view: &TensorView<'_>,
        registry: &DeviceAllocatorRegistry,
        device: Device,
    ) -> Result<Self> {
        let spec = view.spec().clone().with_device(device);
        let mut copy = DeviceTensor::create_in(registry, spec)?;
        copy.view_mut()?.copy_from(view)?;
        Self::new(copy, IS_COPIED, |copy| {
            let view = copy.view()?;
            describe(view.spec(), view.span())
        })
    }

    /// The tensor as other libraries take it: a pointer to a
    /// `DLManagedTensorVersioned`, whose deleter they call when they are done.
    #[must_use = "the memory is leaked unless the deleter is called"]
    pub fn into_raw(self) -> NonNull<c_void> {
        self.managed.into_raw()
    }

    /// The one place that makes an export.
    #[expect(unsafe_code, reason = "see SAFETY")]
    fn new<O: Send + 'static>(
        owner: O,
        flags: u64,
        describe: impl FnOnce(&mut O) -> Result<Description>,
    ) -> Result<Self> {
        let parts = NonNull::from(Box::leak(Box::new(Parts {
            tensor: blank(flags, deleter::<O>),
            shape: Vec::new(),
            strides: Vec::new(),
            owner,
        })));
        let raw = parts.as_ptr();
        // SAFETY: `raw` is a live box; no reference is made.
        let tensor = unsafe { &raw mut (*raw).tensor };
        // SAFETY: the field is this function's to write.
        unsafe { (*tensor).manager_ctx = raw.cast() };
        // SAFETY: the field of a box is not null.
        let tensor_ptr = unsafe { NonNull::new_unchecked(tensor) };
        // SAFETY: its fields may be read as long as the deleter is not called,
        // which is this value's to do, on any thread since the owner is `Send`. If
        // what follows fails or panics, that drops the owner.
        let managed = unsafe { Managed::new(tensor_ptr) };
        // SAFETY: the owner lies where it stays until the deleter is called, and
        // nothing else refers to it. What comes back borrows nothing of it.
        let described = describe(unsafe { &mut (*raw).owner })?;
        // SAFETY: the field is this function's to write.
        let shape = unsafe { &mut (*raw).shape };
        *shape = described.shape;
        // SAFETY: as above.
        let strides = unsafe { &mut (*raw).strides };
        *strides = described.strides;
        let dl_tensor = DLTensor {
            data: described.data,
            device: described.device,
            ndim: described.ndim,
            dtype: described.dtype,
            shape: unless_empty(shape),
            strides: unless_empty(strides),
            byte_offset: 0,
        };
        // SAFETY: as above.
        unsafe { (*tensor).dl_tensor = dl_tensor };
        Ok(Self { managed })
    }
}

impl fmt::Debug for ExportedTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExportedTensor")
            .field("raw", &self.managed.as_ptr())
            .finish()
    }
}

/// The deleter of an export that `O` owns the memory of.
///
/// # Safety
///
/// `tensor` is the tensor of a `Parts<O>` in a leaked box, and this is called once.
#[expect(unsafe_code, reason = "is called from C")]
unsafe extern "C" fn deleter<O>(tensor: *mut DLManagedTensorVersioned) {
    // SAFETY: the tensor is live until it is freed below.
    let parts: *mut Parts<O> = unsafe { (*tensor).manager_ctx }.cast();
    // SAFETY: the pointer is that of the box, which is freed here and nowhere else.
    let parts = unsafe { Box::from_raw(parts) };
    // An owner that panics has no one to tell, and must not unwind into C.
    let _ = caught(|| drop(parts));
}

/// A tensor of nothing, which may be deleted.
fn blank(
    flags: u64,
    deleter: unsafe extern "C" fn(*mut DLManagedTensorVersioned),
) -> DLManagedTensorVersioned {
    DLManagedTensorVersioned {
        version: DLPackVersion {
            major: DLPACK_MAJOR_VERSION,
            minor: DLPACK_MINOR_VERSION,
        },
        manager_ctx: ptr::null_mut(),
        deleter: Some(deleter),
        flags,
        dl_tensor: DLTensor {
            data: ptr::null_mut(),
            device: DLDevice {
                device_type: DLDeviceType::kDLCPU,
                device_id: 0,
            },
            ndim: 0,
            dtype: DLDataType {
                code: 0,
                bits: 8,
                lanes: 1,
            },
            shape: ptr::null_mut(),
            strides: ptr::null_mut(),
            byte_offset: 0,
        },
    }
}

/// The address of the numbers, or null where there are none.
fn unless_empty(numbers: &mut [i64]) -> *mut i64 {
    if numbers.is_empty() {
        ptr::null_mut()
    } else {
        numbers.as_mut_ptr()
    }
}

#[expect(
    clippy::as_conversions,
    reason = "widening, and const code has no From"
)]
const fn widen(flag: u32) -> u64 {
    flag as u64
}
