//! What a file of weights holds, before any of it is loaded.
//!
//! Rank 9. Part of `weights`.

use std::collections::BTreeMap;
use std::io::Read;

use safetensors::Dtype;

use crate::device::Device;
use crate::error::{Error, ErrorKind, InvalidWeights, Operation, Result};
use crate::layout::{DeviceLayout, LayoutError};
use crate::plan::{MemoryPlan, Placement, PlannedBuffer};
use crate::scalar::ScalarType;
use crate::shape::TensorSpec;
use crate::weights::dtype::{scalar_type, size_in_bytes};
use crate::weights::json::Entries;

/// The bytes before the text of the header: its length.
const LENGTH_SIZE: usize = 8;

/// The names, types, shapes and sizes of all tensors of a file.
///
/// One that exists is sound: names differ, the bytes of the tensors follow one
/// another without gap or overlap, and are as many as type and shape take.
#[derive(Clone, Debug)]
pub struct WeightsHeader {
    /// In the order of their bytes.
    tensors: Vec<WeightTensor>,
    /// The positions of the tensors, in the order of their names.
    by_name: Vec<usize>,
    metadata: BTreeMap<String, String>,
    size: u64,
    data_size: usize,
}

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightTensor {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    offset: usize,
    size: usize,
}

impl WeightsHeader {
    /// The longest header that is read, in bytes: that of the format.
    pub const MAX_SIZE: u64 = 100_000_000;

    /// Reads a header, and leaves `source` at the first byte of the data.
    ///
    /// No more memory is taken than `source` gives bytes, whatever length the file
    /// says that its header has.
    ///
    /// # Errors
    ///
    /// - [`InvalidWeights`](ErrorKind::InvalidWeights): the header ends too early, is
    ///   too long or malformed, or tensors overlap, leave gaps or share a name.
    /// - [`Backend`](ErrorKind::Backend): the reader failed; its error is the source.
    pub fn read(mut source: impl Read) -> Result<Self> {
        let length = read_all(&mut source, 8, 0)?;
        let length = length.first_chunk::<LENGTH_SIZE>().copied();
        let length = u64::from_le_bytes(length.unwrap_or_default());
        if length > Self::MAX_SIZE {
            return Err(InvalidWeights::HeaderTooLarge {
                size: length,
                limit: Self::MAX_SIZE,
            }
            .into());
        }
        let text = read_all(&mut source, length, 8)?;
        let entries: Entries = serde_json::from_slice(&text).map_err(|error| {
            let reason = error.to_string();
            InvalidWeights::Header { reason }
        })?;
        Ok(Self::check(entries, length.saturating_add(8))?)
    }

    /// The header of a whole file and the data behind it, which is checked to be
    /// as long as the tensors need.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read), and
    /// [`InvalidWeights`](ErrorKind::InvalidWeights) if bytes are missing or left over.
    pub fn parse(file: &[u8]) -> Result<(Self, &[u8])> {
        let mut rest = file;
        let header = Self::read(&mut rest)?;
        header.check_file_size(u64::try_from(file.len()).unwrap_or(u64::MAX))?;
        Ok((header, rest))
    }

    /// Checks that a file of `size` bytes is as long as this header needs.
    ///
    /// # Errors
    ///
    /// - [`InvalidWeights`](ErrorKind::InvalidWeights): bytes are missing or left over.
    pub fn check_file_size(&self, size: u64) -> Result<()> {
        let needed = self.file_size();
        match size.checked_sub(needed) {
            None => Err(InvalidWeights::Truncated {
                needed,
                found: size,
            }
            .into()),
            Some(0) => Ok(()),
            Some(extra) => Err(InvalidWeights::Trailing { extra }.into()),
        }
    }

    fn check(entries: Entries, size: u64) -> Result<Self, InvalidWeights> {
        let Entries {
            metadata,
            mut tensors,
        } = entries;
        tensors.sort_by_key(|(_, info)| info.data_offsets);
        let mut data_size = 0;
        let mut checked = Vec::with_capacity(tensors.len());
        for (name, info) in tensors {
            let (begin, end) = info.data_offsets;
            let Some(found) = end.checked_sub(begin).filter(|_| begin == data_size) else {
                return Err(InvalidWeights::Offsets {
                    name,
                    begin,
                    end,
                    due: data_size,
                });
            };
            let (dtype, shape) = (info.dtype, info.shape);
            match size_in_bytes(dtype, &shape) {
                Some(due) if due == found => {}
                Some(due) => {
                    return Err(InvalidWeights::Size {
                        name,
                        dtype: dtype.to_string(),
                        shape,
                        found,
                        due,
                    });
                }
                None => {
                    return Err(InvalidWeights::Uncountable {
                        name,
                        dtype: dtype.to_string(),
                        shape,
                    });
                }
            }
            data_size = end;
            checked.push(WeightTensor {
                name,
                dtype,
                shape,
                offset: begin,
                size: found,
            });
        }
        Ok(Self {
            by_name: sorted_by_name(&checked)?,
            tensors: checked,
            metadata,
            size,
            data_size,
        })
    }

    /// The tensors, in the order of their bytes.
    #[must_use]
    pub fn tensors(&self) -> &[WeightTensor] {
        &self.tensors
    }

    /// The position of a tensor among [`tensors`](Self::tensors), by name.
    ///
    /// Costs a binary search.
    #[must_use]
    pub fn position(&self, name: &str) -> Option<usize> {
        let found = self.by_name.binary_search_by(|&position| {
            let tensor = self.tensors.get(position);
            tensor.map_or("", |tensor| &tensor.name).cmp(name)
        });
        self.by_name.get(found.ok()?).copied()
    }

    /// A tensor, by name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&WeightTensor> {
        self.tensors.get(self.position(name)?)
    }

    /// What the file says beside its tensors.
    #[must_use]
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The bytes of all tensors together.
    #[must_use]
    pub fn data_size(&self) -> usize {
        self.data_size
    }

    /// The bytes of the header, its length included: where the data begins.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The bytes of a whole file with this header.
    #[must_use]
    pub fn file_size(&self) -> u64 {
        let data = u64::try_from(self.data_size).unwrap_or(u64::MAX);
        self.size.saturating_add(data)
    }

    /// A plan of one buffer on `device` for all tensors, each at a multiple of
    /// `align` bytes. Its placements are in the order of [`tensors`](Self::tensors).
    ///
    /// # Errors
    ///
    /// - [`Layout`](ErrorKind::Layout): `align` is no power of two.
    /// - [`PlanTooLarge`](ErrorKind::PlanTooLarge): the bytes can not be addressed.
    pub fn arena(&self, device: Device, align: usize) -> Result<MemoryPlan> {
        check_align(align)?;
        let mut end = 0_usize;
        let mut placements = Vec::with_capacity(self.tensors.len());
        for tensor in &self.tensors {
            let placed = end
                .checked_next_multiple_of(align)
                .and_then(|offset| Some((offset, offset.checked_add(tensor.size)?)));
            let Some((offset, after)) = placed else {
                return Err(ErrorKind::PlanTooLarge { device }.into());
            };
            placements.push(Placement::new(0, offset, tensor.size));
            end = after;
        }
        let buffer = PlannedBuffer {
            device,
            size: end,
            align,
        };
        MemoryPlan::new(vec![buffer], placements)
    }

    /// A plan of a buffer of its own for each tensor on `device`, aligned to
    /// `align` bytes. Buffers and placements are in the order of
    /// [`tensors`](Self::tensors).
    ///
    /// # Errors
    ///
    /// - [`Layout`](ErrorKind::Layout): `align` is no power of two.
    /// - [`PlanTooLarge`](ErrorKind::PlanTooLarge): there are more tensors than a
    ///   plan has buffers.
    pub fn separate(&self, device: Device, align: usize) -> Result<MemoryPlan> {
        check_align(align)?;
        if u32::try_from(self.tensors.len()).is_err() {
            return Err(ErrorKind::PlanTooLarge { device }.into());
        }
        let sizes = || self.tensors.iter().map(|tensor| tensor.size);
        let buffers = sizes().map(|size| PlannedBuffer {
            device,
            size,
            align,
        });
        let placements = (0..).zip(sizes());
        let placements = placements.map(|(id, size)| Placement::new(id, 0, size));
        MemoryPlan::new(buffers.collect(), placements.collect())
    }
}

impl WeightTensor {
    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type of the elements by its name in the format: `F32`, `BF16`.
    #[must_use]
    pub fn dtype(&self) -> String {
        self.dtype.to_string()
    }

    /// The type of the elements, or `None` for one that has no [`ScalarType`], such
    /// as the types of less than a byte.
    #[must_use]
    pub fn scalar_type(&self) -> Option<ScalarType> {
        scalar_type(self.dtype)
    }

    /// The sizes in elements, one per dimension.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Where its bytes begin, counted from the first byte of the data.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The number of its bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// The description of the tensor on `device`.
    ///
    /// # Errors
    ///
    /// - [`InvalidWeights`](ErrorKind::InvalidWeights): its elements have no
    ///   [`ScalarType`].
    /// - [`InvalidTensor`](ErrorKind::InvalidTensor): it has more dimensions than
    ///   [`TensorSpec::MAX_RANK`].
    pub fn spec(&self, device: Device) -> Result<TensorSpec> {
        let Some(scalar_type) = self.scalar_type() else {
            return Err(InvalidWeights::NoScalarType {
                name: self.name.clone(),
                dtype: self.dtype(),
            }
            .into());
        };
        TensorSpec::contiguous(scalar_type, &self.shape, device)
    }
}

/// Reads `size` bytes, of a file of which `before` were read.
fn read_all(source: &mut impl Read, size: u64, before: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source
        .take(size)
        .read_to_end(&mut bytes)
        .map_err(|error| Error::backend(Device::CPU, Operation::HostAccess, error))?;
    let found = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    if found < size {
        return Err(InvalidWeights::Truncated {
            needed: before.saturating_add(size),
            found: before.saturating_add(found),
        }
        .into());
    }
    Ok(bytes)
}

fn sorted_by_name(tensors: &[WeightTensor]) -> Result<Vec<usize>, InvalidWeights> {
    let name = |position: usize| tensors.get(position).map_or("", WeightTensor::name);
    let mut by_name: Vec<usize> = (0..tensors.len()).collect();
    by_name.sort_unstable_by_key(|&position| name(position));
    for (&first, &second) in by_name.iter().zip(by_name.iter().skip(1)) {
        if name(first) == name(second) {
            return Err(InvalidWeights::DuplicateName {
                name: name(first).to_owned(),
            });
        }
    }
    Ok(by_name)
}

fn check_align(align: usize) -> Result<(), LayoutError> {
    DeviceLayout::new(0, align).map(drop)
}
