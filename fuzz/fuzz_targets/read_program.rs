//! No bytes make the reader of ExecuTorch programs panic, and whatever it
//! accepts can be looked at in full.

#![no_main]

use device_memory::pte::{Method, Program};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(program) = Program::parse(bytes) {
        look_at(&program);
    }
});

fn look_at(program: &Program<'_>) {
    let _ = format!("{program:?}");
    for warning in program.warnings() {
        let _ = warning.to_string();
    }
    let _ = program.segments().count();
    let _ = program.named_data().count();
    let parts = program.constant_segment().into_iter();
    for part in parts.chain(program.mutable_data_segments()) {
        let _ = part.offsets().count();
    }
    for method in program.methods() {
        program
            .method(method.name())
            .expect("a method has its name");
        look_at_method(method);
    }
}

fn look_at_method(method: &Method<'_>) {
    for index in 0..method.num_memory_planned_buffers() {
        method
            .memory_planned_buffer_size(index)
            .expect("within the range");
        method
            .memory_planned_buffer_device(index)
            .expect("within the range");
    }
    let _ = method.non_const_buffer_sizes().count();
    let _ = method.non_const_buffer_device().map_or(0, Iterator::count);
    for tensor in method.planned_tensors() {
        let buffer = usize::try_from(tensor.buffer_index()).expect("64 bits");
        let end = tensor.offset() + tensor.nbytes();
        assert!(end <= method.buffers()[buffer].size);
        assert_eq!(tensor.memory_id(), tensor.buffer_index() + 1);
    }
    let planned = method.planned_tensors().map(|tensor| *tensor);
    let others = method.constant_tensors().chain(method.runtime_tensors());
    for tensor in planned.chain(others) {
        let spec = tensor.spec().expect("a tensor is checked");
        assert_eq!(spec.size_in_bytes(), tensor.nbytes());
        let _ = (tensor.name(), tensor.data_buffer_idx(), tensor.dim_order());
    }
    let _ = method.inputs().chain(method.outputs()).count();
    let _ = method
        .operators()
        .map(|operator| operator.to_string().len())
        .count();
    for delegate in method.delegates() {
        let _ = delegate.compile_specs().count();
    }
    let plan = method.plan().expect("placements are checked");
    assert_eq!(plan.placements().len(), method.planned_tensors().count());
    for overwrite in method.overwrites().into_iter().flatten() {
        assert_ne!(overwrite.value, overwrite.by);
    }
}
