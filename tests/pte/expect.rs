//! Real programs say what three other readers say they say.

use device_memory::pte::{Method, PlannedTensor, Program, Tensor};
use device_memory::{Device, DeviceType, ErrorKind, PlacementError};
use serde_json::{Value, json};

use crate::support::{bytes, json, programs, visit};

fn tensor(tensor: &Tensor<'_>) -> Value {
    json!({
        "value": tensor.value(),
        "scalar_type": tensor.scalar_type().code(),
        "scalar_type_name": tensor.scalar_type().name(),
        "sizes": tensor.sizes().collect::<Vec<_>>(),
        "dim_order": tensor.dim_order(),
        "nbytes": tensor.nbytes(),
        "shape_dynamism": tensor.shape_dynamism().name(),
        "data_buffer_idx": tensor.data_buffer_idx(),
        "device_type": tensor.device().device_type().to_executorch(),
        "device_index": tensor.device().index(),
        "name": tensor.name(),
        "location": tensor.location().name(),
    })
}

fn planned(planned: &PlannedTensor<'_>) -> Value {
    let mut value = tensor(planned);
    let offset = u64::try_from(planned.offset()).unwrap();
    let object = value.as_object_mut().unwrap();
    object.insert("memory_id".into(), planned.memory_id().into());
    object.insert("memory_offset_low".into(), (offset & 0xffff_ffff).into());
    object.insert("memory_offset_high".into(), (offset >> 32).into());
    object.insert("memory_offset".into(), offset.into());
    value
}

fn method(method: &Method<'_>) -> Value {
    let values = |pairs: Vec<(u32, _)>| -> (Vec<u32>, Vec<&str>) {
        pairs
            .into_iter()
            .map(|(value, kind): (u32, device_memory::pte::ValueKind)| (value, kind.name()))
            .unzip()
    };
    let (inputs, input_tags) = values(method.inputs().collect());
    let (outputs, output_tags) = values(method.outputs().collect());
    let list = method.non_const_buffer_device().map(|list| {
        list.map(|entry| {
            json!({
                "buffer_idx": entry.buffer_idx,
                "device_type": entry.device_type,
                "device_index": entry.device_index,
            })
        })
        .collect::<Vec<_>>()
    });
    let buffers: Vec<Value> = (0..method.num_memory_planned_buffers())
        .map(|index| {
            let device = method.memory_planned_buffer_device(index).unwrap();
            json!({
                "index": index,
                "memory_id": index + 1,
                "size": method.memory_planned_buffer_size(index).unwrap(),
                "device_type": device.device_type().to_executorch(),
                "device_index": device.index(),
            })
        })
        .collect();
    let delegates: Vec<Value> = method
        .delegates()
        .map(|delegate| {
            let specs: Vec<Value> = delegate
                .compile_specs()
                .map(|spec| {
                    json!({
                        "key": spec.key,
                        "value": std::str::from_utf8(spec.value).unwrap(),
                    })
                })
                .collect();
            json!({
                "id": delegate.id(),
                "location": delegate.location().name(),
                "index": delegate.index(),
                "compile_specs": specs,
            })
        })
        .collect();
    json!({
        "name": method.name(),
        "inputs": inputs,
        "outputs": outputs,
        "input_tags": input_tags,
        "output_tags": output_tags,
        "num_values": method.num_values(),
        "non_const_buffer_sizes": method.non_const_buffer_sizes().collect::<Vec<_>>(),
        "non_const_buffer_device": list,
        "num_memory_planned_buffers": method.num_memory_planned_buffers(),
        "buffers": buffers,
        "planned_tensors": method.planned_tensors().map(|t| planned(&t)).collect::<Vec<_>>(),
        "constant_tensors": method.constant_tensors().map(|t| tensor(&t)).collect::<Vec<_>>(),
        "runtime_tensors": method.runtime_tensors().map(|t| tensor(&t)).collect::<Vec<_>>(),
        "operators": method.operators().map(|o| o.to_string()).collect::<Vec<_>>(),
        "delegates": delegates,
        "num_instructions": method.num_instructions(),
    })
}

fn program(program: &Program<'_>) -> Value {
    let header = program.header();
    let extended = header.extended().map(|extended| {
        json!({
            "length": extended.length(),
            "program_size": extended.program_size(),
            "segment_base_offset": extended.segment_base_offset(),
            "segment_data_size": extended.segment_data_size(),
        })
    });
    let constants = program.constant_segment().map(|constants| {
        json!({
            "segment_index": constants.segment_index(),
            "offsets": constants.offsets().collect::<Vec<_>>(),
        })
    });
    assert_eq!(program.mutable_data_segments().count(), 0);
    json!({
        "header": {
            "root_offset": header.root_offset(),
            "identifier": header.identifier(),
            "extended": extended,
        },
        "version": program.version(),
        "segments": program.segments().map(|s| [s.offset, s.size]).collect::<Vec<_>>(),
        "constant_segment": constants,
        "mutable_data_segments": null,
        "methods": program.methods().iter().map(method).collect::<Vec<_>>(),
    })
}

#[test]
fn every_field_of_every_real_program_is_as_expected() {
    for name in programs() {
        let bytes = bytes(&format!("{name}.pte"));
        let mut expected = json(&format!("{name}.expect.json"));
        assert_eq!(expected["bytes"], bytes.len());
        let object = expected.as_object_mut().unwrap();
        object.retain(|key, _| !["file", "bytes", "sha256"].contains(&key.as_str()));

        let parsed = Program::parse(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));

        let found = program(&parsed);
        for (key, value) in expected.as_object().unwrap() {
            assert_eq!(&found[key], value, "{name}: {key}");
        }
        assert_eq!(found, expected, "{name}");
        assert_eq!(parsed.warnings(), [], "{name}");
        assert!(visit(&parsed) > 0);
    }
}

#[test]
fn the_plan_has_the_arenas_and_the_placements_counted_from_0() {
    let bytes = bytes("add_cuda0.pte");
    let program = Program::parse(&bytes).unwrap();
    let method = program.method("forward").unwrap();

    let plan = method.plan().unwrap();

    let cuda = Device::new(DeviceType::Cuda, 0);
    let buffers: Vec<_> = plan.buffers().iter().map(|b| (b.device, b.size)).collect();
    assert_eq!(buffers, [(Device::CPU, 32), (cuda, 48)]);
    let placements: Vec<_> = plan
        .placements()
        .iter()
        .map(|p| (p.memory_id, p.offset, p.size))
        .collect();
    assert_eq!(
        placements,
        [
            (0, 16, 16),
            (0, 0, 16),
            (1, 32, 16),
            (1, 16, 16),
            (1, 0, 16),
            (0, 0, 16)
        ]
    );
}

#[test]
fn a_buffer_past_the_last_is_an_invalid_argument() {
    let bytes = bytes("add_cuda0.pte");
    let program = Program::parse(&bytes).unwrap();
    let method = program.method("forward").unwrap();

    let size = method.memory_planned_buffer_size(2).unwrap_err();
    let device = method.memory_planned_buffer_device(2).unwrap_err();

    for error in [size, device] {
        assert!(matches!(
            error.kind(),
            ErrorKind::Placement(PlacementError::UnknownMemoryId {
                memory_id: 2,
                count: 2
            })
        ));
        assert_eq!(error.code(), 0x12);
        assert_eq!(
            error.to_string(),
            "unknown memory id 2: 2 buffer(s) planned"
        );
    }
}

#[test]
fn a_method_that_is_not_there_is_an_error_that_names_those_that_are() {
    let bytes = bytes("multi_method_cpu.pte");
    let program = Program::parse(&bytes).unwrap();

    let error = program.method("forward").unwrap_err();

    assert_eq!(
        error.to_string(),
        "no method \"forward\": the program has \"decode\", \"encode\""
    );
}
