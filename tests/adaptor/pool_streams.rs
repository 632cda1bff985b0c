//! A pool over an allocator with streams: who may have a block that was freed
//! while work of a stream may still use it.

#![expect(unsafe_code, reason = "a test double of an unsafe trait")]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;

use device_memory::adaptor::{
    Fence, Pool, PoolBuilder, PoolOnStream, StreamAllocator, StreamId, StreamOrdered,
};
use device_memory::testing::conformance::Conformance;
use device_memory::testing::{FakeDevice, FaultInjector, fail_each_call, panic_each_call};
use device_memory::{
    Attempt, Device, DeviceAllocator, DeviceIndex, DeviceLayout, DeviceMemoryBuffer, DevicePtr,
    DeviceType, Error, ErrorKind, Operation, Result,
};

use crate::callbacks::in_time;

const MIB: usize = 1 << 20;
const CUDA_0: Device = Device::new(DeviceType::Cuda, 0);

/// A stream whose work is done when a test says so, or when it is waited for.
#[derive(Debug, Default)]
struct Stream {
    device: DeviceIndex,
    number: u64,
    given: AtomicU64,
    done: AtomicU64,
    fences: AtomicU64,
    waits: AtomicU64,
    broken: AtomicBool,
    /// What its fences ask when they are dropped.
    pool: OnceLock<Weak<Pool<Streams>>>,
    asked: AtomicU64,
}

impl Stream {
    fn new(number: u64) -> Arc<Self> {
        Self::on(0, number)
    }

    fn on(device: DeviceIndex, number: u64) -> Arc<Self> {
        Arc::new(Self {
            device,
            number,
            ..Self::default()
        })
    }

    fn give_work(&self) {
        self.given.fetch_add(1, Ordering::Relaxed);
    }

    fn finish(&self) {
        self.done
            .store(self.given.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    fn fences(&self) -> u64 {
        self.fences.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct Mark(Arc<Stream>, u64);

impl Drop for Mark {
    fn drop(&mut self) {
        if let Some(pool) = self.0.pool.get().and_then(Weak::upgrade) {
            pool.status(0).unwrap();
            self.0.asked.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Fence for Mark {
    fn is_done(&self) -> Result<bool> {
        Ok(self.0.done.load(Ordering::Relaxed) >= self.1)
    }

    fn wait(&self) -> Result<()> {
        self.0.waits.fetch_add(1, Ordering::Relaxed);
        self.0.done.fetch_max(self.1, Ordering::Relaxed);
        Ok(())
    }
}

/// An allocator whose work is in the order of such streams.
#[derive(Clone, Debug)]
struct Streams<A = FakeDevice>(A);

#[derive(Debug)]
struct Bound<A>(A, Arc<Stream>);

macro_rules! blocks_of_the_allocator {
    () => {
        fn device_type(&self) -> DeviceType {
            self.0.device_type()
        }
        fn device_count(&self) -> usize {
            self.0.device_count()
        }
        fn allocate(&self, layout: DeviceLayout, index: DeviceIndex) -> Result<DevicePtr> {
            self.0.allocate(layout, index)
        }
        unsafe fn deallocate(
            &self,
            ptr: DevicePtr,
            layout: DeviceLayout,
            index: DeviceIndex,
        ) -> Result<()> {
            // SAFETY: the caller's promises are the same.
            unsafe { self.0.deallocate(ptr, layout, index) }
        }
        forward_copies!(0);
    };
}

// SAFETY: it is the allocator by another name.
unsafe impl<A: DeviceAllocator> DeviceAllocator for Streams<A> {
    blocks_of_the_allocator!();
}

// SAFETY: it is the allocator by another name.
unsafe impl<A: DeviceAllocator> DeviceAllocator for Bound<A> {
    blocks_of_the_allocator!();
}

// SAFETY: fences compare counts of the stream; there is no driver.
unsafe impl<A: DeviceAllocator> StreamAllocator for Bound<A> {
    fn id(&self) -> StreamId {
        let number = self.1.number;
        let device = Device::new(DeviceType::Cuda, self.1.device);
        StreamId { device, number }
    }

    fn fence(&self) -> Result<Box<dyn Fence>> {
        if self.1.broken.load(Ordering::Relaxed) {
            let operation = Operation::Synchronize;
            return Err(Error::from(ErrorKind::Capturing {
                device: CUDA_0,
                operation,
            }));
        }
        self.1.fences.fetch_add(1, Ordering::Relaxed);
        let given = self.1.given.load(Ordering::Relaxed);
        Ok(Box::new(Mark(Arc::clone(&self.1), given)))
    }
}

// SAFETY: what is bound copies by the same allocator.
unsafe impl<A: DeviceAllocator + Clone + 'static> StreamOrdered for Streams<A> {
    type Stream = Arc<Stream>;
    type Bound = Bound<A>;

    fn bind(&self, stream: &Arc<Stream>) -> Result<Bound<A>> {
        Ok(Bound(self.0.clone(), Arc::clone(stream)))
    }
}

/// A pool over any allocator, in the order of a stream of its first device.
pub(crate) fn on_stream(below: Arc<dyn DeviceAllocator>) -> Arc<dyn DeviceAllocator> {
    let pool = PoolBuilder::new().growth(MIB).build(Streams(below));
    Arc::new(pool.on_stream(&Stream::new(1)).unwrap())
}

type Handle = Arc<PoolOnStream<Streams>>;

/// A stream, and a handle in its order.
type OnStream = (Arc<Stream>, Handle);

/// A device of 1 MiB, a pool that takes all of it at once, and two streams.
fn rig() -> (FakeDevice, Pool<Streams>, [OnStream; 2]) {
    let fake = FakeDevice::builder(DeviceType::Cuda).capacity(MIB).build();
    let pool = PoolBuilder::new().growth(MIB).build(Streams(fake.clone()));
    let streams = [1, 2].map(|number| {
        let stream = Stream::new(number);
        let handle = pool.on_stream(&stream).unwrap();
        (stream, Arc::new(handle))
    });
    (fake, pool, streams)
}

fn create(
    allocator: &Arc<impl DeviceAllocator + 'static>,
    size: usize,
) -> Result<DeviceMemoryBuffer> {
    let layout = DeviceLayout::from_size(size).unwrap();
    DeviceMemoryBuffer::create_with(Arc::clone(allocator) as Arc<dyn DeviceAllocator>, layout, 0)
}

#[test]
fn a_handle_keeps_the_contract_of_an_allocator() {
    let fake = FakeDevice::new(DeviceType::Cuda, 1);
    let pool = PoolBuilder::new().growth(MIB).build(Streams(fake.clone()));
    let handle = pool.on_stream(&Stream::new(1)).unwrap();

    Conformance::new(&handle).run().unwrap();

    assert_eq!(pool.status(0).unwrap().in_use, 0);
    drop((handle, pool));
    fake.assert_clean();
}

#[test]
fn a_handle_loses_nothing_whichever_call_fails_or_panics() {
    let fake = FakeDevice::new(DeviceType::Cuda, 1);
    let work = |injector: &Arc<FaultInjector<FakeDevice>>| -> Result<()> {
        let below = Streams(Arc::clone(injector));
        let pool = PoolBuilder::new().growth(MIB).cache_limit(0).build(below);
        let handles = [1, 2].map(|number| pool.on_stream(&Stream::new(number)));
        let [one, two] = handles;
        let (one, two) = (Arc::new(one?), Arc::new(two?));
        let mut first = create(&one, MIB / 2)?;
        first.fill(7)?;
        let second = create(&two, 2 * MIB)?;
        drop(first);
        let mut third = create(&two, MIB)?;
        third.copy_from_host_at(0, &second.to_vec()?[..MIB])?;
        third.free().map_err(|failure| failure.error)?;
        pool.trim(0)?;
        Ok(())
    };

    let failed = fail_each_call(&fake, |injector| work(injector)).unwrap();
    let panicked = panic_each_call(&fake, |injector| work(injector)).unwrap();

    assert!(failed.calls >= 6, "{failed:?}");
    assert_eq!(panicked.unwound, 0);
    fake.assert_clean();
}

#[test]
fn eight_threads_on_two_streams_share_no_byte_and_leave_the_device_whole() {
    let fake = FakeDevice::new(DeviceType::Cuda, 1);
    let pool = PoolBuilder::new().growth(MIB).build(Streams(fake.clone()));
    let streams = [1, 2].map(Stream::new);
    let handles = streams
        .each_ref()
        .map(|stream| pool.on_stream(stream).unwrap());
    let handles = handles.map(Arc::new);

    thread::scope(|scope| {
        for thread in 0..8_u8 {
            let (pool, streams, handles) = (&pool, &streams, &handles);
            scope.spawn(move || {
                let mut held = VecDeque::new();
                for round in 0..300_usize {
                    let (own, other) = (usize::from(thread % 2), usize::from(thread / 2 % 2));
                    let size = 256 * (1 + (round * 7 + usize::from(thread)) % 5);
                    let mut buffer = create(&handles[own], size).unwrap();
                    buffer.fill(thread).unwrap();
                    streams[own].give_work();
                    if round % 5 == 0 {
                        pool.record_use(buffer.ptr(), 0, &streams[other]).unwrap();
                    }
                    held.push_back(buffer);
                    if held.len() > 4 {
                        let oldest = held.pop_front().unwrap();
                        assert!(oldest.to_vec().unwrap().iter().all(|byte| *byte == thread));
                    }
                    if round % 100 == 99 {
                        pool.trim(0).unwrap();
                    }
                }
            });
        }
    });

    assert_eq!(pool.status(0).unwrap().in_use, 0);
    assert_eq!(pool.counters(0).unwrap().failures, 0);
    drop((handles, pool));
    fake.assert_clean();
}

#[test]
fn a_handle_serves_terabytes() {
    let fake = FakeDevice::builder(DeviceType::Cuda)
        .capacity(1 << 42)
        .build();
    let pool = Pool::over(Streams(fake.clone()));
    let handle = Arc::new(pool.on_stream(&Stream::new(1)).unwrap());

    let mut buffer = create(&handle, (1 << 40) + 5).unwrap();
    buffer.copy_from_host_at(1 << 40, b"end").unwrap();

    let mut end = [0; 3];
    buffer.copy_to_host_at(1 << 40, &mut end).unwrap();
    assert_eq!(&end, b"end");
    drop((buffer, handle, pool));
    fake.assert_clean();
}

#[test]
fn a_stream_has_its_own_block_again_at_once_and_without_a_fence() {
    let (_, pool, [(stream, handle), _]) = rig();
    for size in [100, MIB / 2] {
        let place = create(&handle, size).unwrap().ptr();
        for _ in 0..100 {
            stream.give_work();
            let again = create(&handle, size).unwrap();
            assert_eq!(again.ptr(), place);
        }
    }

    assert_eq!(stream.fences(), 0);
    assert!(pool.status(0).unwrap().waiting > 0);
}

#[test]
fn another_stream_has_a_block_only_when_the_work_is_done() {
    let (_, pool, [(first, one), (_, two)]) = rig();
    let place = create(&one, MIB / 2).unwrap().ptr();
    first.give_work();

    // There is other memory, so nobody waits.
    let other = create(&two, MIB / 2).unwrap();
    assert_ne!(other.ptr(), place);
    assert_eq!(first.fences(), 0);
    first.finish();
    let again = create(&two, MIB / 2).unwrap();

    assert_eq!(again.ptr(), place);
    assert_eq!(
        (first.fences(), first.waits.load(Ordering::Relaxed)),
        (1, 0)
    );
    assert_eq!(pool.status(0).unwrap().waiting, 0);
}

#[test]
fn a_large_block_that_a_stream_keeps_is_anothers_only_when_the_work_is_done() {
    let fake = FakeDevice::builder(DeviceType::Cuda);
    let fake = fake.capacity(1024 * MIB).build();
    let pool = PoolBuilder::new().initial(1024 * MIB).build(Streams(fake));
    let (first, second) = (Stream::new(1), Stream::new(2));
    let one = Arc::new(pool.on_stream(&first).unwrap());
    let two = Arc::new(pool.on_stream(&second).unwrap());
    let place = create(&one, 12 * MIB).unwrap().ptr();
    first.give_work();
    assert_eq!(pool.status(0).unwrap().waiting, 12 * MIB);

    let again = create(&one, 12 * MIB).unwrap();
    assert_eq!((again.ptr(), first.fences()), (place, 0));
    drop(again);
    let other = create(&two, 12 * MIB).unwrap();
    assert_ne!(other.ptr(), place);
    drop(other);
    first.finish();
    second.finish();

    let whole = create(&two, 1024 * MIB).unwrap();
    assert_eq!(pool.status(0).unwrap().waiting, 0);
    drop(whole);
}

// https://github.com/pytorch/pytorch/issues/189504
#[test]
fn pool_drains_then_retries() {
    let (fake, pool, [(stream, handle), _]) = rig();
    let plain = Arc::new(pool.clone());
    let one = create(&plain, MIB / 2).unwrap();
    let pending = create(&handle, MIB / 2).unwrap();
    stream.give_work();
    drop((one, pending));

    let all = create(&plain, MIB).unwrap();

    assert_eq!(all.size(), MIB);
    assert_eq!(stream.waits.load(Ordering::Relaxed), 1);
    // One before the segment was taken, two before the second.
    assert_eq!(pool.counters(0).unwrap().drains, 1 + 2);
    assert_eq!(fake.live_blocks(), 1);
}

#[test]
fn a_stream_has_the_rest_of_its_memory_while_a_fence_is_awaited() {
    let (_, _, [(first, one), (_, two)]) = rig();
    let place = create(&one, MIB / 2).unwrap().ptr();
    let kept = create(&two, MIB / 2).unwrap();
    first.give_work();
    first.broken.store(true, Ordering::Relaxed);
    let error = create(&two, MIB / 2).unwrap_err();

    let again = create(&one, MIB / 2).unwrap();

    assert_eq!(again.ptr(), place);
    let tried = &error.out_of_memory().unwrap().tried;
    assert!(tried.contains(&Attempt::Drain));
    drop(kept);
}

#[test]
fn a_block_that_others_use_is_nobodys_before_their_work_is_done() {
    let (_, pool, [(first, one), (second, two)]) = rig();
    let block = create(&one, MIB).unwrap();
    pool.record_use(block.ptr(), 0, &second).unwrap();
    pool.record_use(block.ptr(), 0, &first).unwrap();
    second.give_work();

    drop(block);

    assert_eq!((first.fences(), second.fences()), (0, 1));
    assert_eq!(pool.status(0).unwrap().waiting, MIB);
    second.finish();
    let again = create(&one, MIB).unwrap();
    assert_eq!(second.waits.load(Ordering::Relaxed), 0);
    drop(again);
    assert_eq!(second.fences(), 1, "a use is forgotten with its block");
    drop(two);
}

#[test]
fn a_use_of_a_part_of_a_block_is_one_of_the_block() {
    let (_, pool, [(_, one), (second, two)]) = rig();
    let block = create(&one, MIB).unwrap();
    let part = block.ptr().checked_add(MIB - 1).unwrap();
    pool.record_use(part, 0, &second).unwrap();
    second.give_work();

    drop(block);

    assert_eq!(second.fences(), 1);
    assert!(create(&one, 100).is_ok_and(|_| second.waits.load(Ordering::Relaxed) == 1));
    drop(two);
}

#[test]
fn a_use_of_memory_that_is_not_the_pools_is_refused_and_costs_nothing_later() {
    let (fake, pool, [(_, one), (second, _)]) = rig();
    let block = create(&one, 100).unwrap();
    let end = block.ptr().checked_add(MIB).unwrap();
    let foreign = FakeDevice::new(DeviceType::Cuda, 1);
    let other = create(&Arc::new(foreign), 100).unwrap();

    for (ptr, index) in [(end, 0), (other.ptr(), 0), (block.ptr(), 1)] {
        assert!(pool.record_use(ptr, index, &second).is_err());
    }

    drop(block);
    assert_eq!(second.fences(), 0);
    assert_eq!(fake.live_blocks(), 1);
}

#[test]
fn blocks_that_a_stream_keeps_are_counted_also_when_it_is_forgotten() {
    let (_, pool, [(_, one), _]) = rig();
    for _ in 0..10 {
        drop(create(&one, 100).unwrap());
    }
    assert_eq!(pool.counters(0).unwrap().cache_hits, 9);

    drop(one);
    pool.trim(0).unwrap();

    assert_eq!(pool.counters(0).unwrap().cache_hits, 9);
}

#[test]
fn a_stream_of_one_device_is_not_forgotten_with_those_of_another() {
    let fake = FakeDevice::new(DeviceType::Cuda, 2);
    let pool = PoolBuilder::new().growth(MIB).build(Streams(fake));
    let stream = Stream::on(1, 1);
    let handle = Arc::new(pool.on_stream(&stream).unwrap());
    let layout = DeviceLayout::from_size(MIB / 2).unwrap();
    let there = Arc::clone(&handle) as Arc<dyn DeviceAllocator>;
    drop(DeviceMemoryBuffer::create_with(there, layout, 1).unwrap());
    drop(handle);

    pool.trim(0).unwrap();
    assert_eq!(pool.status(1).unwrap().waiting, MIB / 2);
    assert!(Arc::strong_count(&stream) > 1);

    assert_eq!(pool.trim(1).unwrap(), MIB);
    assert_eq!(Arc::strong_count(&stream), 1);
}

#[test]
fn a_use_that_no_fence_can_be_had_for_leaves_the_block_allocated() {
    let (_, pool, [_, (second, _)]) = rig();
    let block = create(&Arc::new(pool.clone()), 100).unwrap();
    pool.record_use(block.ptr(), 0, &second).unwrap();
    second.broken.store(true, Ordering::Relaxed);

    let failure = block.free().unwrap_err();

    assert_eq!(pool.status(0).unwrap().in_use, 256);
    second.broken.store(false, Ordering::Relaxed);
    failure.buffer.free().unwrap();
    assert_eq!(second.fences(), 1);
    assert_eq!(pool.trim(0).unwrap(), MIB);
}

#[test]
fn fences_are_dropped_under_no_lock() {
    in_time("a fence that is dropped", || {
        let (_, pool, [(_, one), (second, _)]) = rig();
        let pool = Arc::new(pool);
        second.pool.set(Arc::downgrade(&pool)).unwrap();
        let block = create(&one, 100).unwrap();
        let free = block.ptr().checked_add(MIB / 2).unwrap();
        let layout = DeviceLayout::from_size(100).unwrap();

        pool.record_use(free, 0, &second).unwrap();
        // SAFETY: nothing is there, so it is refused, and nothing is freed.
        let refused = unsafe { one.deallocate(free, layout, 0) };
        assert!(refused.is_err());
        assert_eq!(second.asked.load(Ordering::Relaxed), 1);

        pool.record_use(block.ptr(), 0, &second).unwrap();
        drop(block);
        pool.trim(0).unwrap();
        assert_eq!(second.asked.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn a_handle_serves_the_device_of_its_stream_only() {
    let fake = FakeDevice::new(DeviceType::Cuda, 2);
    let pool = Pool::over(Streams(fake.clone()));
    let handle = pool.on_stream(&Stream::new(1)).unwrap();
    let layout = DeviceLayout::from_size(64).unwrap();

    let error = handle.allocate(layout, 1).unwrap_err();

    assert!(error.is_device_mismatch());
    assert_eq!(fake.calls().len(), 0);
}

#[test]
fn a_stream_without_handles_is_let_go_when_nothing_of_it_is_left() {
    let (_, pool, [(stream, handle), other]) = rig();
    drop(create(&handle, 100).unwrap());
    drop(handle);
    assert!(Arc::strong_count(&stream) > 1);

    pool.trim(0).unwrap();

    assert_eq!(Arc::strong_count(&stream), 1);
    drop(other);
}

#[test]
fn a_pool_that_is_dropped_waits_for_work_before_it_gives_memory_back() {
    let (fake, pool, [(stream, handle), other]) = rig();
    drop(create(&handle, MIB / 2).unwrap());
    stream.give_work();

    drop((pool, handle, other));

    assert_eq!(stream.waits.load(Ordering::Relaxed), 1);
    fake.assert_clean();
}
