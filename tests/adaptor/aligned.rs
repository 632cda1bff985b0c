//! Alignment is what was asked for and at least what the adaptor says.

use std::sync::Arc;

use device_memory::adaptor::{Aligned, Arena, Limit, PoolBuilder, Statistics};
use device_memory::testing::{FakeDevice, FaultInjector};
use device_memory::{
    Attempt, DeviceAllocator, DeviceLayout, DeviceMemoryBuffer, DeviceType, ErrorKind, Operation,
    Tag,
};
use proptest::prelude::*;

fn fake() -> FakeDevice {
    FakeDevice::builder(DeviceType::Cuda)
        .devices(2)
        .capacity(1 << 30)
        .build()
}

#[test]
fn the_layer_below_is_asked_for_the_larger_alignment_with_the_same_tag() {
    let fake = fake();
    let aligned = Arc::new(Aligned::over(fake.clone(), 256).unwrap());
    let layout = DeviceLayout::new(10, 8).unwrap().with_tag(Tag::SCRATCH);

    let buffer = DeviceMemoryBuffer::create_with(aligned, layout, 1).unwrap();

    let below = fake.live()[0].layout;
    assert_eq!(
        (below.size(), below.align(), below.tag()),
        (10, 256, Tag::SCRATCH)
    );
    drop(buffer);
    fake.assert_clean();
}

// https://github.com/Genesis-Embodied-AI/quadrants/pull/847
#[test]
fn a_layer_below_that_can_not_align_is_asked_for_more_bytes() {
    let fake = fake();
    let aligned = Aligned::over(fake.clone(), 1)
        .unwrap()
        .native_align(16)
        .unwrap();
    let aligned = Arc::new(aligned);
    let layout = DeviceLayout::new(100, 4096).unwrap();

    let mut buffer = DeviceMemoryBuffer::create_with(aligned, layout, 0).unwrap();
    buffer.fill(3).unwrap();

    let below = fake.live()[0];
    assert_eq!(
        (below.layout.size(), below.layout.align()),
        (100 + 4096 - 16, 16)
    );
    let end = buffer.ptr().addr() + buffer.size();
    assert!(buffer.ptr() >= below.ptr && end <= below.ptr.addr() + below.layout.size());
    drop(buffer);
    fake.assert_clean();
}

#[test]
fn a_failed_free_of_a_padded_block_can_be_tried_again() {
    let fake = fake();
    let injector = FaultInjector::new(fake.clone());
    let faults = injector.faults();
    let aligned = Aligned::over(injector, 4096)
        .unwrap()
        .native_align(16)
        .unwrap();
    let layout = DeviceLayout::from_size(100).unwrap();
    let buffer = DeviceMemoryBuffer::create_with(Arc::new(aligned), layout, 0).unwrap();
    faults.fail_nth(Operation::Deallocate, 1);

    let failure = buffer.free().unwrap_err();

    assert_eq!(fake.live_blocks(), 1);
    failure.buffer.free().unwrap();
    fake.assert_clean();
}

#[test]
fn alignments_that_are_no_power_of_two_are_refused() {
    for align in [0, 3, 48] {
        let error = Aligned::over(fake(), align).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Layout(_)), "{align}");
        assert!(
            Aligned::over(fake(), 1)
                .unwrap()
                .native_align(align)
                .is_err()
        );
    }
}

#[test]
fn a_size_that_the_padding_pushes_past_the_limit_is_out_of_memory() {
    let fake = fake();
    let aligned = Arc::new(Aligned::over(fake.clone(), 1 << 20).unwrap());
    let layout = DeviceLayout::new(isize::MAX.unsigned_abs(), 1).unwrap();

    let error = DeviceMemoryBuffer::create_with(aligned.clone(), layout, 0).unwrap_err();

    assert_eq!(error.out_of_memory().unwrap().requested, layout.size());
    assert_eq!(error.out_of_memory().unwrap().tried, Vec::<Attempt>::new());
    // For the report, and nothing else.
    let asked: Vec<_> = fake.calls().iter().map(|call| call.operation).collect();
    assert_eq!(asked, [Operation::MemoryInfo]);
    let absent = DeviceMemoryBuffer::create_with(aligned, layout, 9).unwrap_err();
    assert!(matches!(absent.kind(), ErrorKind::InvalidDevice { .. }));
}

type Stack = Arc<dyn DeviceAllocator>;

/// With segments that hold some blocks and not others.
fn pool() -> PoolBuilder {
    PoolBuilder::new().growth(1 << 16)
}

fn stacks(fake: &FakeDevice) -> Vec<(&'static str, Stack)> {
    let below: Stack = Arc::new(fake.clone());
    vec![
        ("bare", below.clone()),
        (
            "aligned",
            Arc::new(Aligned::over(below.clone(), 64).unwrap()),
        ),
        (
            "aligned over what aligns to 32",
            Arc::new(
                Aligned::over(below.clone(), 1)
                    .unwrap()
                    .native_align(32)
                    .unwrap(),
            ),
        ),
        ("arena", Arc::new(Arena::over(below.clone(), 1 << 16))),
        (
            "limit over arena",
            Arc::new(Limit::over(Arena::over(below.clone(), 1 << 12), 1 << 40)),
        ),
        (
            "aligned over statistics over arena",
            Arc::new(
                Aligned::over(Statistics::over(Arena::over(below.clone(), 1 << 12)), 256).unwrap(),
            ),
        ),
        ("pool", Arc::new(pool().build(below.clone()))),
        (
            "limit over pool",
            Arc::new(Limit::over(pool().build(below), 1 << 40)),
        ),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    // https://github.com/rapidsai/rmm/issues/2002
    #[test]
    fn blocks_are_aligned_and_inside_one_of_the_device_whatever_the_stack(
        near_max in prop::bool::weighted(0.2), size in 1_usize..1 << 20, exponent in 0_u32..21
    ) {
        let fake = fake();
        let align = 1_usize << exponent;
        let size = if near_max { isize::MAX.unsigned_abs() - (align - 1) - size % 64 } else { size };
        let layout = DeviceLayout::new(size, align).unwrap();
        for (name, stack) in stacks(&fake) {
            match DeviceMemoryBuffer::create_with(stack.clone(), layout, 0) {
                Ok(buffer) => {
                    prop_assert!(buffer.ptr().is_aligned_to(align), "{}", name);
                    let (from, to) = (buffer.ptr().addr(), buffer.ptr().addr() + size);
                    let inside = fake.live().iter().any(|block| {
                        let start = block.ptr.addr();
                        start <= from && to <= start + block.layout.size()
                    });
                    prop_assert!(inside, "{}", name);
                }
                Err(error) => {
                    prop_assert!(near_max, "{}: {}", name, error);
                    prop_assert!(error.is_out_of_memory(), "{}: {}", name, error);
                }
            }
            drop(stack);
        }
        fake.assert_clean();
    }
}
