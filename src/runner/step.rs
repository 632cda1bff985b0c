//! One run through the nodes of a graph.
//!
//! Rank 9. Part of `runner`.

use crate::error::{Error, Result};
use crate::graph::{Graph, Node, Op, Place, Scope, ValueId};
use crate::plan::Placement;
use crate::runner::call::{Argument, ArgumentMut, Call};
use crate::runner::frame::Frame;
use crate::runner::memory::{Memory, Move};
use crate::runner::value_of;
use crate::shape::TensorSpec;

/// Runs all nodes of a graph in order.
pub(super) fn run<E, F>(
    memory: &mut Memory<'_>,
    graph: &Graph,
    scope: &Scope,
    frame: &mut Frame,
    each: &mut F,
) -> Result<(), E>
where
    E: From<Error>,
    F: FnMut(&mut Call<'_>) -> Result<(), E>,
{
    for (index, node) in graph.nodes().iter().enumerate() {
        let at = |error: Error| E::from(error.at("node", index));
        let inner = scope.inner.get(index).map_or(&[][..], Vec::as_slice);
        match (node.op(), inner) {
            (Op::View, _) => {
                for &output in node.outputs() {
                    let spec = frame.inherited(graph, output).map_err(at)?;
                    frame.set(output, spec);
                }
            }
            (Op::Copy, _) => {
                for (&from, &to) in node.inputs().iter().zip(node.outputs()) {
                    let step = Move {
                        from: place(scope, from),
                        from_spec: frame.spec(graph, from).map_err(at)?.clone(),
                        to: place(scope, to),
                        to_spec: value_of(graph, to).map_err(at)?.spec().clone(),
                    };
                    let spec = memory.copy(&step).map_err(at)?;
                    frame.set(to, Some(spec));
                }
            }
            (Op::Branch { then, otherwise }, [then_scope, otherwise_scope]) => {
                let choice = node.inputs().first().copied();
                let truth = choice.map_or(Ok(false), |id| is_true(memory, place(scope, id)));
                let (inner, inner_scope) = if truth.map_err(at)? {
                    (then, then_scope)
                } else {
                    (otherwise, otherwise_scope)
                };
                let operands = node.inputs().get(1..).unwrap_or_default();
                let mut inner_frame = Frame::new(inner);
                enter(graph, frame, operands, inner, &mut inner_frame).map_err(at)?;
                run(memory, inner, inner_scope, &mut inner_frame, each)?;
                let made = found(inner, inner_scope, &inner_frame, inner.outputs()).map_err(at)?;
                assign(memory, made, (graph, scope, frame), node).map_err(at)?;
            }
            (Op::Loop { condition, body }, [condition_scope, body_scope]) => {
                let start = found(graph, scope, frame, node.inputs()).map_err(at)?;
                assign(memory, start, (graph, scope, frame), node).map_err(at)?;
                let mut condition_frame = Frame::new(condition);
                let mut body_frame = Frame::new(body);
                loop {
                    let values = node.outputs();
                    enter(graph, frame, values, condition, &mut condition_frame).map_err(at)?;
                    run(
                        memory,
                        condition,
                        condition_scope,
                        &mut condition_frame,
                        each,
                    )?;
                    let truth = condition
                        .outputs()
                        .first()
                        .map_or(Ok(false), |&id| is_true(memory, place(condition_scope, id)));
                    if !truth.map_err(at)? {
                        break;
                    }
                    enter(graph, frame, values, body, &mut body_frame).map_err(at)?;
                    run(memory, body, body_scope, &mut body_frame, each)?;
                    let made = found(body, body_scope, &body_frame, body.outputs()).map_err(at)?;
                    assign(memory, made, (graph, scope, frame), node).map_err(at)?;
                }
            }
            _ => call(memory, graph, scope, frame, (index, node), each)?,
        }
    }
    Ok(())
}

/// The place of a value; every value of a graph has one.
fn place(scope: &Scope, id: ValueId) -> Place {
    let place = scope.places.get(id.index()).copied();
    place.unwrap_or(Place::Planned(Placement::new(u32::MAX, 0, 0)))
}

fn places(scope: &Scope, ids: &[ValueId]) -> Vec<Place> {
    ids.iter().map(|&id| place(scope, id)).collect()
}

/// Whether the one byte of a truth value is not zero.
fn is_true(memory: &Memory<'_>, place: Place) -> Result<bool> {
    let mut byte = [0];
    memory.shared(place, 1)?.copy_to_host(&mut byte)?;
    Ok(byte != [0])
}

/// Gives the inputs of an inner graph the sizes that the values of the graph around
/// it have. Their bytes are there already.
fn enter(
    graph: &Graph,
    frame: &Frame,
    values: &[ValueId],
    inner: &Graph,
    inner_frame: &mut Frame,
) -> Result<()> {
    for (&value, &input) in values.iter().zip(inner.inputs()) {
        inner_frame.set(input, Some(frame.spec(graph, value)?.clone()));
    }
    Ok(())
}

/// Where values are, and what they look like now.
fn found(
    graph: &Graph,
    scope: &Scope,
    frame: &Frame,
    ids: &[ValueId],
) -> Result<Vec<(Place, TensorSpec)>> {
    let values = ids.iter();
    values
        .map(|&id| Ok((place(scope, id), frame.spec(graph, id)?.clone())))
        .collect()
}

/// Makes values, of the graph or of one inside it, the outputs of a node.
fn assign(
    memory: &mut Memory<'_>,
    values: Vec<(Place, TensorSpec)>,
    (graph, scope, frame): (&Graph, &Scope, &mut Frame),
    node: &Node,
) -> Result<()> {
    let mut moves = Vec::with_capacity(values.len());
    for ((from, from_spec), &output) in values.into_iter().zip(node.outputs()) {
        moves.push(Move {
            from,
            from_spec,
            to: place(scope, output),
            to_spec: value_of(graph, output)?.spec().clone(),
        });
    }
    let specs = memory.copy_all(&moves)?;
    for (&output, spec) in node.outputs().iter().zip(specs) {
        frame.set(output, Some(spec));
    }
    Ok(())
}

/// Calls a kernel or a delegate.
fn call<E, F>(
    memory: &mut Memory<'_>,
    graph: &Graph,
    scope: &Scope,
    frame: &mut Frame,
    (index, node): (usize, &Node),
    each: &mut F,
) -> Result<(), E>
where
    E: From<Error>,
    F: FnMut(&mut Call<'_>) -> Result<(), E>,
{
    let at = |error: Error| E::from(error.at("node", index));
    let (to_read, to_write) = (places(scope, node.inputs()), places(scope, node.outputs()));
    let (spans, spans_mut) = memory.split(&to_read, &to_write).map_err(at)?;
    let mut inputs = Vec::with_capacity(spans.len());
    for (&id, span) in node.inputs().iter().zip(spans) {
        let spec = frame.spec(graph, id).map_err(at)?;
        inputs.push(Argument {
            name: value_of(graph, id).map_err(at)?.name(),
            span: span.subspan(0, spec.size_in_bytes()).map_err(at)?,
            spec,
        });
    }
    let mut outputs = Vec::with_capacity(spans_mut.len());
    for (&id, span) in node.outputs().iter().zip(spans_mut) {
        let value = value_of(graph, id).map_err(at)?;
        outputs.push(ArgumentMut {
            name: value.name(),
            planned: value.spec(),
            found: frame.inherited(graph, id).map_err(at)?,
            span,
        });
    }
    let mut call = Call {
        index,
        node,
        inputs,
        outputs,
    };
    each(&mut call)?;
    let found: Vec<_> = call
        .outputs
        .into_iter()
        .map(|output| output.found)
        .collect();
    for (&id, found) in node.outputs().iter().zip(found) {
        frame.set(id, found);
    }
    Ok(())
}
