//! Types of which any bytes are a value.
//!
//! Rank 7. Part of `backend::cuda::interop`.

use cudarc::driver::DeviceRepr;

/// A type of which any bytes are a value, as memory of a device has any bytes.
///
/// `bool` is none, nor is a type with padding.
///
/// # Safety
///
/// Every sequence of `size_of::<Self>()` bytes is a value of the type, and every
/// value has no other bytes than initialized ones.
#[expect(unsafe_code, reason = "declares what safe code relies on")]
pub unsafe trait PlainData: DeviceRepr + Copy + 'static {}

macro_rules! plain {
    ($($type:ty)*) => {
        $(
            // SAFETY: a number without padding, of which all bytes are a value.
            #[expect(unsafe_code, reason = "implements an unsafe trait")]
            unsafe impl PlainData for $type {}
        )*
    };
}

plain! { u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64 }
