//! A pool over a layer that calls back, refuses what it gave, or gives what no
//! allocator may.

#![expect(unsafe_code, reason = "a test double of an unsafe trait")]

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};

use device_memory::adaptor::{Arena, Poison, Pool, PoolBuilder};
use device_memory::testing::FakeDevice;
use device_memory::{
    DeviceAllocator, DeviceIndex, DeviceLayout, DeviceMemoryBuffer, DevicePtr, DeviceType, Error,
    Operation, Result, free_failure_count,
};

const MIB: usize = 1 << 20;

/// What happens at a free, before the fake is asked.
type AtFree = Box<dyn Fn(DeviceLayout) -> Result<()> + Send + Sync>;

/// A fake whose addresses are off by so many bytes.
struct Odd {
    fake: FakeDevice,
    off_by: usize,
    at_free: AtFree,
}

impl fmt::Debug for Odd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Odd").finish_non_exhaustive()
    }
}

impl Odd {
    fn new(off_by: usize, at_free: AtFree) -> Self {
        let fake = FakeDevice::new(DeviceType::Cuda, 1);
        Self {
            fake,
            off_by,
            at_free,
        }
    }
}

// SAFETY: where it is off it breaks the promise of alignment, which is what the pool
// is to notice before it hands anything out; else it is the fake.
unsafe impl DeviceAllocator for Odd {
    fn device_type(&self) -> DeviceType {
        self.fake.device_type()
    }

    fn device_count(&self) -> usize {
        self.fake.device_count()
    }

    fn allocate(&self, layout: DeviceLayout, index: DeviceIndex) -> Result<DevicePtr> {
        let ptr = self.fake.allocate(layout, index)?;
        Ok(ptr.checked_add(self.off_by).unwrap())
    }

    unsafe fn deallocate(
        &self,
        ptr: DevicePtr,
        layout: DeviceLayout,
        index: DeviceIndex,
    ) -> Result<()> {
        (self.at_free)(layout)?;
        let ptr = DevicePtr::from_addr(ptr.addr() - self.off_by).unwrap();
        // SAFETY: the caller's promises are the same.
        unsafe { self.fake.deallocate(ptr, layout, index) }
    }

    forward_copies!(fake);
}

fn refuses() -> AtFree {
    Box::new(|_| {
        let device = "cuda:0".parse().unwrap();
        Err(Error::backend(device, Operation::Deallocate, "not now"))
    })
}

fn create<A: DeviceAllocator + 'static>(over: &Arc<A>, size: usize) -> Result<DeviceMemoryBuffer> {
    let layout = DeviceLayout::from_size(size).unwrap();
    DeviceMemoryBuffer::create_with(Arc::clone(over) as Arc<dyn DeviceAllocator>, layout, 0)
}

#[test]
fn a_segment_that_is_not_aligned_is_refused_and_given_back() {
    let odd = Odd::new(8, Box::new(|_| Ok(())));
    let fake = odd.fake.clone();
    let pool = Arc::new(PoolBuilder::new().growth(MIB).build(odd));

    let error = create(&pool, 100).unwrap_err();

    assert!(error.to_string().contains("align"), "{error}");
    assert_eq!(pool.status(0).unwrap(), Default::default());
    fake.assert_clean();
}

#[test]
fn a_segment_that_can_be_neither_used_nor_given_back_is_told_of() {
    let pool = Arc::new(PoolBuilder::new().growth(MIB).build(Odd::new(8, refuses())));
    let before = free_failure_count();

    create(&pool, 100).unwrap_err();

    assert!(free_failure_count() > before);
}

#[test]
fn a_segment_that_the_layer_below_does_not_take_back_is_still_the_pools() {
    let pool = Arc::new(PoolBuilder::new().growth(MIB).build(Odd::new(0, refuses())));
    drop(create(&pool, MIB).unwrap());

    assert_eq!(pool.trim(0).unwrap(), 0);

    let status = pool.status(0).unwrap();
    assert_eq!((status.reserved, status.free), (MIB, MIB));
    assert_eq!(pool.counters(0).unwrap().released, 0);
    drop(create(&pool, MIB).unwrap());
    assert_eq!(pool.counters(0).unwrap().grown, 1);
}

/// Else another thread could take more than the limit meanwhile.
#[test]
fn a_segment_is_held_until_the_layer_below_has_it_back() {
    static POOL: OnceLock<Arc<Pool<Odd>>> = OnceLock::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&seen);
    let look = move |_| {
        let status = POOL.get().unwrap().status(0)?;
        notes.lock().unwrap().push((status.reserved, status.free));
        Ok(())
    };
    let pool = PoolBuilder::new()
        .growth(MIB)
        .build(Odd::new(0, Box::new(look)));
    let pool = POOL.get_or_init(|| Arc::new(pool));
    drop(create(pool, MIB).unwrap());

    assert_eq!(pool.trim(0).unwrap(), MIB);

    assert_eq!(*seen.lock().unwrap(), [(MIB, 0)]);
    assert_eq!(pool.status(0).unwrap().reserved, 0);
}

#[test]
fn what_goes_through_a_pool_is_given_back_once() {
    let pool = |fake: &FakeDevice| PoolBuilder::new().growth(4 * MIB).build(fake.clone());
    let fake = FakeDevice::new(DeviceType::Cuda, 1);

    let arena = Arc::new(Arena::over(pool(&fake), MIB));
    drop(create(&arena, 100).unwrap());
    assert_eq!(arena.trim(0).unwrap(), 4 * MIB);

    let poison = Arc::new(Poison::over(pool(&fake)).quarantine(MIB));
    drop(create(&poison, 100).unwrap());
    assert_eq!(poison.trim(0).unwrap(), 4 * MIB);

    fake.assert_clean();
}
