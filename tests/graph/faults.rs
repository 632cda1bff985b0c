//! Every way in which a graph can contradict itself, and its text.

use device_memory::graph::{
    Graph, GraphBuilder, Op, Output, PlannedGraph, PlanningOptions, ValueId,
};
use device_memory::{GraphFault, ShapeDynamism};

use crate::support::{CUDA_0, add_on, fault, floats, spec, truth};

fn built(build: impl FnOnce(&mut GraphBuilder)) -> GraphFault {
    let mut builder = GraphBuilder::new("forward");
    build(&mut builder);
    fault(builder.finish(&[]))
}

fn text(build: impl FnOnce(&mut GraphBuilder)) -> String {
    let text = built(build).to_string();
    let rest = text.strip_prefix("invalid graph: ");
    rest.unwrap_or_else(|| panic!("{text}")).to_owned()
}

#[test]
fn two_values_of_one_name() {
    let text = text(|builder| {
        builder.input("a", spec());
        builder.constant("a", spec());
    });

    assert_eq!(text, "two values are named \"a\"");
}

#[test]
fn a_value_that_there_is_not() {
    let by_node = text(|builder| {
        builder.kernel("relu", &[ValueId::new(7)], [spec().into()]);
    });
    let by_base = text(|builder| {
        builder.view("view", ValueId::new(9), 0, spec());
    });
    let by_outputs = fault(GraphBuilder::new("").finish(&[ValueId::new(u32::MAX)]));

    assert_eq!(by_node, "node 0 (\"relu\") names value 7 of 1");
    assert_eq!(by_base, "node 0 (\"view\") names value 9 of 1");
    assert_eq!(
        by_outputs.to_string(),
        "invalid graph: the list of outputs names value 4294967295 of 0"
    );
}

#[test]
fn a_cycle_is_a_use_before_the_value_is_made() {
    let to_itself = text(|builder| {
        builder.kernel("relu", &[ValueId::new(0)], [spec().into()]);
    });
    let round = text(|builder| {
        builder.kernel("first", &[ValueId::new(1)], [spec().into()]);
        builder.kernel("second", &[ValueId::new(0)], [spec().into()]);
    });
    let base = text(|builder| {
        builder.view("view", ValueId::new(0), 0, spec());
    });

    assert_eq!(
        to_itself,
        "node 0 (\"relu\") uses value \"relu\" before it is made"
    );
    assert_eq!(
        round,
        "node 0 (\"first\") uses value \"second\" before it is made"
    );
    assert_eq!(
        base,
        "node 0 (\"view\") uses value \"view\" before it is made"
    );
}

#[test]
fn a_view_that_passes_the_end_of_its_base() {
    for (offset, expected) in [
        (8, "value \"view\" in \"a\": 16 bytes at offset 8 of 16"),
        (
            usize::MAX,
            "value \"view\" in \"a\": 16 bytes at offset 18446744073709551615 of 16",
        ),
    ] {
        let text = text(|builder| {
            let a = builder.input("a", spec());
            builder.view("view", a, offset, spec());
        });

        assert_eq!(text, expected);
    }
}

#[test]
fn a_copy_between_tensors_that_are_not_alike() {
    let sizes = text(|builder| {
        let a = builder.input("a", spec());
        builder.copy("copy", a, floats(&[4]));
    });
    let inputs = text(|builder| {
        let a = builder.input("a", spec());
        builder.node("copy", Op::Copy, &[a, a], [spec().into()]);
    });

    assert_eq!(
        sizes,
        "node 0 (\"copy\"): FLOAT [2, 2] in order [0, 1] can not be copied to FLOAT [4] in order [0]"
    );
    assert_eq!(
        inputs,
        "node 0 (\"copy\"): it has 2 input(s) and 1 output(s), expected 1 and 1"
    );
}

#[test]
fn sizes_of_a_copy_may_differ_where_they_may_change() {
    let mut builder = GraphBuilder::new("forward");
    let bounded = floats(&[8, 2]).with_dynamism(ShapeDynamism::DynamicBound);
    let a = builder.input("a", bounded);
    let copy = builder.copy("copy", a, spec().with_device(CUDA_0));

    assert!(builder.finish(&[copy]).is_ok());
}

#[test]
fn a_view_without_a_base_or_with_inputs() {
    let no_base = text(|builder| {
        builder.node("view", Op::View, &[], [spec().into()]);
    });
    let inputs = text(|builder| {
        let a = builder.input("a", spec());
        builder.node(
            "view",
            Op::View,
            &[a],
            [Output::new(spec()).in_place_of(a, 0)],
        );
    });

    assert_eq!(no_base, "node 0 (\"view\"): its output has no base");
    assert_eq!(
        inputs,
        "node 0 (\"view\"): it has 1 input(s) and 1 output(s), expected 0 and 1"
    );
}

#[test]
fn a_branch_whose_choice_or_graphs_do_not_fit() {
    let with = |inputs: &dyn Fn(&mut GraphBuilder) -> Vec<ValueId>, out| {
        text(|builder| {
            let inputs = inputs(builder);
            let graphs = (add_on(None), add_on(None));
            builder.branch("if", &inputs, graphs, [Output::new(out)]);
        })
    };

    let no_choice = with(&|_| vec![], spec());
    let float = with(&|builder| vec![builder.input("c", spec())], spec());
    let few = with(
        &|builder| vec![builder.input("c", truth()), builder.input("a", spec())],
        spec(),
    );
    let all = |builder: &mut GraphBuilder| {
        vec![
            builder.input("c", truth()),
            builder.input("a", spec()),
            builder.input("b", spec()),
        ]
    };
    let other_size = with(&all, floats(&[3]));

    assert_eq!(no_choice, "node 0 (\"if\"): it has no input to choose by");
    assert_eq!(
        float,
        "node 0 (\"if\"): its first input is FLOAT [2, 2] in order [0, 1], expected one BOOL"
    );
    assert_eq!(
        few,
        "node 0 (\"if\"): the inputs of \"then\" are 2, expected 1"
    );
    assert_eq!(
        other_size,
        "node 0 (\"if\"): the outputs of \"then\": number 0 is FLOAT [2, 2] in order [0, 1], \
         expected FLOAT [3] in order [0]"
    );
}

/// Takes as many values as `specs`, and gives back those at `outputs`.
fn pass(specs: &[device_memory::TensorSpec], outputs: &[usize]) -> Graph {
    let mut builder = GraphBuilder::new("inner");
    let inputs: Vec<ValueId> = specs
        .iter()
        .enumerate()
        .map(|(index, spec)| builder.input(format!("in{index}"), spec.clone()))
        .collect();
    let outputs: Vec<ValueId> = outputs.iter().map(|&index| inputs[index]).collect();
    builder.finish(&outputs).unwrap()
}

#[test]
fn a_loop_whose_condition_or_body_does_not_fit() {
    let with = |condition: Graph, body: Graph| {
        text(|builder| {
            let a = builder.input("a", spec());
            builder.repeat("while", &[a], condition, body, [spec().into()]);
        })
    };

    let none = with(pass(&[spec()], &[]), pass(&[spec()], &[0]));
    let float = with(pass(&[spec()], &[0]), pass(&[spec()], &[0]));
    let inputs = with(pass(&[truth()], &[0]), pass(&[spec()], &[0]));
    let body = text(|builder| {
        let go = builder.input("go", truth());
        let graphs = (pass(&[truth()], &[0]), pass(&[truth()], &[]));
        builder.repeat("while", &[go], graphs.0, graphs.1, [truth().into()]);
    });

    assert_eq!(
        none,
        "node 0 (\"while\"): its condition has 0 outputs, not 1"
    );
    assert!(float.ends_with("expected one BOOL"), "{float}");
    assert!(
        inputs.contains("the inputs of \"condition\": number 0"),
        "{inputs}"
    );
    assert_eq!(
        body,
        "node 0 (\"while\"): the outputs of \"body\" are 0, expected 1"
    );
}

#[test]
fn an_inner_graph_with_bytes_of_its_own() {
    let mut inner = GraphBuilder::new("inner");
    inner.mutable_buffer("state", spec());
    let inner = inner.finish(&[]).unwrap();

    let text = text(|builder| {
        let c = builder.input("c", truth());
        builder.branch("if", &[c], (inner.clone(), inner), []);
    });

    assert_eq!(
        text,
        "node 0 (\"if\"): \"then\" has a mutable buffer, \"state\": only the outermost graph may"
    );
}

#[test]
fn what_a_branch_makes_lies_in_nothing() {
    let text = text(|builder| {
        let c = builder.input("c", truth());
        let state = builder.mutable_buffer("state", truth());
        let graphs = (pass(&[truth()], &[0]), pass(&[truth()], &[0]));
        let output = Output::new(truth()).in_place_of(state, 0);
        builder.branch("if", &[c, c], graphs, [output]);
    });

    assert_eq!(
        text,
        "value \"if\" in \"state\": what a branch or a loop makes has bytes of its own"
    );
}

#[test]
fn graphs_nested_too_deeply() {
    let mut graph = pass(&[], &[]);
    for _ in 1..Graph::MAX_DEPTH {
        let mut builder = GraphBuilder::new("outer");
        let [c] = builder.kernel("choose", &[], [truth().into()]);
        builder.branch("if", &[c], (graph.clone(), graph), []);
        graph = builder.finish(&[]).unwrap();
        // Only the depth matters; the other side stays small.
        let Op::Branch { then, .. } = graph.nodes()[1].op() else {
            unreachable!()
        };
        let then = then.clone();
        let mut builder = GraphBuilder::new("outer");
        let [c] = builder.kernel("choose", &[], [truth().into()]);
        builder.branch("if", &[c], (*then, pass(&[], &[])), []);
        graph = builder.finish(&[]).unwrap();
    }

    let text = text(|builder| {
        let [c] = builder.kernel("choose", &[], [truth().into()]);
        builder.branch("if", &[c], (graph, pass(&[], &[])), []);
    });

    assert_eq!(text, "graphs are nested 33 deep, at most 32 are supported");
}

#[test]
fn a_value_on_another_device_than_its_node() {
    let graph = add_on(Some(CUDA_0));

    let error = PlannedGraph::new(graph, &PlanningOptions::default()).unwrap_err();

    assert_eq!(
        error.to_string(),
        "invalid graph: node 0 (\"add\") runs on cuda:0 and value \"a\" is on cpu:0"
    );
    assert!(matches!(
        fault(Err::<(), _>(error)),
        GraphFault::WrongDevice { .. }
    ));
}

#[test]
fn an_end_of_an_inner_graph_that_is_not_on_the_host() {
    let on_gpu = spec().with_device(CUDA_0);
    let mut builder = GraphBuilder::new("forward");
    let c = builder.input("c", truth());
    let a = builder.input("a", spec());
    let inner = pass(&[on_gpu], &[0]);
    let graphs = (inner.clone(), inner);
    let [out] = builder.branch("if", &[c, a], graphs, [spec().into()]);
    let graph = builder.finish(&[out]).unwrap();

    assert_eq!(
        graph.check_devices().unwrap_err().to_string(),
        "invalid graph: node 0 (\"if\") runs on cpu:0 and value \"in0\" is on cuda:0"
    );
}

#[test]
fn a_value_without_bounds_is_not_planned() {
    let mut builder = GraphBuilder::new("forward");
    let unbounded = spec().with_dynamism(ShapeDynamism::DynamicUnbound);
    let a = builder.input("a", unbounded);
    let graph = builder.finish(&[a]).unwrap();

    let error = PlannedGraph::new(graph.clone(), &PlanningOptions::default()).unwrap_err();

    assert_eq!(
        error.to_string(),
        "invalid graph: value \"a\" has sizes without bounds and can not be planned"
    );
    assert_eq!(error.code(), 0x12);
    assert!(PlannedGraph::new(graph, &PlanningOptions::unplanned_io()).is_ok());
}
