//! Which device: a type and an index.
//!
//! Rank 0. Imports nothing from this crate.
//!
//! A device is always named in full. There is no "current device" and no index
//! of -1: what a buffer was allocated on is what it is freed on.

use std::fmt;
use std::str::FromStr;

/// The number of a device among those of its type, counted from 0.
pub type DeviceIndex = u16;

/// A kind of device memory.
///
/// `Custom` is for back ends outside this crate; its number is chosen by the
/// program that registers the back end and has no meaning elsewhere.
///
/// # Examples
///
/// ```
/// use device_memory::DeviceType;
///
/// assert_eq!(DeviceType::from_executorch(1), Some(DeviceType::Cuda));
/// assert_eq!(DeviceType::CudaHost.to_dlpack(), Some(3));
/// assert_eq!(DeviceType::Custom(7).to_string(), "custom7");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum DeviceType {
    /// Host memory.
    Cpu,
    /// Memory of an NVIDIA GPU, not readable by the host.
    Cuda,
    /// Page-locked host memory that a GPU can reach.
    CudaHost,
    /// Memory that the CUDA driver moves between host and GPU.
    CudaManaged,
    /// Memory of a back end outside this crate.
    Custom(u8),
}

impl DeviceType {
    /// The type that ExecuTorch writes as `code` (CPU 0, CUDA 1).
    #[must_use]
    pub const fn from_executorch(code: i8) -> Option<Self> {
        match code {
            0 => Some(Self::Cpu),
            1 => Some(Self::Cuda),
            _ => None,
        }
    }

    /// The code of ExecuTorch's schema for this type, if it has one.
    #[must_use]
    pub const fn to_executorch(self) -> Option<i8> {
        match self {
            Self::Cpu => Some(0),
            Self::Cuda => Some(1),
            Self::CudaHost | Self::CudaManaged | Self::Custom(_) => None,
        }
    }

    /// The type that DLPack writes as `code`
    /// (`kDLCPU` 1, `kDLCUDA` 2, `kDLCUDAHost` 3, `kDLCUDAManaged` 13).
    #[must_use]
    pub const fn from_dlpack(code: i32) -> Option<Self> {
        match code {
            1 => Some(Self::Cpu),
            2 => Some(Self::Cuda),
            3 => Some(Self::CudaHost),
            13 => Some(Self::CudaManaged),
            _ => None,
        }
    }

    /// DLPack's code for this type, if it has one.
    #[must_use]
    pub const fn to_dlpack(self) -> Option<i32> {
        match self {
            Self::Cpu => Some(1),
            Self::Cuda => Some(2),
            Self::CudaHost => Some(3),
            Self::CudaManaged => Some(13),
            Self::Custom(_) => None,
        }
    }
}

impl fmt::Display for DeviceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda => f.write_str("cuda"),
            Self::CudaHost => f.write_str("cuda_host"),
            Self::CudaManaged => f.write_str("cuda_managed"),
            Self::Custom(number) => write!(f, "custom{number}"),
        }
    }
}

impl FromStr for DeviceType {
    type Err = ParseDeviceError;

    fn from_str(text: &str) -> Result<Self, ParseDeviceError> {
        match text {
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda),
            "cuda_host" => Ok(Self::CudaHost),
            "cuda_managed" => Ok(Self::CudaManaged),
            _ => text
                .strip_prefix("custom")
                .and_then(canonical_number)
                .and_then(|number| u8::try_from(number).ok())
                .map(Self::Custom)
                .ok_or_else(|| ParseDeviceError::unknown_type(text)),
        }
    }
}

/// One device: `cpu:0`, `cuda:1`.
///
/// # Examples
///
/// ```
/// use device_memory::{Device, DeviceType};
///
/// let device: Device = "cuda:1".parse()?;
///
/// assert_eq!(device, Device::new(DeviceType::Cuda, 1));
/// assert_eq!("cpu".parse::<Device>()?, Device::CPU);
/// assert_eq!(device.to_string(), "cuda:1");
/// # Ok::<(), device_memory::ParseDeviceError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Device {
    /// From the highest byte: the kind of the type, the number of a custom type,
    /// the index. One word, so that two devices compare in one instruction.
    packed: u32,
}

impl Device {
    /// The host, `cpu:0`.
    pub const CPU: Self = Self::new(DeviceType::Cpu, 0);

    /// The device of type `device_type` numbered `index`.
    #[inline]
    #[must_use]
    pub const fn new(device_type: DeviceType, index: DeviceIndex) -> Self {
        let (kind, custom) = match device_type {
            DeviceType::Cpu => (0, 0),
            DeviceType::Cuda => (1, 0),
            DeviceType::CudaHost => (2, 0),
            DeviceType::CudaManaged => (3, 0),
            DeviceType::Custom(number) => (4, number),
        };
        let [low, high] = index.to_le_bytes();
        Self {
            packed: u32::from_le_bytes([low, high, custom, kind]),
        }
    }

    /// The kind of memory.
    #[inline]
    #[must_use]
    pub const fn device_type(self) -> DeviceType {
        let [_, _, custom, kind] = self.packed.to_le_bytes();
        match kind {
            0 => DeviceType::Cpu,
            1 => DeviceType::Cuda,
            2 => DeviceType::CudaHost,
            3 => DeviceType::CudaManaged,
            _ => DeviceType::Custom(custom),
        }
    }

    /// The number among the devices of its type.
    #[inline]
    #[must_use]
    pub const fn index(self) -> DeviceIndex {
        let [low, high, _, _] = self.packed.to_le_bytes();
        DeviceIndex::from_le_bytes([low, high])
    }

    /// Whether this is host memory, of any index.
    #[must_use]
    pub const fn is_cpu(self) -> bool {
        matches!(self.device_type(), DeviceType::Cpu)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.device_type(), self.index())
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({self})")
    }
}

impl FromStr for Device {
    type Err = ParseDeviceError;

    fn from_str(text: &str) -> Result<Self, ParseDeviceError> {
        let (name, index) = match text.split_once(':') {
            None => (text, 0),
            Some((name, digits)) => {
                let index = canonical_number(digits)
                    .ok_or_else(|| ParseDeviceError::invalid_index(digits))?;
                (name, index)
            }
        };
        Ok(Self::new(name.parse()?, index))
    }
}

/// Reads decimal digits without sign, padding or leading zeros.
fn canonical_number(digits: &str) -> Option<u16> {
    let canonical = match digits.as_bytes() {
        [] => false,
        [b'0'] => true,
        [b'0', ..] => false,
        all => all.iter().all(u8::is_ascii_digit),
    };
    if canonical { digits.parse().ok() } else { None }
}

/// Why a text names no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseDeviceError {
    /// The part before the colon is no device type.
    #[error(
        "unknown device type {found:?}: expected cpu, cuda, cuda_host, cuda_managed or customN (N up to 255)"
    )]
    UnknownType {
        /// What stood there.
        found: String,
    },
    /// The part after the colon is no index.
    #[error("invalid device index {found:?}: expected a number from 0 to 65535")]
    InvalidIndex {
        /// What stood there.
        found: String,
    },
}

impl ParseDeviceError {
    fn unknown_type(found: &str) -> Self {
        Self::UnknownType {
            found: found.to_owned(),
        }
    }

    fn invalid_index(found: &str) -> Self {
        Self::InvalidIndex {
            found: found.to_owned(),
        }
    }
}
