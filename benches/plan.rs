//! How high plans reach and what they cost, beside what they should.
//!
//! Prints a line a figure: what was measured, how much may pass, how little would
//! be better still, and whether each was met. Times are the lowest of several
//! runs. Every plan is checked.
//!
//! Some of the problems are those that others have published, which are not part
//! of this repository: they are looked for in the folder that
//! `DEVICE_MEMORY_PLAN_DATA` names. What needs one that is not there is skipped.

#![expect(clippy::print_stdout, reason = "a benchmark talks to a person")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use device_memory::plan::{
    Algorithm, ArenaReport, DeviceOptions, Goal, PlanOptions, PlanRequest, PlanTable, PlanValue,
    check,
};
use serde_json::Value;

/// The capacity at which the problems of minimalloc were published.
const PUBLISHED: usize = 1_048_576;

fn main() {
    println!(
        "{:<42} {:>10} {:>10}       {:>10}",
        "", "measured", "pass", "reach"
    );
    let folder = Problems::find();
    published(&folder);
    tighter(&folder);
    traces(&folder);
    exported();
    without_search(&folder);
    already_optimal();
}

/// A to K at the capacity that was published, on one thread and on four.
fn published(problems: &Problems) {
    let one = PlanOptions::default().goal(Goal::Fit);
    let one = one.time(Duration::from_secs(10));
    let mut times = Vec::new();
    for (name, request) in problems.minimalloc(PUBLISHED) {
        let run = Run::best_of(3, &request, &one);
        run.line(&format!("{name} at {PUBLISHED}, ms"), 500.0, 100.0);
        times.push(run.ms);
    }
    if times.len() < NAMES.len() {
        println!("A to K together: skipped, some are not there");
        return;
    }
    line("A to K together, ms", times.iter().sum(), 2400.0, 500.0);
    let several = one.threads(4);
    let runs = problems.minimalloc(PUBLISHED).into_iter();
    let times = runs.map(|(_, request)| Run::best_of(3, &request, &several).ms);
    let slowest = times.fold(0.0, f64::max);
    line("slowest of A to K, 4 threads, ms", slowest, f64::NAN, 60.0);
}

/// Capacities below the one that was published, down to the lower bounds.
fn tighter(problems: &Problems) {
    let options = PlanOptions::default().goal(Goal::Fit);
    let options = options.time(Duration::from_secs(10));
    let none = f64::NAN;
    for (name, capacity, pass, reach) in [
        ("C", 1_039_360, 50.0, none),
        ("J", 1_015_808, 2000.0, none),
        ("D", 1_024_000, 2000.0, none),
        ("D", 986_112, none, 10_000.0),
        ("J", 989_184, none, 10_000.0),
    ] {
        let file = format!("minimalloc/{name}.1048576.csv");
        let Some(request) = problems.read(&file, Some(capacity)) else {
            continue;
        };
        let run = Run::best_of(1, &request, &options);
        run.line(&format!("{name} at {capacity}, ms"), pass, reach);
    }
}

/// Traces without a capacity: how high, and how long it took.
fn traces(problems: &Problems) {
    let mut traces = Vec::new();
    for (name, ratio, pass) in [
        ("resnet50", 1.0, 500.0),
        ("G_1", 1.0, 500.0),
        ("S_1", 1.002, 10_000.0),
    ] {
        if let Some(request) = problems.read(&format!("idealloc/{name}.csv"), None) {
            traces.push((name, request, ratio, pass));
        }
    }
    traces.push(("60,000 values", training(60_000), f64::NAN, f64::NAN));
    for (name, request, ratio, pass) in traces {
        let run = Run::best_of(1, &request, &PlanOptions::default());
        let what = format!("{name}, peak over bound");
        line(
            &what,
            run.ratio,
            ratio,
            if ratio.is_nan() { 1.002 } else { ratio },
        );
        line(&format!("{name}, ms"), run.ms, pass, 2000.0);
    }
}

/// Every pool of the exporter's plans: how far from its lower bound, how long, and
/// how much above what the exporter's algorithm does.
fn exported() {
    let (mut count, mut gap, mut above, mut slowest) = (0, 0, 0, 0.0_f64);
    for request in pools() {
        let run = Run::best_of(5, &request, &PlanOptions::default());
        let greedy = PlanOptions::new(Algorithm::ExecutorchGreedy);
        let greedy = Run::best_of(1, &request, &greedy);
        count += 1;
        gap = run.gap.max(gap);
        above = run.peak.saturating_sub(greedy.peak).max(above);
        slowest = run.ms.max(slowest);
    }
    let what = |what| format!("{count} exported arenas, {what}");
    line(&what("largest gap, bytes"), gap as f64, 0.0, 0.0);
    line(&what("above greedy, bytes"), above as f64, 0.0, 0.0);
    line(&what("slowest, ms"), slowest, 10.0, 2.0);
}

/// The heuristics of `auto` alone, on A to K without a capacity.
fn without_search(problems: &Problems) {
    let options = PlanOptions::default().nodes(0);
    let requests = problems.minimalloc(usize::MAX);
    if requests.len() < NAMES.len() {
        println!("A to K without the search: skipped, some are not there");
        return;
    }
    let (mut ratios, mut slowest) = (0.0, 0.0_f64);
    for (name, request) in &requests {
        let run = Run::best_of(5, request, &options);
        println!(
            "  {name} without the search: {:.4}, {:.1} ms",
            run.ratio, run.ms
        );
        ratios += run.ratio;
        slowest = run.ms.max(slowest);
    }
    let mean = ratios / requests.len() as f64;
    line("A to K without the search, mean ratio", mean, 1.21, 1.15);
    line(
        "A to K without the search, slowest, ms",
        slowest,
        65.0,
        65.0,
    );
}

/// 400 tensors that a heuristic places as well as can be: of a plain network, where
/// the first does, and of one with connections past some layers.
fn already_optimal() {
    for (name, skips) in [("a chain", false), ("with skips", true)] {
        let mut random = Random(1);
        let mut request = PlanRequest::new();
        request.set_default(DeviceOptions::aligned(64));
        for step in 0..400 {
            let life = if skips && step % 4 == 0 { 4 } else { 1 };
            let layer = 1 + step / 40;
            let size = if skips {
                random.below(65_536)
            } else {
                4096 * layer
            };
            request.push(PlanValue::new(size, step..=step + life));
        }
        let run = Run::best_of(200, &request, &PlanOptions::default());
        assert_eq!(run.gap, 0, "a heuristic was to be optimal here");
        let what = format!("400 tensors, {name}, us");
        line(&what, run.ms * 1e3, 200.0, 100.0);
    }
}

/// A step of training: values that live until the way back, and many that do not.
fn training(count: usize) -> PlanRequest {
    let mut random = Random(7);
    let mut request = PlanRequest::new();
    request.set_default(DeviceOptions::aligned(512));
    for step in 0..count {
        let size = 1 << (9 + random.below(12));
        let size = size + random.below(size);
        let back = 2 * count - step;
        let last = match random.below(40) {
            0 if step < count / 2 => back - count,
            1 => step + random.below(2000),
            _ => step + random.below(20),
        };
        request.push(PlanValue::new(size, step..=last.max(step)));
    }
    request
}

/// What planning a request came to.
struct Run {
    peak: usize,
    gap: usize,
    ratio: f64,
    ms: f64,
}

impl Run {
    /// Plans `request` so many times.
    fn best_of(times: usize, request: &PlanRequest, options: &PlanOptions) -> Self {
        let mut best = Self {
            peak: 0,
            gap: 0,
            ratio: f64::NAN,
            ms: f64::INFINITY,
        };
        for _ in 0..times {
            let start = Instant::now();
            let report = request.plan(options);
            let ms = start.elapsed().as_secs_f64() * 1e3;
            let Ok(report) = report else {
                return best;
            };
            check(request, &report.plan).expect("a right plan");
            let sum = |of: fn(&ArenaReport) -> usize| report.arenas.iter().map(of).sum();
            let (peak, bound): (usize, usize) = (sum(|a| a.peak), sum(|a| a.lower_bound));
            best = Self {
                peak,
                gap: peak - bound,
                ratio: peak as f64 / bound as f64,
                ms: best.ms.min(ms),
            };
        }
        best
    }

    /// Prints how long it took, or that no plan was found.
    fn line(&self, what: &str, pass: f64, reach: f64) {
        line(what, self.ms, pass, reach);
    }
}

/// Prints a figure beside what it may be; a limit that is no number is none.
fn line(what: &str, figure: f64, pass: f64, reach: f64) {
    let show = |figure: f64| match figure {
        none if none.is_nan() => String::new(),
        never if never.is_infinite() => "no plan".to_owned(),
        ratio if what.contains("ratio") || what.contains("over") => format!("{ratio:.4}"),
        other => format!("{other:.1}"),
    };
    let verdict = |limit: f64| match limit {
        none if none.is_nan() => "",
        limit if figure <= limit + 5e-5 => "yes",
        _ => "NO",
    };
    println!(
        "{what:<42} {:>10} {:>10} {:<5} {:>10} {}",
        show(figure),
        show(pass),
        verdict(pass),
        show(reach),
        verdict(reach)
    );
}

/// The names of minimalloc's problems.
const NAMES: [&str; 11] = ["A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K"];

/// The folder of published problems, if one is named.
struct Problems(Option<PathBuf>);

impl Problems {
    fn find() -> Self {
        Self(std::env::var_os("DEVICE_MEMORY_PLAN_DATA").map(PathBuf::from))
    }

    /// A problem, if it is there.
    fn read(&self, file: &str, capacity: Option<usize>) -> Option<PlanRequest> {
        let folder = self.0.as_ref();
        let text = folder.and_then(|folder| std::fs::read_to_string(folder.join(file)).ok());
        let Some(text) = text else {
            println!("{file}: skipped, it is not there");
            return None;
        };
        let mut table = PlanTable::parse(&text).expect("a table");
        if let Some(capacity) = capacity {
            let limited = DeviceOptions::aligned(1).capacity(capacity);
            table.request_mut().set_default(limited);
        }
        Some(table.request().clone())
    }

    /// Those of minimalloc that are there.
    fn minimalloc(&self, capacity: usize) -> Vec<(&'static str, PlanRequest)> {
        let read = |name| {
            let file = format!("minimalloc/{name}.1048576.csv");
            Some((name, self.read(&file, Some(capacity))?))
        };
        NAMES.into_iter().filter_map(read).collect()
    }
}

/// The pools of the exporter's plans among the data of the tests.
fn pools() -> Vec<PlanRequest> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/pte");
    let files = std::fs::read_dir(folder).expect("the data of the tests");
    let files = files.map(|file| file.expect("a file").path());
    let plans = files.filter(|file| file.to_string_lossy().ends_with(".plan.json"));
    let mut pools = Vec::new();
    for file in plans {
        let json = std::fs::read(file).expect("a plan");
        let json: Value = serde_json::from_slice(&json).expect("JSON");
        for arena in json["arenas"].as_array().expect("arenas") {
            let number = |of: &Value, field: &str| of[field].as_u64().expect("a number") as usize;
            let mut request = PlanRequest::new();
            request.set_default(DeviceOptions::aligned(number(arena, "alignment")));
            for tensor in arena["tensors"].as_array().expect("tensors") {
                let steps = number(tensor, "start")..=number(tensor, "end");
                let pool = u32::try_from(number(tensor, "mem_id")).expect("a pool");
                request.push(PlanValue::new(number(tensor, "aligned"), steps).in_pool(pool));
            }
            pools.push(request);
        }
    }
    pools
}

/// Numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = self.0.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}
