//! Inputs that are the same in every run, and outputs as bytes.

use std::any;
use std::fmt;

use device_memory::DeviceAddress;
use executorch::device::{Device, DeviceType};
use executorch::evalue::{EValue, Tag};
use executorch::program::{MethodMeta, TensorInfo};
use executorch::scalar::{bf16, f16};
use executorch::tensor::{Scalar, ScalarType, TensorPtr, TensorPtrBuilder, View};

use crate::Failure;

/// An input of a method.
pub struct Input(Box<dyn Held>);

/// A tensor of some type of element.
trait Held {
    fn value(&self) -> EValue<'_>;
    fn kind(&self) -> &'static str;
}

impl<S: Scalar> Held for TensorPtr<'static, View<S>> {
    fn value(&self) -> EValue<'_> {
        EValue::new(self.as_tensor())
    }

    fn kind(&self) -> &'static str {
        any::type_name::<S>()
    }
}

impl Input {
    /// A tensor like `info` says, with elements that follow from `seed`: numbers
    /// of no great size, where negative ones exist also those.
    ///
    /// # Errors
    ///
    /// The type of the elements is not known here, or the runtime refuses the shape.
    pub fn tensor(info: &TensorInfo<'_>, seed: u64) -> Result<Self, Failure> {
        match info.scalar_type() {
            ScalarType::Float => Self::of::<f32>(info, seed),
            ScalarType::Double => Self::of::<f64>(info, seed),
            ScalarType::Half => Self::of::<f16>(info, seed),
            ScalarType::BFloat16 => Self::of::<bf16>(info, seed),
            ScalarType::Bool => Self::of::<bool>(info, seed),
            ScalarType::Byte => Self::of::<u8>(info, seed),
            ScalarType::Char => Self::of::<i8>(info, seed),
            ScalarType::Short => Self::of::<i16>(info, seed),
            ScalarType::Int => Self::of::<i32>(info, seed),
            ScalarType::Long => Self::of::<i64>(info, seed),
            other => Err(format!("no inputs of type {other:?} can be made").into()),
        }
    }

    /// All inputs of a method, from one seed.
    ///
    /// # Errors
    ///
    /// An input is no tensor, or as [`tensor`](Self::tensor).
    pub fn all(meta: &MethodMeta<'_>, seed: u64) -> Result<Vec<Self>, Failure> {
        let inputs = (0..meta.num_inputs()).zip(seed..);
        inputs
            .map(|(index, seed)| match meta.input_tag(index)? {
                Tag::Tensor => Self::tensor(&meta.input_tensor_meta(index)?, seed),
                other => Err(format!("input {index} is no tensor but {other:?}").into()),
            })
            .collect()
    }

    /// A tensor of `f32` that lies at `address` already.
    ///
    /// # Errors
    ///
    /// The runtime knows no such device, or refuses the shape.
    ///
    /// # Safety
    ///
    /// A block of so many elements is at `address` until the tensor is dropped.
    #[expect(unsafe_code, reason = "the caller vouches for the address")]
    pub unsafe fn on_device(sizes: &[i32], address: DeviceAddress) -> Result<Self, Failure> {
        let data: *const f32 = address.ptr.as_raw().cast();
        let device = to_runtime(address.device)?;
        // SAFETY: as the caller says. The runtime does not follow the address of a
        // tensor that is on a device.
        let builder =
            unsafe { TensorPtrBuilder::<View<f32>>::from_ptr(data, sizes.iter().copied()) };
        // SAFETY: the block is on that device.
        let builder = unsafe { builder.device(device) };
        Ok(Self(Box::new(builder.build()?)))
    }

    fn of<S: Pattern>(info: &TensorInfo<'_>, seed: u64) -> Result<Self, Failure> {
        let sizes = info.sizes();
        let count = sizes.iter().try_fold(1_u64, |count, &size| {
            count.checked_mul(u64::try_from(size).ok()?)
        });
        let count = count.ok_or("the sizes of a tensor are out of range")?;
        let elements: Vec<S> = (0..count).map(|i| S::from_bits(mix(seed, i))).collect();
        let strides = strides(sizes, info.dim_order())?;
        let builder = TensorPtrBuilder::<View<S>>::from_vec(elements);
        // SAFETY: there are as many elements as the product of the sizes.
        #[expect(unsafe_code, reason = "see SAFETY")]
        let builder = unsafe { builder.sizes(sizes.iter().copied()) };
        // SAFETY: the strides are dense, so they stay within the product of the sizes.
        #[expect(unsafe_code, reason = "see SAFETY")]
        let builder = unsafe { builder.strides(strides) };
        Ok(Self(Box::new(builder.build()?)))
    }

    /// The value for the runtime.
    #[must_use]
    pub fn value(&self) -> EValue<'_> {
        self.0.value()
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Input").field(&self.0.kind()).finish()
    }
}

/// The device in the runtime's words.
///
/// # Errors
///
/// The runtime has no such type, or no such index.
pub fn to_runtime(device: device_memory::Device) -> Result<Device, Failure> {
    let device_type = match device.device_type() {
        device_memory::DeviceType::Cpu => DeviceType::Cpu,
        device_memory::DeviceType::Cuda => DeviceType::Cuda,
        other => return Err(format!("the runtime has no devices of type {other}").into()),
    };
    Ok(Device::new(device_type, i8::try_from(device.index())?))
}

/// The strides of a dense tensor, in elements.
fn strides(sizes: &[i32], dim_order: &[u8]) -> Result<Vec<i32>, Failure> {
    let mut strides = vec![0; sizes.len()];
    let mut step = 1_i32;
    for &dimension in dim_order.iter().rev() {
        let dimension = usize::from(dimension);
        let size = sizes.get(dimension).copied();
        match strides.get_mut(dimension).zip(size) {
            Some((stride, size)) => {
                *stride = step;
                step = step.checked_mul(size.max(1)).ok_or("a stride overflows")?;
            }
            None => return Err("the order of dimensions names one that is not there".into()),
        }
    }
    Ok(strides)
}

/// A number that follows from two others and looks like neither (SplitMix64).
fn mix(seed: u64, position: u64) -> u64 {
    let mut bits = seed
        .wrapping_mul(0xD129_2B4B_D5E1_2C65)
        .wrapping_add(position.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

/// A type of element that can be made from bits.
trait Pattern: Scalar {
    fn from_bits(bits: u64) -> Self;
}

/// Between -1 and 1, in steps that every type of floating point but the smallest
/// can say.
fn fraction(bits: u64) -> f32 {
    let high = i8::from_ne_bytes([bits.to_ne_bytes()[0]]);
    f32::from(high) / 128.0
}

/// Between 0 and 63.
fn small(bits: u64) -> i8 {
    i8::try_from(bits >> 58).unwrap_or(0)
}

macro_rules! pattern {
    ($($scalar:ty: $make:expr;)*) => {$(
        impl Pattern for $scalar {
            fn from_bits(bits: u64) -> Self {
                ($make)(bits)
            }
        }
    )*};
}

pattern! {
    f32: fraction;
    f64: |bits| fraction(bits).into();
    f16: |bits| f16::from_f32(fraction(bits));
    bf16: |bits| bf16::from_f32(fraction(bits));
    bool: |bits: u64| bits >> 63 == 1;
    u8: |bits| small(bits).unsigned_abs();
    i8: small;
    i16: |bits| small(bits).into();
    i32: |bits| small(bits).into();
    i64: |bits| small(bits).into();
}

/// An output of a method, as it was when the method ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Output {
    /// The type of the elements, in the runtime's words.
    pub scalar_type: String,
    /// The sizes.
    pub sizes: Vec<i32>,
    /// The bytes, if they are on the host.
    pub bytes: Option<Vec<u8>>,
}

impl Output {
    /// Reads an output, and says at which address it is.
    ///
    /// # Errors
    ///
    /// It is no tensor.
    #[expect(unsafe_code, reason = "see SAFETY")]
    pub fn read(value: &EValue<'_>) -> Result<(Self, usize), Failure> {
        if value.tag() != Tag::Tensor {
            return Err(format!("an output is no tensor but {:?}", value.tag()).into());
        }
        let tensor = value.as_tensor();
        let data: *const u8 = tensor.as_data_ptr_raw().cast();
        let bytes = if !tensor.device().is_cpu() {
            None
        } else if data.is_null() || tensor.nbytes() == 0 {
            Some(Vec::new())
        } else {
            // SAFETY: the runtime says that the tensor has so many bytes there, which
            // it has just written, and nothing runs that could write them now.
            Some(unsafe { std::slice::from_raw_parts(data, tensor.nbytes()) }.to_vec())
        };
        let output = Self {
            scalar_type: format!("{:?}", tensor.scalar_type()),
            sizes: tensor.sizes().to_vec(),
            bytes,
        };
        Ok((output, data.addr()))
    }

    /// A number that outputs with different bytes hardly ever share (FNV-1a).
    #[must_use]
    pub fn hash(&self) -> u64 {
        let bytes = self.bytes.iter().flatten();
        bytes.fold(0xCBF2_9CE4_8422_2325, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
        })
    }
}
