//! Whether what a node reads and makes fits what it does.
//!
//! Rank 4. Part of `graph`.

use crate::error::GraphFault;
use crate::graph::check::Checked;
use crate::graph::{Graph, Node, Op, Role, Value, ValueId};
use crate::scalar::ScalarType;
use crate::shape::{ShapeDynamism, TensorSpec};

/// Checks what a node of a graph with these `values` reads and makes, all of which
/// there is.
pub(super) fn check_arguments(values: &[Value], user: &dyn Fn() -> String, node: &Node) -> Checked {
    let specs = |ids: &[ValueId]| {
        let values = ids.iter().filter_map(|id| values.get(id.index()));
        values.map(Value::spec).collect::<Vec<_>>()
    };
    let has_base = |id: ValueId| {
        let value = values.get(id.index());
        value.is_some_and(|value| value.base.is_some())
    };
    let (inputs, outputs) = (specs(&node.inputs), specs(&node.outputs));
    match &node.op {
        Op::Kernel | Op::Delegate { .. } => Ok(()),
        Op::Copy => {
            let ([from], [to]) = (&inputs[..], &outputs[..]) else {
                return Err(counts(user, (1, inputs.len()), (1, outputs.len())));
            };
            if can_copy(from, to) {
                Ok(())
            } else {
                Err(arguments(
                    user,
                    format!("{} can not be copied to {}", from.summary(), to.summary()),
                ))
            }
        }
        Op::View => match (&inputs[..], &node.outputs[..]) {
            ([], &[output]) if has_base(output) => Ok(()),
            ([], [_]) => Err(arguments(user, "its output has no base".to_owned())),
            _ => Err(counts(user, (0, inputs.len()), (1, outputs.len()))),
        },
        Op::Branch { then, otherwise } => {
            let Some((choice, operands)) = inputs.split_first() else {
                return Err(arguments(user, "it has no input to choose by".to_owned()));
            };
            check_truth(user, "its first input", choice)?;
            check_inner(user, "then", then, operands, &outputs)?;
            check_inner(user, "otherwise", otherwise, operands, &outputs)
        }
        Op::Loop { condition, body } => {
            let truth = condition
                .outputs
                .first()
                .and_then(|&id| condition.value(id));
            if let (Some(truth), 1) = (truth, condition.outputs.len()) {
                check_truth(user, "the output of its condition", &truth.spec)?;
            } else {
                let found = condition.outputs.len();
                return Err(arguments(
                    user,
                    format!("its condition has {found} outputs, not 1"),
                ));
            }
            check_inner_inputs(user, "condition", condition, &inputs)?;
            check_inner(user, "body", body, &inputs, &outputs)?;
            check_same(user, "the values of its rounds", &inputs, &outputs)
        }
    }
}

/// Whether bytes of one can be those of the other, by what is known of them
/// before they run.
fn can_copy(from: &TensorSpec, to: &TensorSpec) -> bool {
    let fixed = from.dynamism() == ShapeDynamism::Static && to.dynamism() == ShapeDynamism::Static;
    from.scalar_type() == to.scalar_type()
        && from.dim_order() == to.dim_order()
        && (from.sizes() == to.sizes() || !fixed)
}

/// The graph inside a node takes and makes what the node does.
fn check_inner(
    user: &dyn Fn() -> String,
    what: &str,
    graph: &Graph,
    inputs: &[&TensorSpec],
    outputs: &[&TensorSpec],
) -> Checked {
    check_inner_inputs(user, what, graph, inputs)?;
    check_same(
        user,
        &format!("the outputs of {what:?}"),
        outputs,
        &graph.specs(&graph.outputs),
    )
}

/// The graph inside a node takes what it is given and has no other bytes than
/// those that it makes.
fn check_inner_inputs(
    user: &dyn Fn() -> String,
    what: &str,
    graph: &Graph,
    inputs: &[&TensorSpec],
) -> Checked {
    let kept = |value: &&Value| matches!(value.role, Role::Constant | Role::MutableBuffer);
    if let Some(value) = graph.values.iter().find(kept) {
        let (role, name) = (value.role.name(), &value.name);
        return Err(arguments(
            user,
            format!("{what:?} has {role}, {name:?}: only the outermost graph may"),
        ));
    }
    check_same(
        user,
        &format!("the inputs of {what:?}"),
        inputs,
        &graph.specs(&graph.inputs),
    )
}

/// Two lists of tensors are alike.
fn check_same(
    user: &dyn Fn() -> String,
    what: &str,
    expected: &[&TensorSpec],
    found: &[&TensorSpec],
) -> Checked {
    if expected.len() != found.len() {
        let (expected, found) = (expected.len(), found.len());
        return Err(arguments(
            user,
            format!("{what} are {found}, expected {expected}"),
        ));
    }
    let mut pairs = expected.iter().zip(found).enumerate();
    match pairs.find(|(_, (expected, found))| !expected.is_alike(found)) {
        Some((index, (expected, found))) => Err(arguments(
            user,
            format!(
                "{what}: number {index} is {}, expected {}",
                found.summary(),
                expected.summary()
            ),
        )),
        None => Ok(()),
    }
}

fn check_truth(user: &dyn Fn() -> String, what: &str, spec: &TensorSpec) -> Checked {
    if spec.scalar_type() == ScalarType::Bool && spec.size_in_bytes() == 1 {
        Ok(())
    } else {
        Err(arguments(
            user,
            format!("{what} is {}, expected one BOOL", spec.summary()),
        ))
    }
}

#[cold]
fn arguments(user: &dyn Fn() -> String, reason: String) -> GraphFault {
    GraphFault::Arguments {
        node: user(),
        reason,
    }
}

/// The counts of inputs and outputs, each expected and found.
#[cold]
fn counts(
    user: &dyn Fn() -> String,
    inputs: (usize, usize),
    outputs: (usize, usize),
) -> GraphFault {
    arguments(
        user,
        format!(
            "it has {} input(s) and {} output(s), expected {} and {}",
            inputs.1, outputs.1, inputs.0, outputs.0
        ),
    )
}
