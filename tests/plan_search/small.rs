//! Ten thousand small problems, the same in each run, against all that can be tried:
//! with alignments, fixed offsets and gaps.

use device_memory::plan::{Algorithm, DeviceOptions, Gap, Goal, PlanOptions, PlanStatus, check};
use device_memory::{PlanRequest, PlanValue};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

/// How many steps there are.
const STEPS: usize = 8;

/// The bytes that a value needs in a step.
fn needed(value: &PlanValue, step: usize) -> (usize, usize) {
    let gap = value.gaps.iter().find(|gap| gap.steps.contains(&step));
    match gap {
        _ if step < value.first_use || step > value.last_use => (0, 0),
        None => (0, value.size),
        Some(gap) => gap.window.clone().map_or((0, 0), |of| (of.start, of.end)),
    }
}

/// What a value needs at an offset, step by step.
fn taken(value: &PlanValue, offset: usize) -> [(usize, usize); STEPS] {
    std::array::from_fn(|step| {
        let (low, high) = needed(value, step);
        (offset + low, offset + high)
    })
}

/// Whether two values need a byte both in a step.
fn collide(one: &[(usize, usize); STEPS], other: &[(usize, usize); STEPS]) -> bool {
    let mut steps = one.iter().zip(other);
    steps.any(|(one, other)| one.0.max(other.0) < one.1.min(other.1))
}

/// The largest sum of what is needed in a step, or the end of a value that can not lie
/// lower.
fn bound(values: &[PlanValue]) -> usize {
    let live = |step| {
        let needs = values.iter().map(|value| needed(value, step));
        needs.map(|(low, high)| high - low).sum()
    };
    let ends = values.iter();
    let ends = ends.map(|value| value.fixed_offset.unwrap_or(0) + value.size);
    (0..STEPS).map(live).chain(ends).max().unwrap_or(0)
}

/// The smallest peak: every offset of every value.
fn by_offsets(values: &[PlanValue]) -> usize {
    type Placed = Vec<[(usize, usize); STEPS]>;
    fn place(values: &[PlanValue], placed: &mut Placed, limit: usize) -> bool {
        let Some(value) = values.get(placed.len()) else {
            return true;
        };
        let offsets = match value.fixed_offset {
            Some(fixed) => fixed..=fixed,
            None => 0..=limit.saturating_sub(value.size),
        };
        let mut offsets = offsets.filter(|at| at % value.align == 0 && at + value.size <= limit);
        offsets.any(|offset| {
            let taken = taken(value, offset);
            let free = !placed.iter().any(|other| collide(&taken, other));
            free && {
                placed.push(taken);
                let fits = place(values, placed, limit);
                placed.pop();
                fits
            }
        })
    }
    let mut limits = bound(values)..;
    let least = limits.find(|&limit| place(values, &mut Vec::new(), limit));
    least.unwrap()
}

/// The smallest peak where no gap has a window: every order, each value as low as those
/// before it leave it.
fn by_orders(values: &[PlanValue]) -> usize {
    fn place(values: &[PlanValue], offsets: &mut [Option<usize>], last: usize, best: &mut usize) {
        let placed = || values.iter().zip(offsets.iter());
        let ends = placed().filter_map(|(value, offset)| Some((*offset)? + value.size));
        let peak = ends.max().unwrap_or(0);
        if peak >= *best {
            return;
        }
        if offsets.iter().all(Option::is_some) {
            *best = peak;
            return;
        }
        for next in (0..values.len())
            .filter(|&next| offsets[next].is_none())
            .collect::<Vec<_>>()
        {
            let value = &values[next];
            let below = values.iter().zip(offsets.iter());
            let below = below.filter_map(|(other, offset)| Some((other, (*offset)?)));
            let below = below.filter(|(other, _)| collide(&taken(value, 0), &taken(other, 0)));
            let top = below.map(|(other, offset)| offset + other.size).max();
            let lowest = top.unwrap_or(0).next_multiple_of(value.align);
            let offset = value.fixed_offset.unwrap_or(lowest);
            // Every plan that is pushed down is in the order of its offsets.
            if offset < lowest || offset < last {
                continue;
            }
            offsets[next] = Some(offset);
            place(values, offsets, offset, best);
            offsets[next] = None;
            if *best == bound(values) {
                return;
            }
        }
    }
    let mut best = usize::MAX;
    place(values, &mut vec![None; values.len()], 0, &mut best);
    best
}

/// A value of 1 to `most` bytes, perhaps aligned, perhaps with a gap.
fn value(most: usize, aligns: u32, gaps: bool, windows: bool) -> impl Strategy<Value = PlanValue> {
    let life = (0..STEPS - 1, 0..5_usize).prop_map(|(first, more)| (first, (first + more).min(7)));
    let gap = (any::<bool>(), 0..4_usize, 0..3_usize);
    let window = (any::<bool>(), 0..most, 1..=most);
    (1..=most, life, 0..=aligns, gap, window).prop_map(
        move |(size, (first, last), align, (has_gap, after, len), (has_window, low, len_of))| {
            let value = PlanValue::new(size, first..=last).aligned(1 << align);
            let from = first + 1 + after;
            if !(gaps && has_gap && from < last) {
                return value;
            }
            let low = low.min(size - 1);
            let window = (windows && has_window).then(|| low..(low + len_of).min(size));
            let steps = from..=(from + len).min(last - 1);
            value.with_gap(Gap { steps, window })
        },
    )
}

/// Values, the first of them perhaps with a fixed offset.
fn values(
    count: usize,
    value: impl Strategy<Value = PlanValue>,
    fixed: bool,
) -> impl Strategy<Value = Vec<PlanValue>> {
    let values = prop::collection::vec(value, 1..=count);
    (values, 0..8_usize).prop_map(move |(mut values, offset)| {
        if fixed {
            let align = values[0].align;
            values[0].fixed_offset = Some(offset.next_multiple_of(align));
        }
        values
    })
}

/// A request for `values`, with a capacity or without one.
fn request(values: &[PlanValue], capacity: Option<usize>) -> PlanRequest {
    let mut options = DeviceOptions::aligned(1);
    options.capacity = capacity;
    let mut request = PlanRequest::new();
    request.set_default(options);
    for value in values {
        request.push(value.clone());
    }
    request
}

/// Plans `count` problems of a kind and compares them with `least`. Returns how many of
/// them no plan at the lower bound has.
fn compare(
    count: usize,
    kind: impl Strategy<Value = Vec<PlanValue>>,
    least: fn(&[PlanValue]) -> usize,
    complete: bool,
) -> usize {
    let mut runner = TestRunner::deterministic();
    let mut above = 0;
    for number in 0..count {
        let values = kind.new_tree(&mut runner).unwrap().current();
        let (least, bound) = (least(&values), bound(&values));
        above += usize::from(least > bound);
        let free = request(&values, None);
        let others = Algorithm::ALL;
        for algorithm in [Algorithm::Optimal, others[number % others.len()]] {
            let options = PlanOptions::new(algorithm).no_deadline().nodes(50_000);
            let report = free.plan(&options).unwrap();

            check(&free, &report.plan).unwrap();
            let arena = &report.arenas[0];
            assert_eq!(arena.lower_bound, bound, "{values:?}");
            assert!(arena.proved <= least && least <= arena.peak, "{values:?}");
            if arena.status == PlanStatus::Optimal || (complete && algorithm == Algorithm::Optimal)
            {
                assert_eq!(
                    (arena.peak, arena.status),
                    (least, PlanStatus::Optimal),
                    "{values:?}"
                );
            }
        }
        if complete && least > bound {
            let fit = PlanOptions::default().goal(Goal::Fit).no_deadline();
            assert!(
                request(&values, Some(least)).plan(&fit).is_ok(),
                "{values:?}"
            );
            assert!(
                request(&values, Some(least - 1)).plan(&fit).is_err(),
                "{values:?}"
            );
        }
    }
    above
}

#[test]
fn plain_values_are_planned_as_small_as_can_be() {
    compare(
        3000,
        values(7, value(5, 0, false, false), false),
        by_orders,
        true,
    );
}

#[test]
fn aligned_values_are_planned_as_small_as_can_be() {
    let above = compare(
        2500,
        values(7, value(6, 2, false, false), false),
        by_orders,
        true,
    );

    assert!(above > 200, "{above}");
}

#[test]
fn values_beside_fixed_ones_are_planned_as_small_as_can_be() {
    let above = compare(
        2000,
        values(7, value(5, 1, false, false), true),
        by_orders,
        true,
    );

    assert!(above > 200, "{above}");
}

#[test]
fn values_with_gaps_are_planned_as_small_as_can_be() {
    let above = compare(
        1500,
        values(7, value(5, 1, true, false), true),
        by_orders,
        true,
    );

    assert!(above > 100, "{above}");
}

#[test]
fn no_plan_of_values_with_windows_is_smaller_than_what_is_proved() {
    let above = compare(
        1000,
        values(4, value(4, 0, true, true), true),
        by_offsets,
        false,
    );

    assert!(above > 10, "{above}");
}

#[test]
fn trying_all_orders_finds_what_trying_all_offsets_finds() {
    let mut runner = TestRunner::deterministic();
    let kind = values(4, value(4, 1, true, false), true);
    for _ in 0..300 {
        let values = kind.new_tree(&mut runner).unwrap().current();

        assert_eq!(by_orders(&values), by_offsets(&values), "{values:?}");
    }
}
