//! Blocks of one size are had, shared, copied on write and given back.

use std::collections::HashSet;
use std::sync::Arc;
use std::thread;

use device_memory::testing::{FakeDevice, FaultInjector};
use device_memory::{
    Block, BlockPool, DeviceLayout, DeviceMemoryBuffer, DeviceType, ErrorKind, Operation,
};
use proptest::prelude::*;

const SIZE: usize = 64;

fn rig(blocks: usize) -> (FakeDevice, FaultInjector<FakeDevice>, BlockPool) {
    let fake = FakeDevice::new(DeviceType::Cuda, 1);
    let injector = FaultInjector::new(fake.clone());
    let layout = DeviceLayout::from_size(blocks * SIZE + 3).unwrap();
    let allocator = Arc::new(injector.clone());
    let buffer = DeviceMemoryBuffer::create_with(allocator, layout, 0).unwrap();
    (fake, injector, BlockPool::new(buffer, SIZE).unwrap())
}

fn bytes(block: &Block) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    block.span().copy_to_host(&mut bytes).unwrap();
    bytes
}

#[test]
fn blocks_are_apart_and_at_their_index_in_the_buffer() {
    let (_, _, pool) = rig(4);

    let blocks: Vec<_> = (0..4).map(|_| pool.block().unwrap()).collect();

    for (number, block) in blocks.iter().enumerate() {
        assert_eq!(block.index() as usize, number);
        assert_eq!(block.span().len(), SIZE);
        let expected = pool.ptr().checked_add(number * SIZE).unwrap();
        assert_eq!(block.span().ptr(), expected);
    }
}

#[test]
fn exhaustion_is_an_error_with_its_numbers_and_passes() {
    let (_, _, pool) = rig(2);
    let first = pool.block().unwrap();
    let second = pool.block().unwrap();

    let error = pool.block().unwrap_err();

    assert_eq!(
        error.to_string(),
        "out of memory on cuda:0: 64 bytes requested (align 1), 128 in use, 131 reserved, \
         limit 128, largest free block 0"
    );
    drop(second);
    assert_eq!(pool.block().unwrap().index(), 1);
    drop(first);
    assert_eq!(pool.free_blocks(), 2);
}

#[test]
fn a_fork_shares_until_one_writes() {
    let (_, _, pool) = rig(3);
    let mut one = pool.block().unwrap();
    one.make_mut().unwrap().fill(1).unwrap();
    let place = one.index();
    let mut two = one.fork();
    assert_eq!((one.shares(), pool.free_blocks()), (2, 2));

    two.make_mut().unwrap().fill(2).unwrap();

    assert_eq!((bytes(&one), bytes(&two)), ([1; SIZE], [2; SIZE]));
    assert_eq!((one.shares(), two.shares()), (1, 1));
    // The only share is written in place.
    one.make_mut().unwrap();
    assert_eq!((one.index(), pool.free_blocks()), (place, 1));
}

#[test]
fn a_write_to_a_share_copies_all_bytes_first() {
    let (_, _, pool) = rig(2);
    let mut one = pool.block().unwrap();
    one.make_mut().unwrap().fill(1).unwrap();
    let mut two = one.fork();

    let mut span = two.make_mut().unwrap();
    span.subspan_mut(3, 1).unwrap().fill(9).unwrap();

    let mut expected = [1; SIZE];
    expected[3] = 9;
    assert_eq!(bytes(&two), expected);
}

#[test]
fn a_write_that_can_not_copy_changes_nothing() {
    let (_, injector, pool) = rig(2);
    let mut one = pool.block().unwrap();
    one.make_mut().unwrap().fill(1).unwrap();
    let mut two = one.fork();
    injector.fail_nth(Operation::CopyDeviceToDevice, 1);

    let failed = two.make_mut().map(drop);

    assert!(matches!(
        failed.unwrap_err().kind(),
        ErrorKind::Backend { .. }
    ));
    assert_eq!(
        (two.index(), two.shares(), pool.free_blocks()),
        (one.index(), 2, 1)
    );
    let _all = pool.block().unwrap();
    assert!(two.make_mut().unwrap_err().is_out_of_memory());
    assert_eq!((two.index(), bytes(&two)), (one.index(), [1; SIZE]));
}

#[test]
fn blocks_keep_the_memory_alive() {
    let (fake, _, pool) = rig(2);
    let block = pool.block().unwrap();
    drop(pool);
    assert_eq!(fake.live_blocks(), 1);

    drop(block);

    fake.assert_clean();
}

#[test]
fn a_block_size_of_zero_is_refused() {
    let buffer = DeviceMemoryBuffer::create(64, DeviceType::Cpu, 0).unwrap();

    let error = BlockPool::new(buffer, 0).unwrap_err();

    assert!(matches!(error.kind(), ErrorKind::Layout(_)));
}

#[test]
fn having_and_sharing_from_many_threads_loses_no_block() {
    let (fake, _, pool) = rig(64);
    thread::scope(|scope| {
        for thread in 0..8_u8 {
            let pool = &pool;
            scope.spawn(move || {
                for _ in 0..200 {
                    let mut block = pool.block().unwrap();
                    block.make_mut().unwrap().fill(thread).unwrap();
                    let mut other = block.fork();
                    let kept = other.fork();
                    other.make_mut().unwrap().fill(!thread).unwrap();
                    assert_eq!(bytes(&kept), [thread; SIZE]);
                    assert_eq!(bytes(&other), [!thread; SIZE]);
                }
            });
        }
    });

    assert_eq!(pool.free_blocks(), 64);
    drop(pool);
    fake.assert_clean();
}

proptest! {
    #[test]
    fn shares_hold_what_was_written_to_them_alone(
        steps in prop::collection::vec((0..4_u8, any::<usize>(), any::<u8>()), 100)
    ) {
        let (_, _, pool) = rig(8);
        // Each share, and the byte that it is full of.
        let mut shares: Vec<(Block, u8)> = Vec::new();
        for (step, which, byte) in steps {
            let at = which % shares.len().max(1);
            let wrote = |block: &mut Block| block.make_mut()?.fill(byte);
            match step {
                0 => match pool.block() {
                    Ok(mut block) => {
                        wrote(&mut block).unwrap();
                        shares.push((block, byte));
                    }
                    Err(_) => prop_assert_eq!(pool.free_blocks(), 0),
                },
                1 if !shares.is_empty() => {
                    let (block, byte) = &shares[at];
                    let share = (block.fork(), *byte);
                    shares.push(share);
                }
                2 if !shares.is_empty() => {
                    let (block, full_of) = &mut shares[at];
                    match wrote(block) {
                        Ok(()) => *full_of = byte,
                        Err(_) => prop_assert!(block.shares() > 1 && pool.free_blocks() == 0),
                    }
                }
                3 if !shares.is_empty() => drop(shares.swap_remove(at)),
                _ => {}
            }
            let used: HashSet<u32> = shares.iter().map(|(block, _)| block.index()).collect();
            prop_assert_eq!(pool.free_blocks(), pool.blocks() - used.len());
            for (block, byte) in &shares {
                prop_assert_eq!(bytes(block), [*byte; SIZE]);
            }
        }
    }
}
