//! A recorder keeps what happened, in order, and never more than it may.

use std::sync::Arc;
use std::thread;

use device_memory::adaptor::recorder::{Action, Event, Layer, RecordedBlock};
use device_memory::adaptor::{Observer, PoolBuilder, Recorded, RecordedSegments, Recorder};
use device_memory::testing::{FakeDevice, FaultInjector, conformance};
use device_memory::{
    BlockPool, Device, DeviceAllocator, DeviceIndex, DeviceLayout, DeviceMemoryBuffer, DevicePtr,
    DeviceType, Operation, Result, Tag,
};

fn fake() -> FakeDevice {
    FakeDevice::new(DeviceType::Cuda, 2)
}

/// A recorder that is on, and an allocator that it watches.
fn watched(capacity: usize) -> (Recorder, Arc<Recorded<FakeDevice>>) {
    let recorder = Recorder::new(capacity);
    recorder.start();
    let allocator = Arc::new(Recorded::over(fake(), &recorder));
    (recorder, allocator)
}

fn create(allocator: &Arc<Recorded<FakeDevice>>, size: usize, tag: Tag) -> DeviceMemoryBuffer {
    let layout = DeviceLayout::from_size(size).unwrap().with_tag(tag);
    DeviceMemoryBuffer::create_with(allocator.clone(), layout, 1).unwrap()
}

fn actions(recorder: &Recorder) -> Vec<Action> {
    let recording = recorder.recording();
    recording
        .events()
        .iter()
        .map(|event| event.action)
        .collect()
}

#[test]
fn it_keeps_the_contract_of_an_allocator() {
    let fake = fake();
    let recorder = Recorder::new(100);
    recorder.start();

    conformance::run(&Recorded::over(fake.clone(), &recorder)).unwrap();
    conformance::run(&RecordedSegments::over(fake.clone(), &recorder)).unwrap();

    fake.assert_clean();
    assert_eq!(recorder.recording().blocks(), []);
    assert_eq!(recorder.recording().segments(), []);
}

#[test]
fn nothing_is_recorded_until_it_is_started() {
    let recorder = Recorder::new(10);
    let allocator = Arc::new(Recorded::over(fake(), &recorder));

    let early = create(&allocator, 64, Tag::NONE);

    assert!(!recorder.is_on());
    assert_eq!(recorder.recording().events(), []);
    recorder.start();
    drop(early);
    assert_eq!(actions(&recorder), [Action::Free]);
    assert_eq!(recorder.recording().blocks(), []);
}

#[test]
fn an_event_says_when_where_who_and_what_for() {
    let (recorder, allocator) = watched(10);

    let buffer = create(&allocator, 4096, Tag::KV_CACHE);
    let address = buffer.ptr().addr();
    thread::spawn(move || drop(buffer)).join().unwrap();

    let recording = recorder.recording();
    let [allocated, freed]: [Event; 2] = recording.events().try_into().unwrap();
    assert_eq!(allocated.action, Action::Allocate);
    assert_eq!(allocated.layer, Layer::Blocks);
    assert_eq!(allocated.device, Device::new(DeviceType::Cuda, 1));
    assert_eq!((allocated.address, allocated.size), (address, 4096));
    assert_eq!(allocated.tag, Tag::KV_CACHE);
    assert_eq!(freed.action, Action::Free);
    assert_eq!(
        (freed.address, freed.size, freed.tag),
        (address, 4096, Tag::KV_CACHE)
    );
    assert_ne!(allocated.thread, freed.thread);
    assert!(allocated.time <= freed.time && freed.time <= recording.taken());
}

#[test]
fn a_full_ring_loses_the_oldest_events_and_counts_them() {
    let (recorder, allocator) = watched(3);

    let kept = create(&allocator, 64, Tag::WEIGHTS);
    for size in 1..=4 {
        drop(create(&allocator, size, Tag::NONE));
    }

    let recording = recorder.recording();
    assert_eq!(recording.events().len(), 3);
    assert_eq!(recording.lost(), 6);
    assert_eq!(recording.events()[2].size, 4);
    assert_eq!(recording.blocks().len(), 1);
    assert_eq!(recording.blocks()[0].tag, Tag::WEIGHTS);
    drop(kept);
    assert_eq!(recorder.recording().blocks(), []);
}

#[test]
fn a_ring_of_no_events_still_knows_what_is_live() {
    let (recorder, allocator) = watched(0);

    let _buffer = create(&allocator, 64, Tag::NONE);

    assert_eq!(recorder.recording().events(), []);
    assert_eq!(recorder.recording().lost(), 1);
    assert_eq!(recorder.recording().blocks().len(), 1);
}

#[test]
fn stopping_keeps_what_was_recorded_and_starting_forgets_it() {
    let (recorder, allocator) = watched(10);
    let buffer = create(&allocator, 64, Tag::NONE);

    recorder.stop();
    drop(buffer);

    assert_eq!(actions(&recorder), [Action::Allocate]);
    assert_eq!(recorder.recording().blocks().len(), 1);
    recorder.start();
    assert_eq!(actions(&recorder), []);
    assert_eq!(recorder.recording().blocks(), []);
}

#[test]
fn a_failed_free_leaves_the_block_live() {
    let recorder = Recorder::new(10);
    recorder.start();
    let injector = FaultInjector::new(fake());
    let faults = injector.faults();
    let allocator = Arc::new(Recorded::over(injector, &recorder));
    let layout = DeviceLayout::from_size(64).unwrap();
    let buffer = DeviceMemoryBuffer::create_with(allocator, layout, 0).unwrap();
    faults.fail_nth(Operation::Deallocate, 1);

    let made = recorder.recording().blocks().to_vec();
    let failure = thread::scope(|scope| scope.spawn(|| buffer.free()).join().unwrap());
    let failure = failure.unwrap_err();

    assert_eq!(
        actions(&recorder),
        [Action::Allocate, Action::Free, Action::FreeFailed]
    );
    // When it was allocated and by whom, not when it was to be freed.
    assert_eq!(recorder.recording().blocks(), made);
    failure.buffer.free().unwrap();
    assert_eq!(recorder.recording().blocks(), []);
}

#[test]
fn running_out_of_memory_is_told_from_other_failures() {
    let recorder = Recorder::new(10);
    recorder.start();
    let fake = FakeDevice::builder(DeviceType::Cuda).capacity(100).build();
    let allocator = Recorded::over(fake, &recorder);
    let layout = DeviceLayout::from_size(1000).unwrap();

    allocator.allocate(layout, 0).unwrap_err();
    allocator.allocate(layout, 7).unwrap_err();

    let out_of_memory = Action::OutOfMemory {
        device_free: Some(100),
    };
    assert_eq!(actions(&recorder)[0], out_of_memory);
    assert!(!actions(&recorder)[1..].contains(&out_of_memory));
}

#[test]
fn what_is_trimmed_is_recorded() {
    let recorder = Recorder::new(10);
    recorder.start();

    recorder.trimmed(Device::CPU, 4096);

    let recording = recorder.recording();
    assert_eq!(recording.events()[0].action, Action::Trim);
    assert_eq!(recording.events()[0].size, 4096);
}

/// Answers `trim` with a number, and asks the recorder what it has seen when it
/// gets a block back.
#[derive(Debug)]
struct Below {
    fake: FakeDevice,
    recorder: Recorder,
}

// SAFETY: all calls are those of the fake; only `trim` is another, which says
// what is not so to no one who relies on it.
#[expect(unsafe_code, reason = "implements an unsafe trait")]
unsafe impl DeviceAllocator for Below {
    forward_copies!(fake);

    fn device_type(&self) -> DeviceType {
        self.fake.device_type()
    }

    fn device_count(&self) -> usize {
        self.fake.device_count()
    }

    fn allocate(&self, layout: DeviceLayout, index: DeviceIndex) -> Result<DevicePtr> {
        self.fake.allocate(layout, index)
    }

    unsafe fn deallocate(
        &self,
        ptr: DevicePtr,
        layout: DeviceLayout,
        index: DeviceIndex,
    ) -> Result<()> {
        assert_eq!(self.recorder.recording().blocks(), []);
        // SAFETY: the caller's promises are the same.
        unsafe { self.fake.deallocate(ptr, layout, index) }
    }

    fn trim(&self, _: DeviceIndex) -> Result<usize> {
        Ok(512)
    }
}

#[test]
fn a_free_is_recorded_before_the_address_can_be_another_block() {
    let recorder = Recorder::new(10);
    recorder.start();
    let below = Below {
        fake: fake(),
        recorder: recorder.clone(),
    };
    let allocator = Arc::new(Recorded::over(below, &recorder));
    let layout = DeviceLayout::from_size(64).unwrap();

    let buffer = DeviceMemoryBuffer::create_with(allocator.clone(), layout, 0).unwrap();
    buffer.free().unwrap();

    assert_eq!(allocator.trim(0).unwrap(), 512);
    assert_eq!(
        actions(&recorder),
        [Action::Allocate, Action::Free, Action::Trim]
    );
}

#[test]
fn threads_share_a_recorder_and_lose_nothing() {
    const THREADS: usize = 8;
    const EACH: usize = 200;
    let (recorder, allocator) = watched(THREADS * EACH * 2);

    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for size in 1..=EACH {
                    drop(create(&allocator, size, Tag::SCRATCH));
                }
            });
        }
    });

    let recording = recorder.recording();
    let times: Vec<_> = recording.events().iter().map(|event| event.time).collect();
    let threads: std::collections::BTreeSet<_> = recording
        .events()
        .iter()
        .map(|event| event.thread)
        .collect();
    assert_eq!(recording.events().len(), THREADS * EACH * 2);
    assert_eq!(recording.lost(), 0);
    assert_eq!(recording.blocks(), []);
    assert!(times.is_sorted());
    assert_eq!(threads.len(), THREADS);
}

/// A pool between a recorder of its blocks and one of its segments.
#[test]
fn the_blocks_of_a_pool_lie_in_the_segments_that_are_recorded_below_it() {
    let fake = fake();
    let recorder = Recorder::new(1000);
    recorder.start();
    let segments = RecordedSegments::over(fake.clone(), &recorder);
    let pool = PoolBuilder::new().growth(1 << 16).build(segments);
    let allocator = Arc::new(Recorded::over(pool, &recorder));
    let layout = |size| DeviceLayout::from_size(size).unwrap();
    let create = |size| DeviceMemoryBuffer::create_with(allocator.clone(), layout(size), 0);
    let held: Vec<_> = (1..100).map(|n| create(n * 300).unwrap()).collect();

    let recording = recorder.recording();
    drop(held);
    let emptied = recorder.recording();
    allocator.trim(0).unwrap();
    let trimmed = recorder.recording();

    assert_eq!(recording.blocks().len(), 99);
    for block in recording.blocks() {
        let inside = recording.segments().iter().any(|segment| {
            segment.address <= block.address
                && block.address + block.size <= segment.address + segment.size
        });
        assert!(inside, "{block:?}");
    }
    let bytes = |of: &[RecordedBlock]| of.iter().map(|block| block.size).sum::<usize>();
    assert_eq!(bytes(emptied.blocks()), 0);
    assert_eq!(bytes(emptied.segments()), bytes(recording.segments()));
    assert_eq!(trimmed.segments(), []);
    let trims = trimmed
        .events()
        .iter()
        .filter(|event| event.action == Action::Trim);
    assert_eq!(
        trims.map(|event| event.size).sum::<usize>(),
        bytes(recording.segments())
    );
    fake.assert_clean();
}

/// Shares of a block are no allocations: what is seen is the memory of all blocks.
#[test]
fn a_block_pool_is_one_allocation_however_its_blocks_are_shared_and_copied() {
    let (recorder, allocator) = watched(100);
    let pool = BlockPool::new(create(&allocator, 4096, Tag::KV_CACHE), 1024).unwrap();
    let before = recorder.recording();

    let mut prompt = pool.block().unwrap();
    prompt.make_mut().unwrap().fill(1).unwrap();
    let mut answer = prompt.fork();
    answer.make_mut().unwrap().fill(2).unwrap();
    let during = recorder.recording();
    let places = [&prompt, &answer].map(|block| block.span().ptr().addr());
    drop((prompt, answer, pool));
    let after = recorder.recording();

    assert_eq!(during.events(), before.events());
    let [whole] = during.blocks() else {
        panic!("{:?}", during.blocks());
    };
    assert_eq!((whole.size, whole.tag), (4096, Tag::KV_CACHE));
    assert_ne!(places[0], places[1]);
    for place in places {
        assert!((whole.address..whole.address + whole.size).contains(&place));
    }
    assert!(
        during
            .report(5)
            .contains("4 KiB in use in 1 blocks; peak 4 KiB at ")
    );
    assert_eq!(during.to_html().matches("<rect class=\"t0\"").count(), 1);
    assert_eq!(after.blocks(), []);
    let seen: Vec<_> = after.events().iter().map(|event| event.action).collect();
    assert_eq!(seen, [Action::Allocate, Action::Free]);
}
