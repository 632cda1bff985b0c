//! What is kept of a tensor, and the checks before it is kept.
//!
//! Rank 4. Part of `pte`.
//!
//! Sizes, memory order and name stay in the file and are read again on request.

use crate::device::Device;
use crate::plan::PlannedBuffer;
use crate::pte::arena::resolve_device;
use crate::pte::data::Data;
use crate::pte::extent::size_in_bytes;
use crate::pte::fault::{Budget, Fallible, Fault};
use crate::pte::link::Vtable;
use crate::pte::schema::{AllocationDetails, ExtraTensorInfo, Tensor};
use crate::pte::warning::{Subject, WarningKind, Warnings};
use crate::pte::wire::to_usize;
use crate::scalar::ScalarType;
use crate::shape::ShapeDynamism;

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

/// The last vtables of the tables that values consist of.
#[derive(Debug, Default)]
pub(super) struct Vtables<'a> {
    pub(super) tensor: Vtable<'a>,
    allocation: Vtable<'a>,
    extra: Vtable<'a>,
    /// Of values that are no tensors.
    pub(super) other: Vtable<'a>,
    /// Of values that lists name.
    pub(super) item: Vtable<'a>,
}

/// What a tensor is checked against.
#[derive(Debug)]
pub(super) struct Context<'c, 'a> {
    pub(super) arenas: &'c [PlannedBuffer],
    pub(super) data: &'c Data<'a>,
    pub(super) warnings: &'c mut Warnings<'a>,
    pub(super) budget: &'c mut Budget,
    pub(super) vtables: Vtables<'a>,
}

/// What the extra info of a tensor says.
#[derive(Clone, Copy)]
struct Extra {
    device: Device,
    location: Location,
    has_name: bool,
    mutable_segment: u64,
}

impl Record {
    /// Checks `tensor`, value number `value`, and says what to keep.
    #[inline]
    pub(super) fn read<'a>(
        tensor: &Tensor<'a>,
        value: u32,
        position: u32,
        context: &mut Context<'_, 'a>,
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
            Some(link) => {
                let info = link.follow_like(&mut context.vtables.extra, "extra_tensor_info")?;
                read_extra(&info, value, context)?
            }
        };
        let data_buffer_idx = tensor.data_buffer_idx()?;
        let has_data = data_buffer_idx > 0 || extra.location == Location::External;
        let mut place = Place::default();
        let class = match tensor.allocation_info()? {
            Some(link) => {
                let details =
                    link.follow_like(&mut context.vtables.allocation, "allocation_info")?;
                if dynamism == ShapeDynamism::DynamicUnbound {
                    return Err(Fault::new(
                        "shape_dynamism",
                        format_args!("a planned tensor can not be DYNAMIC_UNBOUND"),
                    ));
                }
                place = Place::read(&details, nbytes, extra.device, context.arenas)?;
                let align = scalar_type.size();
                let offset = place.offset;
                // The sizes of all scalar types are powers of two.
                if offset.trailing_zeros() < align.trailing_zeros() {
                    let kind = WarningKind::Misaligned { offset, align };
                    let subject = Subject::Value(value);
                    context.warnings.add(subject, "memory_offset", kind);
                }
                if has_data {
                    check_initial(value, place, nbytes, data_buffer_idx, extra, context)?;
                }
                Class::Planned
            }
            None if extra.location == Location::External => Class::Constant,
            None if data_buffer_idx > 0 => {
                context.data.check_constant(data_buffer_idx, nbytes)?;
                Class::Constant
            }
            None => Class::Runtime,
        };
        Ok(Self {
            value,
            position,
            nbytes,
            offset: place.offset,
            buffer: place.buffer,
            device: extra.device,
            scalar_type,
            dynamism,
            location: extra.location,
            class,
            is_state: class == Class::Planned && (has_data || extra.has_name),
        })
    }
}

/// Where a planned tensor lies.
#[derive(Clone, Copy, Default)]
struct Place {
    /// Its arena, counted from 0.
    buffer: u32,
    offset: usize,
}

impl Place {
    /// Checks that `nbytes` bytes of a tensor of `device` lie within one of `arenas`.
    #[inline]
    fn read(
        details: &AllocationDetails<'_>,
        nbytes: usize,
        device: Device,
        arenas: &[PlannedBuffer],
    ) -> Fallible<Self> {
        let memory_id = details.memory_id()?;
        let low = details.memory_offset_low()?;
        let high = details.memory_offset_high()?;
        let offset = (u64::from(high) << 32) | u64::from(low);
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
        let Some(arena) = arenas.get(to_usize(buffer)) else {
            return Err(Fault::new(
                "memory_id",
                format_args!("memory id {memory_id} is not in 1..={}", arenas.len()),
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
        if device != arena.device && !arena.device.is_cpu() {
            return Err(Fault::new(
                "device_type",
                format_args!(
                    "a tensor of {device} lies in memory id {memory_id} on {}",
                    arena.device
                ),
            ));
        }
        Ok(Self { buffer, offset })
    }
}

/// Checks the initial data of planned tensor `value`.
#[inline]
fn check_initial(
    value: u32,
    place: Place,
    nbytes: usize,
    data_buffer_idx: u32,
    extra: Extra,
    context: &mut Context<'_, '_>,
) -> Fallible<()> {
    let arena = context.arenas.get(to_usize(place.buffer));
    if let Some(device) = arena.map(|arena| arena.device).filter(|d| !d.is_cpu()) {
        context.warnings.add(
            Subject::Value(value),
            "data_buffer_idx",
            WarningKind::InitialDataOnDevice { device },
        );
    }
    match extra.location {
        Location::External => Ok(()),
        Location::Segment => {
            context
                .data
                .check_initial(extra.mutable_segment, data_buffer_idx, nbytes)
        }
    }
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
