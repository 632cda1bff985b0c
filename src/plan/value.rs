//! One value to plan: how large, from when to when, where.
//!
//! Rank 2. Part of `plan`.

use std::ops::{Range, RangeInclusive};

use crate::device::Device;
use crate::layout::Tag;

/// Storage that belongs to another value: a view, or the result of an operation
/// that works in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Alias {
    /// The position of the other value in the request.
    pub of: usize,
    /// The first byte within the other value.
    pub offset: usize,
}

/// Steps of a value's life in which it needs no memory, or only a part of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gap {
    /// The steps, the last one included.
    pub steps: RangeInclusive<usize>,
    /// The bytes of the value that are needed all the same.
    pub window: Option<Range<usize>>,
}

/// One value of a [`PlanRequest`](crate::plan::PlanRequest).
///
/// # Examples
///
/// ```
/// use device_memory::plan::PlanValue;
///
/// let value = PlanValue::new(4096, 3..=7).aligned(256).on("cuda:0".parse()?);
///
/// assert_eq!((value.first_use, value.last_use), (3, 7));
/// # Ok::<(), device_memory::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct PlanValue {
    /// Its size in bytes. Zero is valid.
    pub size: usize,
    /// The alignment of its first byte, in bytes: a power of two. The device's
    /// alignment holds too; the larger of the two counts.
    pub align: usize,
    /// The first step in which it is alive.
    pub first_use: usize,
    /// The last step in which it is alive.
    pub last_use: usize,
    /// Where it must be.
    pub device: Device,
    /// The pool of the device, counted from 0: values of different pools lie in
    /// different buffers. ExecuTorch's `mem_id` is one more.
    pub pool: u32,
    /// The value whose storage it uses.
    pub alias: Option<Alias>,
    /// The offset it must have in its buffer.
    pub fixed_offset: Option<usize>,
    /// When it needs no memory, or less.
    pub gaps: Vec<Gap>,
    /// What it is for.
    pub tag: Tag,
    /// Its name, for people.
    pub name: Option<String>,
}

impl PlanValue {
    /// A value of `size` bytes on the host that is alive in `steps`, the last one
    /// included.
    #[must_use]
    pub fn new(size: usize, steps: RangeInclusive<usize>) -> Self {
        Self {
            size,
            align: 1,
            first_use: *steps.start(),
            last_use: *steps.end(),
            device: Device::CPU,
            pool: 0,
            alias: None,
            fixed_offset: None,
            gaps: Vec::new(),
            tag: Tag::NONE,
            name: None,
        }
    }

    /// The same with an alignment of its own, in bytes.
    #[must_use]
    pub fn aligned(self, align: usize) -> Self {
        Self { align, ..self }
    }

    /// The same on `device`.
    #[must_use]
    pub fn on(self, device: Device) -> Self {
        Self { device, ..self }
    }

    /// The same in pool `pool` of its device, counted from 0.
    #[must_use]
    pub fn in_pool(self, pool: u32) -> Self {
        Self { pool, ..self }
    }

    /// The same in the storage of value `of`, at `offset` bytes in it.
    #[must_use]
    pub fn alias_of(self, of: usize, offset: usize) -> Self {
        Self {
            alias: Some(Alias { of, offset }),
            ..self
        }
    }

    /// The same at a given offset in its buffer.
    #[must_use]
    pub fn at_offset(self, offset: usize) -> Self {
        Self {
            fixed_offset: Some(offset),
            ..self
        }
    }

    /// The same with steps in which it needs no memory.
    #[must_use]
    pub fn with_gap(mut self, gap: Gap) -> Self {
        self.gaps.push(gap);
        self
    }

    /// The same with a tag that says what it is for.
    #[must_use]
    pub fn tagged(self, tag: Tag) -> Self {
        Self { tag, ..self }
    }

    /// The same with a name, for people.
    #[must_use]
    pub fn named(self, name: impl Into<String>) -> Self {
        Self {
            name: Some(name.into()),
            ..self
        }
    }
}
