//! The values of a graph: tensors, and where their bytes are said to be.
//!
//! Rank 4. Part of `graph`.

use std::fmt;

use crate::device::Device;
use crate::shape::TensorSpec;

/// The number of a value in its graph, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(u32);

impl ValueId {
    /// The value numbered `number`; no graph need have one.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The position in the list of values.
    pub(crate) fn index(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    /// The value at a position; a graph with more values than numbers is refused.
    pub(crate) fn at(index: usize) -> Self {
        Self(u32::try_from(index).unwrap_or(u32::MAX))
    }
}

impl fmt::Display for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// How a value comes to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Role {
    /// A node makes it.
    Computed,
    /// The caller gives it before each step.
    Input,
    /// It never changes, and its bytes are not part of the plan.
    Constant,
    /// It keeps its bytes from one step to the next.
    MutableBuffer,
}

impl Role {
    /// The name, with its article.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Computed => "a computed value",
            Self::Input => "an input",
            Self::Constant => "a constant",
            Self::MutableBuffer => "a mutable buffer",
        }
    }
}

/// The value that another one lies in, as a view or in place of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Base {
    /// The value that has the bytes, or lies in another one itself.
    pub value: ValueId,
    /// Where in it the bytes begin.
    pub offset: usize,
}

/// A tensor of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    pub(super) name: String,
    pub(super) spec: TensorSpec,
    pub(super) role: Role,
    pub(super) base: Option<Base>,
}

impl Value {
    /// The name, which no other value of the graph has.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it looks like, and the device that it is on.
    #[must_use]
    pub fn spec(&self) -> &TensorSpec {
        &self.spec
    }

    /// The device that it is on.
    #[must_use]
    pub fn device(&self) -> Device {
        self.spec.device()
    }

    /// How it comes to be.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// What it lies in, if it has no bytes of its own.
    #[must_use]
    pub fn base(&self) -> Option<Base> {
        self.base
    }
}
