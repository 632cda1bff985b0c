//! A program that is planned again is the same program in less memory.

use std::collections::BTreeMap;

use device_memory::plan::{Algorithm, PlanOptions};
use device_memory::pte::{Program, Replanned, replan};
use device_memory::{Error, ErrorKind};
use proptest::prelude::*;

use crate::support::{JUMP_FALSE, MOVE, Patch, bytes, json, programs, slot, visit};

fn replanned(bytes: &[u8]) -> Result<Replanned, Error> {
    replan(bytes, &PlanOptions::default())
}

/// All that a program says, but for sizes of arenas and offsets in them.
fn description(program: &Program<'_>) -> String {
    let mut text = String::new();
    for method in program.methods() {
        let kinds = method.inputs().chain(method.outputs());
        text += &format!("{} {:?}\n", method.name(), kinds.collect::<Vec<_>>());
        for tensor in method.planned_tensors() {
            let spec = tensor.spec().unwrap();
            let id = tensor.memory_id();
            text += &format!("{} {spec:?} {id} {:?}\n", tensor.value(), tensor.name());
        }
        let others = method.constant_tensors().chain(method.runtime_tensors());
        for tensor in others {
            let spec = tensor.spec().unwrap();
            let data = tensor.data_buffer_idx();
            text += &format!("{} {spec:?} {data}\n", tensor.value());
        }
        for operator in method.operators() {
            text += &operator.to_string();
        }
        let devices = method.buffers().iter().map(|buffer| buffer.device);
        text += &format!(
            "{:?} {}\n",
            devices.collect::<Vec<_>>(),
            method.num_instructions()
        );
    }
    text
}

/// The bytes behind the flatbuffer.
fn segments<'a>(program: &Program<'_>, bytes: &'a [u8]) -> Vec<&'a [u8]> {
    let base = program
        .header()
        .extended()
        .map_or(0, |header| header.segment_base_offset());
    let at = |number: u64| usize::try_from(number).unwrap();
    let segments = program.segments();
    segments
        .map(|segment| {
            let start = at(base + segment.offset);
            &bytes[start..start + at(segment.size)]
        })
        .collect()
}

#[test]
fn every_real_program_stays_the_same_and_no_arena_grows() {
    for name in programs() {
        let old = bytes(&format!("{name}.pte"));

        let new = replanned(&old).unwrap();

        let (before, after) = (
            Program::parse(&old).unwrap(),
            Program::parse(&new.bytes).unwrap(),
        );
        assert_eq!(description(&after), description(&before), "{name}");
        assert_eq!(
            segments(&after, &new.bytes),
            segments(&before, &old),
            "{name}"
        );
        assert!(visit(&after) > 0, "{name}");
        for arena in &new.arenas {
            assert!(arena.after <= arena.before, "{name} {arena:?}");
            assert!(arena.lower_bound <= arena.after, "{name} {arena:?}");
        }
    }
}

#[test]
fn every_real_arena_gets_as_small_as_it_can() {
    for name in programs() {
        for arena in replanned(&bytes(&format!("{name}.pte"))).unwrap().arenas {
            let what = format!("{name} {arena:?}");
            assert!(arena.after < arena.lower_bound + 64, "{what}");
        }
    }
}

#[test]
fn the_arenas_that_the_original_planned_with_a_gap_are_smaller() {
    let shrunk: Vec<(String, usize, usize)> = programs()
        .into_iter()
        .flat_map(|name| {
            let arenas = replanned(&bytes(&format!("{name}.pte"))).unwrap().arenas;
            arenas
                .into_iter()
                .map(move |arena| (name.clone(), arena.before, arena.after))
        })
        .filter(|(_, before, after)| after < before)
        .collect();

    let expected = [
        ("kinds_cpu".to_owned(), 256, 240),
        ("transformer_cpu".to_owned(), 18432, 17408),
    ];
    for shrink in expected {
        assert!(shrunk.contains(&shrink), "{shrunk:?}");
    }
}

/// The largest sum of sizes that are alive at once, by what the exporter knew.
fn known(tensors: &[&serde_json::Value]) -> u64 {
    let number = |tensor: &serde_json::Value, field: &str| tensor[field].as_u64().unwrap();
    let alive = |step: u64| {
        let alive = tensors
            .iter()
            .filter(|tensor| (number(tensor, "start")..=number(tensor, "end")).contains(&step));
        alive.map(|tensor| number(tensor, "aligned")).sum::<u64>()
    };
    let starts = tensors.iter().map(|tensor| number(tensor, "start"));
    starts.map(alive).max().unwrap_or(0)
}

#[test]
fn lifetimes_told_from_instructions_need_no_more_than_the_exporter_knew() {
    // Of the state that methods share, the exporter planned each method's part once.
    for name in programs()
        .into_iter()
        .filter(|name| name != "shared_state_cpu")
    {
        let plan = json(&format!("{name}.plan.json"));
        let arenas = plan["arenas"].as_array().cloned().unwrap_or_default();
        let most: u64 = arenas
            .iter()
            .map(|arena| {
                let mut pools: BTreeMap<u64, Vec<&serde_json::Value>> = BTreeMap::new();
                for tensor in arena["tensors"].as_array().unwrap() {
                    let pool = tensor["mem_id"].as_u64().unwrap();
                    pools.entry(pool).or_default().push(tensor);
                }
                pools.values().map(|tensors| known(tensors)).sum::<u64>()
            })
            .sum();

        let told: usize = replanned(&bytes(&format!("{name}.pte")))
            .unwrap()
            .arenas
            .iter()
            .map(|arena| arena.lower_bound)
            .sum();

        assert!(
            arenas.is_empty() || told as u64 <= most,
            "{name}: {told} of {most}"
        );
    }
}

#[test]
fn a_tensor_at_offset_0_can_move_though_the_file_leaves_the_0_out() {
    let old = bytes("transformer_cpu.pte");
    let new = replanned(&old).unwrap();
    let offsets = |bytes: &[u8]| -> Vec<usize> {
        let program = Program::parse(bytes).unwrap();
        let tensors = program.methods()[0].planned_tensors();
        tensors.map(|tensor| tensor.offset()).collect()
    };

    let (before, after) = (offsets(&old), offsets(&new.bytes));

    let moved = before.iter().zip(&after);
    assert!(
        moved
            .clone()
            .any(|(before, after)| *before == 0 && *after != 0)
    );
    assert!(
        moved
            .clone()
            .any(|(before, after)| *before != 0 && *after == 0)
    );
}

#[test]
fn planning_again_changes_nothing_more() {
    let once = replanned(&bytes("transformer_cpu.pte")).unwrap();

    let twice = replanned(&once.bytes).unwrap();

    assert_eq!(twice.bytes, once.bytes);
}

#[test]
fn a_plan_that_would_be_larger_is_not_taken() {
    let old = bytes("transformer_cpu.pte");

    let new = replan(&old, &PlanOptions::new(Algorithm::Naive)).unwrap();

    assert_eq!(new.bytes, old);
    assert_eq!(new.arenas[0].before, new.arenas[0].after);
}

/// What keeps the program from being planned again.
fn reason(patch: &Patch) -> String {
    let error = replanned(&patch.bytes).unwrap_err();
    assert_eq!(error.code(), 0x10);
    match error.into_kind() {
        ErrorKind::CanNotReplan { method, reason } => format!("{method}: {reason}"),
        other => panic!("{other}"),
    }
}

#[test]
fn a_program_that_jumps_or_moves_values_is_left_alone() {
    let mut jumping = Patch::of("add_cuda0");
    jumping.turn_last(JUMP_FALSE, 0, 2);
    let mut moving = Patch::of("add_cuda0");
    moving.turn_last(MOVE, 4, 5);

    assert_eq!(reason(&jumping), "forward: instruction 3 jumps");
    assert_eq!(reason(&moving), "forward: instruction 3 moves a value");
}

#[test]
fn an_operator_that_does_not_list_its_outputs_is_left_alone() {
    let mut patch = Patch::of("add_cpu");
    let args = patch.child(patch.call(0), slot::CALL_ARGS);
    let last = args + 4 * patch.word(args) as usize;
    patch.set(last, 0);

    assert_eq!(
        reason(&patch),
        "forward: instruction 0 does not list its outputs"
    );
}

#[test]
fn a_program_that_overwrites_a_tensor_already_is_left_alone() {
    let mut patch = Patch::of("add_cuda0");
    let place = patch.word(patch.offset(2).unwrap());
    patch.set(patch.offset(3).unwrap(), place);

    assert!(reason(&patch).starts_with("forward: value 2 is overwritten by value 3"));
}

#[test]
fn a_malformed_program_is_refused_as_by_the_reader() {
    let error = replanned(&bytes("bad/memory_id_zero.pte")).unwrap_err();

    assert!(matches!(error.kind(), ErrorKind::InvalidProgram(_)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_mutated_program_makes_it_panic_or_write_what_can_not_be_read(
        name in prop::sample::select(programs()),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut mutated = bytes(&format!("{name}.pte"));
        for (index, byte) in changes {
            let index = index.index(mutated.len());
            mutated[index] = byte;
        }

        let options = PlanOptions::new(Algorithm::ExecutorchGreedy);
        if let Ok(new) = replan(&mutated, &options) {
            let program = Program::parse(&new.bytes).unwrap();
            for method in program.methods() {
                prop_assert!(method.overwrites().unwrap().is_empty());
            }
        }
    }
}
