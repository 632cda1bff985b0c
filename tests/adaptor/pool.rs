//! A pool keeps memory, joins it, hands it out again, and says where it is.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use device_memory::adaptor::{Pool, PoolBuilder, PoolCounters};
use device_memory::testing::conformance::Conformance;
use device_memory::testing::{
    FakeDevice, FaultInjector, conformance, fail_each_call, panic_each_call,
};
use device_memory::{
    Attempt, DeviceAllocator, DeviceLayout, DeviceMemoryBuffer, DeviceType, Error, ErrorKind,
    HostAllocator, Operation, Result, Tag, free_failure_count,
};
use proptest::prelude::*;

use crate::callbacks::in_time;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

fn fake(capacity: usize) -> FakeDevice {
    FakeDevice::builder(DeviceType::Cuda)
        .devices(2)
        .capacity(capacity)
        .build()
}

fn layout(size: usize) -> DeviceLayout {
    DeviceLayout::from_size(size).unwrap()
}

fn create<A: DeviceAllocator + 'static>(pool: &Pool<A>, size: usize) -> Result<DeviceMemoryBuffer> {
    DeviceMemoryBuffer::create_with(Arc::new(pool.clone()), layout(size), 0)
}

#[test]
fn it_keeps_the_contract_of_an_allocator() {
    let fake = fake(256 * MIB);
    for cache_limit in [0, 64 * KIB] {
        let pool = PoolBuilder::new()
            .growth(MIB)
            .cache_limit(cache_limit)
            .build(fake.clone());

        conformance::run(&pool).unwrap();

        assert_eq!(pool.status(0).unwrap().in_use, 0);
        drop(pool);
        fake.assert_clean();
    }
}

#[test]
fn over_the_host_it_keeps_the_contract_and_the_right_to_use_the_bytes() {
    let pool = PoolBuilder::new().growth(MIB).build(HostAllocator);

    conformance::run(&pool).unwrap();
    let mut buffer = create(&pool, 100).unwrap();
    buffer.as_slice_mut().unwrap().fill(7);

    assert_eq!(buffer.to_vec().unwrap(), [7; 100]);
}

#[test]
fn pools_over_pools_keep_the_contract() {
    let fake = fake(256 * MIB);
    let inner = PoolBuilder::new().growth(8 * MIB).build(fake.clone());
    let outer = PoolBuilder::new().growth(MIB).build(inner);

    Conformance::new(&outer).devices([0]).run().unwrap();

    drop(outer);
    fake.assert_clean();
}

// https://github.com/pytorch/pytorch/issues/189504
#[test]
fn fragmented_pool_reports() {
    let fake = fake(MIB);
    let pool = PoolBuilder::new()
        .growth(MIB)
        .limit(MIB)
        .cache_limit(0)
        .build(fake.clone());
    let mut buffers: Vec<_> = (0..256).map(|_| create(&pool, 4 * KIB).ok()).collect();
    for buffer in buffers.iter_mut().step_by(2) {
        *buffer = None;
    }

    let error = create(&pool, 8 * KIB).unwrap_err();

    let report = error.out_of_memory().unwrap();
    assert_eq!(report.requested, 8 * KIB);
    assert_eq!(report.in_use, Some(MIB / 2));
    assert_eq!(report.reserved, Some(MIB));
    assert_eq!(report.limit, Some(MIB));
    assert_eq!(report.largest_free, Some(4 * KIB));
    let status = pool.status(0).unwrap();
    assert_eq!((status.free, status.largest_free), (MIB / 2, 4 * KIB));
    assert!(status.fragmentation() > 0.99);
    assert_eq!(
        error.to_string(),
        "out of memory on cuda:0: 8192 bytes requested (align 64), 524288 in use, \
         1048576 reserved, limit 1048576, largest free block 4096, 0 of 1048576 free on the device; \
         tried search, drain, search, drain, search, trim"
    );

    buffers.clear();
    assert_eq!(pool.status(0).unwrap().largest_free, MIB);
    assert_eq!(pool.status(0).unwrap().fragmentation(), 0.0);
    assert_eq!(pool.trim(0).unwrap(), MIB);
    fake.assert_clean();
}

#[test]
fn the_smallest_block_that_holds_a_request_is_given() {
    let pool = PoolBuilder::new().cache_limit(0).build(fake(64 * MIB));
    let sizes = [64, 16, 1, 32, 1, 20, 1];
    let mut buffers: Vec<_> = sizes.map(|kib| create(&pool, kib * KIB).ok()).into();
    let place = buffers[5].as_ref().unwrap().ptr();
    for at in [1, 3, 5] {
        buffers[at] = None;
    }

    let fitting = create(&pool, 18 * KIB).unwrap();

    assert_eq!(fitting.ptr(), place);
}

#[test]
fn large_blocks_are_kept_while_three_times_as_much_is_held_as_was_ever_in_use() {
    let pool = PoolBuilder::new()
        .initial(4096 * MIB)
        .build(fake(4096 * MIB));
    let first = create(&pool, 16 * MIB).unwrap();
    let place = first.ptr();
    drop(first);
    assert_eq!(pool.status(0).unwrap().cached, 16 * MIB);

    let again = create(&pool, 16 * MIB).unwrap();

    assert_eq!(again.ptr(), place);
    assert_eq!(pool.counters(0).unwrap().cache_hits, 1);
    let larger_than_a_64th = create(&pool, 65 * MIB).unwrap();
    drop(larger_than_a_64th);
    assert_eq!(pool.status(0).unwrap().cached, 0);
    let most = create(&pool, 1400 * MIB).unwrap();
    drop((again, most));
    assert_eq!(pool.status(0).unwrap().cached, 0);
    assert_eq!(pool.status(0).unwrap().largest_free, 4096 * MIB);
}

#[test]
fn a_limit_of_what_is_kept_holds_however_much_is_free() {
    for (limit, kept) in [(0, 0), (16 * MIB - 1, 0), (16 * MIB, 16 * MIB)] {
        let pool = PoolBuilder::new().initial(4096 * MIB).cache_limit(limit);
        let pool = pool.build(fake(4096 * MIB));

        drop(create(&pool, 16 * MIB).unwrap());

        assert_eq!(pool.status(0).unwrap().cached, kept, "{limit}");
    }
}

#[test]
fn a_large_block_that_is_kept_is_there_for_a_request_that_needs_its_room() {
    let pool = PoolBuilder::new().initial(4096 * MIB).limit(4096 * MIB);
    let pool = pool.build(fake(4096 * MIB));
    let places = [48; 16].map(|mib| create(&pool, mib * MIB).unwrap());
    drop(places);
    assert!(pool.status(0).unwrap().cached > 0);

    let whole = create(&pool, 4096 * MIB).unwrap();

    assert_eq!(whole.size(), 4096 * MIB);
    assert_eq!(pool.status(0).unwrap().cached, 0);
}

#[test]
fn a_small_block_that_was_freed_is_had_again_without_a_search() {
    let pool = Pool::over(fake(64 * MIB));
    let place = create(&pool, 1000).unwrap().ptr();
    let searches = pool.counters(0).unwrap().searches;
    let status = pool.status(0).unwrap();
    assert_eq!((status.in_use, status.cached), (0, 1024));

    let again = create(&pool, 900).unwrap();

    assert_eq!(again.ptr(), place);
    let counters = pool.counters(0).unwrap();
    assert_eq!((counters.searches, counters.cache_hits), (searches, 1));
    let status = pool.status(0).unwrap();
    assert_eq!((status.in_use, status.cached), (1024, 0));
}

#[test]
fn a_block_that_is_not_asked_for_again_is_joined_with_its_neighbours_in_time() {
    let pool = Pool::over(fake(64 * MIB));
    drop(create(&pool, 1000).unwrap());
    assert_eq!(pool.status(0).unwrap().cached, 1024);

    // Of a size that is not kept, so that each is searched for.
    for _ in 0..512 {
        drop(create(&pool, 3 * MIB).unwrap());
    }

    let status = pool.status(0).unwrap();
    assert_eq!((status.cached, status.largest_free), (0, 32 * MIB));
}

#[test]
fn a_large_block_has_what_is_kept_joined_first_where_memory_is_short() {
    for (reserved, cached) in [(32 * MIB, 0), (128 * MIB, 1024)] {
        let builder = PoolBuilder::new().initial(reserved);
        let pool = builder.build(fake(128 * MIB));
        drop(create(&pool, 1000).unwrap());

        let large = create(&pool, 16 * MIB - 2048).unwrap();

        assert_eq!(pool.status(0).unwrap().cached, cached, "of {reserved}");
        drop(large);
    }
}

#[test]
fn large_blocks_and_small_ones_are_at_different_ends() {
    let pool = Pool::over(fake(64 * MIB));

    let sizes = [4, 8, 4, 16].map(|mib| create(&pool, mib * MIB).unwrap());

    let [first, rest @ ..] = sizes.each_ref().map(|buffer| buffer.ptr().addr());
    let offsets = rest.map(|place| place - first);
    assert_eq!(offsets, [24 * MIB, 4 * MIB, 8 * MIB]);
}

#[test]
fn persistent_memory_is_in_segments_of_its_own() {
    let fake = fake(64 * MIB);
    let pool = PoolBuilder::new().growth(MIB).build(fake.clone());
    let weights = layout(1000).with_tag(Tag::WEIGHTS);
    let mut kept = Vec::new();
    let mut scratch = Vec::new();
    for _ in 0..64 {
        let buffer = DeviceMemoryBuffer::create_with(Arc::new(pool.clone()), weights, 0).unwrap();
        kept.push(buffer);
        scratch.push(create(&pool, 8 * KIB).unwrap());
    }
    let status = pool.status(0).unwrap();
    assert_eq!((status.reserved, status.persistent), (2 * MIB, MIB));

    scratch.clear();

    assert_eq!(pool.trim(0).unwrap(), MIB);
    let tags: Vec<_> = fake.live().iter().map(|live| live.layout.tag()).collect();
    assert_eq!(tags, [Tag::WEIGHTS]);
    assert_eq!(pool.status(0).unwrap().reserved, MIB);
}

// https://github.com/microsoft/onnxruntime/issues/9509
// https://github.com/microsoft/onnxruntime/issues/14474
#[test]
fn trim_gives_back_what_is_unused_and_says_how_much() {
    let fake = fake(64 * MIB);
    let pool = PoolBuilder::new().growth(MIB).build(fake.clone());
    let kept = create(&pool, 300).unwrap();
    let large = create(&pool, 3 * MIB).unwrap();
    assert_eq!(pool.trim(0).unwrap(), 0);
    drop(large);

    assert_eq!(pool.trim(0).unwrap(), 3 * MIB);

    assert_eq!(fake.live_bytes(), MIB);
    drop(kept);
    assert_eq!(
        pool.trim(0).unwrap(),
        MIB,
        "small blocks that were kept too"
    );
    assert_eq!(
        (pool.trim(0).unwrap(), pool.counters(0).unwrap().released),
        (0, 2)
    );
    fake.assert_clean();
}

#[test]
fn more_than_the_threshold_is_not_kept() {
    let fake = fake(64 * MIB);
    let pool = PoolBuilder::new()
        .growth(MIB)
        .release_threshold(2 * MIB)
        .build(fake.clone());
    let mut buffers: Vec<_> = (0..4).map(|_| create(&pool, MIB).unwrap()).collect();
    assert_eq!(fake.live_bytes(), 4 * MIB);

    buffers.clear();

    assert_eq!(fake.live_bytes(), 2 * MIB);
    assert_eq!(pool.status(0).unwrap().reserved, 2 * MIB);
}

#[test]
fn segments_that_are_too_small_are_given_back_for_one_that_is_not() {
    let fake = fake(64 * MIB);
    let pool = PoolBuilder::new().growth(MIB).build(fake.clone());
    let kept = create(&pool, MIB).unwrap();
    let buffers = [3, 2, 6].map(|mib| create(&pool, mib * MIB).unwrap());
    assert_eq!(fake.live_bytes(), 12 * MIB);
    drop(buffers);

    let large = create(&pool, 8 * MIB).unwrap();

    assert_eq!((fake.live_bytes(), fake.peak_bytes()), (9 * MIB, 12 * MIB));
    let counters = pool.counters(0).unwrap();
    assert_eq!((counters.trims, counters.released), (1, 3));
    drop((kept, large));
}

// https://github.com/cupy/cupy/issues/7678
#[test]
fn unused_segments_make_room_for_what_they_do_not_fit() {
    let fake = fake(4 * MIB);
    let pool = PoolBuilder::new().growth(MIB).build(fake.clone());
    let buffers: Vec<_> = (0..4).map(|_| create(&pool, MIB).unwrap()).collect();
    drop(buffers);

    let all = create(&pool, 4 * MIB).unwrap();

    let counters = pool.counters(0).unwrap();
    assert_eq!((counters.trims, counters.released), (1, 4));
    drop(all);
}

/// What `work` adds to the counters of the first device.
fn counted<A: DeviceAllocator + 'static>(pool: &Pool<A>, work: impl FnOnce()) -> PoolCounters {
    let before = pool.counters(0).unwrap();
    work();
    let after = pool.counters(0).unwrap();
    let mut added = PoolCounters::default();
    added.cache_hits = after.cache_hits - before.cache_hits;
    added.searches = after.searches - before.searches;
    added.found = after.found - before.found;
    added.drains = after.drains - before.drains;
    added.trims = after.trims - before.trims;
    added.upstream = after.upstream - before.upstream;
    added.grown = after.grown - before.grown;
    added.released = after.released - before.released;
    added.hooks = after.hooks - before.hooks;
    added.failures = after.failures - before.failures;
    added
}

/// Counters of which those that are named are not 0.
macro_rules! counters {
    ($($counter:ident: $times:expr),+) => {{
        let mut counters = PoolCounters::default();
        $(counters.$counter = $times;)+
        counters
    }};
}

#[test]
fn each_rung_is_counted_as_often_as_it_is_tried_and_no_other_is() {
    let victims = Arc::new(Mutex::new(Vec::new()));
    let held = Arc::clone(&victims);
    let fake = fake(4 * MIB);
    let pool = PoolBuilder::new()
        .growth(2 * MIB)
        .on_out_of_memory(move |_| held.lock().unwrap().pop().is_some())
        .build(fake.clone());
    let kept = Mutex::new(Vec::new());
    let keep_for = |tag, size| {
        let layout = layout(size).with_tag(tag);
        let made = DeviceMemoryBuffer::create_with(Arc::new(pool.clone()), layout, 0);
        kept.lock().unwrap().push(made.unwrap());
    };
    let keep = |size| keep_for(Tag::NONE, size);

    // Searched for, drained for and searched for on the way, then the layer below.
    assert_eq!(
        counted(&pool, || keep(1000)),
        counters! { searches: 3, drains: 1, upstream: 1, grown: 1 }
    );
    assert_eq!(
        counted(&pool, || keep(1000)),
        counters! { searches: 1, found: 1 }
    );
    assert_eq!(
        counted(&pool, || drop(kept.lock().unwrap().pop())),
        PoolCounters::default()
    );
    assert_eq!(counted(&pool, || keep(1000)), counters! { cache_hits: 1 });

    // Memory of the other kind is counted with it.
    assert_eq!(
        counted(&pool, || keep_for(Tag::WEIGHTS, 1)),
        counters! { searches: 3, drains: 1, upstream: 1, grown: 1 }
    );

    // All rungs, in vain. The layer below is asked for the growth and for the size.
    assert_eq!(
        counted(&pool, || drop(create(&pool, 1900 * KIB).unwrap())),
        counters! { searches: 1, found: 1 }
    );
    let refused = || drop(create(&pool, 3 * MIB).unwrap_err());
    assert_eq!(
        counted(&pool, refused),
        counters! { searches: 4, drains: 2, trims: 1, upstream: 1, hooks: 1, failures: 1 }
    );
    let smaller = || drop(create(&pool, 2 * MIB - 256).unwrap_err());
    assert_eq!(
        counted(&pool, smaller),
        counters! { searches: 4, drains: 2, trims: 1, upstream: 2, hooks: 1, failures: 1 }
    );

    // What is unused goes back for want of memory, and when the pool is told to.
    kept.lock().unwrap().clear();
    assert_eq!(
        counted(&pool, || keep(4 * MIB)),
        counters! { searches: 3, drains: 1, trims: 1, upstream: 1, grown: 1, released: 2 }
    );
    assert_eq!(
        counted(&pool, || victims
            .lock()
            .unwrap()
            .append(&mut kept.lock().unwrap())),
        PoolCounters::default()
    );

    // What the hook frees is found by the next search.
    assert_eq!(
        counted(&pool, || keep(MIB)),
        counters! { searches: 5, found: 1, drains: 2, trims: 1, upstream: 2, hooks: 1 }
    );
    kept.lock().unwrap().clear();
    assert_eq!(
        counted(&pool, || assert_eq!(pool.trim(0).unwrap(), 4 * MIB)),
        counters! { drains: 1, released: 1 }
    );

    // A failure that is no lack of memory ends it at the layer below.
    fake.shut_down();
    assert_eq!(
        counted(&pool, || drop(create(&pool, MIB).unwrap_err())),
        counters! { searches: 3, drains: 1, upstream: 1 }
    );
    assert_eq!(pool.counters(1).unwrap(), PoolCounters::default());
}

#[test]
fn less_than_the_growth_is_taken_where_there_is_not_so_much() {
    let fake = fake(3 * MIB);
    let pool = PoolBuilder::new().growth(2 * MIB).build(fake.clone());

    let both = [create(&pool, 2 * MIB).unwrap(), create(&pool, MIB).unwrap()];

    assert_eq!(fake.live_bytes(), 3 * MIB);
    drop(both);
}

#[test]
fn the_first_segment_is_as_large_as_was_asked() {
    let fake = fake(64 * MIB);
    let pool = PoolBuilder::new()
        .initial(8 * MIB)
        .growth(MIB)
        .build(fake.clone());

    let buffers = [create(&pool, MIB).unwrap(), create(&pool, 7 * MIB).unwrap()];

    assert_eq!((fake.live_blocks(), fake.live_bytes()), (1, 8 * MIB));
    drop(buffers);
}

#[test]
fn the_program_is_asked_to_make_room_under_no_lock_and_may_allocate() {
    in_time("a pool's hook", || {
        static POOL: OnceLock<Pool<FakeDevice>> = OnceLock::new();
        let held = Arc::new(Mutex::new(Vec::new()));
        let victims = Arc::clone(&held);
        let pool = PoolBuilder::new()
            .growth(MIB)
            .on_out_of_memory(move |report| {
                assert_eq!(report.requested, MIB);
                assert_eq!(report.tried.last(), Some(&Attempt::Hook));
                let pool = POOL.get().unwrap();
                let victim = victims.lock().unwrap().pop();
                let found = victim.is_some();
                drop(victim);
                if found {
                    // On another thread too, which would wait for a lock for ever.
                    thread::scope(|scope| scope.spawn(|| drop(create(pool, 100))).join().unwrap());
                    drop(create(pool, 300 * KIB));
                }
                found
            })
            .build(fake(2 * MIB));
        let pool = POOL.get_or_init(|| pool);
        let all: Vec<_> = (0..2).map(|_| create(pool, MIB).unwrap()).collect();
        held.lock().unwrap().extend(all);

        let third = create(pool, MIB).unwrap();
        let fourth = create(pool, MIB).unwrap();
        let error = create(pool, MIB).unwrap_err();

        assert!(error.is_out_of_memory());
        let counters = pool.counters(0).unwrap();
        assert_eq!((counters.hooks, counters.failures), (3, 1));
        drop((third, fourth));
    });
}

/// One that asked itself for ever would end the process.
#[test]
fn a_hook_that_finds_no_room_itself_is_not_asked_again_for_that() {
    static POOL: OnceLock<Pool<FakeDevice>> = OnceLock::new();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let pool = PoolBuilder::new()
        .on_out_of_memory(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            let error = create(POOL.get().unwrap(), 2 * MIB).unwrap_err();
            assert!(
                !error
                    .out_of_memory()
                    .unwrap()
                    .tried
                    .contains(&Attempt::Hook)
            );
            true
        })
        .build(fake(MIB));
    let pool = POOL.get_or_init(|| pool);

    let error = create(pool, 2 * MIB).unwrap_err();

    let tried = &error.out_of_memory().unwrap().tried;
    let hooks = tried.iter().filter(|tried| **tried == Attempt::Hook);
    assert_eq!((asked.load(Ordering::Relaxed), hooks.count()), (8, 8));
    let counters = pool.counters(0).unwrap();
    assert_eq!((counters.hooks, counters.failures), (8, 9));
}

#[test]
fn what_a_thread_kept_that_is_gone_is_given_back_in_time() {
    let pool = PoolBuilder::new().growth(MIB).build(fake(64 * MIB));
    thread::scope(|scope| {
        scope.spawn(|| drop(create(&pool, 100).unwrap()));
    });
    assert_eq!(pool.status(0).unwrap().cached, 256);

    // Of sizes that are not kept, so that each is searched for.
    for _ in 0..512 {
        drop(create(&pool, MIB / 2).unwrap());
    }

    assert_eq!(pool.status(0).unwrap().cached, 0);
}

#[test]
fn a_hook_that_panics_counts_as_a_refusal() {
    let pool = PoolBuilder::new()
        .on_out_of_memory(|_| panic!("no room"))
        .build(fake(MIB));

    let error = create(&pool, 2 * MIB).unwrap_err();

    assert!(error.is_out_of_memory());
    assert!(create(&pool, MIB).is_ok());
}

#[test]
fn a_failure_that_is_no_lack_of_memory_is_passed_on_as_it_is() {
    let fake = fake(64 * MIB);
    fake.shut_down();

    let error = create(&Pool::over(fake), 100).unwrap_err();

    assert!(error.is_shut_down(), "{error:?}");
}

#[test]
fn nothing_leaks_and_nothing_changes_whichever_call_below_fails() {
    let fake = fake(8 * MIB);
    let round = |injector: &Arc<FaultInjector<FakeDevice>>| {
        let pool = PoolBuilder::new().growth(MIB).build(Arc::clone(injector));
        let mut buffers = Vec::new();
        for size in [100, 2 * MIB, 300 * KIB, 100] {
            let before = pool.status(0)?;
            match create(&pool, size) {
                Ok(buffer) => buffers.push(buffer),
                Err(error) => {
                    assert_eq!(pool.status(0)?, before);
                    return Err(error);
                }
            }
        }
        buffers.remove(1);
        pool.trim(0)?;
        buffers.clear();
        pool.trim(0)?;
        assert_eq!(pool.status(0)?.in_use, 0);
        Ok::<_, Error>(())
    };

    let failed = fail_each_call(&fake, round).unwrap();
    let panicked = panic_each_call(&fake, round).unwrap();

    assert!(failed.calls >= 6, "{failed:?}");
    assert_eq!(failed.calls, panicked.calls);
    fake.assert_clean();
}

#[test]
fn a_segment_that_can_not_be_given_back_is_kept_and_used_again() {
    let fake = fake(2 * MIB);
    let injector = FaultInjector::new(fake.clone());
    let faults = injector.faults();
    let pool = PoolBuilder::new().growth(2 * MIB).build(injector);
    drop(create(&pool, MIB).unwrap());
    faults.fail_all(Operation::Deallocate);

    assert_eq!(pool.trim(0).unwrap(), 0);

    assert_eq!(pool.status(0).unwrap().reserved, 2 * MIB);
    let all = create(&pool, 2 * MIB).unwrap();
    faults.disarm();
    drop(all);
    assert_eq!(pool.trim(0).unwrap(), 2 * MIB);
    fake.assert_clean();
}

#[test]
fn a_pool_that_can_not_give_back_when_dropped_tells_of_it() {
    let fake = fake(2 * MIB);
    let injector = FaultInjector::new(fake.clone());
    let faults = injector.faults();
    let pool = PoolBuilder::new().build(injector);
    drop(create(&pool, MIB).unwrap());
    faults.fail_all(Operation::Deallocate);
    let before = free_failure_count();

    drop(pool);

    assert!(free_failure_count() > before);
    assert_eq!(fake.live_blocks(), 1);
}

#[test]
fn a_pool_that_is_dropped_leaves_a_segment_in_which_a_block_is_allocated() {
    let fake = fake(8 * MIB);
    let pool = PoolBuilder::new().growth(MIB).build(fake.clone());
    let raw = pool.allocate(layout(300 * KIB), 0).unwrap();
    drop(create(&pool, 2 * MIB).unwrap());

    drop(pool);

    let live = fake.live();
    assert_eq!(live.len(), 1);
    assert_eq!(live[0].ptr, raw);
}

#[test]
#[expect(unsafe_code, reason = "calls an unsafe trait, against its contract")]
fn an_address_that_is_no_block_of_the_pool_is_refused() {
    let pool = PoolBuilder::new().cache_limit(0).build(fake(64 * MIB));
    let ptr = pool.allocate(layout(4096), 0).unwrap();
    let inside = ptr.checked_add(256).unwrap();

    // SAFETY: it is refused before anything is done.
    let error = unsafe { pool.deallocate(inside, layout(4096), 0) }.unwrap_err();
    // SAFETY: the block is given back once.
    unsafe { pool.deallocate(ptr, layout(4096), 0) }.unwrap();
    // SAFETY: it is refused.
    let again = unsafe { pool.deallocate(ptr, layout(4096), 0) };

    assert!(matches!(error.kind(), ErrorKind::Backend { .. }));
    assert!(again.is_err());
    assert_eq!(pool.status(0).unwrap().in_use, 0);
}

#[test]
fn the_devices_of_a_pool_have_nothing_in_common() {
    let fake = fake(2 * MIB);
    let pool = Arc::new(PoolBuilder::new().growth(MIB).build(fake.clone()));
    let one = DeviceMemoryBuffer::create_with(pool.clone(), layout(MIB), 1).unwrap();

    assert_eq!(pool.status(0).unwrap().reserved, 0);
    assert_eq!(pool.status(1).unwrap().reserved, MIB);
    assert!(matches!(
        pool.status(2).unwrap_err().kind(),
        ErrorKind::InvalidDevice { count: 2, .. }
    ));
    drop(one);
}

#[test]
fn terabytes_are_handed_out_and_joined_again() {
    let fake = FakeDevice::new(DeviceType::Cuda, 1);
    let tebibyte = 1_usize << 40;
    let pool = PoolBuilder::new().initial(4 * tebibyte).build(fake.clone());
    let buffers: Vec<_> = (0..4).map(|_| create(&pool, tebibyte).unwrap()).collect();
    assert_eq!(fake.live_bytes(), 4 * tebibyte);

    drop(buffers);

    assert_eq!(pool.status(0).unwrap().largest_free, 4 * tebibyte);
    assert!(create(&pool, isize::MAX as usize - 64).is_err());
}

// https://github.com/rapidsai/rmm/issues/2002
#[test]
fn every_alignment_is_honoured_within_the_upstream_block() {
    let fake = FakeDevice::new(DeviceType::Cuda, 1);
    let pool = Arc::new(PoolBuilder::new().growth(MIB).build(fake.clone()));
    let strategy = (1..MIB, 0..=20_u32);
    proptest!(|((size, log2) in strategy)| {
        let layout = DeviceLayout::new(size, 1 << log2).unwrap();
        let buffer = DeviceMemoryBuffer::create_with(pool.clone(), layout, 0).unwrap();

        prop_assert!(buffer.ptr().is_aligned_to(1 << log2));
        let start = buffer.ptr().addr();
        let inside = fake.live().iter().any(|live| {
            let segment = live.ptr.addr();
            segment <= start && start + size <= segment + live.layout.size()
        });
        prop_assert!(inside);
    });
}

/// Blocks that are handed out, by address.
type Live = Mutex<BTreeMap<usize, usize>>;

fn enter(live: &Live, start: usize, size: usize) {
    let mut live = live.lock().unwrap();
    let before = live.range(..start + size).next_back();
    assert!(
        before.is_none_or(|(other, len)| other + len <= start),
        "handed out twice"
    );
    live.insert(start, size);
}

#[test]
fn eight_threads_are_given_no_byte_twice_and_all_of_it_comes_back() {
    let fake = fake(64 * MIB);
    let pool = Arc::new(PoolBuilder::new().growth(MIB).build(fake.clone()));
    let live = Live::default();
    let bag = Mutex::new(Vec::<DeviceMemoryBuffer>::new());
    let made = AtomicUsize::new(0);
    thread::scope(|scope| {
        for thread in 0..8_usize {
            let (pool, live, bag, made) = (&pool, &live, &bag, &made);
            scope.spawn(move || {
                let mut state = thread as u64 + 1;
                for _ in 0..2000 {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    let size = 1 + (state as usize >> 8) % (96 * KIB);
                    let buffer =
                        DeviceMemoryBuffer::create_with(pool.clone(), layout(size), 0).unwrap();
                    enter(live, buffer.ptr().addr(), size);
                    made.fetch_add(1, Ordering::Relaxed);
                    // Freed by whichever thread draws it.
                    let mut bag = bag.lock().unwrap();
                    bag.push(buffer);
                    let other = state as usize % bag.len();
                    let freed = (bag.len() > 64).then(|| bag.swap_remove(other));
                    drop(bag);
                    if let Some(freed) = freed {
                        live.lock().unwrap().remove(&freed.ptr().addr()).unwrap();
                        drop(freed);
                    }
                }
            });
        }
    });
    bag.lock().unwrap().clear();

    assert_eq!(made.load(Ordering::Relaxed), 16_000);
    let status = pool.status(0).unwrap();
    assert_eq!(status.in_use, 0);
    assert_eq!(status.reserved, status.free + status.cached);
    let counters = pool.counters(0).unwrap();
    // Hits of threads that share a group may be missed, none is counted twice.
    let served = counters.cache_hits + counters.found + counters.grown;
    assert!((8_000..=16_000).contains(&served), "{counters:?}");
    assert!(counters.upstream >= counters.grown);
    assert_eq!(counters.failures, 0);
    assert_eq!(pool.trim(0).unwrap(), status.reserved);
    fake.assert_clean();
}
