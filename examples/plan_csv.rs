//! Plan the values of a MiniMalloc table, and print it with their offsets.
//!
//! `cargo run --release --example plan_csv -- FILE [--capacity N] [--algorithm A] [--budget-ms B]`
//!
//! The table goes to stdout; peak, lower bound and milliseconds go to stderr. If no
//! plan within the capacity is found, the exit code is 1 and one line says so, and
//! whether that is proved.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an example talks to a person"
)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use device_memory::plan::{DeviceOptions, Goal, PlanOptions, PlanTable, check};

/// What can end an example: one line for a person.
type Failure = Box<dyn std::error::Error>;

const USAGE: &str = "usage: plan_csv FILE [--capacity N] [--algorithm A] [--budget-ms B]";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    let mut file = None;
    let mut capacity = None;
    let mut options = PlanOptions::default();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut operand = || words.next().ok_or(USAGE);
        match word.as_str() {
            "--capacity" => capacity = Some(operand()?.parse()?),
            "--algorithm" => options.algorithm = operand()?.parse()?,
            "--budget-ms" => {
                options.time = Some(Duration::from_millis(operand()?.parse()?));
            }
            flag if flag.starts_with('-') => return Err(USAGE.into()),
            _ if file.is_none() => file = Some(PathBuf::from(word)),
            _ => return Err(USAGE.into()),
        }
    }
    let file = file.ok_or(USAGE)?;
    let text = std::fs::read_to_string(&file);
    let text = text.map_err(|error| format!("{}: {error}", file.display()))?;
    let mut table = PlanTable::parse(&text)?;
    if let Some(capacity) = capacity {
        let limited = DeviceOptions::aligned(1).capacity(capacity);
        table.request_mut().set_default(limited);
        options.goal = Goal::Fit;
    }

    let start = Instant::now();
    let report = table.request().plan(&options)?;
    let milliseconds = start.elapsed().as_secs_f64() * 1000.0;

    check(table.request(), &report.plan)?;
    print!("{}", table.to_csv(Some(&report.plan))?);
    for arena in &report.arenas {
        eprintln!(
            "{}: peak {}, lower bound {}, {} ({:?}, {} nodes)",
            arena.device, arena.peak, arena.lower_bound, arena.algorithm, arena.status, arena.nodes
        );
    }
    eprintln!("{milliseconds:.3} ms");
    Ok(())
}
