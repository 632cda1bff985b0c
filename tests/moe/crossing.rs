//! What crosses between host and device, and what is allocated.

use device_memory::Operation;
use device_memory::graph::CopyCounts;

use crate::reference::{decode, prompt};
use crate::rig::{CACHE, MODELS, Rig};
use crate::sequence::Sequence;
use crate::setup::Crossing;

/// The sizes of all calls of one kind since the last were cleared.
fn sizes(rig: &Rig, operation: Operation) -> Vec<usize> {
    let calls = rig.fake.calls();
    let calls = calls.iter().filter(|call| call.operation == operation);
    calls.map(|call| call.size).collect()
}

#[test]
fn a_step_brings_nothing_to_the_device_and_8_bytes_from_it_and_allocates_nothing() {
    for model in MODELS {
        let rig = Rig::new(model, 1, CACHE, Crossing::TokenOnly);
        let engine = rig.engine();
        let mut sequence = Sequence::new(&engine).unwrap();
        prompt(&engine, &mut sequence, &rig.reference.prompt).unwrap();

        let mut steps = Vec::new();
        for _ in 0..16 {
            rig.fake.clear_calls();
            let (_, copies) = decode(&engine, &mut sequence, 1).unwrap();

            let once = CopyCounts {
                device_to_host: 1,
                ..CopyCounts::default()
            };
            assert_eq!(copies, [once], "{model}");
            assert_eq!(sizes(&rig, Operation::CopyDeviceToHost), [8]);
            // All else that the device is asked for is to compute.
            let launches = sizes(&rig, Operation::Launch).len();
            assert_eq!(launches, rig.ready.model.kernels.len());
            assert_eq!(rig.fake.calls().len(), launches + 1);
            steps.extend(copies);
        }
        assert_eq!(rig.ready.copied_bytes(), (0, 8));
        assert!(rig.ready.check_copies(&steps).is_ok());
        drop(sequence);
        rig.end();
    }
}

#[test]
fn with_the_host_in_the_loop_a_step_brings_over_all_that_it_is_given_and_leaves() {
    for model in MODELS {
        let rig = Rig::new(model, 1, CACHE, Crossing::All);
        let engine = rig.engine();
        let mut sequence = Sequence::new(&engine).unwrap();
        prompt(&engine, &mut sequence, &rig.reference.prompt).unwrap();
        rig.fake.clear_calls();

        let (_, copies) = decode(&engine, &mut sequence, 1).unwrap();

        let to = sizes(&rig, Operation::CopyHostToDevice);
        let from = sizes(&rig, Operation::CopyDeviceToHost);
        let found = CopyCounts {
            host_to_device: to.len().try_into().unwrap(),
            device_to_host: from.len().try_into().unwrap(),
            ..CopyCounts::default()
        };
        assert_eq!(copies, [found], "{model}");
        assert_eq!(rig.ready.check_copies(&copies), Ok(found), "{model}");
        let bytes = (to.iter().sum::<usize>(), from.iter().sum::<usize>());
        assert_eq!(rig.ready.copied_bytes(), bytes, "{model}");
        // At least token, position and table; token, position and logits.
        assert!(to.len() >= 3 && from.len() >= 3, "{copies:?}");
        drop(sequence);
        rig.end();
    }
}

#[test]
fn a_step_that_copies_more_or_less_than_the_token_is_named() {
    let mut rig = Rig::new("qwen3_5_moe_tiny", 1, CACHE, Crossing::TokenOnly);
    let step = rig.ready.planned.graph().count_copies();
    let more = CopyCounts {
        host_to_device: 1,
        ..step
    };

    for other in [more, CopyCounts::default()] {
        let refused = rig.ready.check_copies(&[step, step, other, step]);

        let reason = refused.unwrap_err();
        assert!(reason.starts_with("copies of step 2: "), "{reason}");
    }
    rig.end();

    // A graph in which everything crosses is none in which the token alone does.
    rig = Rig::new("qwen3_5_moe_tiny", 1, CACHE, Crossing::All);
    rig.ready.crossing = Crossing::TokenOnly;

    let reason = rig.ready.check_copies(&[]).unwrap_err();

    assert!(
        reason.starts_with("more than a token crosses: "),
        "{reason}"
    );
    rig.end();
}

#[test]
fn a_plan_is_smaller_than_its_values_apart() {
    for model in MODELS {
        let rig = Rig::new(model, 1, CACHE, Crossing::TokenOnly);

        let (planned, apart) = rig.ready.sizes();

        assert!(planned < apart, "{model}: {planned} of {apart}");
        rig.end();
    }
}
