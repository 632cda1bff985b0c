//! Mutable buffers, and values written in place of others, across devices.

use device_memory::graph::{GraphBuilder, MethodOptions, Output, Skip, ValueId};
use device_memory::{Device, GraphFault};

use crate::support::{CUDA_0, CUDA_1, copies, device, fault, listing, placed, placed_with, spec};

fn over(base: ValueId) -> Output {
    Output::new(spec()).in_place_of(base, 0)
}

#[test]
fn a_buffer_on_the_host_that_a_delegate_overwrites_is_copied_there_and_back() {
    let mut builder = GraphBuilder::new("decode");
    let state = builder.mutable_buffer("state", spec());
    let [next] = builder.delegate("update", Some(CUDA_0), &[], [over(state).named("next")]);
    let graph = placed(&builder.finish(&[next]).unwrap());

    assert_eq!(
        listing(&graph),
        [
            "copy state:cpu:0 -> state@cuda:0:cuda:0",
            "update  -> next:cuda:0",
            "copy next:cuda:0 -> next@cpu:0:cpu:0",
        ]
    );
    // What is copied back is the output too.
    let back = graph.find("next@cpu:0").unwrap();
    assert_eq!(graph.outputs(), [back]);
    assert_eq!(graph.storage(back), Some((state, 0)));
}

#[test]
fn a_resident_buffer_is_never_copied() {
    let mut builder = GraphBuilder::new("decode");
    let state = builder.mutable_buffer("state", spec());
    let [next] = builder.delegate("update", Some(CUDA_0), &[], [over(state)]);
    let [last] = builder.delegate("update", Some(CUDA_0), &[], [over(next)]);
    let graph = builder.finish(&[last]).unwrap();
    let options = MethodOptions {
        resident_buffers: Skip::All,
        resident_outputs: Skip::All,
        ..MethodOptions::default()
    };

    let graph = placed_with(&graph, options);

    assert_eq!(copies(&graph), (0, 0));
    assert_eq!(device(&graph, "state"), CUDA_0);
    assert_eq!(graph.storage(last), Some((state, 0)));
}

#[test]
fn a_buffer_that_two_devices_and_the_host_overwrite_in_turn_gets_every_change() {
    let mut builder = GraphBuilder::new("decode");
    let state = builder.mutable_buffer("state", spec());
    let [x] = builder.delegate("update", Some(CUDA_0), &[], [over(state).named("x")]);
    let [y] = builder.delegate("update", Some(CUDA_1), &[], [over(x).named("y")]);
    let [z] = builder.kernel("update", &[], [over(y).named("z")]);
    let graph = placed(&builder.finish(&[z]).unwrap());

    assert_eq!(
        listing(&graph),
        [
            "copy state:cpu:0 -> state@cuda:0:cuda:0",
            "update  -> x:cuda:0",
            "copy x:cuda:0 -> x@cpu:0:cpu:0",
            "copy x@cpu:0:cpu:0 -> x@cpu:0@cuda:1:cuda:1",
            "update  -> y:cuda:1",
            "copy y:cuda:1 -> y@cpu:0:cpu:0",
            "update  -> z:cpu:0",
        ]
    );
    assert_eq!(graph.storage(z), Some((state, 0)));
}

#[test]
fn a_part_of_a_buffer_is_copied_back_to_that_part() {
    let mut builder = GraphBuilder::new("decode");
    let state = builder.mutable_buffer("state", spec());
    let row = crate::support::floats(&[2]);
    let view = builder.view("row", state, 8, row.clone());
    let next = Output::new(row).in_place_of(view, 0).named("next");
    let [next] = builder.delegate("update", Some(CUDA_0), &[], [next]);
    let graph = placed(&builder.finish(&[next]).unwrap());

    let back = graph.find("next@cpu:0").unwrap();
    assert_eq!(graph.storage(back), Some((state, 8)));
    assert_eq!(device(&graph, "row"), Device::CPU);
}

#[test]
fn a_device_buffer_that_a_kernel_overwrites_is_copied_to_the_host_and_back() {
    let mut builder = GraphBuilder::new("decode");
    let state = builder.mutable_buffer("state", spec().with_device(CUDA_0));
    let [next] = builder.kernel("update", &[], [over(state).named("next")]);
    let graph = placed(&builder.finish(&[next]).unwrap());

    assert_eq!(copies(&graph), (1, 1));
    let back = graph.find("next@cuda:0").unwrap();
    assert_eq!(graph.storage(back), Some((state, 0)));
    assert_eq!(graph.outputs(), [next]);
}

#[test]
fn what_was_overwritten_can_not_be_used_any_more() {
    let mut builder = GraphBuilder::new("decode");
    let state = builder.mutable_buffer("state", spec());
    let view = builder.view("view", state, 0, spec());
    builder.kernel("update", &[], [over(state)]);
    let [late] = builder.kernel("relu", &[view], [spec().into()]);

    let result = builder.finish(&[late]);

    assert_eq!(
        fault(result).to_string(),
        "invalid graph: node 2 (\"relu\") uses value \"view\", which node 1 (\"update\") overwrote"
    );
}

#[test]
fn an_input_a_constant_and_what_is_read_beside_can_not_be_overwritten() {
    let mut builder = GraphBuilder::new("decode");
    let a = builder.input("a", spec());
    builder.kernel("update", &[], [over(a)]);
    let input = fault(builder.finish(&[]));

    let mut builder = GraphBuilder::new("decode");
    let weight = builder.constant("weight", spec());
    builder.kernel("update", &[], [over(weight)]);
    let constant = fault(builder.finish(&[]));

    let mut builder = GraphBuilder::new("decode");
    let state = builder.mutable_buffer("state", spec());
    builder.kernel("update", &[state], [over(state)]);
    let both = fault(builder.finish(&[]));

    assert_eq!(
        input.to_string(),
        "invalid graph: value \"update\" in \"a\": an input can not be overwritten"
    );
    assert!(matches!(constant, GraphFault::Base { .. }), "{constant}");
    assert_eq!(
        both.to_string(),
        "invalid graph: node 0 (\"update\"): it reads and overwrites the bytes of value \"state\""
    );
}
