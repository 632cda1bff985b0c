//! Offsets inside a set of buffers, each on its own device.
//!
//! Rank 7. Imports `span`, `plan` and the words.
//!
//! Nothing is allocated here: a planner has decided where everything lies, and
//! this turns its decisions into addresses.

use crate::address::DevicePtr;
use crate::device::Device;
use crate::error::{Error, ErrorKind, PlacementError, Result};
use crate::plan::Placement;
use crate::span::{DeviceSpan, DeviceSpanMut};

/// An address of planned memory, and the device that it is valid on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAddress {
    /// Where the memory is.
    pub device: Device,
    /// The first byte.
    pub ptr: DevicePtr,
}

impl DeviceAddress {
    /// The address `ptr` of memory on `device`.
    #[must_use]
    pub const fn new(device: Device, ptr: DevicePtr) -> Self {
        Self { device, ptr }
    }
}

/// The buffers of a plan, by memory id, and the addresses of what is planned in
/// them.
///
/// Memory ids count from 0; ExecuTorch's serialized ids count from 1.
///
/// # Examples
///
/// ```
/// use device_memory::{Device, DeviceMemoryBuffer, DeviceType, HierarchicalAllocator, Placement};
///
/// let mut arena = DeviceMemoryBuffer::create(48, DeviceType::Cpu, 0)?;
/// let base = arena.ptr();
/// let mut planned = HierarchicalAllocator::new(vec![arena.as_span_mut()], &[Device::CPU])?;
///
/// let address = planned.get_offset_address(0, 16, 32)?;
/// assert_eq!(address.ptr.addr(), base.addr() + 16);
/// assert!(planned.get_offset_address(0, 17, 32).is_err());
///
/// planned.span_mut(Placement::new(0, 16, 32))?.fill(7)?;
/// # Ok::<(), device_memory::Error>(())
/// ```
///
/// Two exclusive views can not exist at once, unless they are asked for together
/// with [`disjoint_mut`](Self::disjoint_mut):
///
/// ```compile_fail,E0499
/// use device_memory::{HierarchicalAllocator, Placement};
///
/// let mut memory = HierarchicalAllocator::new(Vec::new(), &[]).unwrap();
/// let first = memory.span_mut(Placement::new(0, 0, 1)).unwrap();
/// let second = memory.span_mut(Placement::new(0, 1, 1)).unwrap();
/// assert_eq!(first.len(), second.len());
/// ```
#[derive(Debug)]
pub struct HierarchicalAllocator<'a> {
    spans: Vec<DeviceSpanMut<'a>>,
}

impl<'a> HierarchicalAllocator<'a> {
    /// Takes one view for each memory id, and checks that it is on the device
    /// planned for it.
    ///
    /// # Errors
    ///
    /// - [`CountMismatch`](ErrorKind::CountMismatch): there are more or fewer devices
    ///   than views.
    /// - [`DeviceMismatch`](ErrorKind::DeviceMismatch): a view is on another device
    ///   than planned, as [`AtIndex`](ErrorKind::AtIndex) with the memory id.
    #[inline]
    pub fn new(spans: Vec<DeviceSpanMut<'a>>, devices: &[Device]) -> Result<Self> {
        let found = spans.iter().map(DeviceSpanMut::device);
        if found.eq(devices.iter().copied()) {
            Ok(Self { spans })
        } else {
            Err(mismatch(&spans, devices))
        }
    }

    /// Takes one view for each memory id, on the device it was planned for.
    pub(crate) fn from_planned(spans: Vec<DeviceSpanMut<'a>>) -> Self {
        Self { spans }
    }

    /// The number of buffers; valid memory ids are below it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there are no buffers.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The device of each buffer, by memory id.
    pub fn devices(&self) -> impl ExactSizeIterator<Item = Device> + '_ {
        self.spans.iter().map(DeviceSpanMut::device)
    }

    /// Whether any buffer is on a device of another type than `Cpu`.
    #[must_use]
    pub fn has_device_memory(&self) -> bool {
        self.devices().any(|device| !device.is_cpu())
    }

    /// The address of the `size` bytes at `offset` of the buffer `memory_id`.
    ///
    /// No bytes at the very end of a buffer are in bounds.
    ///
    /// # Errors
    ///
    /// In this order:
    ///
    /// - [`Overflow`](PlacementError::Overflow): `offset + size` overflows.
    /// - [`UnknownMemoryId`](PlacementError::UnknownMemoryId): there is no such buffer.
    /// - [`OutOfBounds`](PlacementError::OutOfBounds): the range passes
    ///   the end of the buffer.
    #[inline]
    pub fn get_offset_address(
        &self,
        memory_id: u32,
        offset: usize,
        size: usize,
    ) -> Result<DeviceAddress, PlacementError> {
        self.address(Placement::new(memory_id, offset, size))
    }

    /// The address of a placement.
    ///
    /// # Errors
    ///
    /// As [`get_offset_address`](Self::get_offset_address).
    #[inline]
    pub fn address(&self, placement: Placement) -> Result<DeviceAddress, PlacementError> {
        let span = self.buffer_of(placement)?;
        Ok(DeviceAddress {
            device: span.device(),
            ptr: span.ptr().saturating_add(placement.offset),
        })
    }

    /// The addresses of all placements, in their order.
    ///
    /// # Errors
    ///
    /// - [`AtIndex`](ErrorKind::AtIndex): the first placement that has none, and why;
    ///   see [`get_offset_address`](Self::get_offset_address).
    pub fn place_all(&self, placements: &[Placement]) -> Result<Vec<DeviceAddress>> {
        placements
            .iter()
            .enumerate()
            .map(|(index, &placement)| {
                self.address(placement)
                    .map_err(|error| Error::from(error).at("placement", index))
            })
            .collect()
    }

    /// A shared view of a placement.
    ///
    /// # Errors
    ///
    /// As [`get_offset_address`](Self::get_offset_address).
    pub fn span(&self, placement: Placement) -> Result<DeviceSpan<'_>> {
        self.buffer_of(placement)?
            .as_span()
            .subspan(placement.offset, placement.size)
    }

    /// An exclusive view of a placement.
    ///
    /// # Errors
    ///
    /// As [`get_offset_address`](Self::get_offset_address).
    pub fn span_mut(&mut self, placement: Placement) -> Result<DeviceSpanMut<'_>> {
        let count = self.spans.len();
        let spans = &mut self.spans;
        let span = placement.check(count, |id| {
            spans.get_mut(id).map(|span| {
                let len = span.len();
                (span, len)
            })
        })?;
        span.subspan_mut(placement.offset, placement.size)
    }

    /// Exclusive views of several placements at once, in their order.
    ///
    /// # Errors
    ///
    /// - [`AtIndex`](ErrorKind::AtIndex): a placement is invalid; see
    ///   [`get_offset_address`](Self::get_offset_address).
    /// - [`Overlap`](ErrorKind::Overlap): two of them share a byte.
    #[expect(unsafe_code, reason = "see SAFETY")]
    pub fn disjoint_mut(&mut self, placements: &[Placement]) -> Result<Vec<DeviceSpanMut<'_>>> {
        let spans = placements.iter().enumerate().map(|(index, &placement)| {
            self.span(placement)
                .map_err(|error| error.at("placement", index))
        });
        let spans = spans.collect::<Result<Vec<_>>>()?;
        check_disjoint(placements)?;
        let exclusive = spans.into_iter().map(|span| {
            // SAFETY: `self`, which has the buffers exclusively, is borrowed
            // exclusively as long as the views live. Placements of different
            // memory ids are in different buffers, and no two of the same share
            // a byte.
            unsafe { DeviceSpanMut::from_shared(span) }
        });
        Ok(exclusive.collect())
    }

    /// Shared views of some placements and exclusive views of others at once, each
    /// in their order. Shared ones may overlap one another.
    ///
    /// # Errors
    ///
    /// - [`AtIndex`](ErrorKind::AtIndex): a placement is invalid; see
    ///   [`get_offset_address`](Self::get_offset_address).
    /// - [`Overlap`](ErrorKind::Overlap): an exclusive one shares a byte with
    ///   another; they are counted through, first the shared ones.
    ///
    /// # Examples
    ///
    /// ```
    /// use device_memory::{Device, DeviceMemoryBuffer, DeviceType, HierarchicalAllocator, Placement};
    ///
    /// let mut arena = DeviceMemoryBuffer::create(48, DeviceType::Cpu, 0)?;
    /// let mut planned = HierarchicalAllocator::new(vec![arena.as_span_mut()], &[Device::CPU])?;
    /// let [a, b] = [Placement::new(0, 0, 16), Placement::new(0, 16, 16)];
    ///
    /// let (inputs, mut outputs) = planned.split_mut(&[a, a], &[b])?;
    /// outputs[0].copy_from(inputs[1])?;
    /// assert!(planned.split_mut(&[a], &[a]).is_err());
    /// # Ok::<(), device_memory::Error>(())
    /// ```
    #[expect(unsafe_code, reason = "see SAFETY")]
    pub fn split_mut(
        &mut self,
        shared: &[Placement],
        exclusive: &[Placement],
    ) -> Result<(Vec<DeviceSpan<'_>>, Vec<DeviceSpanMut<'_>>)> {
        let all = shared.iter().chain(exclusive).enumerate();
        let views = all.map(|(index, &placement)| {
            self.span(placement)
                .map_err(|error| error.at("placement", index))
        });
        let mut views = views.collect::<Result<Vec<_>>>()?;
        check_apart(shared, exclusive)?;
        let rest = views.split_off(shared.len());
        let exclusive = rest.into_iter().map(|span| {
            // SAFETY: `self`, which has the buffers exclusively, is borrowed
            // exclusively as long as the views live. No exclusive placement
            // shares a byte with another one or with a shared one.
            unsafe { DeviceSpanMut::from_shared(span) }
        });
        Ok((views, exclusive.collect()))
    }

    /// Takes a buffer in place of the one with this memory id, or one more, and
    /// returns its memory id.
    pub(crate) fn put(&mut self, memory_id: Option<u32>, span: DeviceSpanMut<'a>) -> u32 {
        let position = memory_id.and_then(|id| usize::try_from(id).ok());
        match (position.and_then(|at| self.spans.get_mut(at)), memory_id) {
            (Some(slot), Some(memory_id)) => {
                *slot = span;
                memory_id
            }
            _ => {
                let memory_id = u32::try_from(self.spans.len()).unwrap_or(u32::MAX);
                self.spans.push(span);
                memory_id
            }
        }
    }

    /// The view of the buffer of a placement that lies within it.
    #[inline]
    fn buffer_of(&self, placement: Placement) -> Result<&DeviceSpanMut<'a>, PlacementError> {
        placement.check(self.spans.len(), |id| {
            self.spans.get(id).map(|span| (span, span.len()))
        })
    }
}

/// What keeps `spans` from being where `devices` says.
#[cold]
fn mismatch(spans: &[DeviceSpanMut<'_>], devices: &[Device]) -> Error {
    let found = spans.iter().map(DeviceSpanMut::device);
    let differs = found
        .zip(devices.iter().copied())
        .enumerate()
        .find(|(_, (found, expected))| found != expected);
    match differs {
        Some((memory_id, (found, expected))) if spans.len() == devices.len() => {
            Error::from(ErrorKind::DeviceMismatch { expected, found }).at("memory id", memory_id)
        }
        _ => Error::from(ErrorKind::CountMismatch {
            what: "planned buffers",
            expected: devices.len(),
            found: spans.len(),
        }),
    }
}

/// Checks that no exclusive placement shares a byte with any other. Positions are
/// counted through, first the shared ones.
fn check_apart(shared: &[Placement], exclusive: &[Placement]) -> Result<()> {
    check_disjoint(exclusive).map_err(|error| match *error.kind() {
        ErrorKind::Overlap { first, second } => Error::from(ErrorKind::Overlap {
            first: shared.len().saturating_add(first),
            second: shared.len().saturating_add(second),
        }),
        _ => error,
    })?;
    let order = by_offset(exclusive);
    for (first, placement) in by_offset(shared) {
        // They are apart, so the last to begin before the end of this one is the
        // only one that can reach into it.
        let end = placement.offset.saturating_add(placement.size);
        let before = order.partition_point(|(_, other)| {
            (other.memory_id, other.offset) < (placement.memory_id, end)
        });
        let last = before.checked_sub(1).and_then(|last| order.get(last));
        if let Some((second, other)) = last
            && other.memory_id == placement.memory_id
            && other.offset.saturating_add(other.size) > placement.offset
        {
            return Err(ErrorKind::Overlap {
                first,
                second: shared.len().saturating_add(*second),
            }
            .into());
        }
    }
    Ok(())
}

/// The placements that have bytes, with their positions, in the order of memory.
fn by_offset(placements: &[Placement]) -> Vec<(usize, &Placement)> {
    let mut order: Vec<(usize, &Placement)> = placements
        .iter()
        .enumerate()
        .filter(|(_, placement)| placement.size > 0)
        .collect();
    order.sort_by_key(|(_, placement)| (placement.memory_id, placement.offset));
    order
}

/// Checks that no two placements share a byte.
fn check_disjoint(placements: &[Placement]) -> Result<()> {
    let order = by_offset(placements);
    let overlap = order.windows(2).find_map(|pair| match pair {
        [(first, a), (second, b)]
            if a.memory_id == b.memory_id && a.offset.saturating_add(a.size) > b.offset =>
        {
            Some(
                ErrorKind::Overlap {
                    first: *first.min(second),
                    second: *first.max(second),
                }
                .into(),
            )
        }
        _ => None,
    });
    match overlap {
        Some(error) => Err(error),
        None => Ok(()),
    }
}
