//! What memory is for.
//!
//! Rank 0. Part of `layout`.
//!
//! A tag travels in the layout of an allocation, so that every layer between the
//! owner and the device sees it, when the memory is allocated and when it is
//! freed. It is one byte and decides nothing by itself.

use std::fmt;

use parking_lot::RwLock;

/// The names of tags that programs have made, in the order they were
/// made. Their numbers follow those of [`BUILT_IN`].
static MADE: RwLock<Vec<&'static str>> = RwLock::new(Vec::new());

/// The names of the tags that are always there, by number.
const BUILT_IN: [&str; 5] = ["none", "weights", "activations", "kv_cache", "scratch"];

/// The bit that says that memory is kept for long.
const PERSISTENT: u8 = 0x80;

/// What an allocation is for: budgets, statistics and reports are kept by tag.
///
/// A tag is persistent if what it marks is kept for long, as weights are. Pools
/// keep such memory apart from what comes and goes.
///
/// # Examples
///
/// ```
/// use device_memory::{DeviceLayout, Tag};
///
/// let layout = DeviceLayout::from_size(4096)?.with_tag(Tag::WEIGHTS);
///
/// assert_eq!(layout.tag().name(), "weights");
/// assert!(layout.tag().is_persistent());
/// assert_eq!(Tag::named("lora")?, Tag::named("lora")?);
/// # Ok::<(), device_memory::Error>(())
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(u8);

/// Why no tag can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TagError {
    /// The process has named as many tags as there can be.
    #[error("no more than {limit} tags can be named in a process")]
    TooMany {
        /// How many there can be.
        limit: usize,
    },
}

impl Tag {
    /// No tag, which is the default.
    pub const NONE: Self = Self(0);
    /// The parameters of a model. Persistent.
    pub const WEIGHTS: Self = Self(1 | PERSISTENT);
    /// Results that are used within one step.
    pub const ACTIVATIONS: Self = Self(2);
    /// Keys and values that attention keeps from step to step.
    pub const KV_CACHE: Self = Self(3);
    /// Memory for the length of one call.
    pub const SCRATCH: Self = Self(4);

    /// How many tags a process can name besides those that are always there.
    pub const LIMIT: usize = 123;

    /// The tag of this name, made if there is none yet. A made tag is not
    /// persistent unless [`persistent`](Self::persistent) is called on it.
    ///
    /// Takes a lock and keeps the name for the life of the process, so a program
    /// makes its tags once.
    ///
    /// # Errors
    ///
    /// - [`TooMany`](TagError::TooMany): [`LIMIT`](Self::LIMIT) tags were made.
    pub fn named(name: &str) -> Result<Self, TagError> {
        let mut made = MADE.write();
        let number = match position(&made, name) {
            Some(number) => number,
            None if made.len() < Self::LIMIT => {
                made.push(Box::leak(name.into()));
                BUILT_IN.len().saturating_add(made.len()).saturating_sub(1)
            }
            None => return Err(TagError::TooMany { limit: Self::LIMIT }),
        };
        Ok(Self::at(number))
    }

    /// The tag of this name, if there is one already: for names that come from
    /// outside, of which [`named`](Self::named) would keep as many as come.
    ///
    /// Takes a lock for as long as it looks.
    #[must_use]
    pub fn find(name: &str) -> Option<Self> {
        position(&MADE.read(), name).map(Self::at)
    }

    /// The tag of this number.
    fn at(number: usize) -> Self {
        let number = u8::try_from(number).unwrap_or(0);
        if Self(number | PERSISTENT) == Self::WEIGHTS {
            Self::WEIGHTS
        } else {
            Self(number)
        }
    }

    /// The tag of the same name that says that memory is kept for long.
    #[must_use]
    pub const fn persistent(self) -> Self {
        Self(self.0 | PERSISTENT)
    }

    /// Whether memory is kept for long.
    #[inline]
    #[must_use]
    pub const fn is_persistent(self) -> bool {
        self.0 & PERSISTENT != 0
    }

    /// The name.
    #[must_use]
    pub fn name(self) -> &'static str {
        let number = usize::from(self.0 & !PERSISTENT);
        match number.checked_sub(BUILT_IN.len()) {
            None => BUILT_IN.get(number).copied(),
            Some(made) => MADE.read().get(made).copied(),
        }
        .unwrap_or("none")
    }

    /// The tag as the byte that it is.
    #[inline]
    pub(crate) const fn to_byte(self) -> u8 {
        self.0
    }

    /// A number for tables: tags that are made early have low ones.
    #[inline]
    pub(crate) const fn to_index(self) -> u16 {
        u16::from_le_bytes([self.0.rotate_left(1), 0])
    }

    /// The tag that [`to_index`](Self::to_index) gave the number of.
    #[inline]
    pub(crate) const fn from_index(index: u16) -> Self {
        let [byte, _] = index.to_le_bytes();
        Self(byte.rotate_right(1))
    }

    /// The tag that [`to_byte`](Self::to_byte) gave the byte of.
    #[inline]
    pub(crate) const fn from_byte(byte: u8) -> Self {
        Self(byte)
    }
}

/// The number of the tag of this name.
fn position(made: &[&str], name: &str) -> Option<usize> {
    let mut all = BUILT_IN.iter().chain(made);
    all.position(|&other| other == name)
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
