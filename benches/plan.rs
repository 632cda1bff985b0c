//! How high plans reach and what they cost, on problems that others have published.
//!
//! Prints a line a problem: values, lower bound, peak, their ratio, what was proved,
//! nodes and milliseconds. The problems are not part of this repository: they are
//! looked for in `../shared/data/plan` or in the folder that
//! `DEVICE_MEMORY_PLAN_DATA` names.

#![expect(clippy::print_stdout, reason = "a benchmark talks to a person")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use device_memory::plan::{DeviceOptions, Goal, PlanOptions, PlanTable, check};

fn main() {
    let folder = std::env::var_os("DEVICE_MEMORY_PLAN_DATA").map(PathBuf::from);
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data/plan");
    let folder = folder.unwrap_or(beside);
    if !folder.is_dir() {
        println!("skipped: no problems in {}", folder.display());
        return;
    }
    println!(
        "problem            capacity  values        bound         peak   ratio      nodes       ms"
    );
    let second = Duration::from_secs(10);
    let fit = |capacity| {
        PlanOptions::default()
            .goal(Goal::Fit)
            .time(second * capacity)
    };
    for name in ["A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K"] {
        let file = folder.join(format!("minimalloc/{name}.1048576.csv"));
        run(&file, Some(1_048_576), &fit(1));
    }
    for (name, capacity) in [("C", 1_039_360), ("J", 1_015_808), ("D", 1_024_000)] {
        let file = folder.join(format!("minimalloc/{name}.1048576.csv"));
        run(&file, Some(capacity), &fit(1));
    }
    for name in ["resnet50", "G_1", "S_1"] {
        let file = folder.join(format!("idealloc/{name}.csv"));
        run(&file, None, &PlanOptions::default());
    }
}

/// Plans the problem in `file`, checks the plan and prints a line.
fn run(file: &Path, capacity: Option<usize>, options: &PlanOptions) {
    let name = file.file_stem().unwrap_or_default().to_string_lossy();
    let Ok(text) = std::fs::read_to_string(file) else {
        println!("{name:<18} skipped: it is not there");
        return;
    };
    let mut table = PlanTable::parse(&text).expect("a table");
    if let Some(capacity) = capacity {
        let limited = DeviceOptions::aligned(1).capacity(capacity);
        table.request_mut().set_default(limited);
    }
    let start = Instant::now();
    let report = table.request().plan(options);
    let ms = start.elapsed().as_secs_f64() * 1e3;
    match report {
        Ok(report) => {
            check(table.request(), &report.plan).expect("a right plan");
            let arena = &report.arenas[0];
            println!(
                "{name:<18} {:>8} {:>7} {:>12} {:>12}  {:.4} {:>10} {ms:>8.1}",
                capacity.unwrap_or(0),
                table.request().values().len(),
                arena.lower_bound,
                arena.peak,
                arena.peak as f64 / arena.lower_bound as f64,
                arena.nodes
            );
        }
        Err(error) => println!(
            "{name:<18} {:>8} {error} ({ms:.1} ms)",
            capacity.unwrap_or(0)
        ),
    }
}
