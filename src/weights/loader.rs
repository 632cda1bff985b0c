//! From a file to a device.
//!
//! Rank 9. Part of `weights`.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::device::Device;
use crate::error::{Error, InvalidWeights, Operation, Result};
use crate::layout::{DeviceLayout, Tag};
use crate::plan::MemoryPlan;
use crate::planned::PlannedMemory;
use crate::registry::DeviceAllocatorRegistry;
use crate::weights::header::WeightsHeader;
use crate::weights::loaded::Weights;
use crate::weights::run::{Counted, runs};
use crate::weights::upload::{PlainUploader, Upload};

/// Loads weights with the allocators of a registry, tagged
/// [`Tag::WEIGHTS`](crate::Tag::WEIGHTS).
///
/// # Examples
///
/// ```no_run
/// use device_memory::weights::WeightsLoader;
/// use device_memory::{Device, DeviceAllocatorRegistry};
///
/// let mut report = |done: u64, total: u64| assert!(done <= total);
/// let weights = WeightsLoader::new(DeviceAllocatorRegistry::global())
///     .with_progress(&mut report)
///     .load_file("model.safetensors", Device::CPU)?;
///
/// assert!(weights.memory().size_in_bytes() >= weights.header().data_size());
/// # Ok::<(), device_memory::Error>(())
/// ```
pub struct WeightsLoader<'a> {
    registry: &'a DeviceAllocatorRegistry,
    uploader: Option<&'a mut dyn Upload>,
    progress: Option<&'a mut dyn FnMut(u64, u64)>,
}

impl<'a> WeightsLoader<'a> {
    /// A loader with a [`PlainUploader`] that reports no progress.
    #[must_use]
    pub fn new(registry: &'a DeviceAllocatorRegistry) -> Self {
        Self {
            registry,
            uploader: None,
            progress: None,
        }
    }

    /// Lets `uploader` bring the bytes to the device: a `StagedUploader` of the
    /// CUDA back end, to copy while reading.
    #[must_use]
    pub fn with_uploader(self, uploader: &'a mut dyn Upload) -> Self {
        Self {
            uploader: Some(uploader),
            ..self
        }
    }

    /// Tells `progress` how many of how many bytes of the tensors are on the device,
    /// never fewer than before, and at last all of them.
    #[must_use]
    pub fn with_progress(self, progress: &'a mut dyn FnMut(u64, u64)) -> Self {
        Self {
            progress: Some(progress),
            ..self
        }
    }

    /// Loads a whole file into one buffer on `device`, each tensor at the default
    /// alignment.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load) and [`WeightsHeader::read`], and
    ///
    /// - [`InvalidWeights`](crate::ErrorKind::InvalidWeights): the file is longer or
    ///   shorter than its header says. Nothing was allocated.
    /// - [`Backend`](crate::ErrorKind::Backend): the file can not be opened.
    pub fn load_file(self, path: impl AsRef<Path>, device: Device) -> Result<Weights> {
        let path = path.as_ref();
        let opened = File::open(path).and_then(|file| Ok((file.metadata()?.len(), file)));
        let (size, mut file) = opened.map_err(|source| {
            let path = path.display().to_string();
            Error::backend(Device::CPU, Operation::Open, Unopened { path, source })
        })?;
        let header = WeightsHeader::read(&mut file)?;
        header.check_file_size(size)?;
        let plan = header.arena(device, DeviceLayout::DEFAULT_ALIGN)?;
        self.load(header, plan, file)
    }

    /// Allocates the buffers of `plan`, which has one placement for each tensor in
    /// the order of [`WeightsHeader::tensors`], and fills them from `source`, which
    /// stands at the first byte of the data.
    ///
    /// The source is read once, front to back, and no further than the last tensor.
    /// Tensors that follow one another in a buffer as they do in the file are
    /// uploaded at once, and gaps between them set to 0. What else a buffer has is
    /// not written.
    ///
    /// If anything fails or panics, all memory is freed.
    ///
    /// # Errors
    ///
    /// - [`CountMismatch`](crate::ErrorKind::CountMismatch),
    ///   [`AtIndex`](crate::ErrorKind::AtIndex),
    ///   [`Overlap`](crate::ErrorKind::Overlap): the placements are not one for each
    ///   tensor, as long as it, or overlap. Nothing was allocated.
    /// - those of [`PlannedMemory::allocate`].
    /// - [`InvalidWeights`](crate::ErrorKind::InvalidWeights): the source ends early.
    /// - those of [`Upload::upload`].
    pub fn load(
        self,
        header: WeightsHeader,
        plan: MemoryPlan,
        source: impl Read,
    ) -> Result<Weights> {
        let runs = runs(&header, &plan)?;
        let mut memory = PlannedMemory::allocate_tagged(&plan, self.registry, Tag::WEIGHTS)?;
        let total = u64::try_from(header.data_size()).unwrap_or(u64::MAX);
        let mut source = Counted {
            inner: source,
            count: 0,
            ended: false,
        };
        let mut plain = PlainUploader::default();
        let uploader = self.uploader.unwrap_or(&mut plain);
        let mut silent = |_, _| {};
        let progress = self.progress.unwrap_or(&mut silent);
        let mut view = memory.view()?;
        let mut before = 0_u64;
        let mut told = 0_u64;
        for run in &runs {
            let dst = view.span_mut(run.place)?;
            let mut bytes = run.bytes(&mut source);
            let uploaded = uploader.upload(dst, &mut bytes, &mut |done, _| {
                // What is done of a run has its gaps in it.
                told = before
                    .saturating_add(run.tensor_bytes(done))
                    .clamp(told, total);
                progress(told, total);
            });
            if let Err(error) = uploaded {
                return Err(if source.ended {
                    let found = header.size().saturating_add(source.count);
                    let needed = header.file_size();
                    InvalidWeights::Truncated { needed, found }.into()
                } else {
                    error
                });
            }
            before = before.saturating_add(run.tensor_bytes(u64::MAX));
        }
        if told < total || total == 0 {
            progress(total, total);
        }
        Ok(Weights::new(header, plan, memory))
    }
}

impl fmt::Debug for WeightsLoader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeightsLoader")
            .field("registry", &self.registry)
            .finish_non_exhaustive()
    }
}

/// A file that can not be opened.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {source}")]
struct Unopened {
    path: String,
    source: io::Error,
}
