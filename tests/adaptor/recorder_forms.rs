//! What a recorder gives is what viewers read.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Command, Stdio};

use device_memory::adaptor::recorder::{Action, Recording};
use device_memory::adaptor::{Block, Observer, Recorder};
use device_memory::{
    Device, DeviceLayout, DevicePtr, DeviceType, Error, ErrorKind, OutOfMemory, Tag,
};
use proptest::prelude::*;
use serde_json::Value;

const GPU: Device = Device::new(DeviceType::Cuda, 1);

/// The name of a tag that every format has to escape.
const NASTY: &str = "</script><b>\"'&\\\n\u{1}é";

fn block(address: usize, size: usize, tag: Tag) -> Block {
    Block {
        ptr: DevicePtr::from_addr(address).unwrap(),
        layout: DeviceLayout::new(size, 1).unwrap().with_tag(tag),
        device: GPU,
    }
}

fn started(capacity: usize) -> Recorder {
    let recorder = Recorder::new(capacity);
    recorder.start();
    recorder
}

fn out_of_memory(recorder: &Recorder, size: usize) {
    let layout = DeviceLayout::new(size, 1).unwrap();
    let mut report = OutOfMemory::new(GPU, layout);
    report.device_free = Some(77);
    let mut error = Error::from(ErrorKind::OutOfMemory(report));
    recorder.allocate_failed(GPU, layout, &mut error);
}

/// A segment with two live blocks and a hole, a block outside of it, and some
/// that have come and gone.
fn busy() -> Recording {
    let recorder = started(100);
    let segments = recorder.segments();
    segments.allocated(&block(0x1000, 0x1000, Tag::NONE));
    recorder.allocated(&block(0x1000, 0x100, Tag::WEIGHTS));
    recorder.allocated(&block(0x1200, 0x200, Tag::named(NASTY).unwrap()));
    recorder.allocated(&block(0x9000, 0x40, Tag::NONE));
    recorder.allocated(&block(0x1800, 0x800, Tag::ACTIVATIONS));
    recorder
        .before_free(&block(0x1800, 0x800, Tag::ACTIVATIONS))
        .unwrap();
    segments.allocated(&block(0x4000, 0x400, Tag::NONE));
    segments
        .before_free(&block(0x4000, 0x400, Tag::NONE))
        .unwrap();
    // One from before the recorder was started.
    recorder
        .before_free(&block(0x8000, 0x10, Tag::SCRATCH))
        .unwrap();
    out_of_memory(&recorder, 12_345);
    recorder.recording()
}

fn snapshot(recording: &Recording) -> Value {
    serde_pickle::from_slice(
        &recording.to_pytorch_snapshot(DeviceType::Cuda),
        serde_pickle::DeOptions::new(),
    )
    .unwrap()
}

fn number(value: &Value, key: &str) -> u64 {
    value[key]
        .as_u64()
        .unwrap_or_else(|| panic!("{key} of {value}"))
}

/// Does what PyTorch's viewer does with a trace: goes back from the last event, and
/// looks up the segment of each block at each moment.
fn view(snapshot: &Value, device: usize) {
    let mut segments: BTreeMap<u64, u64> = BTreeMap::new();
    let mut blocks: BTreeMap<u64, u64> = BTreeMap::new();
    for segment in snapshot["segments"].as_array().unwrap() {
        if number(segment, "device") != device as u64 {
            continue;
        }
        let (start, size) = (number(segment, "address"), number(segment, "total_size"));
        assert_eq!(segments.insert(start, size), None);
        let mut at = start;
        for block in segment["blocks"].as_array().unwrap() {
            assert_eq!(number(block, "address"), at);
            if block["state"] == "active_allocated" {
                blocks.insert(at, number(block, "requested_size"));
            }
            at += number(block, "size");
        }
        assert_eq!(at, start + size, "the blocks fill the segment");
    }
    for event in snapshot["device_traces"][device]
        .as_array()
        .unwrap()
        .iter()
        .rev()
    {
        let (at, size) = (number(event, "addr"), number(event, "size"));
        match event["action"].as_str().unwrap() {
            "free_completed" => assert_eq!(blocks.insert(at, size), None),
            "free_requested" => assert!(blocks.contains_key(&at)),
            "alloc" => assert_eq!(blocks.remove(&at), Some(size)),
            "segment_free" => assert_eq!(segments.insert(at, size), None),
            "segment_alloc" => assert_eq!(segments.remove(&at), Some(size)),
            "oom" => assert!(event["device_free"].is_u64()),
            other => assert_eq!(other, "snapshot"),
        }
        for (at, size) in &blocks {
            let (start, len) = segments.range(..=at).next_back().unwrap();
            assert!(at + size <= start + len, "{at:#x} lies in a segment");
        }
    }
}

#[test]
fn a_snapshot_lays_every_block_in_a_segment_at_each_moment() {
    let snapshot = snapshot(&busy());

    view(&snapshot, 1);
    assert_eq!(snapshot["device_traces"].as_array().unwrap().len(), 2);
    assert_eq!(snapshot["device_traces"][0].as_array().unwrap().len(), 0);
    let segments = snapshot["segments"].as_array().unwrap();
    assert_eq!(segments.len(), 2);
    assert_eq!(number(&segments[0], "allocated_size"), 0x300);
    assert_eq!(segments[0]["blocks"].as_array().unwrap().len(), 4);
    assert_eq!(segments[0]["blocks"][2]["frames"][0]["name"], NASTY);
}

#[test]
fn a_snapshot_with_categories_has_the_one_that_the_viewer_asks_for() {
    let snapshot = snapshot(&busy());
    let events = snapshot["device_traces"][1].as_array().unwrap();

    let last = events.last().unwrap();
    assert_eq!(last["action"], "snapshot");
    assert_eq!(last["category"], "unknown");
    assert!(events.iter().any(|event| event["category"] == "weights"));
}

#[test]
fn the_snapshot_of_another_type_of_device_is_empty() {
    let bytes = busy().to_pytorch_snapshot(DeviceType::Cpu);

    let empty: Value = serde_pickle::from_slice(&bytes, serde_pickle::DeOptions::new()).unwrap();
    assert_eq!(
        empty,
        serde_json::json!({"segments": [], "device_traces": []})
    );
}

#[test]
fn addresses_that_the_viewer_can_not_tell_apart_are_moved_down() {
    let recorder = started(10);
    recorder.allocated(&block((1 << 60) + 0x101, 1, Tag::NONE));
    recorder.allocated(&block((1 << 60) + 0x102, 1 << 40, Tag::NONE));

    let snapshot = snapshot(&recorder.recording());

    view(&snapshot, 1);
    let addresses = [0, 1].map(|at| number(&snapshot["segments"][at], "address"));
    assert_eq!(addresses, [0x101, 0x102]);
}

#[test]
#[expect(clippy::print_stdout, reason = "says that it skips")]
fn pythons_own_pickle_reads_a_snapshot() {
    const SCRIPT: &str = "import pickle, sys\n\
        d = pickle.load(sys.stdin.buffer)\n\
        print(len(d['segments']), [len(t) for t in d['device_traces']], d['segments'][0]['address'])";
    if Command::new("python3").arg("--version").output().is_err() {
        println!("skipped: there is no python3");
        return;
    }
    let mut python = Command::new("python3")
        .args(["-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();

    let bytes = busy().to_pytorch_snapshot(DeviceType::Cuda);
    python.stdin.take().unwrap().write_all(&bytes).unwrap();

    let output = python.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "2 [0, 15] 4096\n"
    );
}

#[test]
fn a_trace_is_json_with_counters_and_balanced_slices() {
    let trace: Value = serde_json::from_str(&busy().to_chrome_trace()).unwrap();

    let events = trace["traceEvents"].as_array().unwrap();
    let of = |phase: &str| -> Vec<&Value> {
        events.iter().filter(|event| event["ph"] == phase).collect()
    };
    assert_eq!(of("M")[0]["args"]["name"], "cuda:1");
    let counters = |name: &str| -> Vec<u64> {
        let counters = of("C").into_iter().filter(|event| event["name"] == name);
        counters
            .map(|event| number(&event["args"], "bytes"))
            .collect()
    };
    assert_eq!(
        counters("in use").iter().max(),
        Some(&(0x100 + 0x200 + 0x40 + 0x800 + 0x10))
    );
    assert_eq!(counters("in use").last(), Some(&0x340));
    assert_eq!(counters("reserved").iter().max(), Some(&0x1400));
    assert_eq!((of("b").len(), of("e").len()), (5, 2));
    for end in of("e") {
        assert!(of("b").iter().any(|begin| begin["id"] == end["id"]));
    }
    assert!(of("b").iter().any(|begin| begin["name"] == NASTY));
    assert!(of("i").iter().any(|event| event["name"] == "out of memory"));
    let times: Vec<f64> = events
        .iter()
        .map(|event| event["ts"].as_f64().unwrap())
        .collect();
    assert!(times.is_sorted());
}

#[test]
fn a_trace_says_how_much_was_lost_and_begins_with_what_was_live() {
    let recorder = started(2);
    for at in 1..=4 {
        recorder.allocated(&block(at * 0x1000, 0x10, Tag::NONE));
    }

    let trace: Value = serde_json::from_str(&recorder.recording().to_chrome_trace()).unwrap();

    assert_eq!(trace["otherData"]["events_lost"], "2");
    let events = trace["traceEvents"].as_array().unwrap();
    let begun = events.iter().filter(|event| event["ph"] == "b").count();
    let first = events.iter().find(|event| event["ph"] == "C").unwrap();
    assert_eq!(begun, 4);
    assert_eq!(number(&first["args"], "bytes"), 0x20);
}

#[test]
fn a_page_needs_nothing_else_and_shows_each_allocation() {
    let page = busy().to_html();

    for outside in ["http:", "https:", "src=", "href=", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(!page.contains("<b>"));
    assert!(page.contains("&lt;b&gt;"));
    assert_eq!(page.matches("<script>").count(), 1);
    assert_eq!(page.matches("</script>").count(), 1);
    assert_eq!(page.matches("<rect class=\"segment\"").count(), 2);
    assert_eq!(page.matches("<rect class=\"").count(), 2 + 5);
    assert_eq!(page.matches("<circle class=\"peak\"").count(), 1);
    assert!(page.contains("peak 2.8 KiB at "));
    assert!(page.contains("out of memory: 12 KiB for none, thread "));
    assert!(!page.contains("NaN"));
}

#[test]
fn a_block_whose_free_failed_has_one_life_on_the_page() {
    let recorder = started(10);
    let kept = block(0x1000, 0x100, Tag::NONE);
    recorder.allocated(&kept);
    recorder.before_free(&kept).unwrap();
    recorder.free_failed(&kept);

    let page = recorder.recording().to_html();

    let lives = page.matches(" at 0x1000, ").count();
    assert_eq!((lives, page.matches(", live</title>").count()), (1, 1));
}

#[test]
fn a_page_draws_the_largest_allocations_and_says_how_many_it_leaves_out() {
    let recorder = started(10_000);
    for n in 1..=4100 {
        recorder.allocated(&block(n * 0x10000, n, Tag::NONE));
    }

    let page = recorder.recording().to_html();

    assert_eq!(page.matches("<rect class=\"none\"").count(), 4000);
    assert!(page.contains("100 allocations that are smaller or shorter are not drawn."));
    assert!(page.contains("and 4080 more"));
}

#[test]
fn an_empty_recording_has_every_form() {
    let recording = started(10).recording();

    assert!(recording.to_html().contains("0 events in "));
    assert!(recording.report(5).starts_with("0 events in "));
    let trace: Value = serde_json::from_str(&recording.to_chrome_trace()).unwrap();
    assert_eq!(trace["traceEvents"].as_array().unwrap().len(), 0);
    assert_eq!(
        snapshot(&recording)["device_traces"]
            .as_array()
            .unwrap()
            .len(),
        0
    );
}

#[test]
fn a_report_names_the_largest_live_blocks_and_sums_by_tag() {
    let report = busy().report(2);

    let lines: Vec<&str> = report.lines().collect();
    assert!(lines[0].starts_with("10 events in "), "{report}");
    assert!(
        lines[2].starts_with("cuda:1: 832 B in use in 3 blocks, 4 KiB reserved; peak 2.8 KiB at "),
        "{report}"
    );
    assert!(lines[2].ends_with("; 1 failed"), "{report}");
    assert!(
        report.contains("       256 B  weights      1 blocks\n"),
        "{report}"
    );
    let largest = report
        .split_once("  largest live allocations:\n")
        .unwrap()
        .1;
    let largest: Vec<&str> = largest.lines().collect();
    assert!(
        largest[0].starts_with("       512 B  </script><b>\"'&\\\u{fffd}\u{fffd}é 0x1200"),
        "{report}"
    );
    assert!(
        largest[1].starts_with("       256 B  weights      0x1000  thread "),
        "{report}"
    );
    assert_eq!(*largest.last().unwrap(), "  and 1 more");
}

/// What a pool might do: blocks in slots of one size, in segments of four slots.
#[derive(Clone, Copy, Debug)]
enum Deed {
    /// Takes a free slot, and a segment for it if there is none.
    Take(usize),
    /// Gives a slot back.
    Give(usize),
    /// Gives segments back that have no block.
    Trim,
}

const SLOT: usize = 0x100;
const SLOTS: usize = 4;

/// The segment that a slot is in.
fn segment(slot: usize) -> Block {
    block((slot / SLOTS + 1) * 0x10000, SLOTS * SLOT, Tag::NONE)
}

fn slot(slot: usize) -> Block {
    let start = segment(slot).ptr.addr();
    let size = SLOT - slot % 3;
    block(start + slot % SLOTS * SLOT, size, Tag::ACTIVATIONS)
}

proptest! {
    #[test]
    fn whatever_a_pool_does_and_the_ring_loses_the_viewer_finds_every_segment(
        deeds in prop::collection::vec(
            prop_oneof![
                (0..12_usize).prop_map(Deed::Take),
                (0..12_usize).prop_map(Deed::Give),
                Just(Deed::Trim),
            ],
            0..60,
        ),
        capacity in 0..80_usize,
        seen in prop::bool::ANY,
    ) {
        let recorder = started(capacity);
        let segments = recorder.segments();
        let mut taken = [false; 12];
        let mut held = [false; 3];
        for deed in deeds {
            match deed {
                Deed::Take(at) if !taken[at] => {
                    // Without a recorder below the pool no segment is seen.
                    if !std::mem::replace(&mut held[at / SLOTS], true) && seen {
                        segments.allocated(&segment(at));
                    }
                    taken[at] = true;
                    recorder.allocated(&slot(at));
                }
                Deed::Give(at) if taken[at] => {
                    taken[at] = false;
                    recorder.before_free(&slot(at)).unwrap();
                }
                Deed::Trim => {
                    for (at, held) in held.iter_mut().enumerate() {
                        let slots = &taken[at * SLOTS..(at + 1) * SLOTS];
                        if *held && !slots.contains(&true) {
                            *held = false;
                            if seen {
                                segments.before_free(&segment(at * SLOTS)).unwrap();
                            }
                        }
                    }
                }
                _ => {}
            }
        }
        let recording = recorder.recording();

        let snapshot = snapshot(&recording);

        if !recording.devices().is_empty() {
            view(&snapshot, 1);
        }
        let live = taken.iter().filter(|taken| **taken).count();
        prop_assert_eq!(recording.blocks().len(), live);
        prop_assert!(recording.events().len() <= capacity);
        let begun = recording.events().iter().filter(|event| event.action == Action::Allocate);
        prop_assert!(begun.count() <= capacity);
        let trace: Value = serde_json::from_str(&recording.to_chrome_trace()).unwrap();
        prop_assert!(trace["traceEvents"].is_array());
        prop_assert!(recording.to_html().ends_with("</html>\n"));
    }
}
