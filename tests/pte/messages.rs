//! What is said of each file in `bad/`.

/// What the refusal of each malformed program says, after `invalid program: `.
pub(crate) const REFUSALS: &[(&str, &str)] = &[
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
pub(crate) const WARNINGS: &[(&str, &[&str])] = &[
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
