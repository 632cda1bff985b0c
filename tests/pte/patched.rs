//! Real programs with one field changed are refused where the field is wrong.

use device_memory::pte::Program;

use crate::support::{Patch, slot};

/// The message of the refusal of a program.
fn refusal(patch: &Patch) -> String {
    match Program::parse(&patch.bytes) {
        Err(error) => error.to_string(),
        Ok(program) => panic!("not refused: {:?}", program.warnings()),
    }
}

/// The positions of the arena numbers in the device list of `two_devices`.
fn device_list(patch: &Patch) -> [usize; 2] {
    let list = patch.child(patch.plan(), slot::PLAN_BUFFER_DEVICE);
    [0, 1].map(|entry| {
        let entry = patch.element(list, entry);
        patch.field(entry, slot::DEVICE_BUFFER_IDX).unwrap()
    })
}

#[test]
fn an_arena_listed_twice_is_refused() {
    let mut patch = Patch::of("two_devices");
    let [_, second] = device_list(&patch);
    patch.set(second, 2);

    assert_eq!(
        refusal(&patch),
        "invalid program: method \"forward\", non_const_buffer_device: entry 1: buffer_idx 2 is listed twice"
    );
}

#[test]
fn the_reserved_arena_in_the_device_list_is_refused() {
    let mut patch = Patch::of("two_devices");
    let [first, _] = device_list(&patch);
    patch.set(first, 0);

    assert_eq!(
        refusal(&patch),
        "invalid program: method \"forward\", non_const_buffer_device: entry 0: buffer_idx 0 is reserved"
    );
}

#[test]
fn a_negative_size_of_the_reserved_arena_is_ignored() {
    let mut patch = Patch::of("add_cuda0");
    let sizes = patch.child(patch.plan(), slot::PLAN_BUFFER_SIZES);
    patch.set(sizes + 4, u32::MAX);
    patch.set(sizes + 8, u32::MAX);

    let program = Program::parse(&patch.bytes).unwrap();

    assert_eq!(program.warnings(), []);
    assert_eq!(
        program.methods()[0].non_const_buffer_sizes().next(),
        Some(-1)
    );
}

#[test]
fn an_argument_that_is_no_value_is_refused() {
    for (value, shown) in [(u32::MAX, "-1"), (4, "4"), (0x8000_0000, "-2147483648")] {
        let mut patch = Patch::of("add_cpu");
        let args = patch.child(patch.call(0), slot::CALL_ARGS);
        patch.set(args + 8, value);

        assert_eq!(
            refusal(&patch),
            format!(
                "invalid program: method \"forward\", args: chain 0: instruction 0: entry 1: value {shown} is not in 0..4"
            )
        );
    }
}

#[test]
fn an_unknown_kind_of_instruction_is_refused() {
    let mut patch = Patch::of("add_cpu");
    let kind = patch.field(patch.instruction(0), slot::UNION_TYPE).unwrap();
    patch.bytes[kind] = 6;

    assert_eq!(
        refusal(&patch),
        "invalid program: method \"forward\", instr_args: chain 0: instruction 0: unknown type 6"
    );
}

/// A program whose `count` methods are all the one of `add_cpu`.
pub(crate) fn one_method_many_times(count: usize) -> Vec<u8> {
    let patch = Patch::of("add_cpu");
    let word = |number: usize| u32::try_from(number).unwrap().to_le_bytes();
    let list = 28;
    let start = list + 4 + 4 * count;
    let mut bytes = word(20).to_vec();
    bytes.extend_from_slice(b"ET12");
    // The vtable: 8 bytes of its own, 8 of the table, no version, methods at 4.
    bytes.extend_from_slice(&[8, 0, 8, 0, 0, 0, 4, 0, 0, 0, 0, 0]);
    bytes.extend_from_slice(&word(12));
    bytes.extend_from_slice(&word(4));
    bytes.extend_from_slice(&word(count));
    for position in (list + 4..start).step_by(4) {
        bytes.extend_from_slice(&word(start + patch.plan() - position));
    }
    bytes.extend_from_slice(&patch.bytes);
    bytes
}

#[test]
fn two_methods_of_one_name_are_refused() {
    assert!(Program::parse(&one_method_many_times(1)).is_ok());

    let error = Program::parse(&one_method_many_times(2)).unwrap_err();

    assert_eq!(
        error.to_string(),
        "invalid program: method \"forward\", name: two methods have the same name"
    );
}

#[test]
fn a_small_file_that_unfolds_to_a_large_tree_is_refused() {
    let bytes = one_method_many_times(10_000);

    let error = Program::parse(&bytes).unwrap_err().to_string();

    let reason = format!(
        "shared tables unfold to more than 8 times the {} bytes of the program",
        bytes.len()
    );
    assert!(error.ends_with(&reason), "{error}");
}

#[test]
fn an_item_of_a_list_that_is_no_tensor_is_refused() {
    // Value 57 lists the three outputs of a normalization; value 54 is an integer.
    for item in [54, 345, u32::MAX] {
        let mut patch = Patch::of("transformer_cuda0");
        let items = patch.child(patch.value(57), slot::LIST_ITEMS);
        patch.set(items + 8, item);

        assert_eq!(
            refusal(&patch),
            format!(
                "invalid program: method \"forward\", value 57, items: TensorList names value {}, which is none of its kind among 345 values",
                item.cast_signed()
            )
        );
    }
}

#[test]
fn an_item_of_a_list_that_is_no_integer_is_refused() {
    let mut patch = Patch::of("transformer_cuda0");
    let items = patch.child(patch.value(55), slot::LIST_ITEMS);
    patch.set(items + 8, 1);

    assert_eq!(
        refusal(&patch),
        "invalid program: method \"forward\", value 55, items: IntList names value 4294967350, which is none of its kind among 345 values"
    );
}
