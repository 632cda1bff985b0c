//! What is wrong with a graph.
//!
//! Rank 1. Part of `error`.

use crate::device::Device;

/// A contradiction in a graph of values and nodes, or in what is asked of one.
///
/// Values are named as the graph names them; nodes by their position and name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphFault {
    /// More values than can be numbered.
    #[error("invalid graph: {count} values, at most {} can be numbered", u32::MAX)]
    TooManyValues {
        /// How many there are.
        count: usize,
    },
    /// Two values have one name.
    #[error("invalid graph: two values are named {name:?}")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// There is no value of this number.
    #[error("invalid graph: {user} names value {value} of {count}")]
    UnknownValue {
        /// Who names it.
        user: String,
        /// The number.
        value: u32,
        /// How many values there are.
        count: usize,
    },
    /// A value is used before it is there, or by what makes it: a cycle.
    #[error("invalid graph: {user} uses value {value:?} before it is made")]
    UsedBeforeMade {
        /// Who uses it.
        user: String,
        /// The value.
        value: String,
    },
    /// A value is used although its bytes were overwritten.
    #[error("invalid graph: {user} uses value {value:?}, which {writer} overwrote")]
    UsedAfterOverwritten {
        /// Who uses it.
        user: String,
        /// The value.
        value: String,
        /// What overwrote it.
        writer: String,
    },
    /// A value is made by no node, or by more than one, or is not there to be made.
    #[error("invalid graph: value {value:?} is {role} and made by {makers} node(s)")]
    Makers {
        /// The value.
        value: String,
        /// What it is.
        role: &'static str,
        /// How many nodes make it.
        makers: usize,
    },
    /// The list of inputs is not exactly the values that are inputs.
    #[error("invalid graph: value {value:?} is {role} and listed {times} time(s) as an input")]
    InputList {
        /// The value.
        value: String,
        /// What it is.
        role: &'static str,
        /// How often it is listed.
        times: usize,
    },
    /// A value lies in a base that can not have it there.
    #[error("invalid graph: value {value:?} in {base:?}: {reason}")]
    Base {
        /// The value.
        value: String,
        /// What it lies in.
        base: String,
        /// Why not.
        reason: String,
    },
    /// A node or a graph inside it has the wrong arguments.
    #[error("invalid graph: {node}: {reason}")]
    Arguments {
        /// The node.
        node: String,
        /// What is wrong.
        reason: String,
    },
    /// Graphs are nested too deeply.
    #[error("invalid graph: graphs are nested {depth} deep, at most {limit} are supported")]
    TooDeep {
        /// How deep.
        depth: usize,
        /// The limit.
        limit: usize,
    },
    /// A value is on another device than the node that uses or makes it.
    #[error("invalid graph: {node} runs on {expected} and value {value:?} is on {found}")]
    WrongDevice {
        /// The node.
        node: String,
        /// The value.
        value: String,
        /// The device of the node.
        expected: Device,
        /// The device of the value.
        found: Device,
    },
    /// A tensor without bounds can not be planned.
    #[error("invalid graph: value {value:?} has sizes without bounds and can not be planned")]
    Unbounded {
        /// The value.
        value: String,
    },
    /// A value has no bytes when the graph is to run, or is not what can be given,
    /// written or read.
    #[error("value {value:?}: {reason}")]
    Access {
        /// The value.
        value: String,
        /// Why not.
        reason: String,
    },
    /// Options name something that the graph does not have.
    #[error("no {what} is named {name:?}: the graph has {}", known.join(", "))]
    UnknownName {
        /// What was looked for.
        what: &'static str,
        /// The name asked for.
        name: String,
        /// The names that there are.
        known: Vec<String>,
    },
    /// Copies are to be skipped although devices are not planned.
    #[error("copies can not be skipped: memory of devices is not planned")]
    SkipWithoutPlanning,
}
