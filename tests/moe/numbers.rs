//! Logits and tokens.

use crate::model::Cache;
use crate::reference::{Reference, decode, difference, prompt};
use crate::rig::{CACHE, MODELS, Rig};
use crate::sequence::Sequence;
use crate::setup::Crossing;

#[test]
fn logits_and_tokens_are_those_of_the_reference() {
    for model in MODELS {
        let rig = Rig::new(model, 1, CACHE, Crossing::TokenOnly);
        let reference = &rig.reference;
        assert_eq!(reference.prompt.len(), 12, "{model}");
        assert_eq!(reference.prompt_logits.len(), 12, "{model}");
        assert_eq!(reference.greedy.len(), 16, "{model}");
        assert_eq!(reference.step_logits.len(), 16, "{model}");

        let apart = rig.reference.check(&rig.engine());

        assert!(apart.as_ref().is_ok_and(|&apart| apart < 2e-4), "{apart:?}");
        rig.end();
    }
}

#[test]
fn with_the_host_in_the_loop_the_numbers_are_the_same() {
    for model in MODELS {
        let rig = Rig::new(model, 1, CACHE, Crossing::All);

        let apart = rig.reference.check(&rig.engine());

        assert!(apart.as_ref().is_ok_and(|&apart| apart < 2e-4), "{apart:?}");
        rig.end();
    }
}

#[test]
fn blocks_of_any_length_in_any_order_give_the_same_tokens() {
    for (positions, blocks) in [(1, 28), (5, 6), (28, 1)] {
        let cache = Cache { positions, blocks };
        let rig = Rig::new("qwen3_moe_tiny", 2, cache, Crossing::TokenOnly);
        let engine = rig.engine();
        // The blocks of another sequence that has ended are had in another order.
        let mut other: Vec<_> = (0..blocks).map(|_| rig.pool.block().unwrap()).collect();
        while !other.is_empty() {
            other.remove(other.len() / 2);
        }

        let mut sequence = Sequence::new(&engine).unwrap();
        let first = prompt(&engine, &mut sequence, &rig.reference.prompt).unwrap();
        let (tokens, _) = decode(&engine, &mut sequence, 15).unwrap();

        assert_eq!(first, rig.reference.greedy[0]);
        assert_eq!(tokens, rig.reference.greedy[1..], "{positions}");
        drop(sequence);
        rig.end();
    }
}

#[test]
fn a_sequence_that_is_full_ends_in_an_error_and_stays_as_it_is() {
    let cache = Cache {
        positions: 4,
        blocks: 3,
    };
    let rig = Rig::new("qwen3_5_moe_tiny", 1, cache, Crossing::TokenOnly);
    let engine = rig.engine();
    let mut sequence = Sequence::new(&engine).unwrap();
    prompt(&engine, &mut sequence, &rig.reference.prompt).unwrap();
    rig.fake.clear_calls();

    let error = sequence.step(&engine, None).map(|step| step.next);

    assert_eq!(
        error.unwrap_err().to_string(),
        "count mismatch: expected 12 positions at most, found 13"
    );
    assert_eq!(sequence.len(), 12);
    assert!(rig.fake.calls().is_empty());
    drop(sequence);
    rig.end();
}

#[test]
fn a_difference_is_the_largest_and_none_between_unlike_rows() {
    assert_eq!(difference(&[1.0, 2.0, 3.0], &[1.5, 2.0, 2.0]), 1.0);
    assert!(difference(&[1.0], &[1.0, 2.0]).is_nan());
    assert!(difference(&[f32::NAN, 1.0], &[1.0, 1.0]).is_nan());
}

#[test]
fn a_reference_that_leaves_a_token_without_logits_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.expect.json");
    let read = |prompt: &str, prompt_logits: &str, greedy: &str, step_logits: &str| {
        let json = format!(
            r#"{{"prompt": {prompt}, "prompt_logits": {prompt_logits},
                "greedy": {greedy}, "step_logits": {step_logits}}}"#
        );
        std::fs::write(&path, json).unwrap();
        Reference::read(&path)
    };
    let refusal = |read: Result<Reference, String>| {
        let reason = read.unwrap_err();
        reason.rsplit_once(".expect.json: ").unwrap().1.to_owned()
    };

    assert!(read("[1]", "[[0.5]]", "[2]", "[[0.5]]").is_ok());
    for (read, expected) in [
        (
            read("[]", "[]", "[2]", "[[0.5]]"),
            "prompt: 0 tokens, logits of 0",
        ),
        (
            read("[1, 1]", "[[0.5]]", "[2]", "[[0.5]]"),
            "prompt: 2 tokens, logits of 1",
        ),
        (
            read("[1]", "[[0.5]]", "[]", "[]"),
            "greedy: 0 tokens, logits of 0",
        ),
        (
            read("[1]", "[[0.5]]", "[2]", "[[0.5], [0.5]]"),
            "greedy: 1 tokens, logits of 2",
        ),
    ] {
        assert_eq!(refusal(read), expected);
    }
}
