//! Requests and plans in and out of serialized forms.
//!
//! Rank 2. Part of `plan`.
//!
//! What is read is checked before it exists: a request that planning would refuse
//! is refused here, and so is a plan that no memory can be allocated for.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::device::{Device, ParseDeviceError};
use crate::layout::{DeviceLayout, Tag};

use super::memory_plan::{MemoryPlan, Placement, PlannedBuffer};
use super::problem::Problem;
use super::request::{DeviceOptions, PlanRequest};
use super::value::{Alias, Gap, PlanValue};

/// A device by its name, as `cuda:0`.
#[derive(PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct DeviceName(String);

impl DeviceName {
    /// Whether it is what is meant where none is given.
    pub(crate) fn is_host(&self) -> bool {
        *self == Self::default()
    }

    /// The device of this name.
    pub(crate) fn parse(&self) -> Result<Device, ParseDeviceError> {
        self.0.parse()
    }
}

impl Default for DeviceName {
    fn default() -> Self {
        Self::from(Device::CPU)
    }
}

impl From<Device> for DeviceName {
    fn from(device: Device) -> Self {
        Self(device.to_string())
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRequest {
    values: Vec<RawValue>,
    #[serde(default, skip_serializing_if = "is_default")]
    default: RawOptions,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    devices: Vec<RawDevice>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    reserved: Vec<RawReserved>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawValue {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    size: usize,
    #[serde(default = "one", skip_serializing_if = "is_one")]
    align: usize,
    first_use: usize,
    last_use: usize,
    #[serde(default, skip_serializing_if = "DeviceName::is_host")]
    device: DeviceName,
    #[serde(default, skip_serializing_if = "is_default")]
    pool: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    alias: Option<RawAlias>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fixed_offset: Option<usize>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    gaps: Vec<RawGap>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tag: Option<RawTag>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawAlias {
    of: usize,
    offset: usize,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGap {
    /// The first and the last step.
    steps: [usize; 2],
    /// The first byte, and the one after the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    window: Option<[usize; 2]>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTag {
    name: String,
    #[serde(default, skip_serializing_if = "is_default")]
    persistent: bool,
}

#[derive(PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawOptions {
    #[serde(default = "usual", skip_serializing_if = "is_usual")]
    align: usize,
    #[serde(default, skip_serializing_if = "is_default")]
    padding: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    capacity: Option<usize>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawDevice {
    device: DeviceName,
    options: RawOptions,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawReserved {
    #[serde(default, skip_serializing_if = "DeviceName::is_host")]
    device: DeviceName,
    #[serde(default, skip_serializing_if = "is_default")]
    pool: u32,
    size: usize,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPlan {
    buffers: Vec<RawBuffer>,
    placements: Vec<RawPlacement>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawBuffer {
    #[serde(default, skip_serializing_if = "DeviceName::is_host")]
    device: DeviceName,
    size: usize,
    #[serde(default = "usual", skip_serializing_if = "is_usual")]
    align: usize,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPlacement {
    memory_id: u32,
    offset: usize,
    size: usize,
}

/// The alignment of a value that has none of its own.
fn one() -> usize {
    1
}

fn is_one(align: &usize) -> bool {
    *align == one()
}

/// The alignment of devices and buffers where none is given.
fn usual() -> usize {
    DeviceLayout::DEFAULT_ALIGN
}

fn is_usual(align: &usize) -> bool {
    *align == usual()
}

fn is_default<T: Default + PartialEq>(found: &T) -> bool {
    *found == T::default()
}

impl Default for RawOptions {
    fn default() -> Self {
        Self::from(DeviceOptions::default())
    }
}

impl Serialize for PlanRequest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        RawRequest::from(self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for PlanRequest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let request = Self::try_from(RawRequest::deserialize(deserializer)?);
        let request = request.map_err(D::Error::custom)?;
        Problem::new(&request).map_err(D::Error::custom)?;
        Ok(request)
    }
}

impl Serialize for MemoryPlan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        RawPlan::from(self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for MemoryPlan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = RawPlan::deserialize(deserializer)?;
        let buffers = (0_usize..).zip(raw.buffers).map(|(index, raw)| {
            let fault = |reason: String| D::Error::custom(format!("buffer {index}: {reason}"));
            let device = raw.device.parse();
            let buffer = PlannedBuffer {
                device: device.map_err(|error| fault(error.to_string()))?,
                size: raw.size,
                align: raw.align,
            };
            let layout = buffer.layout();
            layout.map_err(|error| fault(error.to_string()))?;
            Ok(buffer)
        });
        let placements = raw.placements.into_iter();
        let placements = placements.map(|raw| Placement::new(raw.memory_id, raw.offset, raw.size));
        Self::new(buffers.collect::<Result<_, _>>()?, placements.collect())
            .map_err(D::Error::custom)
    }
}

impl From<&PlanRequest> for RawRequest {
    fn from(request: &PlanRequest) -> Self {
        let devices = request.devices().map(|(device, options)| RawDevice {
            device: device.into(),
            options: options.into(),
        });
        let reserved = request.reserved().map(|(device, pool, size)| RawReserved {
            device: device.into(),
            pool,
            size,
        });
        Self {
            values: request.values().iter().map(RawValue::from).collect(),
            default: request.default_device().into(),
            devices: devices.collect(),
            reserved: reserved.collect(),
        }
    }
}

impl TryFrom<RawRequest> for PlanRequest {
    type Error = String;

    fn try_from(raw: RawRequest) -> Result<Self, String> {
        let mut request = Self::new();
        for (index, value) in raw.values.into_iter().enumerate() {
            let value = PlanValue::try_from(value);
            request.push(value.map_err(|reason| format!("value {index}: {reason}"))?);
        }
        request.set_default(raw.default.into());
        for RawDevice { device, options } in raw.devices {
            let device = device.parse().map_err(|error| error.to_string())?;
            if request.devices().any(|(other, _)| other == device) {
                return Err(format!("options of {device} are there twice"));
            }
            request.set_device(device, options.into());
        }
        for RawReserved { device, pool, size } in raw.reserved {
            let device = device.parse().map_err(|error| error.to_string())?;
            request.reserve(device, pool, size);
        }
        Ok(request)
    }
}

impl From<DeviceOptions> for RawOptions {
    fn from(options: DeviceOptions) -> Self {
        Self {
            align: options.align,
            padding: options.padding,
            capacity: options.capacity,
        }
    }
}

impl From<RawOptions> for DeviceOptions {
    fn from(raw: RawOptions) -> Self {
        Self {
            align: raw.align,
            padding: raw.padding,
            capacity: raw.capacity,
        }
    }
}

impl From<&PlanValue> for RawValue {
    fn from(value: &PlanValue) -> Self {
        let gaps = value.gaps.iter().map(|gap| RawGap {
            steps: [*gap.steps.start(), *gap.steps.end()],
            window: gap.window.as_ref().map(|bytes| [bytes.start, bytes.end]),
        });
        Self {
            name: value.name.clone(),
            size: value.size,
            align: value.align,
            first_use: value.first_use,
            last_use: value.last_use,
            device: value.device.into(),
            pool: value.pool,
            alias: value.alias.map(|alias| RawAlias {
                of: alias.of,
                offset: alias.offset,
            }),
            fixed_offset: value.fixed_offset,
            gaps: gaps.collect(),
            tag: (value.tag != Tag::NONE).then(|| RawTag {
                name: value.tag.name().to_owned(),
                persistent: value.tag.is_persistent(),
            }),
        }
    }
}

impl TryFrom<RawValue> for PlanValue {
    type Error = String;

    fn try_from(raw: RawValue) -> Result<Self, String> {
        let tag = raw.tag.map_or(Ok(Tag::NONE), Tag::try_from)?;
        let gaps = raw.gaps.into_iter().map(|raw| {
            let [first, last] = raw.steps;
            Gap {
                steps: first..=last,
                window: raw.window.map(|[from, to]| from..to),
            }
        });
        Ok(Self {
            size: raw.size,
            align: raw.align,
            first_use: raw.first_use,
            last_use: raw.last_use,
            device: raw.device.parse().map_err(|error| error.to_string())?,
            pool: raw.pool,
            alias: raw.alias.map(|alias| Alias {
                of: alias.of,
                offset: alias.offset,
            }),
            fixed_offset: raw.fixed_offset,
            gaps: gaps.collect(),
            tag,
            name: raw.name,
        })
    }
}

impl TryFrom<RawTag> for Tag {
    type Error = String;

    /// A tag that the program has made. Text makes none, for they are few and stay.
    fn try_from(raw: RawTag) -> Result<Self, String> {
        match Self::find(&raw.name) {
            Some(tag) if raw.persistent => Ok(tag.persistent()),
            Some(tag) => Ok(tag),
            None => Err(format!("no tag of this process is named {:?}", raw.name)),
        }
    }
}

impl From<&MemoryPlan> for RawPlan {
    fn from(plan: &MemoryPlan) -> Self {
        let buffers = plan.buffers().iter().map(|buffer| RawBuffer {
            device: buffer.device.into(),
            size: buffer.size,
            align: buffer.align,
        });
        let placements = plan.placements().iter().map(|placement| RawPlacement {
            memory_id: placement.memory_id,
            offset: placement.offset,
            size: placement.size,
        });
        Self {
            buffers: buffers.collect(),
            placements: placements.collect(),
        }
    }
}
