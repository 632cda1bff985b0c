//! Tensors of other libraries.
//!
//! Rank 8. Part of `dlpack`.
//!
//! What a library says of its tensor is checked before any of it is used.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::slice;

use dlpack_ffi::{
    DLDevice, DLPACK_FLAG_BITMASK_IS_COPIED, DLPACK_FLAG_BITMASK_READ_ONLY, DLPACK_MAJOR_VERSION,
    DLTensor,
};

use crate::address::DevicePtr;
use crate::allocator::{AllocatorHandle, guarded};
use crate::device::{Device, DeviceType};
use crate::dlpack::describe::invalid;
use crate::dlpack::element;
use crate::dlpack::managed::Managed;
use crate::dlpack::order::spec_of;
use crate::error::{ErrorKind, Operation, Result};
use crate::registry::DeviceAllocatorRegistry;
use crate::shape::TensorSpec;
use crate::span::{DeviceSpan, DeviceSpanMut};
use crate::tensor::{TensorView, TensorViewMut};

/// A tensor in memory of another library, whose deleter is called when this is
/// dropped.
///
/// Views of it copy with the allocator that a registry has for its device.
#[derive(Debug)]
pub struct ImportedTensor {
    /// # Invariants
    ///
    /// 0. The tensor is of a major version that is understood.
    managed: Managed,
    /// # Invariants
    ///
    /// 1. From `ptr` on there are the bytes of `spec`, on a device of `allocator`,
    ///    as in a block of it, until the deleter is called.
    allocator: AllocatorHandle,
    ptr: DevicePtr,
    spec: TensorSpec,
    flags: u64,
}

impl ImportedTensor {
    /// Takes a tensor: a pointer to a `DLManagedTensorVersioned`.
    ///
    /// It has to be dense, in any memory order. Strides may be missing, as before
    /// version 1.2.
    ///
    /// # Errors
    ///
    /// The deleter is called then.
    ///
    /// - [`ForeignVersion`](ErrorKind::ForeignVersion): the major version is not 1.
    /// - [`InvalidTensor`](ErrorKind::InvalidTensor): the tensor is of a type or a
    ///   device that has no counterpart here, is not dense, or contradicts itself.
    /// - [`NotRegistered`](ErrorKind::NotRegistered),
    ///   [`InvalidDevice`](ErrorKind::InvalidDevice): nothing in the registry serves
    ///   its device.
    ///
    /// # Safety
    ///
    /// - `raw` points at a tensor as DLPack describes it, with memory as large as it
    ///   says, until the deleter is called; taking it gives the duty to do so, and
    ///   that may be done on any thread.
    /// - The allocator that `registry` has for its type of device can copy that
    ///   memory as if it had allocated it on the device of that number. If the host
    ///   can read it, its bytes are initialized.
    /// - Nothing writes the memory while a view of this exists.
    #[expect(unsafe_code, reason = "see SAFETY")]
    pub unsafe fn from_raw(
        raw: NonNull<c_void>,
        registry: &DeviceAllocatorRegistry,
    ) -> Result<Self> {
        // SAFETY: the caller promises a tensor, and gives the duty to delete it.
        let managed = unsafe { Managed::new(raw.cast()) };
        let tensor = managed.as_ptr();
        // SAFETY: the version is the first field of every version.
        let version = unsafe { (*tensor).version };
        if version.major != DLPACK_MAJOR_VERSION {
            return Err(ErrorKind::ForeignVersion {
                major: version.major,
                minor: version.minor,
                understood: DLPACK_MAJOR_VERSION,
            }
            .into());
        }
        // SAFETY: the fields of this version are known.
        let flags = unsafe { (*tensor).flags };
        // SAFETY: as above.
        let dl_tensor = unsafe { (*tensor).dl_tensor };
        // SAFETY: the caller promises that the tensor is as it says.
        let spec = unsafe { spec(&dl_tensor) }?;
        let ptr = address(&dl_tensor, spec.size_in_bytes())?;
        let device = spec.device();
        let allocator = registry.try_get(device.device_type())?;
        guarded(device, Operation::Open, || {
            allocator.check_index(device.index())
        })?;
        Ok(Self {
            managed,
            allocator,
            ptr,
            spec,
            flags,
        })
    }

    /// What the tensor looks like, and where it is.
    #[must_use]
    pub fn spec(&self) -> &TensorSpec {
        &self.spec
    }

    /// Where the memory is. Page-locked and managed memory has the number 0.
    #[must_use]
    pub fn device(&self) -> Device {
        self.spec.device()
    }

    /// Whether the tensor must not be written.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.flags & u64::from(DLPACK_FLAG_BITMASK_READ_ONLY) != 0
    }

    /// Whether the other library made a copy for this.
    #[must_use]
    pub fn is_copied(&self) -> bool {
        self.flags & u64::from(DLPACK_FLAG_BITMASK_IS_COPIED) != 0
    }

    /// The tensor, to read.
    ///
    /// # Errors
    ///
    /// None that a tensor of this type can cause.
    pub fn view(&self) -> Result<TensorView<'_>> {
        TensorView::bind(self.spec.clone(), self.span())
    }

    /// The tensor, to read and write.
    ///
    /// # Errors
    ///
    /// - [`ReadOnly`](ErrorKind::ReadOnly): it is flagged so.
    ///
    /// # Safety
    ///
    /// Nothing else accesses the memory while the view exists; the library that the
    /// tensor came from may have kept it too.
    #[expect(unsafe_code, reason = "exclusiveness is the caller's to keep")]
    pub unsafe fn view_mut(&mut self) -> Result<TensorViewMut<'_>> {
        if self.is_read_only() {
            return Err(ErrorKind::ReadOnly {
                device: self.device(),
            }
            .into());
        }
        // SAFETY: the caller promises it, and `self` is borrowed exclusively.
        let span = unsafe { DeviceSpanMut::from_shared(self.span()) };
        TensorViewMut::bind(self.spec.clone(), span)
    }

    #[expect(unsafe_code, reason = "see SAFETY")]
    fn span(&self) -> DeviceSpan<'_> {
        // SAFETY: the bytes are as a block of the allocator while `self` exists
        // (invariant 1), and nothing writes them while a view does, as was promised
        // when the tensor was taken.
        unsafe {
            DeviceSpan::from_owner(
                self.ptr,
                self.spec.size_in_bytes(),
                self.spec.device(),
                &*self.allocator,
                self.managed.made_in(),
            )
        }
    }
}

/// What a tensor looks like.
///
/// # Safety
///
/// Its shape and its strides, where they are not null, are `ndim` numbers each.
#[expect(unsafe_code, reason = "see SAFETY")]
unsafe fn spec(tensor: &DLTensor) -> Result<TensorSpec> {
    let device = device(tensor.device)?;
    let dtype = tensor.dtype;
    let Some(scalar_type) = element::from_dlpack(dtype) else {
        return Err(invalid(format!(
            "no scalar type for DLPack's type {} of {} bits and {} lanes",
            dtype.code, dtype.bits, dtype.lanes
        )));
    };
    let rank = usize::try_from(tensor.ndim)
        .ok()
        .filter(|&rank| rank <= TensorSpec::MAX_RANK);
    let Some(rank) = rank else {
        return Err(invalid(format!(
            "{} dimensions, at most {} are supported",
            tensor.ndim,
            TensorSpec::MAX_RANK
        )));
    };
    // SAFETY: the caller's promise.
    let shape = unsafe { numbers(tensor.shape, rank) };
    let Some(shape) = shape else {
        return Err(invalid(format!("{rank} dimensions without sizes")));
    };
    let sizes = shape.iter().map(|&size| usize::try_from(size));
    let Ok(sizes) = sizes.collect::<Result<Vec<usize>, _>>() else {
        return Err(invalid(format!("negative sizes {shape:?}")));
    };
    // SAFETY: the caller's promise.
    let strides = unsafe { numbers(tensor.strides, rank) };
    spec_of(scalar_type, &sizes, strides, device)
}

/// `len` numbers, if they are there.
///
/// # Safety
///
/// `numbers` is null or points at so many, which are not written during `'a`.
#[expect(unsafe_code, reason = "see SAFETY")]
unsafe fn numbers<'a>(numbers: *const i64, len: usize) -> Option<&'a [i64]> {
    if len == 0 {
        return Some(&[]);
    }
    if numbers.is_null() || !numbers.is_aligned() {
        return None;
    }
    // SAFETY: the caller promises so many numbers, of which there are few.
    Some(unsafe { slice::from_raw_parts(numbers, len) })
}

fn device(device: DLDevice) -> Result<Device> {
    let code = device.device_type.0;
    let device_type = i32::try_from(code).ok().and_then(DeviceType::from_dlpack);
    let Some(device_type) = device_type else {
        return Err(invalid(format!(
            "no type of device for DLPack's code {code}"
        )));
    };
    let Ok(index) = u16::try_from(device.device_id) else {
        return Err(invalid(format!(
            "no device of type {device_type} has the number {}",
            device.device_id
        )));
    };
    Ok(Device::new(device_type, index))
}

/// The address of the first of `size` bytes.
fn address(tensor: &DLTensor, size: usize) -> Result<DevicePtr> {
    if size == 0 {
        return Ok(DevicePtr::dangling(1));
    }
    let Some(data) = DevicePtr::from_raw(tensor.data.cast()) else {
        return Err(invalid(format!("{size} bytes without an address")));
    };
    let first = usize::try_from(tensor.byte_offset)
        .ok()
        .and_then(|offset| data.checked_add(offset));
    match first.filter(|first| first.checked_add(size).is_some()) {
        Some(first) => Ok(first),
        None => Err(invalid(format!(
            "{size} bytes at offset {} from {data} pass the last address",
            tensor.byte_offset
        ))),
    }
}
