//! What is kept of a tensor, and the checks before it is kept.
//!
//! Rank 4. Part of `pte`.
//!
//! Sizes, memory order and name stay in the file and are read again on request.

use crate::device::Device;
use crate::plan::PlannedBuffer;
use crate::pte::arena::resolve_device;
use crate::pte::data::Data;
use crate::pte::fault::{Budget, Fallible, Fault};
use crate::pte::schema::{AllocationDetails, ExtraTensorInfo, Tensor};
use crate::pte::vector::Ints;
use crate::pte::warning::{Subject, WarningKind, Warnings};
use crate::pte::wire::to_usize;
use crate::scalar::ScalarType;
use crate::shape::{ShapeDynamism, TensorSpec};

/// Where the data of a tensor comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Location {
    /// The program itself, or nowhere.
    Segment,
    /// Another file, under the tensor's name.
    External,
}

impl Location {
    /// The name in ExecuTorch's schema.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Segment => "SEGMENT",
            Self::External => "EXTERNAL",
        }
    }
}

/// What kind of memory a tensor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// A range of an arena.
    Planned,
    /// Data of the program or of another file.
    Constant,
    /// None before execution.
    Runtime,
}

/// What is kept of a tensor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    /// Its index among the values of the method.
    pub(super) value: u32,
    /// Where the offset to its table is.
    pub(super) position: u32,
    /// Its size in bytes.
    pub(super) nbytes: usize,
    /// Where it starts in its arena, if planned.
    pub(super) offset: usize,
    /// Its arena, counted from 0, if planned.
    pub(super) buffer: u32,
    /// The device that it is meant for.
    pub(super) device: Device,
    pub(super) scalar_type: ScalarType,
    pub(super) dynamism: ShapeDynamism,
    pub(super) location: Location,
    pub(super) class: Class,
    /// Whether it is planned and has a name or initial data: it lives on after a run.
    pub(super) is_state: bool,
}

/// What a tensor is checked against.
#[derive(Debug)]
pub(super) struct Context<'c, 'a> {
    pub(super) arenas: &'c [PlannedBuffer],
    pub(super) data: &'c Data<'a>,
    pub(super) warnings: &'c mut Warnings<'a>,
    pub(super) budget: &'c mut Budget,
}

/// What the extra info of a tensor says.
struct Extra {
    device: Device,
    location: Location,
    has_name: bool,
    mutable_segment: u64,
}

impl Record {
    /// Checks `tensor`, value number `value`, and says what to keep.
    #[inline]
    pub(super) fn read(
        tensor: &Tensor<'_>,
        value: u32,
        position: usize,
        context: &mut Context<'_, '_>,
    ) -> Fallible<Self> {
        let code = tensor.scalar_type()?;
        let Some(scalar_type) = ScalarType::from_code(code) else {
            return Err(Fault::new(
                "scalar_type",
                format_args!("unknown scalar type {code}"),
            ));
        };
        let storage_offset = tensor.storage_offset()?;
        if storage_offset != 0 {
            return Err(Fault::new(
                "storage_offset",
                format_args!("{storage_offset} where only 0 is defined"),
            ));
        }
        let code = tensor.shape_dynamism()?;
        let Some(dynamism) = ShapeDynamism::from_code(code) else {
            return Err(Fault::new(
                "shape_dynamism",
                format_args!("unknown shape dynamism {code}"),
            ));
        };
        let (nbytes, oddity) = size_in_bytes(tensor, scalar_type)?;
        if let Some(kind) = oddity {
            context.warnings.add(Subject::Value(value), "sizes", kind);
        }
        let extra = match tensor.extra_tensor_info()? {
            None => Extra {
                device: Device::CPU,
                location: Location::Segment,
                has_name: false,
                mutable_segment: 0,
            },
            Some(info) => read_extra(&info, value, context)?,
        };
        let mut record = Self {
            value,
            position: u32::try_from(position).unwrap_or(u32::MAX),
            nbytes,
            offset: 0,
            buffer: 0,
            device: extra.device,
            scalar_type,
            dynamism,
            location: extra.location,
            class: Class::Planned,
            is_state: false,
        };
        let data_buffer_idx = tensor.data_buffer_idx()?;
        match tensor.allocation_info()? {
            Some(details) => {
                record.place(&details, context)?;
                let has_data = data_buffer_idx > 0 || extra.location == Location::External;
                record.is_state = has_data || extra.has_name;
                if has_data {
                    record.check_initial(data_buffer_idx, extra.mutable_segment, context)?;
                }
            }
            None if extra.location == Location::External => record.class = Class::Constant,
            None if data_buffer_idx > 0 => {
                record.class = Class::Constant;
                context.data.check_constant(data_buffer_idx, nbytes)?;
            }
            None => record.class = Class::Runtime,
        }
        Ok(record)
    }

    /// Checks the placement `details` and takes it over.
    #[inline]
    fn place(
        &mut self,
        details: &AllocationDetails<'_>,
        context: &mut Context<'_, '_>,
    ) -> Fallible<()> {
        if self.dynamism == ShapeDynamism::DynamicUnbound {
            return Err(Fault::new(
                "shape_dynamism",
                format_args!("a planned tensor can not be DYNAMIC_UNBOUND"),
            ));
        }
        let memory_id = details.memory_id()?;
        let low = details.memory_offset_low()?;
        let high = details.memory_offset_high()?;
        let offset = (u64::from(high) << 32) | u64::from(low);
        let nbytes = self.nbytes;
        let end = usize::try_from(offset)
            .ok()
            .and_then(|offset| Some((offset, offset.checked_add(nbytes)?)));
        let Some((offset, end)) = end else {
            return Err(Fault::new(
                "memory_offset",
                format_args!("{nbytes} bytes at offset {offset} pass the last address"),
            ));
        };
        let Some(buffer) = memory_id.checked_sub(1) else {
            return Err(Fault::new(
                "memory_id",
                format_args!("memory id 0 is reserved"),
            ));
        };
        let Some(arena) = context.arenas.get(to_usize(buffer)) else {
            return Err(Fault::new(
                "memory_id",
                format_args!(
                    "memory id {memory_id} is not in 1..={}",
                    context.arenas.len()
                ),
            ));
        };
        if end > arena.size {
            return Err(Fault::new(
                "memory_offset",
                format_args!(
                    "{nbytes} bytes at offset {offset} pass the {} bytes of memory id {memory_id}",
                    arena.size
                ),
            ));
        }
        if self.device != arena.device && !arena.device.is_cpu() {
            return Err(Fault::new(
                "device_type",
                format_args!(
                    "a tensor of {} lies in memory id {memory_id} on {}",
                    self.device, arena.device
                ),
            ));
        }
        let align = self.scalar_type.size();
        if offset.checked_rem(align).is_some_and(|rest| rest != 0) {
            context.warnings.add(
                Subject::Value(self.value),
                "memory_offset",
                WarningKind::Misaligned { offset, align },
            );
        }
        self.offset = offset;
        self.buffer = buffer;
        Ok(())
    }

    /// Checks the initial data of a planned tensor.
    fn check_initial(
        &self,
        data_buffer_idx: u32,
        mutable_segment: u64,
        context: &mut Context<'_, '_>,
    ) -> Fallible<()> {
        let arena = context.arenas.get(to_usize(self.buffer));
        if let Some(device) = arena.map(|arena| arena.device).filter(|d| !d.is_cpu()) {
            context.warnings.add(
                Subject::Value(self.value),
                "data_buffer_idx",
                WarningKind::InitialDataOnDevice { device },
            );
        }
        match self.location {
            Location::External => Ok(()),
            Location::Segment => {
                context
                    .data
                    .check_initial(mutable_segment, data_buffer_idx, self.nbytes)
            }
        }
    }
}

/// Checks the sizes and the memory order, and returns the size in bytes.
#[inline]
fn size_in_bytes(
    tensor: &Tensor<'_>,
    scalar_type: ScalarType,
) -> Fallible<(usize, Option<WarningKind>)> {
    let Some(sizes) = tensor.sizes()? else {
        return Err(Fault::new("sizes", format_args!("a tensor has no sizes")));
    };
    let rank = sizes.len();
    if rank > TensorSpec::MAX_RANK {
        return Err(Fault::new(
            "sizes",
            format_args!("{rank} dimensions, more than {}", TensorSpec::MAX_RANK),
        ));
    }
    let mut product = Some(scalar_type.size());
    let mut is_empty = false;
    for (dimension, size) in sizes.iter().enumerate() {
        let Ok(size) = usize::try_from(size) else {
            return Err(Fault::new(
                "sizes",
                format_args!("negative size {size} of dimension {dimension}"),
            ));
        };
        if size == 0 {
            is_empty = true;
        } else {
            product = product.and_then(|product| product.checked_mul(size));
        }
    }
    check_dim_order(tensor, rank)?;
    let product = product.filter(|&bytes| isize::try_from(bytes).is_ok());
    match (product, is_empty) {
        (Some(bytes), false) => Ok((bytes, None)),
        (Some(_), true) => Ok((0, None)),
        (None, true) => Ok((0, Some(WarningKind::OversizedEmpty))),
        (None, false) => Err(too_large(sizes, scalar_type)),
    }
}

#[cold]
fn too_large(sizes: Ints<'_>, scalar_type: ScalarType) -> Fault {
    let sizes: Vec<i32> = sizes.iter().collect();
    Fault::new(
        "sizes",
        format_args!("{sizes:?} of {scalar_type} are more bytes than can be addressed"),
    )
}

/// Checks that the memory order names each of `rank` dimensions once.
#[inline]
fn check_dim_order(tensor: &Tensor<'_>, rank: usize) -> Fallible<()> {
    let Some(order) = tensor.dim_order()? else {
        return Err(Fault::new(
            "dim_order",
            format_args!("a tensor has no dim order"),
        ));
    };
    if order.len() != rank {
        return Err(Fault::new(
            "dim_order",
            format_args!("{} entries for {rank} dimensions", order.len()),
        ));
    }
    let mut seen = 0_u32;
    for &dimension in order {
        let bit = 1_u32.checked_shl(u32::from(dimension)).unwrap_or(0);
        if usize::from(dimension) >= rank || seen & bit != 0 {
            return Err(Fault::new(
                "dim_order",
                format_args!("{order:?} is no permutation of {rank} dimensions"),
            ));
        }
        seen |= bit;
    }
    Ok(())
}

#[inline]
fn read_extra(
    info: &ExtraTensorInfo<'_>,
    value: u32,
    context: &mut Context<'_, '_>,
) -> Fallible<Extra> {
    let (device, oddity) = resolve_device(
        info.device_type()?,
        info.device_index()?,
        ["device_type", "device_index"],
    )?;
    if let Some(kind) = oddity {
        context
            .warnings
            .add(Subject::Value(value), "device_index", kind);
    }
    let name = info.fully_qualified_name()?;
    if let Some(name) = name {
        context.budget.charge("fully_qualified_name", name.len())?;
    }
    let location = match info.location()? {
        0 => Location::Segment,
        1 if name.is_some() => Location::External,
        1 => {
            return Err(Fault::new(
                "fully_qualified_name",
                format_args!("an EXTERNAL tensor has no name"),
            ));
        }
        code => {
            return Err(Fault::new(
                "location",
                format_args!("unknown data location {code}"),
            ));
        }
    };
    Ok(Extra {
        device,
        location,
        has_name: name.is_some(),
        mutable_segment: info.mutable_data_segments_idx()?,
    })
}
