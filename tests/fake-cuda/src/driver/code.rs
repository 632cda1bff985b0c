//! The result codes of the driver.
//!
//! A code is a number and not an enum: tests make the driver return numbers that
//! no header knows yet.

use std::ffi::CStr;

/// A result of a driver call that is not success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Code(pub(super) i32);

/// What a driver call comes to.
pub(super) type Done<T = ()> = Result<T, Code>;

impl Code {
    pub(super) const INVALID_VALUE: Self = Self(1);
    pub(super) const OUT_OF_MEMORY: Self = Self(2);
    pub(super) const NOT_INITIALIZED: Self = Self(3);
    pub(super) const DEINITIALIZED: Self = Self(4);
    pub(super) const NO_DEVICE: Self = Self(100);
    pub(super) const INVALID_DEVICE: Self = Self(101);
    pub(super) const INVALID_CONTEXT: Self = Self(201);
    pub(super) const INVALID_HANDLE: Self = Self(400);
    pub(super) const ILLEGAL_STATE: Self = Self(401);
    pub(super) const NOT_READY: Self = Self(600);
    pub(super) const PEER_ACCESS_UNSUPPORTED: Self = Self(217);
    pub(super) const PEER_ACCESS_ALREADY_ENABLED: Self = Self(704);
    pub(super) const PEER_ACCESS_NOT_ENABLED: Self = Self(705);
    pub(super) const CONTEXT_IS_DESTROYED: Self = Self(709);
    pub(super) const HOST_MEMORY_ALREADY_REGISTERED: Self = Self(712);
    pub(super) const HOST_MEMORY_NOT_REGISTERED: Self = Self(713);
    pub(super) const NOT_PERMITTED: Self = Self(800);
    pub(super) const NOT_SUPPORTED: Self = Self(801);
    pub(super) const CAPTURE_UNSUPPORTED: Self = Self(900);
    pub(super) const CAPTURE_INVALIDATED: Self = Self(901);
    pub(super) const CAPTURE_IMPLICIT: Self = Self(906);
    pub(super) const CAPTURED_EVENT: Self = Self(907);
    pub(super) const CAPTURE_WRONG_THREAD: Self = Self(908);
    pub(super) const UNKNOWN: Self = Self(999);

    /// Whether a context that met this error returns it from then on.
    pub(super) fn is_sticky(self) -> bool {
        matches!(self.0, 214 | 220 | 700 | 702 | 710 | 714..=719)
    }
}

/// The name of a code and a text for it, or `None` for a code without one.
pub(super) fn describe(code: i32) -> Option<(&'static CStr, &'static CStr)> {
    let index = TEXTS.binary_search_by_key(&code, |entry| entry.0).ok()?;
    TEXTS.get(index).map(|entry| (entry.1, entry.2))
}

/// By code, ascending.
const TEXTS: &[(i32, &CStr, &CStr)] = &[
    (0, c"CUDA_SUCCESS", c"no error"),
    (
        1,
        c"CUDA_ERROR_INVALID_VALUE",
        c"a value is not allowed here",
    ),
    (2, c"CUDA_ERROR_OUT_OF_MEMORY", c"memory is used up"),
    (3, c"CUDA_ERROR_NOT_INITIALIZED", c"not initialized yet"),
    (4, c"CUDA_ERROR_DEINITIALIZED", c"shut down already"),
    (
        34,
        c"CUDA_ERROR_STUB_LIBRARY",
        c"a stub in place of a driver",
    ),
    (
        46,
        c"CUDA_ERROR_DEVICE_UNAVAILABLE",
        c"devices are busy or away",
    ),
    (100, c"CUDA_ERROR_NO_DEVICE", c"there is no device"),
    (
        101,
        c"CUDA_ERROR_INVALID_DEVICE",
        c"no device of this number",
    ),
    (201, c"CUDA_ERROR_INVALID_CONTEXT", c"no usable context"),
    (214, c"CUDA_ERROR_ECC_UNCORRECTABLE", c"memory lost bits"),
    (
        217,
        c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
        c"no way between these devices",
    ),
    (220, c"CUDA_ERROR_NVLINK_UNCORRECTABLE", c"a link lost bits"),
    (304, c"CUDA_ERROR_OPERATING_SYSTEM", c"a system call failed"),
    (400, c"CUDA_ERROR_INVALID_HANDLE", c"not a usable handle"),
    (401, c"CUDA_ERROR_ILLEGAL_STATE", c"not in this state"),
    (500, c"CUDA_ERROR_NOT_FOUND", c"nothing of this name"),
    (600, c"CUDA_ERROR_NOT_READY", c"not done yet"),
    (
        700,
        c"CUDA_ERROR_ILLEGAL_ADDRESS",
        c"a device accessed a wrong address",
    ),
    (702, c"CUDA_ERROR_LAUNCH_TIMEOUT", c"work took too long"),
    (
        704,
        c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
        c"peer access is on already",
    ),
    (
        705,
        c"CUDA_ERROR_PEER_ACCESS_NOT_ENABLED",
        c"peer access is off",
    ),
    (
        708,
        c"CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE",
        c"the primary context is in use",
    ),
    (
        709,
        c"CUDA_ERROR_CONTEXT_IS_DESTROYED",
        c"the context is gone",
    ),
    (
        710,
        c"CUDA_ERROR_ASSERT",
        c"an assertion failed on a device",
    ),
    (
        712,
        c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        c"registered already",
    ),
    (
        713,
        c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
        c"not registered",
    ),
    (
        714,
        c"CUDA_ERROR_HARDWARE_STACK_ERROR",
        c"a stack of a device broke",
    ),
    (
        715,
        c"CUDA_ERROR_ILLEGAL_INSTRUCTION",
        c"a device met a wrong instruction",
    ),
    (
        716,
        c"CUDA_ERROR_MISALIGNED_ADDRESS",
        c"a device met a crooked address",
    ),
    (
        717,
        c"CUDA_ERROR_INVALID_ADDRESS_SPACE",
        c"a wrong kind of address",
    ),
    (
        718,
        c"CUDA_ERROR_INVALID_PC",
        c"a program counter went astray",
    ),
    (719, c"CUDA_ERROR_LAUNCH_FAILED", c"work on a device failed"),
    (800, c"CUDA_ERROR_NOT_PERMITTED", c"not permitted here"),
    (801, c"CUDA_ERROR_NOT_SUPPORTED", c"not supported here"),
    (
        802,
        c"CUDA_ERROR_SYSTEM_NOT_READY",
        c"the system is not ready",
    ),
    (
        803,
        c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        c"kernel and library differ",
    ),
    (
        804,
        c"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        c"no compatibility here",
    ),
    (
        805,
        c"CUDA_ERROR_MPS_CONNECTION_FAILED",
        c"the service was not reached",
    ),
    (
        806,
        c"CUDA_ERROR_MPS_RPC_FAILURE",
        c"the service did not answer",
    ),
    (
        807,
        c"CUDA_ERROR_MPS_SERVER_NOT_READY",
        c"the service is not ready",
    ),
    (
        808,
        c"CUDA_ERROR_MPS_MAX_CLIENTS_REACHED",
        c"too many clients",
    ),
    (
        809,
        c"CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED",
        c"too many connections",
    ),
    (
        900,
        c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        c"not while capturing",
    ),
    (
        901,
        c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        c"the capture is spoilt",
    ),
    (
        903,
        c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
        c"the capture began elsewhere",
    ),
    (
        906,
        c"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
        c"the null stream in a capture",
    ),
    (
        907,
        c"CUDA_ERROR_CAPTURED_EVENT",
        c"the event belongs to a capture",
    ),
    (
        908,
        c"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
        c"another thread captures",
    ),
    (999, c"CUDA_ERROR_UNKNOWN", c"an unknown error"),
];
