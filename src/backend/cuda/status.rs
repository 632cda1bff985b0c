//! The driver's codes, by number and name.
//!
//! Rank 4. Part of `backend::cuda`. Imports the words.
//!
//! The driver's own enum is turned into a number at once and never formatted:
//! its `Display` asks the driver, and a newer driver has codes that it lacks.

use crate::device::Device;
use crate::error::{Error, ErrorKind, Operation};

/// A call of the driver that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) call: &'static str,
    pub(super) code: u32,
}

/// What a call of the driver gives.
pub(super) type Outcome<T> = Result<T, Status>;

pub(super) const INVALID_VALUE: u32 = 1;
pub(super) const OUT_OF_MEMORY: u32 = 2;
pub(super) const DEINITIALIZED: u32 = 4;
pub(super) const NO_DEVICE: u32 = 100;
pub(super) const NOT_READY: u32 = 600;
pub(super) const INVALID_DEVICE: u32 = 101;

impl Status {
    /// The error for a call that was part of `operation` on `device`.
    ///
    /// Only what is known to be a lack of memory is said to be one; the caller
    /// who knows the layout says it.
    #[cold]
    pub(super) fn into_error(self, device: Device, operation: Operation) -> Error {
        let Self { call, code } = self;
        match code {
            DEINITIALIZED => ErrorKind::ShutDown { device },
            NO_DEVICE => ErrorKind::NoDevice {
                device_type: device.device_type(),
            },
            _ => ErrorKind::Driver {
                device,
                operation,
                call,
                code,
                name: name(code),
            },
        }
        .into()
    }
}

/// The driver's name for a code.
fn name(code: u32) -> &'static str {
    match code {
        1 => "INVALID_VALUE",
        2 => "OUT_OF_MEMORY",
        3 => "NOT_INITIALIZED",
        4 => "DEINITIALIZED",
        34 => "STUB_LIBRARY",
        36 => "CALL_REQUIRES_NEWER_DRIVER",
        46 => "DEVICE_UNAVAILABLE",
        100 => "NO_DEVICE",
        101 => "INVALID_DEVICE",
        102 => "DEVICE_NOT_LICENSED",
        200 => "INVALID_IMAGE",
        201 => "INVALID_CONTEXT",
        205 => "MAP_FAILED",
        206 => "UNMAP_FAILED",
        214 => "ECC_UNCORRECTABLE",
        215 => "UNSUPPORTED_LIMIT",
        216 => "CONTEXT_ALREADY_IN_USE",
        217 => "PEER_ACCESS_UNSUPPORTED",
        219 => "INVALID_GRAPHICS_CONTEXT",
        220 => "NVLINK_UNCORRECTABLE",
        302 => "SHARED_OBJECT_SYMBOL_NOT_FOUND",
        303 => "SHARED_OBJECT_INIT_FAILED",
        304 => "OPERATING_SYSTEM",
        400 => "INVALID_HANDLE",
        401 => "ILLEGAL_STATE",
        500 => "NOT_FOUND",
        600 => "NOT_READY",
        700 => "ILLEGAL_ADDRESS",
        701 => "LAUNCH_OUT_OF_RESOURCES",
        702 => "LAUNCH_TIMEOUT",
        704 => "PEER_ACCESS_ALREADY_ENABLED",
        705 => "PEER_ACCESS_NOT_ENABLED",
        708 => "PRIMARY_CONTEXT_ACTIVE",
        709 => "CONTEXT_IS_DESTROYED",
        710 => "ASSERT",
        711 => "TOO_MANY_PEERS",
        712 => "HOST_MEMORY_ALREADY_REGISTERED",
        713 => "HOST_MEMORY_NOT_REGISTERED",
        714 => "HARDWARE_STACK_ERROR",
        715 => "ILLEGAL_INSTRUCTION",
        716 => "MISALIGNED_ADDRESS",
        717 => "INVALID_ADDRESS_SPACE",
        718 => "INVALID_PC",
        719 => "LAUNCH_FAILED",
        800 => "NOT_PERMITTED",
        801 => "NOT_SUPPORTED",
        802 => "SYSTEM_NOT_READY",
        803 => "SYSTEM_DRIVER_MISMATCH",
        804 => "COMPAT_NOT_SUPPORTED_ON_DEVICE",
        805 => "MPS_CONNECTION_FAILED",
        806 => "MPS_RPC_FAILURE",
        807 => "MPS_SERVER_NOT_READY",
        808 => "MPS_MAX_CLIENTS_REACHED",
        809 => "MPS_MAX_CONNECTIONS_REACHED",
        900 => "STREAM_CAPTURE_UNSUPPORTED",
        901 => "STREAM_CAPTURE_INVALIDATED",
        902 => "STREAM_CAPTURE_MERGE",
        903 => "STREAM_CAPTURE_UNMATCHED",
        904 => "STREAM_CAPTURE_UNJOINED",
        905 => "STREAM_CAPTURE_ISOLATION",
        906 => "STREAM_CAPTURE_IMPLICIT",
        907 => "CAPTURED_EVENT",
        908 => "STREAM_CAPTURE_WRONG_THREAD",
        909 => "TIMEOUT",
        910 => "GRAPH_EXEC_UPDATE_FAILURE",
        912 => "INVALID_CLUSTER_SIZE",
        999 => "UNKNOWN",
        _ => "a code newer than this crate",
    }
}
