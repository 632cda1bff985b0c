//! A tensor that is overwritten before its last read is found, and only then.

use device_memory::pte::{Overwrite, Program, Step};

use crate::support::{JUMP_FALSE, MOVE, Patch, bytes, json, programs};

fn found(bytes: &[u8]) -> Vec<Overwrite> {
    let program = Program::parse(bytes).unwrap();
    let methods = program.methods().iter();
    methods
        .flat_map(|method| method.overwrites().unwrap())
        .collect()
}

#[test]
fn no_real_program_overwrites_a_tensor_before_its_last_read() {
    for name in programs() {
        assert_eq!(found(&bytes(&format!("{name}.pte"))), [], "{name}");
    }
}

#[test]
fn two_inputs_of_a_delegate_at_one_place_are_found() {
    let mut patch = Patch::of("add_cuda0");
    let place = patch.word(patch.offset(2).unwrap());
    patch.set(patch.offset(3).unwrap(), place);

    let found = found(&patch.bytes);

    let expected = Overwrite {
        value: 2,
        by: 3,
        written_at: Step::Instruction(1),
        read_at: Step::Instruction(2),
    };
    assert_eq!(found, [expected]);
    assert_eq!(
        expected.to_string(),
        "value 2 is overwritten by value 3 at instruction 1 and read at instruction 2"
    );
}

#[test]
fn a_partial_overlap_is_found() {
    let mut patch = Patch::of("add_cuda0");
    let place = patch.word(patch.offset(2).unwrap());
    patch.set(patch.offset(3).unwrap(), place - 12);

    assert_eq!(found(&patch.bytes).len(), 1);
}

#[test]
fn inputs_that_overlap_are_found() {
    let mut patch = Patch::of("add_cpu");
    let (first, second) = (patch.offset(0).unwrap(), patch.offset(1).unwrap());
    let place = patch.word(first);
    patch.set(second, place);

    let found = found(&patch.bytes);

    assert_eq!(found.len(), 1);
    assert_eq!((found[0].value, found[0].by), (0, 1));
    assert_eq!(
        (found[0].written_at, found[0].read_at),
        (Step::Start, Step::Instruction(0))
    );
}

#[test]
fn state_that_is_overwritten_by_a_temporary_is_found() {
    let original = bytes("mutable_buffer_cpu.pte");
    let program = Program::parse(&original).unwrap();
    let method = &program.methods()[0];
    let state = method
        .planned_tensors()
        .find(|t| t.name() == Some("state"))
        .unwrap();
    let mut hits = 0;
    for tensor in method
        .planned_tensors()
        .filter(|t| t.value() != state.value())
    {
        let mut patch = Patch::of("mutable_buffer_cpu");
        let Some(place) = patch.offset(tensor.value()) else {
            continue;
        };
        patch.set(place, u32::try_from(state.offset()).unwrap());

        let found = found(&patch.bytes);

        assert!(!found.is_empty(), "value {}", tensor.value());
        hits += 1;
    }
    assert!(hits > 0);
}

/// `add_cuda0` with the second copy to the device put where the first went.
fn two_copies_at_one_place() -> Patch {
    let mut patch = Patch::of("add_cuda0");
    let place = patch.word(patch.offset(2).unwrap());
    patch.set(patch.offset(3).unwrap(), place);
    patch
}

#[test]
fn a_jump_between_writing_and_reading_leaves_doubt() {
    let mut patch = two_copies_at_one_place();
    patch.turn_last(JUMP_FALSE, 0, 2);

    assert_eq!(found(&patch.bytes), []);
}

#[test]
fn a_jump_to_before_both_or_behind_both_leaves_none() {
    for target in [0, 1, 3, 4] {
        let mut patch = two_copies_at_one_place();
        patch.turn_last(JUMP_FALSE, 0, target);

        let found = found(&patch.bytes);

        let pairs: Vec<_> = found.iter().map(|found| (found.value, found.by)).collect();
        assert!(pairs.contains(&(2, 3)), "{target}: {pairs:?}");
    }
}

#[test]
fn a_jump_out_of_the_instructions_is_refused() {
    let mut patch = Patch::of("add_cuda0");
    patch.turn_last(JUMP_FALSE, 0, 5);

    let error = Program::parse(&patch.bytes).unwrap_err();

    assert_eq!(
        error.to_string(),
        "invalid program: method \"forward\", destination_instruction: chain 0: instruction 3: jump to instruction 5 of 4"
    );
}

#[test]
fn a_value_that_is_moved_is_not_judged() {
    let mut judged = two_copies_at_one_place();
    judged.turn_last(MOVE, 4, 5);
    let mut moved = two_copies_at_one_place();
    moved.turn_last(MOVE, 4, 2);

    assert_eq!(found(&judged.bytes).len(), 1);
    assert_eq!(found(&moved.bytes), []);
}

#[test]
fn a_view_whose_base_is_overwritten_is_found() {
    // Instruction 8 writes 51 and then 53; instruction 9 reads a view of 51.
    let original = bytes("transformer_cuda0.pte");
    let program = Program::parse(&original).unwrap();
    let method = &program.methods()[0];
    let place = |value| {
        method
            .planned_tensors()
            .find(|t| t.value() == value)
            .unwrap()
            .placement()
    };
    let (base, view) = (51, 58);
    assert_eq!(place(base), place(view));
    let mut patch = Patch::of("transformer_cuda0");
    let other = patch.offset(53).unwrap();
    patch.set(other, u32::try_from(place(base).offset + 16).unwrap());

    let found = found(&patch.bytes);

    assert!(
        found
            .iter()
            .any(|found| found.value == view && found.by == 53),
        "{found:?}"
    );
}

/// A tensor of the planner's question: lifetime, size and place.
struct Lifetime {
    start: u64,
    end: u64,
    size: u64,
    offset: u64,
}

/// The lifetimes of the tensors of arena `buffer` of a program with one method.
fn lifetimes(name: &str, buffer: usize) -> Option<Vec<Lifetime>> {
    let plan = json(&format!("{name}.plan.json"));
    let arena = plan["arenas"].as_array()?.get(buffer)?.clone();
    let number = |tensor: &serde_json::Value, key: &str| tensor[key].as_u64();
    arena["tensors"]
        .as_array()?
        .iter()
        .map(|tensor| {
            Some(Lifetime {
                start: number(tensor, "start")?,
                end: number(tensor, "end")?,
                size: number(tensor, "size")?,
                offset: number(tensor, "offset")?,
            })
        })
        .collect()
}

#[test]
fn tensors_alive_together_are_found_wherever_one_is_moved_onto_the_other() {
    let mut moved = 0;
    for name in programs() {
        let original = bytes(&format!("{name}.pte"));
        let program = Program::parse(&original).unwrap();
        let [method] = program.methods() else {
            continue;
        };
        let tensors: Vec<_> = method.planned_tensors().collect();
        for buffer in 0..method.num_memory_planned_buffers() {
            let Some(lifetimes) = lifetimes(&name, buffer) else {
                continue;
            };
            // Some outputs, such as the means of a normalization, are never read.
            let original = Patch::of(&name);
            let is_read = |value: u32| {
                let uses = original.uses(value, method.num_instructions());
                let is_known = |(known, _)| known == value;
                let is_ours = method.inputs().any(is_known) || method.outputs().any(is_known);
                uses + usize::from(is_ours) > 1
            };
            // The place of a value names its lifetime if nothing else is planned there.
            let alone = |offset: u64, size: u64| {
                let mut here = lifetimes
                    .iter()
                    .filter(|l| l.offset == offset && l.size == size);
                let first = here.next();
                first.filter(|_| here.next().is_none())
            };
            let placed: Vec<_> = tensors
                .iter()
                .filter(|t| t.buffer_index() as usize == buffer && t.nbytes() > 0)
                .filter(|t| is_read(t.value()))
                .collect();
            let single: Vec<_> = placed
                .iter()
                .filter(|t| {
                    placed
                        .iter()
                        .filter(|o| o.placement() == t.placement())
                        .count()
                        == 1
                })
                .filter_map(|t| Some((t, alone(t.offset() as u64, t.nbytes() as u64)?)))
                .collect();
            for (from, life) in &single {
                for (onto, other) in &single {
                    let together = life.start < other.end && other.start < life.end;
                    let fits = onto.offset() + from.nbytes() <= method.buffers()[buffer].size;
                    if from.value() == onto.value() || !together || !fits {
                        continue;
                    }
                    let mut patch = Patch::of(&name);
                    let Some(place) = patch.offset(from.value()) else {
                        continue;
                    };
                    patch.set(place, u32::try_from(onto.offset()).unwrap());
                    moved += 1;
                    // One that ends where the other starts may be updated in place.
                    let shared = life.end.min(other.end) - life.start.max(other.start);
                    let is_in_place = shared <= 1 && from.nbytes() == onto.nbytes();
                    assert!(
                        is_in_place || !found(&patch.bytes).is_empty(),
                        "{name}: value {} moved onto {}",
                        from.value(),
                        onto.value()
                    );
                }
            }
        }
    }
    assert!(moved > 500, "{moved}");
}
