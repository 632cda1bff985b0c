//! When values are needed.

use device_memory::graph::{Graph, GraphBuilder, Lifetime, Output, lifetimes};

use crate::support::{CUDA_0, add_on, chain_on, placed, spec, truth};

fn of(graph: &Graph, name: &str) -> (usize, usize) {
    let Lifetime { first, last } = lifetimes(graph)[graph.find(name).unwrap().number() as usize];
    (first, last)
}

#[test]
fn a_value_lives_from_the_node_that_makes_it_to_the_last_that_reads_it() {
    let graph = placed(&chain_on(CUDA_0, CUDA_0));

    // 1, 2: copies of a and b, 3: add, 4: copy of c, 5: add, 6: copy to the host.
    assert_eq!(of(&graph, "a"), (0, 1));
    assert_eq!(of(&graph, "c"), (0, 4));
    assert_eq!(of(&graph, "a@cuda:0"), (1, 3));
    assert_eq!(of(&graph, "add"), (3, 5));
    assert_eq!(of(&graph, "add.1"), (5, 6));
    assert_eq!(of(&graph, "add.1@cpu:0"), (6, 7));
}

#[test]
fn what_nothing_reads_lives_for_one_step() {
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", spec());
    builder.input("unused", spec());
    let [b, _] = builder.kernel("split", &[a], [spec().into(), spec().into()]);
    let graph = builder.finish(&[b]).unwrap();

    assert_eq!(of(&graph, "unused"), (0, 0));
    assert_eq!(of(&graph, "split.1"), (1, 1));
}

#[test]
fn a_mutable_buffer_lives_always_and_an_output_to_the_end() {
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", spec());
    builder.mutable_buffer("state", spec());
    let [b] = builder.kernel("relu", &[a], [Output::new(spec()).named("b")]);
    builder.kernel("relu", &[b], [spec().into()]);
    let graph = builder.finish(&[b]).unwrap();

    assert_eq!(of(&graph, "state"), (0, 3));
    assert_eq!(of(&graph, "b"), (1, 3));
}

#[test]
fn a_base_lives_as_long_as_what_lies_in_it() {
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", spec());
    let [b] = builder.kernel("relu", &[a], [Output::new(spec()).named("b")]);
    let view = builder.view("view", b, 0, spec());
    let inner = builder.view("inner", view, 0, spec());
    let over = Output::new(spec()).in_place_of(inner, 0).named("over");
    let [over] = builder.kernel("relu_", &[], [over]);
    let [c] = builder.kernel("relu", &[over], [spec().into()]);
    let graph = builder.finish(&[c]).unwrap();

    assert_eq!(of(&graph, "over"), (4, 5));
    assert_eq!(of(&graph, "inner"), (3, 5));
    assert_eq!(of(&graph, "view"), (2, 5));
    assert_eq!(of(&graph, "b"), (1, 5));
}

#[test]
fn a_node_with_graphs_inside_takes_their_steps_too() {
    let mut builder = GraphBuilder::new("forward");
    let choice = builder.input("choice", truth());
    let [a, b] = ["a", "b"].map(|name| builder.input(name, spec()));
    let graphs = (add_on(None), add_on(None));
    let [out] = builder.branch(
        "if",
        &[choice, a, b],
        graphs,
        [Output::new(spec()).named("out")],
    );
    let [last] = builder.kernel("relu", &[out], [Output::new(spec()).named("last")]);
    let graph = builder.finish(&[last]).unwrap();

    // The branch begins at step 1; each graph inside has its steps 0, 1 and 2.
    assert_eq!(of(&graph, "a"), (0, 7));
    assert_eq!(of(&graph, "out"), (1, 8));
    assert_eq!(of(&graph, "last"), (8, 9));
}

#[test]
fn lifetimes_overlap_where_they_share_a_step() {
    let life = |first, last| Lifetime { first, last };

    assert!(life(0, 2).overlaps(life(2, 3)));
    assert!(!life(0, 1).overlaps(life(2, 3)));
    assert!(life(1, 1).overlaps(life(0, 9)));
}
