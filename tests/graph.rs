//! Graphs: what is valid, what the passes make of them, and how they are planned.
//!
//! The cases of ExecuTorch's `exir/tests/test_propagate_device_pass.py`, and what tests them here:
//!
//! | `test_` | here |
//! | --- | --- |
//! | `h2d_d2h_nodes_inserted` | `insertion::each_argument_is_copied_before_the_delegate_and_each_output_after_it` |
//! | `e2e_copy_nodes_in_executorch_graph` | `insertion::copies_are_still_there_and_on_their_devices_once_the_graph_is_planned` |
//! | `no_copy_nodes_without_device` | `insertion::a_delegate_without_a_device_gets_no_copies` |
//! | `copy_nodes_require_non_cpu_memory_planning` | `insertion::nothing_is_copied_where_memory_of_devices_is_not_planned` |
//! | `redundant_same_device_copies_elided` | `insertion::a_value_that_goes_from_delegate_to_delegate_of_one_device_is_not_copied` |
//! | `cross_device_copies_preserved` | `insertion::a_value_that_goes_to_another_device_goes_through_the_host` |
//! | `output_feeding_multiple_same_device_delegates_elided` | `insertion::an_output_that_feeds_several_delegates_of_its_device_is_copied_for_none` |
//! | `output_feeding_gpu_and_cpu_consumers` | `insertion::an_output_that_a_kernel_uses_too_is_copied_for_the_kernel_only` |
//! | `output_feeding_same_and_cross_device_delegates` | `insertion::an_output_that_feeds_delegates_of_its_own_and_another_device_is_copied_for_the_other` |
//! | `device_consistency_cuda_1` | `insertion::the_index_of_the_device_is_that_of_the_delegate` |
//! | `no_device_spec_remains_cpu` | `insertion::without_delegates_everything_remains_on_the_host` |
//! | `device_consistency_after_to_executorch` | `planning::three_values_are_on_the_device_and_three_on_the_host` |
//! | `parse_device_spec_value` | `targets::a_target_is_a_type_and_perhaps_an_index` |
//! | `parse_device_spec_value_unknown_raises` | `targets::what_is_no_device_is_refused_with_its_text` |
//! | `parse_device_spec_value_case_insensitive` | `targets::space_and_the_case_of_letters_do_not_matter` |
//! | `get_target_device_from_compile_specs` | `targets::the_first_setting_of_that_name_counts` |
//! | `e2e_device_on_specs_after_to_executorch` | `insertion::copies_are_still_there_and_on_their_devices_once_the_graph_is_planned` |
//! | `e2e_non_delegated_tensor_specs_remain_cpu` | `insertion::what_no_delegate_uses_remains_on_the_host_beside_one` |
//! | `skip_h2d_for_method_inputs` | `skips::resident_inputs_are_on_the_device_and_not_copied` |
//! | `skip_d2h_for_method_outputs` | `skips::resident_outputs_stay_on_the_device` |
//! | `skip_both_h2d_and_d2h` | `skips::with_both_skipped_nothing_is_copied` |
//! | `skip_h2d_partial_with_intermediate_input` | `skips::a_value_from_the_host_between_is_still_copied_to_the_device` |
//! | `tensorspec_repr_includes_device` | `targets::a_tensor_shows_its_device` |
//! | `skipping_copies_requires_unallocated_graph_io` | `skips::what_is_skipped_works_with_planned_and_with_unplanned_inputs_and_outputs` |

#[path = "graph/buffers.rs"]
mod buffers;
#[path = "graph/build.rs"]
mod build;
#[path = "graph/defects.rs"]
mod defects;
#[path = "graph/elision.rs"]
mod elision;
#[path = "graph/faults.rs"]
mod faults;
#[path = "support/graphs.rs"]
mod graphs;
#[path = "graph/insertion.rs"]
mod insertion;
#[cfg(feature = "serde")]
#[path = "graph/json.rs"]
mod json;
#[path = "graph/lifetimes.rs"]
mod lifetimes;
#[path = "graph/planning.rs"]
mod planning;
#[path = "graph/properties.rs"]
mod properties;
#[path = "graph/skips.rs"]
mod skips;
#[path = "graph/support.rs"]
mod support;
#[path = "graph/targets.rs"]
mod targets;
