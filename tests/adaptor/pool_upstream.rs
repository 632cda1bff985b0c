//! A pool over a layer that looks back, refuses what it gave, or gives what no
//! allocator may.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use device_memory::adaptor::{
    Arena, Block, Observed, Observer, Poison, Pool, PoolBuilder, PoolStatus,
};
use device_memory::testing::{FakeDevice, FaultInjector};
use device_memory::{
    AllocatorFault, DeviceAllocator, DeviceLayout, DeviceMemoryBuffer, DeviceType, Error,
    ErrorKind, Operation, Result, free_failure_count,
};

use crate::constant_address::ConstantAddress;

const MIB: usize = 1 << 20;

/// What happens when a segment is about to be given back.
struct AtFree(Box<Hook>);

type Hook = dyn Fn(&Block) -> Result<()> + Send + Sync;

impl fmt::Debug for AtFree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AtFree").finish_non_exhaustive()
    }
}

impl Observer for AtFree {
    fn before_free(&self, block: &Block) -> Result<()> {
        (self.0)(block)
    }
}

fn refuse(block: &Block) -> Result<()> {
    Err(Error::from(ErrorKind::NotSupported {
        device: block.device,
        operation: Operation::Deallocate,
    }))
}

/// Segments at an address that is not aligned.
type Misaligned = ConstantAddress<0x10_0008>;

/// A pool of segments of 1 MiB over a layer that is watched.
type Watched<A> = Pool<Observed<A, AtFree>>;

fn pool<A: DeviceAllocator>(
    over: A,
    at_free: impl Fn(&Block) -> Result<()> + Send + Sync + 'static,
) -> Watched<A> {
    let watched = Observed::new(over, AtFree(Box::new(at_free)));
    PoolBuilder::new().growth(MIB).build(watched)
}

fn fake() -> FakeDevice {
    FakeDevice::new(DeviceType::Cuda, 1)
}

fn create(over: impl DeviceAllocator + 'static, size: usize) -> Result<DeviceMemoryBuffer> {
    let layout = DeviceLayout::from_size(size).unwrap();
    DeviceMemoryBuffer::create_with(Arc::new(over), layout, 0)
}

#[test]
fn a_segment_that_is_not_aligned_is_refused_and_given_back() {
    let given_back = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&given_back);
    let pool: Watched<Misaligned> = pool(ConstantAddress, move |block| {
        count.fetch_add(block.layout.size(), Ordering::Relaxed);
        Ok(())
    });

    let error = create(pool.clone(), 100).unwrap_err();

    let ErrorKind::BadAllocator { fault, .. } = error.kind() else {
        panic!("{error}");
    };
    assert!(matches!(fault, AllocatorFault::Misaligned { .. }));
    assert_eq!(given_back.load(Ordering::Relaxed), MIB);
    assert_eq!(pool.status(0).unwrap(), PoolStatus::default());
}

#[test]
fn a_segment_that_can_be_neither_used_nor_given_back_is_told_of() {
    let pool: Watched<Misaligned> = pool(ConstantAddress, refuse);
    let before = free_failure_count();

    create(pool, 100).unwrap_err();

    assert!(free_failure_count() > before);
}

#[test]
fn a_segment_that_the_layer_below_does_not_take_back_is_still_the_pools() {
    let pool = pool(fake(), refuse);
    drop(create(pool.clone(), MIB).unwrap());

    assert_eq!(pool.trim(0).unwrap(), 0);

    let status = pool.status(0).unwrap();
    assert_eq!((status.reserved, status.free), (MIB, MIB));
    assert_eq!(pool.counters(0).unwrap().released, 0);
    drop(create(pool.clone(), MIB).unwrap());
    assert_eq!(pool.counters(0).unwrap().grown, 1);
}

#[test]
fn a_pool_over_a_layer_that_panics_when_it_is_asked_says_so_and_knows_what_it_holds() {
    let below = Arc::new(FaultInjector::new(fake()));
    let pool = PoolBuilder::new().growth(MIB).build(Arc::clone(&below));
    drop(create(pool.clone(), MIB).unwrap());
    below.panic_on(Operation::MemoryInfo, 1);
    below.panic_on(Operation::Trim, 1);

    let asked = pool.memory_info(0).unwrap_err();
    let trimmed = pool.trim(0).unwrap_err();

    assert_eq!(
        [asked.to_string(), trimmed.to_string()],
        [
            "allocator panicked during memory info on cuda:0",
            "allocator panicked during trim on cuda:0"
        ]
    );
    // What the pool itself was to give back it has given back.
    assert_eq!(pool.counters(0).unwrap().released, 1);
    assert_eq!(pool.status(0).unwrap(), PoolStatus::default());
    assert_eq!(below.inner().live_bytes(), 0);
    assert!(create(pool, MIB).is_ok());
}

/// Else another thread could take more than the limit meanwhile.
#[test]
fn a_segment_is_held_until_the_layer_below_has_it_back() {
    static POOL: OnceLock<Watched<FakeDevice>> = OnceLock::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&seen);
    let pool = POOL.get_or_init(|| {
        pool(fake(), move |_| {
            let status = POOL.get().unwrap().status(0)?;
            notes.lock().unwrap().push((status.reserved, status.free));
            Ok(())
        })
    });
    drop(create(pool.clone(), MIB).unwrap());

    assert_eq!(pool.trim(0).unwrap(), MIB);

    assert_eq!(*seen.lock().unwrap(), [(MIB, 0)]);
    assert_eq!(pool.status(0).unwrap().reserved, 0);
}

#[test]
fn what_goes_through_a_pool_is_given_back_once() {
    let fake = fake();
    let pool = || PoolBuilder::new().growth(4 * MIB).build(fake.clone());

    let arena = Arc::new(Arena::over(pool(), MIB));
    drop(create(Arc::clone(&arena), 100).unwrap());
    assert_eq!(arena.trim(0).unwrap(), 4 * MIB);

    let poison = Arc::new(Poison::over(pool()).quarantine(MIB));
    drop(create(Arc::clone(&poison), 100).unwrap());
    assert_eq!(poison.trim(0).unwrap(), 4 * MIB);

    drop((arena, poison));
    fake.assert_clean();
}
