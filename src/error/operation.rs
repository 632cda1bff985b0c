//! What an allocator is asked to do.
//!
//! Rank 1. Part of `error`.

use std::fmt;

/// Something an allocator is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Making memory available.
    Allocate,
    /// Giving memory back.
    Deallocate,
    /// Copying from the host to the device.
    CopyHostToDevice,
    /// Copying from the device to the host.
    CopyDeviceToHost,
    /// Copying from a device to a device.
    CopyDeviceToDevice,
    /// Setting every byte of a range to one value.
    Fill,
    /// Asking for free and total memory.
    MemoryInfo,
    /// Waiting for all work of the device.
    Synchronize,
    /// Giving unused memory back to the system.
    Trim,
    /// Making a device ready for use.
    Open,
    /// Reading or writing memory by the host itself.
    HostAccess,
    /// Running a kernel.
    Launch,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allocate => "allocate",
            Self::Deallocate => "deallocate",
            Self::CopyHostToDevice => "copy from host to device",
            Self::CopyDeviceToHost => "copy from device to host",
            Self::CopyDeviceToDevice => "copy from device to device",
            Self::Fill => "fill",
            Self::MemoryInfo => "memory info",
            Self::Synchronize => "synchronize",
            Self::Trim => "trim",
            Self::Open => "open",
            Self::HostAccess => "host access",
            Self::Launch => "launch",
        })
    }
}
