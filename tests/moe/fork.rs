//! Two sequences at once, one of them forked from the other.

use device_memory::Operation;

use crate::reference::{decode, prompt};
use crate::rig::{CACHE, MODELS, Rig};
use crate::sequence::{Engine, Sequence};
use crate::setup::Crossing;

/// A sequence with its prompt and so many steps.
fn started(rig: &Rig, engine: &Engine<'_>, steps: usize) -> Sequence {
    let mut sequence = Sequence::new(engine).unwrap();
    prompt(engine, &mut sequence, &rig.reference.prompt).unwrap();
    let (tokens, _) = decode(engine, &mut sequence, steps).unwrap();
    assert_eq!(tokens, rig.reference.greedy[1..=steps]);
    sequence
}

fn numbers(sequence: &Sequence) -> Vec<u32> {
    let blocks = sequence.blocks().iter();
    blocks.map(|block| block.index()).collect()
}

#[test]
fn a_sequence_and_its_fork_give_the_tokens_of_the_reference_in_turns() {
    for model in MODELS {
        // After 12 positions no block is filled in part; after 14 one is.
        for before in [0, 2] {
            let rig = Rig::new(model, 2, CACHE, Crossing::TokenOnly);
            let engine = rig.engine();
            let mut one = started(&rig, &engine, before);

            let mut two = one.fork(&engine).unwrap();

            for expected in &rig.reference.greedy[before + 1..] {
                assert_eq!(one.step(&engine, None).unwrap().next, *expected, "{model}");
                assert_eq!(two.step(&engine, None).unwrap().next, *expected, "{model}");
            }
            drop((one, two));
            rig.end();
        }
    }
}

#[test]
fn a_fork_shares_full_blocks_and_copies_the_one_in_use() {
    let rig = Rig::new("qwen3_5_moe_tiny", 2, CACHE, Crossing::TokenOnly);
    let engine = rig.engine();
    let one = started(&rig, &engine, 2);
    rig.fake.clear_calls();

    let two = one.fork(&engine).unwrap();

    let (ones, twos) = (numbers(&one), numbers(&two));
    assert_eq!(ones[..3], twos[..3]);
    assert!(ones[3..].iter().all(|number| !twos.contains(number)));
    let shares: Vec<_> = one.blocks().iter().map(|block| block.shares()).collect();
    assert_eq!(shares, [2, 2, 2, 1, 1, 1, 1]);
    assert_eq!(rig.pool.free_blocks(), 3);
    // Nothing but the table comes from the host, and nothing goes there.
    let calls = rig.fake.calls();
    let of = |operation| calls.iter().filter(move |call| call.operation == operation);
    assert_eq!(of(Operation::CopyHostToDevice).count(), 1);
    assert!(of(Operation::CopyHostToDevice).all(|call| call.size == 7 * 8));
    assert_eq!(of(Operation::CopyDeviceToHost).count(), 0);
    let block = rig.pool.block_size();
    let copied = of(Operation::CopyDeviceToDevice).filter(|call| call.size == block);
    assert_eq!(copied.count(), 1);
    drop((one, two));
    rig.end();
}

#[test]
fn a_fork_that_is_given_another_token_changes_nothing_for_the_first() {
    for model in MODELS {
        let rig = Rig::new(model, 2, CACHE, Crossing::TokenOnly);
        let engine = rig.engine();
        let mut one = started(&rig, &engine, 2);
        let mut two = one.fork(&engine).unwrap();
        let other = rig.reference.greedy[2] + 1;
        two.set_token(&engine, other).unwrap();

        // The fork goes first, so that what it wrote too far would be read.
        let (steered, _) = decode(&engine, &mut two, 13).unwrap();
        let (tokens, _) = decode(&engine, &mut one, 13).unwrap();

        assert_eq!(tokens, rig.reference.greedy[3..], "{model}");
        assert_ne!(steered, tokens, "{model}");
        drop((one, two));
        rig.end();
    }
}

#[test]
fn the_first_may_end_before_its_fork() {
    let rig = Rig::new("qwen3_5_moe_tiny", 2, CACHE, Crossing::TokenOnly);
    let engine = rig.engine();
    let one = started(&rig, &engine, 2);
    let mut two = one.fork(&engine).unwrap();

    drop(one);
    let mut third = Sequence::new(&engine).unwrap();
    prompt(&engine, &mut third, &[7; 12]).unwrap();
    let (tokens, _) = decode(&engine, &mut two, 13).unwrap();

    assert_eq!(tokens, rig.reference.greedy[3..]);
    drop((two, third));
    rig.end();
}

#[test]
fn a_pool_without_enough_blocks_is_an_error_that_takes_none() {
    let rig = Rig::new("qwen3_moe_tiny", 1, CACHE, Crossing::TokenOnly);
    let engine = rig.engine();
    let mut one = started(&rig, &engine, 2);
    let live = rig.fake.live_blocks();

    // A fork shares three of seven, and needs four.
    let fork = one.fork(&engine).map(|_| ());
    let second = Sequence::new(&engine).map(|_| ());

    for error in [fork.unwrap_err(), second.unwrap_err()] {
        assert!(error.is_out_of_memory(), "{error}");
    }
    assert_eq!((rig.pool.free_blocks(), rig.fake.live_blocks()), (0, live));
    assert!(one.blocks().iter().all(|block| block.shares() == 1));
    let (tokens, _) = decode(&engine, &mut one, 13).unwrap();
    assert_eq!(tokens, rig.reference.greedy[3..]);
    drop(one);
    rig.end();
}
