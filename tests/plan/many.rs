//! A hundred thousand values.

use device_memory::plan::{
    Algorithm, ArenaReport, DeviceOptions, PlanOptions, PlanRequest, PlanStatus, PlanValue, check,
};

/// What takes time with the values, and little more: all but what searches.
const HEURISTICS: [Algorithm; 6] = [
    Algorithm::Naive,
    Algorithm::ExecutorchGreedy,
    Algorithm::GreedyBySize,
    Algorithm::GreedyByBreadth,
    Algorithm::BestFit,
    Algorithm::FirstFit,
];

/// More than are searched: in release as many as there are to be planned.
const MANY: usize = if cfg!(debug_assertions) {
    7_000
} else {
    100_000
};

/// Values of all sizes up to a page, one begun in each step, alive for up to 40.
fn values(count: usize) -> PlanRequest {
    let mut request = PlanRequest::new();
    let mut seed = 1_usize;
    for step in 0..count {
        seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let (size, life) = ((seed >> 40) % 4096, (seed >> 20) % 40);
        request.push(PlanValue::new(size, step..=step + life));
    }
    request
}

/// The arena of a plan that is right.
fn planned(request: &PlanRequest, options: &PlanOptions) -> ArenaReport {
    let mut report = request.plan(options).unwrap();
    check(request, &report.plan).unwrap_or_else(|fault| panic!("{options:?}: {fault}"));
    report.arenas.remove(0)
}

#[test]
fn a_hundred_thousand_values_are_planned_by_every_heuristic() {
    let request = values(100_000);

    for algorithm in HEURISTICS {
        let arena = planned(&request, &PlanOptions::new(algorithm));

        assert_eq!(arena.algorithm, algorithm.name());
        match algorithm {
            Algorithm::Naive => assert!(arena.peak > 1000 * arena.lower_bound),
            _ => assert!(arena.peak < 2 * arena.lower_bound, "{algorithm}"),
        }
    }
}

#[test]
fn more_values_than_are_searched_are_planned_by_the_best_heuristic() {
    let mut request = values(MANY);
    // Alone in a step of their own, and larger than all others there are: the alignment of
    // the second keeps every plan above the lower bound.
    request.set_default(DeviceOptions::aligned(1));
    for _ in 0..2 {
        let step = 2 * MANY;
        request.push(PlanValue::new(100_001, step..=step).aligned(1 << 16));
    }

    let arena = planned(&request, &PlanOptions::default());

    assert_eq!(arena.nodes, 0);
    assert_eq!(arena.status, PlanStatus::BudgetExhausted);
    assert_eq!((arena.peak, arena.lower_bound), (231_073, 200_002));
    assert_eq!(arena.proved, arena.lower_bound);
    for algorithm in HEURISTICS {
        let other = planned(&request, &PlanOptions::new(algorithm));
        assert!(arena.peak <= other.peak, "{algorithm}");
    }
}

/// In each of two steps values of one byte, of two bytes and so on up to `half`.
fn crowds(half: usize) -> PlanRequest {
    let mut request = PlanRequest::new();
    request.set_default(DeviceOptions::aligned(1));
    for step in 0..2 {
        for size in 1..=half {
            request.push(PlanValue::new(size, step..=step));
        }
    }
    request
}

#[test]
fn twice_fifty_thousand_values_that_are_alive_at_once_are_planned() {
    // What looks at those that are alive with a value takes minutes here.
    let arena = planned(&crowds(50_000), &PlanOptions::new(Algorithm::Naive));

    let sum = 50_000 * 50_001 / 2;
    assert_eq!((arena.peak, arena.lower_bound), (2 * sum, sum));
}

#[test]
fn twice_a_thousand_values_that_are_alive_at_once_are_planned_without_a_gap() {
    let request = crowds(1000);

    for algorithm in HEURISTICS {
        let arena = planned(&request, &PlanOptions::new(algorithm));

        let gap = if algorithm == Algorithm::Naive {
            500_500
        } else {
            0
        };
        assert_eq!(
            (arena.lower_bound, arena.gap()),
            (500_500, gap),
            "{algorithm}"
        );
    }
}
