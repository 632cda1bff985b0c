//! Views of device memory.
//!
//! Rank 3. Imports `allocator` and the words.
//!
//! A view is an address, a length and a device, not a `&[u8]`: the host may not
//! be able to read what it points at. Only [`as_slice`](DeviceSpan::as_slice)
//! makes a slice, and only where the host can.

mod exclusive;
mod region;
mod shared;

pub use exclusive::DeviceSpanMut;
pub use shared::DeviceSpan;
