//! Malformed programs are refused with a precise error, odd ones are reported.

use device_memory::pte::Program;
use device_memory::{Device, DeviceType, ErrorKind, MemoryPlan};

use crate::messages::{REFUSALS, WARNINGS};
use crate::support::{bytes, json, visit};

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

    let error = Program::parse(&bytes).unwrap_err();
    let ErrorKind::InvalidProgram(fault) = error.kind() else {
        panic!("{error:?}");
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
