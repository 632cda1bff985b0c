//! A pool beside a naive model: a map of the ranges that are handed out. A hundred
//! thousand operations in release, on pools of all kinds, and a fifth of that in debug.

use std::collections::BTreeMap;
use std::sync::Arc;

use device_memory::adaptor::{Pool, PoolBuilder};
use device_memory::testing::FakeDevice;
use device_memory::{DeviceAllocator, DeviceLayout, DeviceMemoryBuffer, DeviceType, Tag};
use proptest::prelude::*;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Each of 400 operations.
const CASES: u32 = if cfg!(debug_assertions) { 50 } else { 250 };

/// One call.
#[derive(Clone, Debug)]
enum Call {
    Allocate {
        size: usize,
        align_log2: u32,
        persistent: bool,
    },
    /// Frees one of the live blocks.
    Free(usize),
    Trim,
}

fn some_call() -> impl Strategy<Value = Call> {
    let size = prop_oneof![
        4 => 1..2 * KIB,
        2 => (0_u32..=10).prop_map(|log2| KIB << log2),
        2 => 1..MIB,
        1 => isize::MAX as usize - KIB..=isize::MAX as usize,
    ];
    let allocate = (
        size,
        prop_oneof![8 => 0_u32..=8, 1 => 9_u32..=16],
        prop::bool::weighted(0.2),
    );
    let allocate = allocate.prop_map(|(size, align_log2, persistent)| Call::Allocate {
        size,
        align_log2,
        persistent,
    });
    prop_oneof![
        24 => allocate,
        22 => any::<usize>().prop_map(Call::Free),
        1 => Just(Call::Trim),
    ]
}

/// A pool, and the most that it may hold.
fn some_pool() -> impl Strategy<Value = (PoolBuilder, usize)> {
    let cache_limit = prop::option::of(prop_oneof![Just(0), Just(64 * KIB), Just(8 * MIB)]);
    let initial = prop_oneof![Just(0), Just(4 * MIB), Just(8 * MIB)];
    let limit = prop_oneof![Just(4 * MIB), Just(usize::MAX)];
    let threshold = prop_oneof![Just(0), Just(2 * MIB), Just(usize::MAX)];
    let options = (cache_limit, initial, limit, threshold);
    options.prop_map(|(cache_limit, initial, limit, threshold)| {
        let builder = PoolBuilder::new()
            .initial(initial)
            .growth(MIB)
            .limit(limit)
            .release_threshold(threshold);
        let builder = match cache_limit {
            Some(bytes) => builder.cache_limit(bytes),
            None => builder,
        };
        (builder, limit)
    })
}

/// A pool, and what it has handed out.
struct Model {
    fake: FakeDevice,
    pool: Pool<FakeDevice>,
    limit: usize,
    live: BTreeMap<usize, DeviceMemoryBuffer>,
}

impl Model {
    fn call(&mut self, call: &Call) -> Result<(), TestCaseError> {
        match *call {
            Call::Allocate {
                size,
                align_log2,
                persistent,
            } => self.allocate(size, align_log2, persistent),
            Call::Free(number) => {
                let place = number.checked_rem(self.live.len());
                let start = place.and_then(|place| self.live.keys().nth(place).copied());
                if let Some(buffer) = start.and_then(|start| self.live.remove(&start)) {
                    let (first, last) = ends(&buffer);
                    prop_assert_eq!((first, last), stamp(&buffer), "somebody else wrote there");
                    buffer.free().unwrap();
                }
                Ok(())
            }
            Call::Trim => {
                let before = self.pool.status(0).unwrap().reserved;
                let given = self.pool.trim(0).unwrap();
                let after = self.pool.status(0).unwrap();
                prop_assert_eq!(before - after.reserved, given);
                prop_assert_eq!(after.cached, 0);
                Ok(())
            }
        }
    }

    fn allocate(
        &mut self,
        size: usize,
        align_log2: u32,
        persistent: bool,
    ) -> Result<(), TestCaseError> {
        let Ok(layout) = DeviceLayout::new(size, 1 << align_log2) else {
            return Ok(());
        };
        let layout = layout.with_tag(if persistent { Tag::WEIGHTS } else { Tag::NONE });
        let in_use = self.pool.status(0).unwrap().in_use;
        let made = DeviceMemoryBuffer::create_with(Arc::new(self.pool.clone()), layout, 0);
        let Ok(mut buffer) = made else {
            let error = made.unwrap_err();
            let report = error.out_of_memory().unwrap();
            prop_assert_eq!(report.requested, size);
            prop_assert_eq!(self.pool.status(0).unwrap().in_use, in_use);
            return Ok(());
        };
        let start = buffer.ptr().addr();
        prop_assert_eq!(start % layout.align(), 0);
        let below = self.live.range(..start + size).next_back();
        let is_free = below.is_none_or(|(start_below, below)| start_below + below.size() <= start);
        prop_assert!(is_free, "handed out twice");
        let inside = self.fake.live().into_iter().any(|segment| {
            let base = segment.ptr.addr();
            base <= start && start + size <= base + segment.layout.size()
        });
        prop_assert!(inside, "in no segment");
        let (first, last) = stamp(&buffer);
        buffer.copy_from_host_at(0, &[first]).unwrap();
        buffer.copy_from_host_at(size - 1, &[last]).unwrap();
        self.live.insert(start, buffer);
        Ok(())
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let status = self.pool.status(0).unwrap();
        let sum = status.in_use + status.cached + status.waiting + status.free;
        prop_assert_eq!(status.reserved, sum, "{:?}", status);
        prop_assert_eq!(status.reserved, self.fake.live_bytes());
        prop_assert!(status.reserved <= self.limit);
        prop_assert!(status.largest_free <= status.free);
        let sizes = self
            .live
            .values()
            .map(|buffer| buffer.size().next_multiple_of(256));
        prop_assert_eq!(status.in_use, sizes.sum::<usize>());
        Ok(())
    }
}

/// What a block is marked with.
fn stamp(buffer: &DeviceMemoryBuffer) -> (u8, u8) {
    let mark = (buffer.ptr().addr() >> 8) as u8;
    match buffer.size() {
        1 => (!mark, !mark),
        _ => (mark, !mark),
    }
}

fn ends(buffer: &DeviceMemoryBuffer) -> (u8, u8) {
    let (mut first, mut last) = ([0], [0]);
    buffer.copy_to_host_at(0, &mut first).unwrap();
    buffer
        .copy_to_host_at(buffer.size() - 1, &mut last)
        .unwrap();
    (first[0], last[0])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, ..ProptestConfig::default() })]

    #[test]
    fn a_pool_hands_out_what_is_free_and_knows_what_it_holds(
        (builder, limit) in some_pool(),
        calls in prop::collection::vec(some_call(), 400),
    ) {
        let fake = FakeDevice::builder(DeviceType::Cuda).capacity(8 * MIB).build();
        let pool = builder.build(fake.clone());
        let mut model = Model { fake, pool, limit, live: BTreeMap::new() };
        for call in &calls {
            model.call(call)?;
            model.check()?;
        }

        model.live.clear();
        model.pool.trim(0).unwrap();

        model.check()?;
        prop_assert_eq!(model.pool.status(0).unwrap().reserved, 0);
        model.fake.assert_clean();
    }
}
