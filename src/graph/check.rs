//! What must hold of a graph.
//!
//! Rank 4. Part of `graph`. Everything is checked here, once; the rest of the
//! module may rely on it.

use std::collections::HashSet;

use crate::error::GraphFault;
use crate::graph::fit::check_arguments;
use crate::graph::{Graph, Node, Op, Role, Root, Value, ValueId};

pub(super) type Checked<T = ()> = Result<T, GraphFault>;

/// A node by its position and name.
pub(super) fn describe(index: usize, node: &Node) -> String {
    format!("node {index} ({:?})", node.name)
}

/// Checks the parts of a graph, and finds where the bytes of each value are and
/// how deep graphs are nested.
pub(super) fn check(
    values: &[Value],
    nodes: &[Node],
    inputs: &[ValueId],
    outputs: &[ValueId],
) -> Checked<(Vec<Root>, usize)> {
    if u32::try_from(values.len()).is_err() {
        return Err(GraphFault::TooManyValues {
            count: values.len(),
        });
    }
    check_names(values)?;
    let mut checker = Checker::new(values, nodes);
    checker.check_inputs(inputs)?;
    let mut depth = 0;
    for (index, node) in nodes.iter().enumerate() {
        let inner = node.op.graphs().map(|graph| graph.depth).max();
        depth = depth.max(inner.unwrap_or(0));
        checker.check_node(index, node)?;
    }
    for &output in outputs {
        checker.check_use(&|| "the list of outputs".to_owned(), output)?;
    }
    checker.check_all_made()?;
    let depth = depth.saturating_add(1);
    if depth > Graph::MAX_DEPTH {
        return Err(GraphFault::TooDeep {
            depth,
            limit: Graph::MAX_DEPTH,
        });
    }
    Ok((checker.into_roots(), depth))
}

fn check_names(values: &[Value]) -> Checked {
    let mut seen = HashSet::with_capacity(values.len());
    for value in values {
        if !seen.insert(value.name.as_str()) {
            return Err(GraphFault::DuplicateName {
                name: value.name.clone(),
            });
        }
    }
    Ok(())
}

/// What is known of a value at some node.
#[derive(Clone, Copy)]
struct State {
    /// Where its bytes are, and how often they had been written when it was made;
    /// `None` before that.
    made: Option<(Root, usize)>,
    /// How often its own bytes were written in place.
    writes: usize,
    /// The node that wrote them last.
    writer: usize,
}

struct Checker<'a> {
    values: &'a [Value],
    nodes: &'a [Node],
    states: Vec<State>,
}

impl<'a> Checker<'a> {
    fn new(values: &'a [Value], nodes: &'a [Node]) -> Self {
        let states = values.iter().enumerate().map(|(index, value)| {
            let own = Root {
                value: ValueId::at(index),
                offset: 0,
            };
            State {
                made: (value.role != Role::Computed).then_some((own, 0)),
                writes: 0,
                writer: 0,
            }
        });
        Self {
            values,
            nodes,
            states: states.collect(),
        }
    }

    fn into_roots(self) -> Vec<Root> {
        let own = |index| Root {
            value: ValueId::at(index),
            offset: 0,
        };
        let states = self.states.into_iter().enumerate();
        states
            .map(|(index, state)| state.made.map_or(own(index), |(root, _)| root))
            .collect()
    }

    fn value(&self, user: &dyn Fn() -> String, id: ValueId) -> Checked<&'a Value> {
        self.values
            .get(id.index())
            .ok_or_else(|| GraphFault::UnknownValue {
                user: user(),
                value: id.number(),
                count: self.values.len(),
            })
    }

    /// The list of inputs names each input once and nothing else, and none of what
    /// is there from the start lies in another value.
    fn check_inputs(&self, inputs: &[ValueId]) -> Checked {
        let mut times = vec![0_usize; self.values.len()];
        for &input in inputs {
            self.value(&|| "the list of inputs".to_owned(), input)?;
            if let Some(times) = times.get_mut(input.index()) {
                *times = times.saturating_add(1);
            }
        }
        for (value, times) in self.values.iter().zip(times) {
            if times != usize::from(value.role == Role::Input) {
                return Err(GraphFault::InputList {
                    value: value.name.clone(),
                    role: value.role.name(),
                    times,
                });
            }
            if let Some(base) = value.base
                && value.role != Role::Computed
            {
                let user = || format!("value {:?}", value.name);
                let base = self.value(&user, base.value)?;
                return Err(base_fault(
                    value,
                    base,
                    "only what a node makes can lie in another value",
                ));
            }
        }
        Ok(())
    }

    /// The value can be read now; returns where it is.
    fn check_use(&self, user: &dyn Fn() -> String, id: ValueId) -> Checked<Root> {
        let value = self.value(user, id)?;
        let made = self.states.get(id.index()).and_then(|state| state.made);
        let Some((root, writes)) = made else {
            return Err(GraphFault::UsedBeforeMade {
                user: user(),
                value: value.name.clone(),
            });
        };
        match self.states.get(root.value.index()) {
            Some(state) if state.writes != writes => Err(GraphFault::UsedAfterOverwritten {
                user: user(),
                value: value.name.clone(),
                writer: self
                    .nodes
                    .get(state.writer)
                    .map(|node| describe(state.writer, node))
                    .unwrap_or_default(),
            }),
            _ => Ok(root),
        }
    }

    fn check_node(&mut self, index: usize, node: &Node) -> Checked {
        let user = || describe(index, node);
        let mut read = Vec::with_capacity(node.inputs.len());
        for &input in &node.inputs {
            read.push(self.check_use(&user, input)?.value);
        }
        // Of two outputs in one place, the second is refused: it is overwritten.
        let mut written = Vec::new();
        for &output in &node.outputs {
            let value = self.value(&user, output)?;
            let root = match value.base {
                None => Root {
                    value: output,
                    offset: 0,
                },
                Some(base) => {
                    let of_base = self.check_use(&user, base.value)?;
                    self.check_base(&user, value, base.value, base.offset, of_base, node)?;
                    if node.writes_bases() {
                        written.push(of_base.value);
                        self.write(of_base.value, index);
                    }
                    Root {
                        value: of_base.value,
                        offset: of_base.offset.saturating_add(base.offset),
                    }
                }
            };
            self.make(output, root)?;
        }
        if let Some(both) = written.iter().find(|root| read.contains(root)) {
            let name = self.value(&user, *both)?.name.clone();
            return Err(GraphFault::Arguments {
                node: user(),
                reason: format!("it reads and overwrites the bytes of value {name:?}"),
            });
        }
        check_arguments(self.values, &user, node)
    }

    /// Counts one write in place to the bytes of `root`.
    fn write(&mut self, root: ValueId, writer: usize) {
        if let Some(state) = self.states.get_mut(root.index()) {
            state.writes = state.writes.saturating_add(1);
            state.writer = writer;
        }
    }

    /// Marks a value as made, in `root`.
    fn make(&mut self, id: ValueId, root: Root) -> Checked {
        let writes = self
            .states
            .get(root.value.index())
            .map_or(0, |state| state.writes);
        let Some((value, state)) = self
            .values
            .get(id.index())
            .zip(self.states.get_mut(id.index()))
        else {
            return Ok(());
        };
        if value.role != Role::Computed || state.made.is_some() {
            return Err(GraphFault::Makers {
                value: value.name.clone(),
                role: value.role.name(),
                makers: if value.role == Role::Computed { 2 } else { 1 },
            });
        }
        state.made = Some((root, writes));
        Ok(())
    }

    fn check_base(
        &self,
        user: &dyn Fn() -> String,
        value: &Value,
        base: ValueId,
        offset: usize,
        root: Root,
        node: &Node,
    ) -> Checked {
        let base = self.value(user, base)?;
        let root = self.value(user, root.value)?;
        let (size, len) = (value.spec.size_in_bytes(), base.spec.size_in_bytes());
        if offset.checked_add(size).is_none_or(|end| end > len) {
            let reason = format!("{size} bytes at offset {offset} of {len}");
            return Err(base_fault(value, base, &reason));
        }
        match (&node.op, root.role) {
            (Op::Branch { .. } | Op::Loop { .. }, _) => Err(base_fault(
                value,
                base,
                "what a branch or a loop makes has bytes of its own",
            )),
            (op, Role::Input | Role::Constant) if !matches!(op, Op::View) => Err(base_fault(
                value,
                base,
                &format!("{} can not be overwritten", root.role.name()),
            )),
            _ => Ok(()),
        }
    }

    fn check_all_made(&self) -> Checked {
        let mut all = self.values.iter().zip(&self.states);
        match all.find(|(_, state)| state.made.is_none()) {
            Some((value, _)) => Err(GraphFault::Makers {
                value: value.name.clone(),
                role: value.role.name(),
                makers: 0,
            }),
            None => Ok(()),
        }
    }
}

#[cold]
fn base_fault(value: &Value, base: &Value, reason: &str) -> GraphFault {
    GraphFault::Base {
        value: value.name.clone(),
        base: base.name.clone(),
        reason: reason.to_owned(),
    }
}
