//! The nodes of a graph: what is done, in order.
//!
//! Rank 4. Part of `graph`.

use crate::device::Device;
use crate::error::Result;
use crate::graph::{Graph, ValueId};

/// What a node does.
///
/// A node that is a kernel or a delegate may write some of its outputs in place
/// of other values: such an output has a [`base`](crate::graph::Value::base),
/// whose bytes it starts from and overwrites. Bases are not listed as inputs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Op {
    /// An operator that runs on the host.
    Kernel,
    /// A part that a back end runs, on the device `target`; on the host if there
    /// is none.
    Delegate {
        /// The device.
        target: Option<Device>,
    },
    /// The bytes of the input, on the device of the output.
    Copy,
    /// Nothing is done: the output lies in its base.
    View,
    /// One of two graphs runs.
    ///
    /// The first input, one [`Bool`](crate::ScalarType::Bool), chooses; the others
    /// are the inputs of both. Their outputs become those of the node.
    Branch {
        /// What runs if the first input is not zero.
        then: Box<Graph>,
        /// What runs if it is.
        otherwise: Box<Graph>,
    },
    /// A graph runs again and again.
    ///
    /// The inputs are the values before the first round. As long as `condition`,
    /// given the values, makes one [`Bool`](crate::ScalarType::Bool) that is not
    /// zero, `body` makes the next ones of them. The last ones are the outputs.
    Loop {
        /// Whether there is another round.
        condition: Box<Graph>,
        /// A round.
        body: Box<Graph>,
    },
}

impl Op {
    /// The word for it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Delegate { .. } => "delegate",
            Self::Copy => "copy",
            Self::View => "view",
            Self::Branch { .. } => "branch",
            Self::Loop { .. } => "loop",
        }
    }

    /// The device that it reads and writes on, if that is one, and its own choice.
    ///
    /// A copy joins two devices, and a view is where its base is.
    #[must_use]
    pub fn device(&self) -> Option<Device> {
        match self {
            Self::Kernel | Self::Branch { .. } | Self::Loop { .. } => Some(Device::CPU),
            Self::Delegate { target } => Some(target.unwrap_or(Device::CPU)),
            Self::Copy | Self::View => None,
        }
    }

    /// The graphs inside it.
    pub fn graphs(&self) -> impl Iterator<Item = &Graph> {
        let pair = match self {
            Self::Branch { then, otherwise } => [Some(then), Some(otherwise)],
            Self::Loop { condition, body } => [Some(condition), Some(body)],
            _ => [None, None],
        };
        pair.into_iter().flatten().map(Box::as_ref)
    }

    /// The same with other graphs inside it.
    pub(super) fn map_graphs(&self, mut map: impl FnMut(&Graph) -> Result<Graph>) -> Result<Self> {
        let mut boxed = |graph: &Graph| map(graph).map(Box::new);
        Ok(match self {
            Self::Branch { then, otherwise } => Self::Branch {
                then: boxed(then)?,
                otherwise: boxed(otherwise)?,
            },
            Self::Loop { condition, body } => Self::Loop {
                condition: boxed(condition)?,
                body: boxed(body)?,
            },
            other => other.clone(),
        })
    }
}

/// One thing that is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub(super) name: String,
    pub(super) op: Op,
    pub(super) inputs: Vec<ValueId>,
    pub(super) outputs: Vec<ValueId>,
}

impl Node {
    /// The name, as that of the operator; several nodes may have it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What is done.
    #[must_use]
    pub fn op(&self) -> &Op {
        &self.op
    }

    /// What is read, apart from the bases of the outputs.
    #[must_use]
    pub fn inputs(&self) -> &[ValueId] {
        &self.inputs
    }

    /// What is made.
    #[must_use]
    pub fn outputs(&self) -> &[ValueId] {
        &self.outputs
    }

    /// Whether it overwrites the bases of its outputs.
    #[must_use]
    pub fn writes_bases(&self) -> bool {
        !matches!(self.op, Op::View)
    }
}
