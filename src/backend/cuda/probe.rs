//! Whether there is a driver, before cudarc is asked.
//!
//! Rank 4. Part of `backend::cuda`. Imports the words.
//!
//! cudarc panics where the library or a function is missing. So the library is
//! loaded here first, and each function that will be called is looked for.

use libloading::Library;

use super::driver;
use super::status::{NO_DEVICE, Status};
use crate::device::{Device, DeviceType};
use crate::error::{ErrorKind, Operation, Result};

/// The least version of the driver that has all that is called.
const NEEDED_VERSION: u32 = 11_040;

/// The names that cudarc tries first and last, with the common ones between.
#[cfg(windows)]
const NAMES: &[&str] = &["nvcuda.dll"];
#[cfg(not(windows))]
const NAMES: &[&str] = &["libcuda.so", "libcuda.so.1"];

/// Every function that is called without being asked for first.
const SYMBOLS: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuCtxSynchronize",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemAllocAsync",
    "cuMemFreeAsync",
    "cuMemAllocFromPoolAsync",
    "cuMemAllocManaged",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyPeerAsync",
    "cuMemsetD8Async",
    "cuMemGetInfo_v2",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuStreamIsCapturing",
    "cuThreadExchangeStreamCaptureMode",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuEventQuery",
    "cuEventDestroy_v2",
    "cuDeviceGetMemPool",
    "cuMemPoolCreate",
    "cuMemPoolDestroy",
    "cuMemPoolTrimTo",
    "cuMemPoolGetAttribute",
    "cuMemPoolSetAttribute",
];

/// Finds and initializes the driver, and returns how many devices it has.
///
/// Nothing is kept of a failure, so a later call tries again.
pub(super) fn device_count(device_type: DeviceType) -> Result<usize> {
    load(device_type)?;
    let device = Device::new(device_type, 0);
    let failed = |status: Status| status.into_error(device, Operation::Open);
    initialize().map_err(failed)?;
    let found = version().map_err(failed)?;
    if found < NEEDED_VERSION {
        return Err(ErrorKind::DriverTooOld {
            device_type,
            found,
            needed: NEEDED_VERSION,
        }
        .into());
    }
    match count() {
        Ok(0)
        | Err(Status {
            code: NO_DEVICE, ..
        }) => Err(ErrorKind::NoDevice { device_type }.into()),
        Ok(count) => Ok(count),
        Err(status) => Err(failed(status)),
    }
}

/// Loads the library for good and looks for every function.
#[expect(unsafe_code, reason = "loading a library runs its code")]
fn load(device_type: DeviceType) -> Result<()> {
    let found = NAMES.iter().find_map(|name| {
        // SAFETY: the library is the driver, whose initializers are made to be
        // run by any process that loads it.
        unsafe { Library::new(*name) }.ok()
    });
    let Some(library) = found else {
        return Err(ErrorKind::DriverNotFound {
            device_type,
            tried: NAMES.iter().map(ToString::to_string).collect(),
        }
        .into());
    };
    for symbol in SYMBOLS {
        // SAFETY: the address is only compared with null, never called.
        let address = unsafe { library.get::<unsafe extern "C" fn()>(*symbol) };
        if address.is_err() {
            return Err(ErrorKind::MissingSymbol {
                device_type,
                symbol,
            }
            .into());
        }
    }
    // The library stays loaded, so that cudarc's own attempt can not fail.
    std::mem::forget(library);
    Ok(())
}

#[expect(unsafe_code, reason = "calls the driver")]
fn initialize() -> Result<(), Status> {
    // SAFETY: the function was found; it takes no handle.
    unsafe { driver::init() }
}

#[expect(unsafe_code, reason = "calls the driver")]
fn version() -> Result<u32, Status> {
    // SAFETY: the function was found; it takes no handle.
    let version = unsafe { driver::version() }?;
    Ok(u32::try_from(version).unwrap_or(0))
}

#[expect(unsafe_code, reason = "calls the driver")]
fn count() -> Result<usize, Status> {
    // SAFETY: the function was found, and the driver is initialized.
    let count = unsafe { driver::device_count() }?;
    Ok(usize::try_from(count).unwrap_or(0))
}
