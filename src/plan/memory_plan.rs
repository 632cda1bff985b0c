//! A memory plan: which buffers, on which devices, and what lies where in them.
//!
//! Rank 2. Part of `plan`.
//!
//! Integers in, integers out: nothing here touches memory. Memory ids count from
//! 0 and are the positions of the buffers; an ExecuTorch file counts from 1 and
//! keeps 0 in reserve.

use crate::device::Device;
use crate::error::{Error, ErrorKind, PlacementError, Result};
use crate::layout::DeviceLayout;

/// One buffer that a plan needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedBuffer {
    /// Where it must be.
    pub device: Device,
    /// Its size in bytes.
    pub size: usize,
    /// The alignment of its first byte, in bytes.
    pub align: usize,
}

impl PlannedBuffer {
    /// A buffer of `size` bytes with the default alignment.
    #[must_use]
    pub const fn new(device: Device, size: usize) -> Self {
        Self {
            device,
            size,
            align: DeviceLayout::DEFAULT_ALIGN,
        }
    }

    /// The layout to allocate it with.
    ///
    /// # Errors
    ///
    /// - [`Layout`](ErrorKind::Layout): no allocation can have this size and alignment.
    pub fn layout(&self) -> Result<DeviceLayout> {
        Ok(DeviceLayout::new(self.size, self.align)?)
    }
}

/// Where a value lies: a range of a buffer, in bytes.
///
/// Placements may overlap; then the values are not alive at the same time, or
/// one is a view of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Placement {
    /// The buffer, counted from 0.
    pub memory_id: u32,
    /// The first byte of the range.
    pub offset: usize,
    /// The length of the range.
    pub size: usize,
}

impl Placement {
    /// The range of `size` bytes at `offset` of buffer `memory_id`.
    #[must_use]
    pub const fn new(memory_id: u32, offset: usize, size: usize) -> Self {
        Self {
            memory_id,
            offset,
            size,
        }
    }

    /// Checks that the range lies within the buffer that `buffer` finds for the
    /// memory id among `count`, with its length, and returns what was found.
    ///
    /// The order of the checks is that of ExecuTorch.
    #[inline]
    pub(crate) fn check<T>(
        self,
        count: usize,
        buffer: impl FnOnce(usize) -> Option<(T, usize)>,
    ) -> Result<T, PlacementError> {
        let Some(end) = self.offset.checked_add(self.size) else {
            return Err(PlacementError::Overflow {
                memory_id: self.memory_id,
                offset: self.offset,
                size: self.size,
            });
        };
        let Some((found, len)) = usize::try_from(self.memory_id).ok().and_then(buffer) else {
            return Err(PlacementError::UnknownMemoryId {
                memory_id: self.memory_id,
                count,
            });
        };
        if end > len {
            return Err(PlacementError::OutOfBounds {
                memory_id: self.memory_id,
                offset: self.offset,
                size: self.size,
                len,
            });
        }
        Ok(found)
    }
}

/// The buffers of a program or a method, and the placements in them.
///
/// # Examples
///
/// ```
/// use device_memory::{Device, MemoryPlan, Placement, PlannedBuffer};
///
/// let plan = MemoryPlan::new(
///     vec![
///         PlannedBuffer::new(Device::CPU, 32),
///         PlannedBuffer::new("cuda:0".parse()?, 48),
///     ],
///     vec![Placement::new(0, 16, 16), Placement::new(1, 32, 16)],
/// )?;
///
/// assert_eq!(plan.buffers().len(), 2);
/// assert!(MemoryPlan::new(vec![], vec![Placement::new(0, 0, 1)]).is_err());
/// # Ok::<(), device_memory::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    buffers: Vec<PlannedBuffer>,
    placements: Vec<Placement>,
}

impl MemoryPlan {
    /// A plan of `buffers` and of `placements` in them.
    ///
    /// # Errors
    ///
    /// The first of these, as [`AtIndex`](ErrorKind::AtIndex) with the placement:
    ///
    /// - [`Overflow`](PlacementError::Overflow): offset and size pass the address range.
    /// - [`UnknownMemoryId`](PlacementError::UnknownMemoryId): there is no such buffer.
    /// - [`OutOfBounds`](PlacementError::OutOfBounds): it passes the end of its buffer.
    pub fn new(buffers: Vec<PlannedBuffer>, placements: Vec<Placement>) -> Result<Self> {
        for (index, placement) in placements.iter().enumerate() {
            placement
                .check(buffers.len(), |id| buffers.get(id).map(|b| ((), b.size)))
                .map_err(|error| Error::from(error).at("placement", index))?;
        }
        Ok(Self {
            buffers,
            placements,
        })
    }

    /// The buffers, by memory id.
    #[must_use]
    pub fn buffers(&self) -> &[PlannedBuffer] {
        &self.buffers
    }

    /// The placements, in the order they were given.
    #[must_use]
    pub fn placements(&self) -> &[Placement] {
        &self.placements
    }

    /// The bytes needed on each device, in the order of the devices.
    ///
    /// # Errors
    ///
    /// - [`PlanTooLarge`](ErrorKind::PlanTooLarge): the sum of a device passes what
    ///   can be addressed.
    pub fn requirements(&self) -> Result<Vec<(Device, usize)>> {
        let mut sums: Vec<(Device, usize)> = Vec::new();
        for buffer in &self.buffers {
            match sums.binary_search_by_key(&buffer.device, |&(device, _)| device) {
                Err(position) => sums.insert(position, (buffer.device, buffer.size)),
                Ok(position) => {
                    if let Some((_, sum)) = sums.get_mut(position) {
                        *sum = sum
                            .checked_add(buffer.size)
                            .ok_or(ErrorKind::PlanTooLarge {
                                device: buffer.device,
                            })?;
                    }
                }
            }
        }
        Ok(sums)
    }
}
