//! What graphs compute, told in the plainest way.
//!
//! Each value has bytes of its own, in a vector, and nothing is ever overwritten.

use std::collections::HashMap;

use device_memory::graph::{Graph, Node, Op, Role, ValueId};

/// What a node makes of bytes: of its inputs, and of those that its outputs start
/// from, where they are in place of others.
pub(crate) fn compute(
    name: &str,
    inputs: &[Vec<u8>],
    starts: &[Vec<u8>],
    sizes: &[usize],
) -> Vec<Vec<u8>> {
    let first = || inputs[0].first().copied().unwrap_or(0);
    match name {
        "choose" => vec![vec![inputs.iter().flatten().fold(0, |a, b| a ^ b) & 1]],
        "rounds" => vec![vec![first() % 4]],
        "positive" => vec![vec![u8::from(first() > 0)]],
        "decrement" => vec![vec![first().saturating_sub(1)]],
        _ => {
            let started = name == "mix:1";
            let mut seed = 17_u8;
            for input in inputs.iter().chain(starts.iter().filter(|_| started)) {
                for &byte in input {
                    seed = seed.wrapping_mul(31).wrapping_add(byte);
                }
            }
            let sizes = sizes.iter().zip(1_u8..);
            sizes
                .map(|(&size, salt)| {
                    let bytes = (0..size).zip(0_u8..);
                    bytes.map(|(_, at)| seed.wrapping_add(at) ^ salt).collect()
                })
                .collect()
        }
    }
}

/// Runs graphs on vectors.
#[derive(Default)]
pub(crate) struct Model {
    /// The mutable buffers of the outermost graph.
    pub(crate) state: HashMap<ValueId, Vec<u8>>,
}

impl Model {
    /// The outputs of one run.
    pub(crate) fn run(&mut self, graph: &Graph, inputs: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut values: HashMap<ValueId, Vec<u8>> = HashMap::new();
        for (&id, bytes) in graph.inputs().iter().zip(inputs) {
            values.insert(id, bytes.clone());
        }
        for (&id, bytes) in &self.state {
            values.insert(id, bytes.clone());
        }
        for node in graph.nodes() {
            self.node(graph, node, &mut values);
        }
        graph
            .outputs()
            .iter()
            .map(|id| values[id].clone())
            .collect()
    }

    fn node(&mut self, graph: &Graph, node: &Node, values: &mut HashMap<ValueId, Vec<u8>>) {
        let inputs: Vec<Vec<u8>> = node.inputs().iter().map(|id| values[id].clone()).collect();
        let sizes: Vec<usize> = node
            .outputs()
            .iter()
            .map(|&id| graph.value(id).unwrap().spec().size_in_bytes())
            .collect();
        let starts: Vec<Vec<u8>> = node
            .outputs()
            .iter()
            .zip(&sizes)
            .map(|(&id, &size)| match graph.value(id).unwrap().base() {
                Some(base) => values[&base.value][base.offset..base.offset + size].to_vec(),
                None => Vec::new(),
            })
            .collect();
        let made = match node.op() {
            Op::View => starts,
            Op::Copy => inputs,
            Op::Branch { then, otherwise } => {
                let inner = if inputs[0] == [0] { otherwise } else { then };
                Self::default().run(inner, &inputs[1..])
            }
            Op::Loop { condition, body } => {
                let mut now = inputs;
                while Self::default().run(condition, &now)[0] != [0] {
                    now = Self::default().run(body, &now);
                }
                now
            }
            _ => compute(node.name(), &inputs, &starts, &sizes),
        };
        for (&id, bytes) in node.outputs().iter().zip(made) {
            let (root, offset) = graph.storage(id).unwrap();
            if graph.value(root).unwrap().role() == Role::MutableBuffer && node.writes_bases() {
                let state = self.state.get_mut(&root).unwrap();
                state[offset..offset + bytes.len()].copy_from_slice(&bytes);
            }
            values.insert(id, bytes);
        }
    }
}
