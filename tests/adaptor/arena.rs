//! Blocks are cut in order, and nothing live is ever cut again.

use std::collections::BTreeMap;
use std::sync::Arc;

use device_memory::adaptor::Arena;
use device_memory::testing::{FakeDevice, FaultInjector};
use device_memory::{
    Attempt, DeviceAllocator as _, DeviceLayout, DeviceMemoryBuffer, DeviceType, Operation, Tag,
    free_failure_count,
};
use proptest::prelude::*;

fn fake(capacity: usize) -> FakeDevice {
    FakeDevice::builder(DeviceType::Cuda)
        .devices(2)
        .capacity(capacity)
        .build()
}

fn layout(size: usize) -> DeviceLayout {
    DeviceLayout::from_size(size).unwrap()
}

fn arena(fake: &FakeDevice, chunk: usize) -> Arc<Arena<FakeDevice>> {
    Arc::new(Arena::over(fake.clone(), chunk))
}

fn create(arena: &Arc<Arena<FakeDevice>>, size: usize) -> DeviceMemoryBuffer {
    DeviceMemoryBuffer::create_with(arena.clone(), layout(size), 0).unwrap()
}

#[test]
fn blocks_lie_one_after_another_in_one_block_of_the_device() {
    let fake = fake(1 << 30);
    let arena = arena(&fake, 4096);

    let [a, b, c] = [10, 64, 65].map(|size| create(&arena, size));

    assert_eq!(b.ptr().addr() - a.ptr().addr(), 64);
    assert_eq!(c.ptr().addr() - b.ptr().addr(), 64);
    assert_eq!(fake.live_blocks(), 1);
    let status = arena.status(0);
    assert_eq!(
        (status.in_use, status.reserved, status.chunks),
        (139, 4096, 1)
    );
    assert_eq!(status.largest_free, 4096 - 64 - 64 - 65);
    assert_eq!(arena.status(1).reserved, 0);
}

#[test]
fn the_block_made_last_gives_its_room_back_at_once() {
    let fake = fake(1 << 30);
    let arena = arena(&fake, 4096);
    let _first = create(&arena, 64);
    let second = create(&arena, 64);
    let at = second.ptr();

    drop(second);

    assert_eq!(create(&arena, 128).ptr(), at);
}

#[test]
fn a_chunk_has_the_tag_of_the_request_that_it_is_asked_for() {
    let fake = fake(1 << 30);
    let arena = Arc::new(Arena::over(fake.clone(), 4096));
    let create = |tag| {
        let layout = layout(100).with_tag(tag);
        DeviceMemoryBuffer::create_with(arena.clone(), layout, 0).unwrap()
    };

    let blocks = [create(Tag::WEIGHTS), create(Tag::SCRATCH)];

    let tags: Vec<_> = fake.live().iter().map(|live| live.layout.tag()).collect();
    assert_eq!(tags, [Tag::WEIGHTS]);
    drop(blocks);
}

#[test]
fn a_chunk_is_used_again_from_its_start_when_all_in_it_is_freed() {
    let fake = fake(1 << 30);
    let arena = arena(&fake, 4096);
    let blocks = [64; 8].map(|size| create(&arena, size));
    let start = blocks[0].ptr();

    drop(blocks);

    assert_eq!(create(&arena, 4096).ptr(), start);
    assert_eq!(fake.allocations(), 1);
}

#[test]
fn memory_that_is_handed_out_again_has_the_bytes_it_had() {
    let arena = arena(&fake(1 << 30), 4096);
    let mut first = create(&arena, 64);
    first.fill(7).unwrap();
    let place = first.ptr();

    drop(first);
    let again = create(&arena, 64);

    assert_eq!(again.ptr(), place);
    assert_eq!(again.to_vec().unwrap(), [7; 64]);
}

#[test]
fn chunks_double_so_that_the_device_is_seldom_asked() {
    let fake = fake(1 << 40);
    let arena = arena(&fake, 1024);

    let blocks: Vec<_> = (0..1000).map(|_| create(&arena, 1024)).collect();

    assert_eq!(fake.allocations(), 11);
    drop(blocks);
    assert_eq!(arena.status(0).in_use, 0);
    assert_eq!(arena.trim(0).unwrap(), 1 << 20);
    assert_eq!(fake.live_bytes(), 0);
}

#[test]
fn a_checkpoint_is_gone_back_to_when_all_since_is_freed_and_not_before() {
    let fake = fake(1 << 30);
    let arena = arena(&fake, 4096);
    let kept = create(&arena, 64);

    let step = arena.checkpoint(0).unwrap();
    let a = create(&arena, 64);
    let b = create(&arena, 5000);
    let c = create(&arena, 64);
    let refused = step.rollback().unwrap_err();
    drop(a);
    drop(b);
    let one_left = step.rollback().unwrap_err();
    drop(c);
    step.rollback().unwrap();

    assert_eq!(
        refused.to_string(),
        "3 block(s) on cuda:0 are live since the checkpoint"
    );
    assert_eq!(one_left.blocks, 1);
    let again = create(&arena, 64);
    assert_eq!(again.ptr().addr() - kept.ptr().addr(), 64);
}

#[test]
fn holes_since_a_checkpoint_are_closed_though_blocks_before_it_live() {
    let fake = fake(1 << 30);
    let arena = arena(&fake, 4096);
    let hole = create(&arena, 64);
    let kept = create(&arena, 64);
    drop(hole);

    let step = arena.checkpoint(0).unwrap();
    let [a, b] = [64; 2].map(|size| create(&arena, size));
    drop(a);
    drop(b);
    step.rollback().unwrap();

    assert_eq!(create(&arena, 64).ptr().addr() - kept.ptr().addr(), 64);
}

#[test]
fn checkpoints_may_be_nested_and_dropped_in_any_order() {
    let fake = fake(1 << 30);
    let arena = arena(&fake, 4096);
    let start = arena.checkpoint(0).unwrap();
    let a = create(&arena, 64);
    let outer = arena.checkpoint(0).unwrap();
    let b = create(&arena, 64);
    let inner = arena.checkpoint(0).unwrap();
    let c = create(&arena, 64);

    assert_eq!(
        [&start, &outer, &inner].map(|point| point.live_blocks()),
        [3, 2, 1]
    );
    drop(outer);
    assert_eq!(inner.live_blocks(), 1);
    drop(c);
    inner.rollback().unwrap();
    assert_eq!(start.live_blocks(), 2);
    drop((a, inner));
    assert_eq!(start.live_blocks(), 1);
    drop(b);
    start.rollback().unwrap();
    drop(start);
    assert!(arena.checkpoint(7).is_err());
    assert_eq!(arena.trim(0).unwrap(), 4096);
}

#[test]
fn a_fixed_arena_says_what_is_left_when_it_is_full() {
    let fake = fake(1 << 30);
    let arena = Arc::new(Arena::fixed(fake.clone(), 1024));
    let kept = DeviceMemoryBuffer::create_with(arena.clone(), layout(1000), 0).unwrap();

    let error = DeviceMemoryBuffer::create_with(arena.clone(), layout(25), 0).unwrap_err();
    let too_large = DeviceMemoryBuffer::create_with(arena.clone(), layout(1025), 1).unwrap_err();

    assert_eq!(
        error.to_string(),
        "out of memory on cuda:0: 25 bytes requested (align 64), 1000 in use, 1024 reserved, \
         limit 1024, largest free block 24, 1073740800 of 1073741824 free on the device; \
         tried search"
    );
    let too_large = too_large.out_of_memory().unwrap();
    assert_eq!(too_large.limit, Some(1024));
    // The device was not asked.
    assert_eq!(too_large.tried, [Attempt::Search]);
    assert_eq!(fake.live_blocks(), 1);
    drop(kept);
}

#[test]
fn a_device_with_no_room_for_twice_as_much_gives_what_is_needed() {
    let fake = fake(5000);
    let arena = arena(&fake, 4096);
    let first = create(&arena, 4096);

    let second = create(&arena, 900);
    let full = DeviceMemoryBuffer::create_with(arena.clone(), layout(100), 0).unwrap_err();

    assert_eq!(fake.live_bytes(), 4996);
    let report = full.out_of_memory().unwrap();
    assert_eq!((report.requested, report.align), (100, 64));
    assert_eq!(report.reserved, Some(4996));
    let tried = [Attempt::Search, Attempt::Upstream, Attempt::Trim];
    assert_eq!(report.tried, tried);
    drop((first, second));
}

// https://github.com/pytorch/pytorch/issues/189504
#[test]
fn empty_chunks_that_are_too_small_are_given_back_before_memory_is_said_to_be_out() {
    let fake = fake(10_000);
    let arena = arena(&fake, 4096);
    drop(create(&arena, 4096));

    let large = create(&arena, 9000);

    assert_eq!(fake.live_bytes(), 9000);
    drop(large);
}

#[test]
fn a_chunk_that_can_not_be_given_back_is_kept_and_the_trim_says_so() {
    let fake = fake(1 << 30);
    let injector = FaultInjector::new(fake.clone());
    let faults = injector.faults();
    let arena = Arc::new(Arena::over(injector, 4096));
    drop(DeviceMemoryBuffer::create_with(arena.clone(), layout(64), 0).unwrap());
    faults.fail_nth(Operation::Deallocate, 1);

    arena.trim(0).unwrap_err();

    assert_eq!(arena.status(0).chunks, 1);
    drop(DeviceMemoryBuffer::create_with(arena.clone(), layout(64), 0).unwrap());
    assert_eq!(fake.allocations(), 1);
    assert_eq!(arena.trim(0).unwrap(), 4096);
    fake.assert_clean();
}

#[test]
fn a_chunk_that_can_not_be_given_back_at_the_end_is_told_to_the_hook() {
    let injector = FaultInjector::new(fake(1 << 30));
    let faults = injector.faults();
    let arena = Arc::new(Arena::over(injector, 4096));
    drop(DeviceMemoryBuffer::create_with(arena.clone(), layout(64), 0).unwrap());
    faults.fail_all(Operation::Deallocate);
    let before = free_failure_count();

    drop(arena);

    assert!(free_failure_count() > before);
}

#[test]
#[expect(unsafe_code, reason = "breaks the contract, which is to be found")]
fn a_block_that_is_not_of_the_arena_is_not_taken_back() {
    let fake = fake(1 << 30);
    let arena = arena(&fake, 4096);
    let kept = create(&arena, 64);
    let foreign = fake.allocate(layout(64), 0).unwrap();

    // SAFETY: this breaks the contract; the arena does nothing on it.
    let error = unsafe { arena.deallocate(foreign, layout(64), 0) }.unwrap_err();

    assert_eq!(
        error.to_string(),
        format!("deallocate on cuda:0 failed: no live block at {foreign}")
    );
    assert_eq!(arena.status(0).in_use, 64);
    // SAFETY: the block is the fake's own, and freed once.
    unsafe { fake.deallocate(foreign, layout(64), 0) }.unwrap();
    drop(kept);
    drop(arena);
    fake.assert_clean();
}

#[test]
fn a_chunk_with_a_block_that_nobody_frees_is_leaked_and_not_given_back() {
    let fake = fake(1 << 30);
    let arena = Arena::over(fake.clone(), 4096);
    let ptr = arena.allocate(layout(64), 0).unwrap();

    drop(arena);

    assert_eq!(fake.live_blocks(), 1);
    assert!(fake.contents(ptr, 64).is_some());
}

/// What a model of the arena does.
#[derive(Clone, Debug)]
enum Step {
    Create(usize, u32),
    Free(usize),
    Checkpoint,
    Rollback,
    Trim,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (1_usize..3000, 0_u32..10).prop_map(|(size, align)| Step::Create(size, align)),
        5 => any::<usize>().prop_map(Step::Free),
        1 => Just(Step::Checkpoint),
        1 => Just(Step::Rollback),
        1 => Just(Step::Trim),
    ]
}

proptest! {
    #[test]
    fn live_blocks_never_overlap_and_checkpoints_count_those_since(
        steps in proptest::collection::vec(step(), 1..200)
    ) {
        let fake = fake(1 << 30);
        let arena = arena(&fake, 4096);
        let mut live: Vec<(u64, DeviceMemoryBuffer)> = Vec::new();
        let mut points = Vec::new();
        let mut time = 0;

        for step in steps {
            time += 1;
            match step {
                Step::Create(size, exponent) => {
                    let layout = DeviceLayout::new(size, 1 << exponent).unwrap();
                    let buffer = DeviceMemoryBuffer::create_with(arena.clone(), layout, 0).unwrap();
                    live.push((time, buffer));
                }
                Step::Free(at) if !live.is_empty() => {
                    live.swap_remove(at % live.len());
                }
                Step::Free(_) => {}
                Step::Checkpoint => points.push((time, arena.checkpoint(0).unwrap())),
                Step::Rollback => {
                    points.pop();
                }
                Step::Trim => {
                    arena.trim(0).unwrap();
                }
            }
            for (since, point) in &points {
                let expected = live.iter().filter(|(made, _)| made > since).count();
                prop_assert_eq!(point.live_blocks(), expected);
                prop_assert_eq!(point.rollback().is_ok(), expected == 0);
            }
            let by_addr: BTreeMap<usize, usize> =
                live.iter().map(|(_, buffer)| (buffer.ptr().addr(), buffer.size())).collect();
            prop_assert_eq!(by_addr.len(), live.len());
            for (low, high) in by_addr.iter().zip(by_addr.iter().skip(1)) {
                prop_assert!(low.0 + low.1 <= *high.0);
            }
            let in_use: usize = live.iter().map(|(_, buffer)| buffer.size()).sum();
            prop_assert_eq!(arena.status(0).in_use, in_use);
            prop_assert_eq!(arena.status(0).reserved, fake.live_bytes());
        }
        drop(points);
        drop(live);
        arena.trim(0).unwrap();
        prop_assert_eq!(fake.live_bytes(), 0);
        fake.assert_clean();
    }
}
