//! The check of plans finds every fault, and none in a plan that is right.

use device_memory::plan::{DeviceOptions, Gap, PlanFault, PlanRequest, PlanValue, check};
use device_memory::{Device, DeviceType, MemoryPlan, Placement, PlannedBuffer};
use proptest::prelude::*;

const CUDA: Device = Device::new(DeviceType::Cuda, 0);

fn request(values: impl IntoIterator<Item = PlanValue>) -> PlanRequest {
    let mut request = PlanRequest::new();
    request.set_default(DeviceOptions::aligned(16));
    for value in values {
        request.push(value);
    }
    request
}

/// A plan of one buffer of `size` bytes with the values at these offsets.
fn at(request: &PlanRequest, size: usize, offsets: &[usize]) -> MemoryPlan {
    let values = request.values().iter().zip(offsets);
    let placements = values.map(|(value, &offset)| Placement::new(0, offset, value.size));
    let buffer = PlannedBuffer::new(Device::CPU, size);
    MemoryPlan::new(vec![buffer], placements.collect()).unwrap()
}

fn text(request: &PlanRequest, plan: &MemoryPlan) -> String {
    check(request, plan).unwrap_err().to_string()
}

#[test]
fn values_that_follow_each_other_may_share_bytes() {
    let request = request([PlanValue::new(64, 0..=1), PlanValue::new(64, 2..=3)]);

    assert_eq!(check(&request, &at(&request, 64, &[0, 0])), Ok(()));
}

#[test]
fn values_that_share_one_step_may_not() {
    let request = request([
        PlanValue::new(64, 0..=2),
        PlanValue::new(32, 5..=6),
        PlanValue::new(16, 2..=3),
    ]);

    let text = text(&request, &at(&request, 64, &[0, 0, 48]));

    assert_eq!(text, "values 0 and 2 overlap in step 2");
}

#[test]
fn an_overlap_with_what_began_below_is_found_behind_others_that_ended() {
    let request = request([
        PlanValue::new(64, 0..=9),
        PlanValue::new(16, 1..=1),
        PlanValue::new(16, 4..=5),
    ]);

    let text = text(&request, &at(&request, 80, &[0, 64, 32]));

    assert_eq!(text, "values 0 and 2 overlap in step 4");
}

#[test]
fn the_last_step_there_can_be_is_looked_at() {
    let last = usize::MAX;
    let request = request([
        PlanValue::new(16, 0..=last),
        PlanValue::new(16, last..=last),
    ]);

    let text = text(&request, &at(&request, 16, &[0, 0]));

    assert_eq!(text, format!("values 0 and 1 overlap in step {last}"));
}

#[test]
fn storage_lives_as_long_as_all_that_use_it() {
    let request = request([
        PlanValue::new(64, 0..=1),
        PlanValue::new(16, 4..=5).alias_of(0, 16),
        PlanValue::new(16, 5..=5),
    ]);

    assert_eq!(check(&request, &at(&request, 80, &[0, 16, 64])), Ok(()));
    let text = text(&request, &at(&request, 64, &[0, 16, 48]));
    assert_eq!(text, "values 0 and 2 overlap in step 5");
}

#[test]
fn a_value_in_another_must_be_where_that_is() {
    let request = request([
        PlanValue::new(64, 0..=1),
        PlanValue::new(16, 1..=1).alias_of(0, 16),
    ]);

    let text = text(&request, &at(&request, 64, &[0, 32]));

    assert_eq!(text, "value 1 is at 32, it must be at 16");
}

#[test]
fn a_gap_gives_its_bytes_to_others_but_for_its_window() {
    let gap = Gap {
        steps: 2..=3,
        window: Some(0..16),
    };
    let request = request([
        PlanValue::new(64, 0..=5).with_gap(gap),
        PlanValue::new(48, 2..=3),
    ]);

    assert_eq!(check(&request, &at(&request, 64, &[0, 16])), Ok(()));
    let text = text(&request, &at(&request, 64, &[0, 0]));
    assert_eq!(text, "values 0 and 1 overlap in step 2");
}

#[test]
fn a_value_that_outlives_a_gap_meets_the_owner_again() {
    let gap = Gap {
        steps: 2..=3,
        window: None,
    };
    let request = request([
        PlanValue::new(64, 0..=5).with_gap(gap),
        PlanValue::new(64, 2..=4),
    ]);

    let text = text(&request, &at(&request, 64, &[0, 0]));

    assert_eq!(text, "values 0 and 1 overlap in step 4");
}

#[test]
fn counts_sizes_bounds_and_alignments_are_looked_at() {
    let one = request([PlanValue::new(64, 0..=1)]);
    let none = at(&request([]), 64, &[]);
    let small = at(&one, 64, &[0]);
    let buffer = |align| PlannedBuffer {
        align,
        ..PlannedBuffer::new(Device::CPU, 128)
    };
    let plan = |buffer, placement| MemoryPlan::new(vec![buffer], vec![placement]).unwrap();

    assert_eq!(text(&one, &none), "0 placements for 1 values");
    let short = plan(buffer(64), Placement::new(0, 0, 32));
    assert_eq!(text(&one, &short), "value 0 has 64 bytes, its placement 32");
    let odd = plan(buffer(64), Placement::new(0, 8, 64));
    assert_eq!(text(&one, &odd), "value 0 at offset 8 is not aligned to 16");
    let loose = plan(buffer(8), Placement::new(0, 16, 64));
    assert_eq!(
        text(&one, &loose),
        "value 0 at offset 16 is not aligned to 16"
    );
    let mut padded = one.clone();
    padded.set_default(DeviceOptions::aligned(16).padding(16));
    assert_eq!(
        text(&padded, &small),
        "value 0 ends at 80, its buffer at 64"
    );
}

#[test]
fn devices_pools_fixed_offsets_and_reserved_bytes_are_looked_at() {
    let cuda = request([PlanValue::new(16, 0..=1).on(CUDA)]);
    let fixed = request([PlanValue::new(16, 0..=1).at_offset(16)]);
    let mut reserved = request([PlanValue::new(16, 0..=1)]);
    reserved.reserve(Device::CPU, 0, 20);
    let pools = request([
        PlanValue::new(16, 0..=1),
        PlanValue::new(16, 0..=1).in_pool(1),
    ]);

    assert_eq!(
        text(&cuda, &at(&cuda, 16, &[0])),
        "value 0 of cuda:0 is in memory id 0, which is not of that device"
    );
    assert_eq!(
        text(&fixed, &at(&fixed, 64, &[0])),
        "value 0 is at 0, it must be at 16"
    );
    assert_eq!(
        text(&reserved, &at(&reserved, 64, &[16])),
        "value 0 is at 16, in 20 reserved bytes"
    );
    assert_eq!(
        text(&pools, &at(&pools, 64, &[0, 16])),
        "values 0 and 1: their pools and their buffers disagree"
    );
}

#[test]
fn one_pool_in_two_buffers_is_found() {
    let request = request([PlanValue::new(16, 0..=1), PlanValue::new(16, 0..=1)]);
    let buffer = PlannedBuffer::new(Device::CPU, 16);
    let placements = vec![Placement::new(0, 0, 16), Placement::new(1, 0, 16)];

    let plan = MemoryPlan::new(vec![buffer, buffer], placements).unwrap();

    let fault = check(&request, &plan);
    assert_eq!(
        fault,
        Err(PlanFault::WrongPool {
            first: 0,
            second: 1
        })
    );
}

#[test]
fn a_capacity_counts_all_buffers_of_the_device() {
    let mut request = request([PlanValue::new(16, 0..=1)]);
    request.set_device(Device::CPU, DeviceOptions::aligned(16).capacity(63));

    let text = text(&request, &at(&request, 64, &[0]));

    assert_eq!(text, "buffers of cpu:0 have 64 bytes, capacity 63");
}

#[test]
fn an_alias_that_can_not_be_is_found() {
    let fine = || PlanValue::new(64, 0..=1);
    let gap = Gap {
        steps: 1..=1,
        window: None,
    };
    for (values, expected) in [
        // It would lie on the value behind its owner.
        (
            [
                fine(),
                PlanValue::new(128, 0..=1).alias_of(0, 0),
                fine().at_offset(64),
            ],
            "value 1 can not use the storage of value 0",
        ),
        (
            [fine(), fine().alias_of(0, usize::MAX), fine()],
            "value 1 can not use the storage of value 0",
        ),
        (
            [fine(), fine().alias_of(9, 0), fine()],
            "value 1 can not use the storage of value 9",
        ),
        (
            [fine(), fine().alias_of(2, 0), fine().alias_of(1, 0)],
            "value 2 can not use the storage of value 1",
        ),
        (
            [fine().with_gap(gap.clone()), fine().alias_of(0, 0), fine()],
            "value 1 can not use the storage of value 0",
        ),
        (
            [fine(), fine().alias_of(0, 0).with_gap(gap.clone()), fine()],
            "value 1 can not use the storage of value 0",
        ),
    ] {
        let request = request(values);

        let found = text(&request, &at(&request, 256, &[0, 0, 64]));

        assert_eq!(found, expected);
    }
}

#[test]
fn a_long_chain_of_aliases_is_followed_once() {
    let chain = (1..50_000).map(|index| PlanValue::new(16, index..=index).alias_of(index - 1, 0));
    let first = PlanValue::new(16, 0..=0);
    let request = request(
        [first]
            .into_iter()
            .chain(chain)
            .chain([PlanValue::new(16, 9..=9)]),
    );
    let mut offsets = vec![0; 50_000];
    offsets.push(16);

    assert_eq!(check(&request, &at(&request, 64, &offsets)), Ok(()));
    offsets[50_000] = 0;
    let text = text(&request, &at(&request, 64, &offsets));
    assert_eq!(text, "values 0 and 50000 overlap in step 9");
}

proptest! {
    /// The answer on overlaps is that of looking at all pairs and steps.
    #[test]
    fn it_agrees_with_looking_at_every_pair(
        values in prop::collection::vec((1_usize..5, 0_usize..8, 0_usize..4, 0_usize..6), 0..7),
    ) {
        let lives = values.iter().map(|&(size, first, len, _)| (size * 16, first, first + len));
        let request = request(lives.clone().map(|(size, first, last)| PlanValue::new(size, first..=last)));
        let offsets: Vec<usize> = values.iter().map(|value| value.3 * 16).collect();
        let lives: Vec<_> = lives.collect();

        let overlap = (0..values.len()).any(|a| (0..a).any(|b| {
            let ((size_a, first_a, last_a), (size_b, first_b, last_b)) = (lives[a], lives[b]);
            first_a <= last_b
                && first_b <= last_a
                && offsets[a] < offsets[b] + size_b
                && offsets[b] < offsets[a] + size_a
        }));

        prop_assert_eq!(check(&request, &at(&request, 1024, &offsets)).is_err(), overlap);
    }
}
