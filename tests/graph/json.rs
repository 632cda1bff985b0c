//! Graphs as JSON.

use proptest::prelude::{ProptestConfig, any, prop, proptest};
use serde_json::{Value, json};

use device_memory::graph::{Graph, GraphBuilder, Output};
use device_memory::{Device, ScalarType, ShapeDynamism, TensorSpec};

use crate::graphs::{Choices, random};
use crate::support::{CUDA_0, add_on, placed, spec, truth};

fn read(value: &Value) -> Result<Graph, String> {
    serde_json::from_str(&value.to_string()).map_err(|error| error.to_string())
}

fn written(graph: &Graph) -> Value {
    serde_json::to_value(graph).unwrap()
}

#[test]
fn a_graph_is_written_in_plain_words() {
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", spec());
    let state = builder.mutable_buffer("state", spec().with_device(CUDA_0));
    let next = Output::new(spec().with_device(CUDA_0)).in_place_of(state, 0);
    let copy = builder.copy("copy", a, spec().with_device(CUDA_0));
    let [next] = builder.delegate("update", Some(CUDA_0), &[copy], [next]);
    let graph = builder.finish(&[next]).unwrap();

    assert_eq!(
        written(&graph),
        json!({
            "name": "forward",
            "values": [
                {"name": "a", "role": "input", "dtype": "FLOAT", "sizes": [2, 2]},
                {"name": "state", "role": "mutable_buffer", "dtype": "FLOAT", "sizes": [2, 2],
                 "device": "cuda:0"},
                {"name": "copy", "dtype": "FLOAT", "sizes": [2, 2], "device": "cuda:0"},
                {"name": "update", "dtype": "FLOAT", "sizes": [2, 2], "device": "cuda:0",
                 "base": {"value": 1, "offset": 0}},
            ],
            "nodes": [
                {"name": "copy", "op": "copy", "inputs": [0], "outputs": [2]},
                {"name": "update", "op": {"delegate": {"target": "cuda:0"}}, "inputs": [2],
                 "outputs": [3]},
            ],
            "inputs": [0],
            "outputs": [3],
        })
    );
    assert_eq!(read(&written(&graph)), Ok(graph));
}

#[test]
fn orders_dynamism_and_inner_graphs_are_kept() {
    let channels_last =
        TensorSpec::with_dim_order(ScalarType::Half, &[1, 3, 4, 4], &[0, 2, 3, 1], Device::CPU)
            .unwrap()
            .with_dynamism(ShapeDynamism::DynamicBound);
    let mut builder = GraphBuilder::new("forward");
    let choice = builder.input("choice", truth());
    let image = builder.input("image", channels_last.clone());
    let unbounded = channels_last.with_dynamism(ShapeDynamism::DynamicUnbound);
    builder.constant("table", unbounded);
    let [a, b] = ["a", "b"].map(|name| builder.input(name, spec()));
    let graphs = (add_on(Some(CUDA_0)), add_on(None));
    let [out] = builder.branch("if", &[choice, a, b], graphs, [spec().into()]);
    let graph = builder.finish(&[image, out]).unwrap();

    assert_eq!(read(&written(&graph)), Ok(graph));
}

/// A graph of one kernel, with one part replaced.
fn with(change: impl FnOnce(&mut Value)) -> String {
    let mut graph = json!({
        "name": "forward",
        "values": [
            {"name": "a", "role": "input", "dtype": "FLOAT", "sizes": [2]},
            {"name": "b", "dtype": "FLOAT", "sizes": [2]},
        ],
        "nodes": [{"name": "relu", "op": "kernel", "inputs": [0], "outputs": [1]}],
        "inputs": [0],
        "outputs": [1],
    });
    assert!(read(&graph).is_ok());
    change(&mut graph);
    read(&graph).unwrap_err()
}

#[test]
fn what_is_no_graph_is_refused_with_a_reason() {
    for (found, expected) in [
        (
            with(|g| g["values"][0]["dtype"] = json!("FLOATY")),
            "value \"a\": unknown dtype \"FLOATY\"",
        ),
        (
            with(|g| g["values"][0]["device"] = json!("gpu")),
            "value \"a\": unknown device type \"gpu\"",
        ),
        (
            with(|g| g["values"][0]["dim_order"] = json!([1])),
            "value \"a\": invalid tensor: dim order [1] is no permutation of 1 dimensions",
        ),
        (
            with(|g| g["values"][0]["sizes"] = json!([u64::MAX, 2])),
            "more bytes than can be addressed",
        ),
        (
            with(|g| g["nodes"][0]["op"] = json!({"delegate": {"target": "cuda:-1"}})),
            "node \"relu\": invalid device index \"-1\"",
        ),
        (
            with(|g| g["nodes"][0]["inputs"] = json!([7])),
            "node 0 (\"relu\") names value 7 of 2",
        ),
        (
            with(|g| g["nodes"][0]["inputs"] = json!([1])),
            "node 0 (\"relu\") uses value \"b\" before it is made",
        ),
        (
            with(|g| g["nodes"][0]["outputs"] = json!([1, 1])),
            "value \"b\" is a computed value and made by 2 node(s)",
        ),
        (
            with(|g| g["nodes"][0]["outputs"] = json!([0])),
            "value \"a\" is an input and made by 1 node(s)",
        ),
        (
            with(|g| g["nodes"] = json!([])),
            "uses value \"b\" before it is made",
        ),
        (
            with(|g| {
                g["nodes"] = json!([]);
                g["outputs"] = json!([]);
            }),
            "value \"b\" is a computed value and made by 0 node(s)",
        ),
        (
            with(|g| g["inputs"] = json!([])),
            "value \"a\" is an input and listed 0 time(s) as an input",
        ),
        (
            with(|g| g["inputs"] = json!([0, 0])),
            "value \"a\" is an input and listed 2 time(s) as an input",
        ),
        (
            with(|g| g["inputs"] = json!([0, 1])),
            "value \"b\" is a computed value and listed 1 time(s) as an input",
        ),
        (
            with(|g| g["values"][0]["base"] = json!({"value": 1, "offset": 0})),
            "value \"a\" in \"b\": only what a node makes can lie in another value",
        ),
        (with(|g| g["extra"] = json!(1)), "unknown field `extra`"),
        (
            with(|g| g["values"][0]["name"] = json!("b")),
            "two values are named \"b\"",
        ),
        (
            with(|g| g["nodes"][0]["op"] = json!("swap")),
            "unknown variant `swap`",
        ),
        (with(|g| *g = json!([])), "invalid length 0"),
        (with(|g| g["outputs"] = json!([-1])), "invalid value"),
    ] {
        assert!(found.contains(expected), "{found:?} lacks {expected:?}");
    }
}

#[test]
fn nesting_without_end_is_refused() {
    let mut text = String::from("0");
    for _ in 0..10_000 {
        text = format!("{{\"op\":{text}}}");
    }

    assert!(serde_json::from_str::<Graph>(&text).is_err());
    assert!(serde_json::from_str::<Graph>(&"[".repeat(100_000)).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_graph_is_read_as_it_was_written(
        numbers in prop::collection::vec(any::<u16>(), 0..80)
    ) {
        let graph = random(&mut Choices::new(&numbers));

        assert_eq!(read(&written(&graph)), Ok(graph.clone()));
        let placed = placed(&graph);
        assert_eq!(read(&written(&placed)), Ok(placed));
    }

    #[test]
    fn any_change_of_one_number_is_read_or_refused(
        numbers in prop::collection::vec(any::<u16>(), 0..40),
        place in any::<prop::sample::Index>(),
        number in prop::sample::select(vec![0_u64, 1, 2, 3, 5, 8, 200, u64::MAX]),
    ) {
        let text = written(&random(&mut Choices::new(&numbers))).to_string();
        let digits: Vec<usize> = text
            .char_indices()
            .filter(|(_, c)| c.is_ascii_digit())
            .map(|(at, _)| at)
            .collect();
        let at = digits[place.index(digits.len())];

        let changed = format!("{}{number}{}", &text[..at], &text[at + 1..]);

        // Whatever is read is valid: the passes take it.
        if let Ok(graph) = serde_json::from_str::<Graph>(&changed) {
            placed(&graph);
        }
    }
}
