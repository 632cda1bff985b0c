//! The exact search: as small as any plan can be, within its budget, and an answer
//! where there is no plan.

#![expect(clippy::print_stdout, reason = "a skip is said")]

#[path = "plan_search/small.rs"]
mod small;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use device_memory::plan::{Algorithm, DeviceOptions, Goal, PlanOptions, PlanStatus, check};
use device_memory::{Device, ErrorKind, OverCapacity, PlanError, PlanRequest, PlanValue};
use proptest::prelude::*;

/// How many problems a property is tried on: in release more than there is time for in
/// debug.
const CASES: u32 = if cfg!(debug_assertions) { 500 } else { 2000 };

/// A value: size, first step, last step.
type Triple = (usize, usize, usize);

/// A request for values of any offset.
fn request(values: &[Triple]) -> PlanRequest {
    let mut request = PlanRequest::new();
    request.set_default(DeviceOptions::aligned(1));
    for &(size, first, last) in values {
        request.push(PlanValue::new(size, first..=last));
    }
    request
}

/// The same with a capacity.
fn within(values: &[Triple], capacity: usize) -> PlanRequest {
    let mut request = request(values);
    request.set_default(DeviceOptions::aligned(1).capacity(capacity));
    request
}

/// A search that ends with a proof.
fn complete() -> PlanOptions {
    PlanOptions::new(Algorithm::Optimal).no_deadline()
}

/// The smallest peak: every value in every order, each on the lowest place that is
/// free above all placed before it, tried one after the other.
fn brute_force(values: &[Triple]) -> usize {
    fn place(values: &[Triple], tops: &mut Vec<Option<usize>>, best: &mut usize) {
        let peak = tops.iter().flatten().copied().max().unwrap_or(0);
        if peak >= *best {
            return;
        }
        if tops.iter().all(Option::is_some) {
            *best = peak;
            return;
        }
        for (next, &(size, first, last)) in values.iter().enumerate() {
            if tops[next].is_some() {
                continue;
            }
            let below = values.iter().zip(tops.iter());
            let below = below.filter(|((_, from, to), _)| *from <= last && first <= *to);
            let offset = below.filter_map(|(_, top)| *top).max().unwrap_or(0);
            tops[next] = Some(offset + size);
            place(values, tops, best);
            tops[next] = None;
        }
    }
    let mut best = usize::MAX;
    place(values, &mut vec![None; values.len()], &mut best);
    best
}

/// Some values, small enough for `brute_force`.
fn some_values() -> impl Strategy<Value = Vec<Triple>> {
    let value = (1_usize..6, 0_usize..6, 0_usize..4);
    let value = value.prop_map(|(size, first, steps)| (size, first, first + steps));
    prop::collection::vec(value, 1..7)
}

/// Values that stack in many ways.
const STACKS: [Triple; 7] = [
    (2, 0, 0),
    (2, 0, 1),
    (1, 1, 2),
    (1, 1, 3),
    (2, 2, 3),
    (1, 2, 2),
    (1, 3, 3),
];

/// A published problem, if it is in the folder that `DEVICE_MEMORY_PLAN_DATA` names.
fn problem(name: &str) -> Option<PlanRequest> {
    let folder = std::env::var_os("DEVICE_MEMORY_PLAN_DATA").map(PathBuf::from);
    let text = folder.and_then(|folder| fs::read_to_string(folder.join(name)).ok());
    let Some(text) = text else {
        println!("skipped: {name} is not there");
        return None;
    };
    let rows = text.lines().skip(1).map(|line| {
        let fields = line.split(',').map(|field| field.parse::<usize>().unwrap());
        let fields: Vec<_> = fields.collect();
        (fields[3], fields[1], fields[2] - 1)
    });
    Some(request(&rows.collect::<Vec<_>>()))
}

fn refusal(error: device_memory::Error) -> OverCapacity {
    match error.into_kind() {
        ErrorKind::Plan(PlanError::OverCapacity(report)) => *report,
        other => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, ..ProptestConfig::default() })]

    #[test]
    fn the_search_finds_what_trying_all_orders_finds(values in some_values()) {
        let request = request(&values);

        let report = request.plan(&complete()).unwrap();

        check(&request, &report.plan).unwrap();
        prop_assert_eq!(report.arenas[0].peak, brute_force(&values));
        prop_assert_eq!(report.arenas[0].status, PlanStatus::Optimal);
    }

    #[test]
    fn a_capacity_below_the_smallest_plan_is_proved_too_small(values in some_values()) {
        let capacity = brute_force(&values) - 1;
        let options = complete().goal(Goal::Fit).explain();

        let error = refusal(within(&values, capacity).plan(&options).unwrap_err());

        prop_assert!(error.proved);
        prop_assert!(error.over >= 1);
        let set: Vec<Triple> = error.irreducible.iter().map(|&value| values[value]).collect();
        prop_assert!(brute_force(&set) > capacity);
        for left_out in 0..set.len() {
            let mut fewer = set.clone();
            fewer.remove(left_out);
            prop_assert!(fewer.is_empty() || brute_force(&fewer) <= capacity);
        }
    }

    #[test]
    fn alignments_and_fixed_offsets_hold_in_a_search(
        values in prop::collection::vec((1_usize..40, 0_usize..8, 0_usize..4, 0_u32..4), 1..12),
        fixed in 0_usize..64,
    ) {
        let mut request = request(&[]);
        request.push(PlanValue::new(8, 2..=5).at_offset(fixed));
        for &(size, first, steps, align) in &values {
            request.push(PlanValue::new(size, first..=first + steps).aligned(1 << align));
        }

        let options = PlanOptions::new(Algorithm::Optimal).no_deadline().nodes(3000);
        let report = request.plan(&options).unwrap();

        check(&request, &report.plan).unwrap();
        for algorithm in Algorithm::ALL {
            let other = request.plan(&PlanOptions::new(algorithm).nodes(0)).unwrap();
            prop_assert!(report.arenas[0].peak <= other.arenas[0].peak, "{}", algorithm);
        }
    }
}

#[test]
fn a_plan_of_seven_values_is_proved_the_smallest() {
    let least = brute_force(&STACKS);
    let request = request(&STACKS);

    let arena = request.plan(&complete()).unwrap().arenas.remove(0);

    assert_eq!((arena.peak, arena.proved), (least, least));
    assert_eq!(arena.status, PlanStatus::Optimal);
}

#[test]
fn a_capacity_that_one_step_passes_names_the_step_and_its_values() {
    let values = [(4, 0, 3), (3, 1, 2), (2, 2, 2), (9, 4, 4)];

    let options = PlanOptions::default().explain();
    let error = refusal(within(&values, 8).plan(&options).unwrap_err());

    assert_eq!((error.device, error.worst_step), (Device::CPU, 2));
    assert_eq!((error.needed, error.over, error.lower_bound), (9, 1, 9));
    assert_eq!(error.live, [0, 1, 2]);
    assert_eq!(error.irreducible.len(), 3);
    assert!(error.proved);
    assert_eq!(
        error.to_string(),
        "values of cpu:0 do not fit: 9 bytes needed, capacity 8, 1 over"
    );
}

#[test]
fn a_search_that_was_not_enough_says_that_nothing_is_proved() {
    let Some(mut request) = problem("minimalloc/A.1048576.csv") else {
        return;
    };
    request.set_default(DeviceOptions::aligned(1).capacity(1_048_576));

    let options = PlanOptions::default()
        .goal(Goal::Fit)
        .no_deadline()
        .nodes(8);
    let error = refusal(request.plan(&options).unwrap_err());

    assert!(!error.proved);
    assert!(
        error
            .to_string()
            .ends_with("(not proved: a larger budget may find a plan)")
    );
}

#[test]
fn the_plan_within_a_budget_of_nodes_does_not_depend_on_threads() {
    let Some(mut request) = problem("minimalloc/A.1048576.csv") else {
        return;
    };
    request.set_default(DeviceOptions::aligned(1).capacity(1_048_576));
    let options = PlanOptions::default()
        .goal(Goal::Fit)
        .no_deadline()
        .nodes(100_000);

    let one = request.plan(&options).unwrap();
    let again = request.plan(&options).unwrap();
    let three = request.plan(&options.threads(3)).unwrap();

    assert_eq!(one, again);
    assert_eq!(one.plan, three.plan);
}

#[test]
fn the_smallest_plan_within_a_budget_of_nodes_does_not_depend_on_threads() {
    let mut state = 3_u64;
    let mut random = |limit: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as usize % limit
    };
    let mut request = PlanRequest::new();
    request.set_default(DeviceOptions::aligned(1));
    for _ in 0..60 {
        let first = random(40);
        request.push(PlanValue::new(1 + random(99), first..=first + random(12)));
    }
    let mut searched = 0;
    for nodes in [100, 1000, 5000] {
        let options = PlanOptions::new(Algorithm::Optimal)
            .no_deadline()
            .nodes(nodes);

        let one = request.plan(&options).unwrap();

        searched += one.arenas[0].nodes;
        for threads in [2, 4] {
            let several = request.plan(&options.clone().threads(threads)).unwrap();
            assert_eq!(one, several, "{nodes} nodes, {threads} threads");
        }
    }
    assert!(searched > 0, "a heuristic was enough");
}

#[test]
fn the_eleven_problems_of_minimalloc_fit_their_capacity() {
    for name in ["A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K"] {
        let Some(mut request) = problem(&format!("minimalloc/{name}.1048576.csv")) else {
            return;
        };
        request.set_default(DeviceOptions::aligned(1).capacity(1_048_576));
        let options = PlanOptions::default()
            .goal(Goal::Fit)
            .no_deadline()
            .nodes(100_000);

        let report = request.plan(&options).unwrap();

        check(&request, &report.plan).unwrap();
        assert!(report.arenas[0].peak <= 1_048_576, "{name}");
    }
}

/// Values that are all alive at once, each with a size and an alignment that waste bytes
/// above it whatever lies there: all orders are alike, and to prove that takes nearly all
/// of them.
fn alike_in_all_orders() -> PlanRequest {
    let mut request = request(&[]);
    for size in 1..=60 {
        request.push(PlanValue::new(16 * size + 1, 0..=0).aligned(16));
    }
    request
}

/// Asserts that a search for a smaller plan goes on up to `limit`, and ends by `most`.
fn assert_in_time(request: &PlanRequest, limit: Duration, most: Duration) {
    let options = PlanOptions::default().time(limit);
    // On a machine that others use, a thread may not run when it could: one of several
    // searches has to be in time.
    let mut taken = Vec::new();
    while taken.iter().all(|taken| *taken > most) {
        assert!(taken.len() < 5, "{limit:?}: {taken:?}");
        let begun = Instant::now();
        let report = request.plan(&options).unwrap();
        taken.push(begun.elapsed());

        assert_eq!(report.arenas[0].status, PlanStatus::BudgetExhausted);
        assert!(taken.iter().all(|taken| *taken >= limit), "{taken:?}");
    }
}

#[test]
fn a_search_ends_soon_after_its_deadline() {
    let limit = Duration::from_secs(1);

    assert_in_time(&alike_in_all_orders(), limit, limit * 12 / 10);
    if let Some(request) = problem("minimalloc/D.1048576.csv") {
        assert_in_time(&request, limit, limit * 12 / 10);
    }
}

#[test]
fn a_short_deadline_and_threads_are_respected_too() {
    let request = alike_in_all_orders();

    for limit in [0, 1, 10, 100].map(Duration::from_millis) {
        // What comes before a search has no part of the limit.
        assert_in_time(
            &request,
            limit,
            limit * 12 / 10 + Duration::from_millis(100),
        );
    }
    let options = PlanOptions::default().time(Duration::from_millis(100));
    let begun = Instant::now();
    let several = request.plan(&options.threads(4)).unwrap();
    assert_eq!(several.arenas[0].status, PlanStatus::BudgetExhausted);
    assert!(begun.elapsed() < Duration::from_secs(5));
}
