//! Branches and loops.

use device_memory::graph::{
    Graph, GraphBuilder, PlanningOptions, PropagateOptions, ValueId, propagate,
};
use device_memory::runner::Call;
use device_memory::{Device, Result};

use crate::graphs::{CUDA_0, CUDA_1, bytes};
use crate::support::{increment, mix, on_fake, truth};

/// One input, through a delegate on `device` or as it is.
fn one(name: &str, device: Option<Device>) -> Graph {
    let spec = bytes(4, Device::CPU);
    let mut builder = GraphBuilder::new(name);
    let x = builder.input("x", spec.clone());
    let output = match device {
        Some(device) => builder.delegate("up", Some(device), &[x], [spec.into()])[0],
        None => x,
    };
    builder.finish(&[output]).unwrap()
}

#[test]
fn a_branch_runs_the_graph_that_is_chosen_and_no_other() {
    let mut builder = GraphBuilder::new("forward");
    let choice = builder.input("choice", truth());
    let a = builder.input("a", bytes(4, Device::CPU));
    let graphs = (one("then", Some(CUDA_0)), one("otherwise", Some(CUDA_1)));
    let [out] = builder.branch("if", &[choice, a], graphs, [bytes(4, Device::CPU).into()]);
    let graph = builder.finish(&[out]).unwrap();
    let graph = propagate(&graph, &PropagateOptions::default()).unwrap();

    on_fake(&graph, &PlanningOptions::default(), |runner, _| {
        for (chosen, expected) in [(1, CUDA_0), (0, CUDA_1), (255, CUDA_0)] {
            runner.write(choice, &[chosen]).unwrap();
            runner.write(a, &[5; 4]).unwrap();
            let mut ran = Vec::new();

            runner
                .run(|call: &mut Call<'_>| -> Result<()> {
                    ran.push(call.device());
                    increment(call)
                })
                .unwrap();

            assert_eq!(ran, [expected]);
            assert_eq!(runner.read(out).unwrap(), [6; 4]);
        }
    });
}

#[test]
fn a_branch_may_give_back_what_it_was_given() {
    let mut builder = GraphBuilder::new("forward");
    let choice = builder.input("choice", truth());
    let a = builder.input("a", bytes(4, Device::CPU));
    let graphs = (one("then", None), one("otherwise", Some(CUDA_0)));
    let [out] = builder.branch("if", &[choice, a], graphs, [bytes(4, Device::CPU).into()]);
    let graph = builder.finish(&[out, a]).unwrap();
    let graph = propagate(&graph, &PropagateOptions::default()).unwrap();

    on_fake(&graph, &PlanningOptions::default(), |runner, _| {
        runner.write(choice, &[1]).unwrap();
        runner.write(a, &[5; 4]).unwrap();

        runner.run(increment).unwrap();

        assert_eq!(runner.read(out).unwrap(), [5; 4]);
        assert_eq!(runner.copies().device_to_host, 0);
    });
}

/// A loop that counts down in `in0` and changes the other values by `body`.
fn countdown(
    values: usize,
    body: impl FnOnce(&mut GraphBuilder, &[ValueId]) -> Vec<ValueId>,
) -> Graph {
    let one = bytes(1, Device::CPU);
    let inputs = |builder: &mut GraphBuilder| -> Vec<ValueId> {
        let names = (0..=values).map(|index| format!("in{index}"));
        names.map(|name| builder.input(name, one.clone())).collect()
    };
    let mut condition = GraphBuilder::new("condition");
    let taken = inputs(&mut condition);
    let [go_on] = condition.kernel("positive", &taken[..1], [truth().into()]);
    let condition = condition.finish(&[go_on]).unwrap();
    let mut inner = GraphBuilder::new("body");
    let taken = inputs(&mut inner);
    let [next] = inner.kernel("decrement", &taken[..1], [one.clone().into()]);
    let mut outputs = vec![next];
    outputs.extend(body(&mut inner, &taken[1..]));
    let inner = inner.finish(&outputs).unwrap();
    let mut builder = GraphBuilder::new("forward");
    let taken = inputs(&mut builder);
    let made = || one.clone().into();
    let outputs = match values {
        1 => builder
            .repeat("while", &taken, condition, inner, [made(), made()])
            .to_vec(),
        _ => builder
            .repeat("while", &taken, condition, inner, [made(), made(), made()])
            .to_vec(),
    };
    let graph = builder.finish(&outputs).unwrap();
    propagate(&graph, &PropagateOptions::default()).unwrap()
}

fn run(graph: &Graph, start: &[u8]) -> Vec<u8> {
    on_fake(graph, &PlanningOptions::default(), |runner, _| {
        for (&input, &byte) in graph.inputs().iter().zip(start) {
            runner.write(input, &[byte]).unwrap();
        }
        runner
            .run(|call: &mut Call<'_>| match call.name() {
                "up" => increment(call),
                _ => mix(call),
            })
            .unwrap();
        let outputs = graph.outputs().iter();
        outputs
            .map(|&output| runner.read(output).unwrap()[0])
            .collect()
    })
}

#[test]
fn a_loop_runs_as_often_as_its_condition_holds() {
    let graph = countdown(1, |body, values| {
        body.delegate("up", Some(CUDA_0), values, [bytes(1, Device::CPU).into()])
            .to_vec()
    });

    assert_eq!(run(&graph, &[0, 7]), [0, 7]);
    assert_eq!(run(&graph, &[1, 7]), [0, 8]);
    assert_eq!(run(&graph, &[5, 7]), [0, 12]);
}

#[test]
fn values_of_a_loop_may_change_places() {
    let graph = countdown(2, |_, values| vec![values[1], values[0]]);

    assert_eq!(run(&graph, &[1, 7, 8]), [0, 8, 7]);
    assert_eq!(run(&graph, &[2, 7, 8]), [0, 7, 8]);
    assert_eq!(run(&graph, &[3, 7, 8]), [0, 8, 7]);
}

#[test]
fn a_value_of_a_loop_may_become_two() {
    let graph = countdown(2, |_, values| vec![values[1], values[1]]);

    assert_eq!(run(&graph, &[2, 7, 8]), [0, 8, 8]);
}

#[test]
fn what_goes_into_a_loop_is_not_changed_by_it() {
    let one = bytes(1, Device::CPU);
    let condition = {
        let mut builder = GraphBuilder::new("condition");
        let x = builder.input("x", one.clone());
        let [go_on] = builder.kernel("positive", &[x], [truth().into()]);
        builder.finish(&[go_on]).unwrap()
    };
    let body = {
        let mut builder = GraphBuilder::new("body");
        let x = builder.input("x", one.clone());
        let [next] = builder.kernel("decrement", &[x], [one.clone().into()]);
        builder.finish(&[next]).unwrap()
    };
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", one.clone());
    let [end] = builder.repeat("while", &[a], condition, body, [one.into()]);
    let graph = builder.finish(&[a, end]).unwrap();

    assert_eq!(run(&graph, &[3]), [3, 0]);
}

#[test]
fn an_error_inside_a_branch_names_the_node_of_the_graph_inside() {
    let mut inner = GraphBuilder::new("inner");
    let spec = crate::support::dynamic(bytes(8, Device::CPU));
    let x = inner.input("x", spec.clone());
    let small = crate::support::dynamic(bytes(4, CUDA_0));
    inner.kernel("up", &[x], [spec.clone().into()]);
    inner.copy("small", x, small);
    let inner = inner.finish(&[]).unwrap();
    let mut builder = GraphBuilder::new("forward");
    let choice = builder.input("choice", truth());
    let a = builder.input("a", spec);
    builder.branch("if", &[choice, a], (inner.clone(), inner), []);
    let graph = builder.finish(&[]).unwrap();

    let error = on_fake(&graph, &PlanningOptions::default(), |runner, _| {
        runner.write(choice, &[1]).unwrap();
        runner.write(a, &[5; 8]).unwrap();
        runner.run(increment).unwrap_err()
    });

    assert_eq!(
        error.to_string(),
        "node 1: invalid tensor: sizes [8] where [4] are planned: 8 bytes are more than 4"
    );
}
