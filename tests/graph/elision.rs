//! Copies of a graph's own that lead back to where a value came from.

use device_memory::Device;
use device_memory::graph::{Graph, GraphBuilder, Output, ValueId, elide_copies};

use crate::support::{CUDA_0, CUDA_1, device, listing, spec};

/// `a` on a device, down to the host, and up to `second`, where a delegate uses it;
/// `more` may use what it likes of these.
fn bounce(second: Device, more: impl FnOnce(&mut GraphBuilder, [ValueId; 3])) -> Graph {
    let mut builder = GraphBuilder::new("forward");
    let start = builder.input("start", spec().with_device(CUDA_0));
    let on_cuda_0 = spec().with_device(CUDA_0);
    let [a] = builder.delegate("first", Some(CUDA_0), &[start], [on_cuda_0.into()]);
    let down = builder.copy("down", a, spec());
    let up = builder.copy("up", down, spec().with_device(second));
    more(&mut builder, [a, down, up]);
    let output = spec().with_device(second);
    let [b] = builder.delegate("second", Some(second), &[up], [output.into()]);
    builder.finish(&[b]).unwrap()
}

#[test]
fn there_and_back_is_no_copy_at_all() {
    let graph = elide_copies(&bounce(CUDA_0, |_, _| ()), false).unwrap();

    assert_eq!(
        listing(&graph),
        [
            "first start:cuda:0 -> first:cuda:0",
            "second first:cuda:0 -> second:cuda:0",
        ]
    );
}

#[test]
fn a_copy_that_the_host_uses_stays() {
    let graph = bounce(CUDA_0, |builder, [_, down, _]| {
        builder.kernel("relu", &[down], [spec().into()]);
    });

    let graph = elide_copies(&graph, false).unwrap();

    assert_eq!(graph.count_copies().device_to_host, 1);
    assert_eq!(graph.count_copies().host_to_device, 0);
}

#[test]
fn a_way_to_another_device_stays_unless_it_may_be_direct() {
    let graph = bounce(CUDA_1, |_, _| ());

    let through_host = elide_copies(&graph, false).unwrap();
    let direct = elide_copies(&graph, true).unwrap();

    assert_eq!(through_host, graph);
    assert_eq!(direct.count_copies().device_to_device, 1);
    assert_eq!(direct.count_copies().total(), 1);
    assert_eq!(device(&direct, "up"), CUDA_1);
}

#[test]
fn a_copy_stays_if_its_source_is_overwritten_before_its_last_use() {
    for target in [CUDA_0, CUDA_1] {
        let graph = bounce(target, |builder, [a, ..]| {
            let output = Output::new(spec().with_device(CUDA_0)).in_place_of(a, 0);
            builder.delegate("overwrite", Some(CUDA_0), &[], [output]);
        });

        let elided = elide_copies(&graph, false).unwrap();

        assert_eq!(elided, graph);
    }
}

#[test]
fn a_way_stays_through_the_host_if_the_source_is_overwritten_on_the_way() {
    let mut builder = GraphBuilder::new("forward");
    let a = builder.mutable_buffer("a", spec().with_device(CUDA_0));
    let down = builder.copy("down", a, spec());
    let output = Output::new(spec().with_device(CUDA_0)).in_place_of(a, 0);
    builder.delegate("overwrite", Some(CUDA_0), &[], [output]);
    let up = builder.copy("up", down, spec().with_device(CUDA_1));
    let graph = builder.finish(&[up]).unwrap();

    assert_eq!(elide_copies(&graph, true).unwrap(), graph);
}

#[test]
fn a_copy_that_is_written_in_place_stays() {
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", spec().with_device(CUDA_0));
    let down = builder.copy("down", a, spec());
    let up = builder.copy("up", down, spec().with_device(CUDA_0));
    let output = Output::new(spec().with_device(CUDA_0)).in_place_of(up, 0);
    let [b] = builder.delegate("second", Some(CUDA_0), &[], [output]);
    let graph = builder.finish(&[b]).unwrap();

    assert_eq!(elide_copies(&graph, false).unwrap(), graph);
    // It may be made directly; it is made all the same.
    let direct = elide_copies(&graph, true).unwrap();
    assert_eq!(direct.count_copies().device_to_device, 1);
    assert_eq!(direct.count_copies().total(), 1);
}

#[test]
fn a_copy_that_is_an_output_stays() {
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", spec().with_device(CUDA_0));
    let down = builder.copy("down", a, spec());
    let up = builder.copy("up", down, spec().with_device(CUDA_0));
    let graph = builder.finish(&[up]).unwrap();

    assert_eq!(elide_copies(&graph, false).unwrap(), graph);
    // The way may still be made shorter.
    let direct = elide_copies(&graph, true).unwrap();
    assert_eq!(listing(&direct), ["up a:cuda:0 -> up:cuda:0"]);
}

#[test]
fn a_single_copy_on_one_device_stays() {
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", spec());
    let copy = builder.copy("copy", a, spec());
    let [b] = builder.kernel("relu", &[copy], [spec().into()]);
    let graph = builder.finish(&[b]).unwrap();

    assert_eq!(elide_copies(&graph, true).unwrap(), graph);
}

#[test]
fn views_of_a_copy_that_is_elided_are_views_of_its_source() {
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", spec().with_device(CUDA_0));
    let down = builder.copy("down", a, spec());
    let up = builder.copy("up", down, spec().with_device(CUDA_0));
    let view = builder.view("view", up, 0, spec().with_device(CUDA_0));
    let [b] = builder.delegate(
        "b",
        Some(CUDA_0),
        &[view],
        [spec().with_device(CUDA_0).into()],
    );
    let graph = elide_copies(&builder.finish(&[b]).unwrap(), false).unwrap();

    assert_eq!(graph.count_copies().total(), 0);
    let view = graph.find("view").unwrap();
    assert_eq!(graph.storage(view), Some((graph.find("a").unwrap(), 0)));
}

#[test]
fn copies_that_nothing_uses_are_gone() {
    let mut builder = GraphBuilder::new("forward");
    let a = builder.input("a", spec());
    let up = builder.copy("up", a, spec().with_device(CUDA_0));
    builder.copy("down", up, spec());
    let graph = elide_copies(&builder.finish(&[a]).unwrap(), false).unwrap();

    assert!(graph.nodes().is_empty());
    assert_eq!(graph.values().len(), 1);
}
