//! Logs are read or refused with the line, and replayed on stacks from a text.
#![cfg(all(feature = "testing", target_pointer_width = "64"))]

#[path = "../examples/support/log.rs"]
mod log;
#[path = "../examples/support/replay.rs"]
mod replay;
#[path = "../examples/support/stack.rs"]
mod stack;
#[path = "../examples/support/traces.rs"]
mod traces;

use std::sync::Arc;

use device_memory::testing::{FakeDevice, FaultInjector};
use device_memory::{DeviceType, Operation, Tag};
use log::{Log, LogError};
use stack::StackError;
use traces::{NAMES, SEED, Step, Trace};

/// As RMM writes it.
const RMM: &str = "Thread,Time,Action,Pointer,Size,Stream\n\
    140,10:53:45:123456,allocate,0x7f0000000000,256,0x0\n\
    140,10:53:45:123460,allocate failure,(nil),99999,0x0\n\
    141,10:53:45:123470,allocate,0x7f0000000100,1024,0x2\n\
    140,10:53:45:123480,free,0x7f0000000000,256,0x0\n\
    140,10:53:45:123490,allocate,0x7f0000000000,512,0x0\n";

fn refusal(line: &str) -> String {
    let text = format!("Action,Pointer,Size,Tag\nallocate,0x10,8,weights\n{line}\n");
    Log::parse(&text).unwrap_err().to_string()
}

fn fake() -> FakeDevice {
    FakeDevice::builder(DeviceType::Cuda)
        .capacity(1 << 40)
        .reuse_addresses(true)
        .build()
}

#[test]
fn a_free_that_failed_did_not_happen() {
    let log = Log::parse(
        "Action,Pointer,Size\n\
         allocate,0x100,64\n\
         free,0x100,64\n\
         free failure,0x100,64\n\
         free,0x100,64\n\
         allocate,0x200,32\n\
         free,0x200,32\n\
         free failure,0x200,32\n",
    );

    let log = log.unwrap();
    let frees = log.trace.steps().iter();
    let frees = frees.filter(|step| matches!(step, Step::Free { .. }));
    assert_eq!((frees.count(), log.leaked), (1, 1));
    assert!(Log::parse("Action,Pointer,Size\nfree failure,0x100,64\n").is_err());
}

#[test]
fn a_log_of_rmm_is_a_trace() {
    let log = Log::parse(RMM).unwrap();

    let allocate = |size| Step::Allocate {
        size,
        tag: Tag::NONE,
    };
    assert_eq!(
        log.trace.steps(),
        [
            allocate(256),
            allocate(1024),
            Step::Free { block: 0 },
            allocate(512)
        ]
    );
    assert_eq!((log.failed, log.leaked), (1, 2));
    assert_eq!(log.trace.peak_bytes(), 1536);
}

#[test]
fn what_a_trace_writes_is_read_as_the_same_trace() {
    for name in NAMES {
        let trace = Trace::named(name, SEED).unwrap();

        let log = Log::parse(&trace.to_string()).unwrap();

        assert!(log.trace == trace, "{name}");
        assert_eq!((log.failed, log.leaked), (0, 0), "{name}");
    }
}

#[test]
fn blocks_of_no_bytes_may_share_an_address() {
    let log = Log::parse("Pointer,Size,Action\n0x0,0,allocate\n0x0,0,allocate\n0x0,0,free\n");

    assert_eq!(log.unwrap().trace.steps(), []);
}

#[test]
fn what_is_wrong_with_a_log_is_said_with_its_line() {
    assert_eq!(Log::parse(""), Err(LogError::Empty));
    assert_eq!(
        Log::parse("Action,Size\n"),
        Err(LogError::NoColumn("Pointer"))
    );
    assert_eq!(
        refusal("free,0x10"),
        "line 3 has 2 fields where line 1 has 4"
    );
    assert_eq!(
        refusal("steal,0x10,8,"),
        "line 3: \"steal\" is no action: expected allocate, free, allocate failure or free failure"
    );
    assert_eq!(refusal("free,here,8,"), "line 3: \"here\" is no address");
    assert_eq!(refusal("free,0x10,-8,"), "line 3: \"-8\" is no size");
    assert_eq!(
        refusal("allocate,10,8,"),
        "line 3 allocates 0x10, which line 2 allocated and none has freed"
    );
    assert_eq!(
        refusal("free,0x20,8,"),
        "line 3 frees 0x20, which is not allocated"
    );
    assert_eq!(
        refusal("free,0x10,9,"),
        "line 3 frees 9 bytes at 0x10, of which 8 were allocated"
    );
}

#[test]
fn a_stack_is_built_with_the_first_word_on_top() {
    let stack = stack::build("statistics, limit=64", Arc::new(fake())).unwrap();

    let top = format!("{stack:?}");
    let below = format!("{:?}", stack.upstream().unwrap());
    assert!(top.contains("Counters"), "{top}");
    assert!(
        below.contains("Budgets") && !below.contains("Counters"),
        "{below}"
    );
    // A handle is the allocator that it is of.
    let shared = stack::build("shared, statistics", Arc::new(fake())).unwrap();
    assert!(format!("{shared:?}").starts_with("Shared"));
    assert!(!format!("{:?}", shared.upstream().unwrap()).contains("Counters"));
}

#[test]
fn a_stack_that_makes_no_sense_is_refused() {
    let refused = |text| stack::build(text, Arc::new(fake())).unwrap_err();

    assert_eq!(refused("limit"), StackError::NoBytes("limit"));
    assert_eq!(refused("limit=1XB"), StackError::Bytes("1XB".to_owned()));
    assert_eq!(
        refused("limit=99999999TiB").to_string(),
        "\"99999999TiB\" is no number of bytes"
    );
    assert!(
        refused("what")
            .to_string()
            .starts_with("there is no adaptor \"what\": there are ")
    );
    assert_eq!(stack::bytes("3GiB"), Ok(3 << 30));
    assert_eq!(stack::bytes("77"), Ok(77));
}

#[test]
fn a_replay_gives_everything_back_and_says_what_came_of_it() {
    let device = fake();
    let trace = Trace::named("cnn_inference", SEED).unwrap();
    let stack = stack::build("statistics,tracking", Arc::new(device.clone())).unwrap();
    let done = std::cell::Cell::new(0);

    let outcome = replay::replay(&trace, &stack, &device, |more| done.set(done.get() + more));

    let outcome = outcome.unwrap();
    assert_eq!(outcome.allocations, trace.blocks());
    assert_eq!(outcome.failures, 0);
    assert_eq!(outcome.peak_asked, trace.peak_bytes());
    assert_eq!(outcome.peak_taken, trace.peak_bytes());
    assert_eq!((outcome.hit_rate(), outcome.fragmentation()), (0.0, 0.0));
    assert_eq!(done.get(), trace.steps().len() as u64);
    device.assert_clean();
}

#[test]
fn allocations_that_fail_are_counted_and_not_freed() {
    let device = fake();
    let log = Log::parse(RMM).unwrap();
    let stack = stack::build("limit=1100", Arc::new(device.clone())).unwrap();

    let outcome = replay::replay(&log.trace, &stack, &device, |_| {}).unwrap();

    assert_eq!((outcome.allocations, outcome.failures), (3, 1));
    assert!(
        outcome
            .first_failure
            .unwrap()
            .starts_with("out of memory on cuda:0: 1024 bytes")
    );
    assert_eq!(outcome.peak_asked, 512);
    device.assert_clean();
}

#[test]
fn another_failure_ends_a_replay_and_leaves_nothing() {
    let device = fake();
    let injector = FaultInjector::new(device.clone());
    injector.faults().panic_on(Operation::Allocate, 2);
    let log = Log::parse(RMM).unwrap();

    let failure = replay::replay(&log.trace, &(Arc::new(injector) as _), &device, |_| {});

    assert!(failure.unwrap_err().to_string().contains("panicked"));
    device.assert_clean();
}
