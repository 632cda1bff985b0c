//! A tensor as DLPack describes it.
//!
//! Rank 8. Part of `dlpack`.

use std::ffi::c_void;
use std::ptr;

use dlpack_ffi::{DLDataType, DLDevice, DLDeviceType};

use crate::device::{Device, DeviceType};
use crate::dlpack::element;
use crate::error::{Error, ErrorKind, Result};
use crate::shape::TensorSpec;
use crate::span::DeviceSpan;

/// What a tensor of DLPack needs, without a borrow of the memory.
#[derive(Debug)]
pub(super) struct Description {
    pub(super) data: *mut c_void,
    pub(super) device: DLDevice,
    pub(super) ndim: i32,
    pub(super) dtype: DLDataType,
    pub(super) shape: Vec<i64>,
    pub(super) strides: Vec<i64>,
}

/// Describes the tensor `spec` in the memory `span`.
pub(super) fn describe(spec: &TensorSpec, span: DeviceSpan<'_>) -> Result<Description> {
    if !span.is_empty() {
        span.check_process()?;
    }
    let scalar_type = spec.scalar_type();
    let dtype = element::to_dlpack(scalar_type)
        .ok_or_else(|| invalid(format!("DLPack has no type for {scalar_type}")))?;
    let wide = |values: &[usize]| -> Result<Vec<i64>> {
        let wide = values.iter().map(|&value| i64::try_from(value));
        wide.collect::<Result<_, _>>()
            .map_err(|_| invalid(format!("DLPack can not express the sizes {values:?}")))
    };
    Ok(Description {
        data: if span.is_empty() {
            ptr::null_mut()
        } else {
            span.ptr().as_raw().cast()
        },
        device: device(span.device())?,
        ndim: i32::try_from(spec.sizes().len()).unwrap_or(0),
        dtype,
        shape: wide(spec.sizes())?,
        strides: wide(&spec.strides())?,
    })
}

/// DLPack's name of a device. Memory of the host has no number there.
fn device(device: Device) -> Result<DLDevice> {
    let code = device.device_type().to_dlpack();
    let code = code.and_then(|code| u32::try_from(code).ok());
    let Some(code) = code else {
        return Err(invalid(format!(
            "DLPack has no type of device for {device}"
        )));
    };
    let device_id = match device.device_type() {
        DeviceType::Cpu | DeviceType::CudaHost | DeviceType::CudaManaged => 0,
        _ => i32::from(device.index()),
    };
    Ok(DLDevice {
        device_type: DLDeviceType(code),
        device_id,
    })
}

/// A tensor that DLPack can not express, or that is none.
#[cold]
pub(super) fn invalid(reason: String) -> Error {
    ErrorKind::InvalidTensor { reason }.into()
}
