//! Malformed programs are refused with a precise error, odd ones are reported.

use device_memory::pte::Program;
use device_memory::{Device, DeviceType, Error, MemoryPlan};

use crate::support::{Patch, bytes, json, slot, visit};

/// What the refusal of each malformed program says, after `invalid program: `.
const REFUSALS: &[(&str, &str)] = &[
    (
        "empty_file",
        "file: 0 bytes, fewer than the 8 of the smallest program",
    ),
    (
        "truncated_flatbuffer",
        "program_size: 1712 bytes, but the file has 900",
    ),
    (
        "bad_identifier",
        "identifier: expected \"ET12\", found \"XXXX\"",
    ),
    (
        "other_version_identifier",
        "identifier: expected \"ET12\", found \"ET13\"",
    ),
    ("eh_length_8", "extended header: length 8 is less than 24"),
    (
        "eh_program_size_over_file",
        "program_size: 1048576 bytes, but the file has 1866",
    ),
    (
        "eh_program_size_zero",
        "program_size: 0 bytes, fewer than the 8 of the smallest program",
    ),
    (
        "eh_program_size_small",
        "segments: offset at byte 68 leads out of the program of 80 bytes",
    ),
    (
        "eh_program_size_max",
        "program_size: 18446744073709551615 bytes, but the file has 1866",
    ),
    (
        "eh_segment_sum_overflows",
        "segment_base_offset: 64 bytes at offset 18446744073709551608 pass 2^64",
    ),
    (
        "root_past_end",
        "root: offset at byte 0 leads to byte 1048576 of a program of 1072",
    ),
    (
        "root_max",
        "root: offset at byte 0 leads to byte 4294967295 of a program of 1072",
    ),
    (
        "root_vtable_before_start",
        "root: table at byte 28 has no vtable inside the program of 1072 bytes",
    ),
    (
        "root_vtable_past_end",
        "root: table at byte 28 has no vtable inside the program of 1072 bytes",
    ),
    (
        "vtable_size_odd",
        "root: table at byte 28 has a vtable of 5 bytes",
    ),
    (
        "vtable_size_zero",
        "root: table at byte 28 has a vtable of 0 bytes",
    ),
    (
        "vtable_size_max",
        "root: table at byte 28 has no vtable inside the program of 1072 bytes",
    ),
    (
        "values_vector_huge",
        "method \"forward\", values: 1073741824 elements of 4 bytes at byte 368 pass the end of the program of 1072 bytes",
    ),
    (
        "sizes_vector_huge",
        "method \"forward\", non_const_buffer_sizes: 536870912 elements of 8 bytes at byte 172 pass the end of the program of 1072 bytes",
    ),
    (
        "name_unterminated",
        "name: method 0: 2147483648 elements of 1 bytes at byte 1060 pass the end of the program of 1072 bytes",
    ),
    (
        "name_no_nul",
        "name: method 0: string of 7 bytes at byte 1064 has no nul after it",
    ),
    (
        "name_not_utf8",
        "name: method 0: string of 7 bytes at byte 1064 is not utf-8 after 0 of them",
    ),
    (
        "value_offset_loop",
        "method \"forward\", value 0, values: table at byte 372 has a vtable of 0 bytes",
    ),
    (
        "union_none",
        "method \"forward\", value 0, val: unknown value type 0",
    ),
    (
        "union_tensor_relabel",
        "method \"forward\", value 6, sizes: a tensor has no sizes",
    ),
    (
        "buffer_negative",
        "method \"forward\", non_const_buffer_sizes: buffer 0 has the invalid size -1",
    ),
    (
        "buffer_min_i64",
        "method \"forward\", non_const_buffer_sizes: buffer 0 has the invalid size -9223372036854775808",
    ),
    (
        "buffer_too_small",
        "method \"forward\", value 0, memory_offset: 16 bytes at offset 32 pass the 47 bytes of memory id 1",
    ),
    (
        "memory_id_zero",
        "method \"forward\", value 0, memory_id: memory id 0 is reserved",
    ),
    (
        "memory_id_max",
        "method \"forward\", value 0, memory_id: memory id 4294967295 is not in 1..=1",
    ),
    (
        "offset_high_bits",
        "method \"forward\", value 0, memory_offset: 16 bytes at offset 4294967296 pass the 48 bytes of memory id 1",
    ),
    (
        "size_negative",
        "method \"forward\", value 0, sizes: negative size -2 of dimension 0",
    ),
    (
        "two_negative_sizes",
        "method \"forward\", value 0, sizes: negative size -2 of dimension 0",
    ),
    (
        "numel_overflows",
        "method \"forward\", value 0, sizes: [2147483647, 2147483647, 2147483647, 2147483647] of FLOAT are more bytes than can be addressed",
    ),
    (
        "numel_wraps_to_small",
        "method \"forward\", value 0, sizes: [1073741824, 1073741824, 16] of FLOAT are more bytes than can be addressed",
    ),
    (
        "dim_order_short",
        "method \"forward\", value 0, dim_order: 1 entries for 2 dimensions",
    ),
    (
        "dim_order_repeat",
        "method \"forward\", value 0, dim_order: [0, 0] is no permutation of 2 dimensions",
    ),
    (
        "dim_order_out_of_range",
        "method \"forward\", value 0, dim_order: [0, 9] is no permutation of 2 dimensions",
    ),
    (
        "dim_order_missing",
        "method \"forward\", value 0, dim_order: a tensor has no dim order",
    ),
    (
        "sizes_missing",
        "method \"forward\", value 0, sizes: a tensor has no sizes",
    ),
    (
        "scalar_type_unknown",
        "method \"forward\", value 0, scalar_type: unknown scalar type 100",
    ),
    (
        "scalar_type_negative",
        "method \"forward\", value 0, scalar_type: unknown scalar type -1",
    ),
    (
        "dynamism_unknown",
        "method \"forward\", value 0, shape_dynamism: unknown shape dynamism 9",
    ),
    (
        "dynamic_unbound_planned",
        "method \"forward\", value 0, shape_dynamism: a planned tensor can not be DYNAMIC_UNBOUND",
    ),
    (
        "storage_offset",
        "method \"forward\", value 0, storage_offset: 1 where only 0 is defined",
    ),
    (
        "device_buffer_idx_past_end",
        "method \"forward\", non_const_buffer_device: entry 1: buffer_idx 3 is not in 1..=2",
    ),
    (
        "device_buffer_idx_negative",
        "method \"forward\", non_const_buffer_device: entry 1: buffer_idx -1 is not in 1..=2",
    ),
    (
        "device_type_negative",
        "method \"forward\", non_const_buffer_device: entry 0: unknown device type -1",
    ),
    (
        "device_index_minus_two",
        "method \"forward\", non_const_buffer_device: entry 0: device index -2 of cuda is negative",
    ),
    (
        "device_index_min",
        "method \"forward\", non_const_buffer_device: entry 0: device index -128 of cuda is negative",
    ),
    (
        "device_tensor_type_unknown",
        "method \"forward\", value 2, device_type: unknown device type 7",
    ),
    (
        "device_tensor_index_negative",
        "method \"forward\", value 2, device_index: device index -2 of cuda is negative",
    ),
    (
        "device_tensor_other_index",
        "method \"forward\", value 2, device_type: a tensor of cuda:1 lies in memory id 2 on cuda:0",
    ),
    (
        "device_cpu_tensor_in_cuda_arena",
        "method \"forward\", value 0, device_type: a tensor of cpu:0 lies in memory id 2 on cuda:0",
    ),
    (
        "device_external_no_name",
        "method \"forward\", value 2, fully_qualified_name: an EXTERNAL tensor has no name",
    ),
    (
        "input_negative",
        "method \"forward\", inputs: entry 1: value -1 is not in 0..4",
    ),
    (
        "output_past_end",
        "method \"forward\", outputs: entry 0: value 99 is not in 0..4",
    ),
    (
        "instruction_op_past_end",
        "method \"forward\", op_index: chain 0: instruction 0: operator 5 of 1",
    ),
    (
        "delegate_index_past_end",
        "method \"forward\", delegate_index: chain 0: instruction 2: delegate 5 of 1",
    ),
    ("version_too_new", "version: version 1 is newer than 0"),
    (
        "methods_missing",
        "execution_plan: the program has no list of methods",
    ),
    (
        "method_name_missing",
        "name: method 0: a method has no name",
    ),
    (
        "values_missing",
        "method \"forward\", values: a method has no values",
    ),
    (
        "segment_size_over_file",
        "segments: segment 0: 1099511627776 bytes at offset 0 from byte 2432 pass the file of 5664 bytes",
    ),
    (
        "segment_size_max",
        "segments: segment 0: 18446744073709551615 bytes at offset 0 from byte 2432 pass the file of 5664 bytes",
    ),
    (
        "constant_offset_max",
        "method \"forward\", value 0, data_buffer_idx: constant 1: 2048 bytes at offset 18446744073709551612 pass the segment of 3232 bytes",
    ),
    (
        "constant_idx_past_end",
        "method \"forward\", value 0, data_buffer_idx: constant 1000 of 5",
    ),
];

/// What is said of each odd program.
const WARNINGS: &[(&str, &[&str])] = &[
    (
        "eh_magic_unknown",
        &["segments: segment 1 has 74 bytes, but no extended header says where"],
    ),
    (
        "eh_segment_base_in_program",
        &["segment_base_offset: segments start at offset 64, inside the flatbuffer of 1712 bytes"],
    ),
    (
        "buffer_max_i64",
        &[
            "method \"forward\", buffer 0, non_const_buffer_sizes: 9223372036854775807 bytes are more than the memory of any machine",
        ],
    ),
    (
        "buffers_sum_overflows",
        &[
            "method \"forward\", buffer 0, non_const_buffer_sizes: 9223372036854775807 bytes are more than the memory of any machine",
            "method \"forward\", buffer 1, non_const_buffer_sizes: 9223372036854775807 bytes are more than the memory of any machine",
            "method \"forward\", buffer 2, non_const_buffer_sizes: 9223372036854775807 bytes are more than the memory of any machine",
            "method \"forward\", non_const_buffer_sizes: buffers of together 27670116110564327421 bytes can not be addressed",
        ],
    ),
    (
        "offset_misaligned",
        &[
            "method \"forward\", value 0, memory_offset: offset 2 is no multiple of the element size 4",
        ],
    ),
    (
        "zero_times_huge",
        &[
            "method \"forward\", value 0, sizes: sizes of an empty tensor multiply to more than can be addressed",
        ],
    ),
    (
        "device_index_negative",
        &[
            "method \"forward\", buffer 1, non_const_buffer_device: device index -1 (the current device) is read as cuda:0",
        ],
    ),
    (
        "device_cpu_index_3",
        &["method \"forward\", buffer 0, non_const_buffer_device: cpu index 3 is read as 0"],
    ),
    (
        "no_methods",
        &["execution_plan: the program has no methods"],
    ),
];

fn expected<T: Copy>(table: &[(&str, T)], name: &str) -> T {
    let found = table.iter().find(|(key, _)| *key == name);
    found.unwrap_or_else(|| panic!("{name} is not listed")).1
}

#[test]
fn every_bad_program_is_refused_accepted_or_reported_as_the_index_says() {
    let index = json("bad/INDEX.json");
    let cases = index.as_array().unwrap();
    assert_eq!(cases.len(), 78);
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let bytes = bytes(&format!("bad/{name}.pte"));

        let parsed = Program::parse(&bytes);

        match (case["should"].as_str().unwrap(), parsed) {
            ("refuse", Err(error)) => {
                let text = format!("invalid program: {}", expected(REFUSALS, name));
                assert_eq!(error.to_string(), text, "{name}");
                assert_eq!(error.code(), 0x23, "{name}");
            }
            ("accept", Ok(program)) => {
                assert_eq!(program.warnings(), [], "{name}");
                visit(&program);
            }
            ("lint", Ok(program)) => {
                let found: Vec<String> = program
                    .warnings()
                    .iter()
                    .map(|warning| warning.to_string())
                    .collect();
                assert_eq!(found, expected(WARNINGS, name), "{name}");
                visit(&program);
            }
            (should, parsed) => panic!("{name}: should {should}, found {parsed:?}"),
        }
    }
}

#[test]
fn a_refusal_of_a_tensor_names_method_value_and_field_apart() {
    let bytes = bytes("bad/size_negative.pte");

    let Err(Error::InvalidProgram(fault)) = Program::parse(&bytes) else {
        panic!("a negative size is not refused");
    };

    assert_eq!(fault.method.as_deref(), Some("forward"));
    assert_eq!(fault.value, Some(0));
    assert_eq!(fault.field, "sizes");
    assert_eq!(fault.reason, "negative size -2 of dimension 0");
}

fn forward(bytes: &[u8]) -> MemoryPlan {
    let program = Program::parse(bytes).unwrap();
    program.method("forward").unwrap().plan().unwrap()
}

#[test]
fn the_current_device_is_read_as_index_0_and_a_cpu_index_is_ignored() {
    let current = forward(&bytes("bad/device_index_negative.pte"));
    let cpu = forward(&bytes("bad/device_cpu_index_3.pte"));

    assert_eq!(
        current.buffers()[1].device,
        Device::new(DeviceType::Cuda, 0)
    );
    assert_eq!(cpu.buffers()[0].device, Device::CPU);
}

#[test]
fn a_plan_of_more_than_can_be_addressed_keeps_its_sizes() {
    let plan = forward(&bytes("bad/buffers_sum_overflows.pte"));

    let largest = usize::try_from(i64::MAX).unwrap();
    assert!(plan.buffers().iter().all(|buffer| buffer.size == largest));
    assert_eq!(plan.buffers().len(), 3);
    assert!(plan.requirements().is_err());
}

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
fn one_method_many_times(count: usize) -> Vec<u8> {
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
