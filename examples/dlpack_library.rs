//! A C library that gives tensors to Python as DLPack and takes them from there.
//!
//! `ci/dlpack.sh` builds it and lets NumPy use it: the capsules are made and taken
//! apart by Python's own C functions, so there is nothing of Python in here.

#![expect(unsafe_code, reason = "exports C functions")]

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use device_memory::dlpack::{ExportedTensor, ImportedTensor};
use device_memory::{
    Device, DeviceAllocatorRegistry, DeviceTensor, ScalarType, TensorSpec, TensorView,
};

/// How many owners are alive.
static ALIVE: AtomicUsize = AtomicUsize::new(0);
/// What was taken and not given back.
static TAKEN: Mutex<Option<ImportedTensor>> = Mutex::new(None);

/// A tensor that is counted.
struct Counted(DeviceTensor);

impl Drop for Counted {
    fn drop(&mut self) {
        ALIVE.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The numbers 0 to 5 as floats in two rows, whose columns are stored one after
/// the other.
fn counted() -> device_memory::Result<Counted> {
    let spec = TensorSpec::with_dim_order(ScalarType::Float, &[2, 3], &[1, 0], Device::CPU)?;
    let floats = [0_f32, 3.0, 1.0, 4.0, 2.0, 5.0];
    let bytes = floats.map(f32::to_le_bytes).concat();
    let tensor = DeviceTensor::from_host(spec, &bytes)?;
    ALIVE.fetch_add(1, Ordering::Relaxed);
    Ok(Counted(tensor))
}

fn pointer(exported: device_memory::Result<ExportedTensor>) -> *mut c_void {
    exported.map_or(ptr::null_mut(), |exported| exported.into_raw().as_ptr())
}

/// A tensor that may be written, or null.
// SAFETY: no other function of the program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn dm_export() -> *mut c_void {
    pointer(counted().and_then(|owner| ExportedTensor::lend_mut(owner, |owner| owner.0.view_mut())))
}

/// A tensor that may only be read, or null.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn dm_export_read_only() -> *mut c_void {
    pointer(counted().and_then(|owner| {
        ExportedTensor::lend(owner, |owner| -> device_memory::Result<TensorView<'_>> {
            owner.0.view()
        })
    }))
}

/// How many exported tensors are alive.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn dm_alive() -> usize {
    ALIVE.load(Ordering::Relaxed)
}

/// Takes a tensor of unsigned bytes and returns their sum, or -1 if it is refused.
/// It is kept until `dm_release`.
///
/// # Safety
///
/// `tensor` is a versioned tensor of DLPack's in host memory.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dm_import(tensor: *mut c_void) -> i64 {
    let Some(tensor) = NonNull::new(tensor) else {
        return -1;
    };
    let registry = DeviceAllocatorRegistry::global();
    // SAFETY: the caller's promise; memory of the host can be copied by the host.
    let Ok(imported) = (unsafe { ImportedTensor::from_raw(tensor, registry) }) else {
        return -1;
    };
    let sum = imported.view().and_then(|view| {
        Ok(view
            .span()
            .as_slice()?
            .iter()
            .map(|&byte| i64::from(byte))
            .sum())
    });
    if let Ok(mut taken) = TAKEN.lock() {
        *taken = Some(imported);
    }
    sum.unwrap_or(-1)
}

/// Gives back what was taken last.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn dm_release() {
    if let Ok(mut taken) = TAKEN.lock() {
        *taken = None;
    }
}
