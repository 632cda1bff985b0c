//! Building graphs by hand.

use device_memory::Device;
use device_memory::graph::{GraphBuilder, Op, Output, Role};

use crate::support::{CUDA_0, spec};

#[test]
fn a_graph_says_what_was_put_into_it() {
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", spec());
    let weight = builder.constant("weight", spec());
    let state = builder.mutable_buffer("state", spec());
    let [x, y] = builder.delegate(
        "part",
        Some(CUDA_0),
        &[a, weight],
        [spec().into(), Output::new(spec()).in_place_of(state, 0)],
    );
    let view = builder.view("view", x, 8, crate::support::floats(&[2]));
    let graph = builder.finish(&[view, y]).unwrap();

    assert_eq!(graph.name(), "forward");
    assert_eq!(graph.inputs(), [a]);
    assert_eq!(graph.outputs(), [view, y]);
    assert_eq!(graph.mutable_buffers().collect::<Vec<_>>(), [state]);
    let roles: Vec<Role> = graph.values().iter().map(|value| value.role()).collect();
    let computed = Role::Computed;
    assert_eq!(
        roles,
        [
            Role::Input,
            Role::Constant,
            Role::MutableBuffer,
            computed,
            computed,
            computed
        ]
    );
    let node = &graph.nodes()[0];
    assert_eq!((node.name(), node.op().name()), ("part", "delegate"));
    assert_eq!(
        node.op(),
        &Op::Delegate {
            target: Some(CUDA_0)
        }
    );
    assert_eq!(
        (node.inputs(), node.outputs()),
        (&[a, weight][..], &[x, y][..])
    );
    assert_eq!(graph.reads(node).collect::<Vec<_>>(), [a, weight, state]);
    assert_eq!(graph.storage(y), Some((state, 0)));
    assert_eq!(graph.storage(view), Some((x, 8)));
    assert_eq!(graph.value(a).unwrap().device(), Device::CPU);
}

#[test]
fn values_are_named_after_their_nodes_and_no_two_alike() {
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", spec());
    let mut last = a;
    for _ in 0..3 {
        let [next, _] = builder.kernel("add", &[last], [spec().into(), spec().into()]);
        last = next;
    }
    let graph = builder.finish(&[last]).unwrap();

    let names: Vec<&str> = graph.values().iter().map(|value| value.name()).collect();
    assert_eq!(
        names,
        ["a", "add", "add.1", "add.2", "add.3", "add.4", "add.5"]
    );
    assert_eq!(graph.find("add.4"), Some(last));
    assert_eq!(graph.find("sub"), None);
}

#[test]
fn an_empty_graph_is_a_graph() {
    let graph = GraphBuilder::new("").finish(&[]).unwrap();

    assert!(graph.values().is_empty() && graph.nodes().is_empty());
}
