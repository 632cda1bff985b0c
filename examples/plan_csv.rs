//! Plan the values of a MiniMalloc table, and print it with their offsets.
//!
//! `cargo run --release --example plan_csv -- FILE [--capacity N] [--algorithm A] [--budget-ms B]`
//!
//! The table goes to stdout; peak, lower bound, whether a smaller plan is proved not to
//! exist, and milliseconds go to stderr. If no plan within the capacity is found, the exit
//! code is 1 and one line says so, and whether it is proved that there is none. Anything
//! else that goes wrong is one line and exit code 2.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an example talks to a person"
)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use device_memory::plan::{DeviceOptions, Goal, PlanOptions, PlanStatus, PlanTable, check};
use device_memory::{ErrorKind, PlanError};

/// What can end an example: one line for a person.
type Failure = Box<dyn std::error::Error>;

const USAGE: &str = "usage: plan_csv FILE [--capacity N] [--algorithm A] [--budget-ms B]";

/// The exit code where a capacity can not be met.
const OVER_CAPACITY: u8 = 1;

/// The exit code of all else.
const WRONG: u8 = 2;

fn main() -> ExitCode {
    let Err(failure) = run() else {
        return ExitCode::SUCCESS;
    };
    let kind = failure.downcast_ref::<device_memory::Error>();
    match kind.map(device_memory::Error::kind) {
        Some(ErrorKind::Plan(PlanError::OverCapacity(report))) => {
            eprintln!(
                "error: {} needs {} bytes, {} over the capacity of {}; lower bound {}; proved: {}",
                report.device,
                report.needed,
                report.over,
                report.capacity,
                report.lower_bound,
                yes_or_no(report.proved)
            );
            ExitCode::from(OVER_CAPACITY)
        }
        _ => {
            eprintln!("error: {failure}");
            ExitCode::from(WRONG)
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
            "--capacity" => capacity = Some(number(&operand()?)?),
            "--algorithm" => options.algorithm = operand()?.parse()?,
            "--budget-ms" => {
                let budget = u64::try_from(number(&operand()?)?)?;
                options.time = Some(Duration::from_millis(budget));
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
            "{}: peak {}, lower bound {}, by {}, {} nodes; smallest proved: {}",
            arena.device,
            arena.peak,
            arena.lower_bound,
            arena.algorithm,
            arena.nodes,
            yes_or_no(arena.status == PlanStatus::Optimal)
        );
    }
    eprintln!("{milliseconds:.3} ms");
    Ok(())
}

/// The operand of a flag that takes a number.
fn number(word: &str) -> Result<usize, Failure> {
    let found = word.parse();
    Ok(found.map_err(|_| format!("{word:?} is no number: {USAGE}"))?)
}

fn yes_or_no(is_so: bool) -> &'static str {
    if is_so { "yes" } else { "no" }
}
