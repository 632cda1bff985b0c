//! Weights from safetensors files (feature `safetensors`).
//!
//! Rank 9. Imports `planned`, `registry`, `tensor`, `span`, `plan`, `reading` and
//! the words. The one module that names safetensors.
//!
//! Everything is known before anything is allocated: [`WeightsHeader`] holds the
//! names, types, shapes and sizes; [`WeightsHeader::arena`] or
//! [`WeightsHeader::separate`] make a [`MemoryPlan`](crate::MemoryPlan) of them, or
//! the caller does; and [`WeightsLoader`] allocates that plan and fills it in one
//! pass over the file. How bytes get to a device is an [`Upload`].
//!
//! A file is not trusted: no input makes this panic, read past the end of what it
//! was given, or allocate on a device before the whole header is found to be sound.
//!
//! # Examples
//!
//! ```
//! use device_memory::weights::{WeightsHeader, WeightsLoader};
//! use device_memory::{Device, DeviceAllocatorRegistry, ScalarType};
//!
//! let json = br#"{"bias":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
//! let mut file = (json.len() as u64).to_le_bytes().to_vec();
//! file.extend_from_slice(json);
//! file.extend_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
//!
//! let (header, data) = WeightsHeader::parse(&file)?;
//! let plan = header.arena(Device::CPU, 64)?;
//! assert_eq!(plan.requirements()?, [(Device::CPU, 8)]);
//!
//! let loader = WeightsLoader::new(DeviceAllocatorRegistry::global());
//! let weights = loader.load(header, plan, data)?;
//!
//! let bias = weights.view("bias")?;
//! assert_eq!((bias.spec().scalar_type(), bias.spec().sizes()), (ScalarType::Float, &[2][..]));
//! assert_eq!(bias.to_vec()?, [1, 2, 3, 4, 5, 6, 7, 8]);
//! # Ok::<(), device_memory::Error>(())
//! ```

mod dtype;
mod header;
mod json;
mod loaded;
mod loader;
mod run;
mod upload;

pub use header::{WeightTensor, WeightsHeader};
pub use loaded::Weights;
pub use loader::WeightsLoader;
pub use upload::{PlainUploader, Upload};
