//! Plan the memory of an ExecuTorch program again, and write the smaller one.
//!
//! `cargo run --release --example plan_program --features pte -- FILE [-o NEW] [--html PAGE]`
//!
//! The lifetimes of tensors are told from the instructions. A program whose
//! lifetimes can not be told is left alone, with the reason in one line and exit code 1;
//! anything else that goes wrong is one line and exit code 2. The page has all arenas of
//! all methods, planned by ExecuTorch's algorithm and by ours.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an example talks to a person"
)]

use std::path::PathBuf;
use std::process::ExitCode;

use device_memory::ErrorKind;
use device_memory::plan::{Algorithm, PlanOptions, PlanPage, PlanReport, PlanRequest};
use device_memory::pte::{ArenaChange, Program, replan};

/// What can end an example: one line for a person.
type Failure = Box<dyn std::error::Error>;

const USAGE: &str = "usage: plan_program FILE [-o NEW] [--html PAGE]";

/// The exit code where lifetimes can not be told.
const CAN_NOT_REPLAN: u8 = 1;

/// The exit code of all else.
const WRONG: u8 = 2;

fn main() -> ExitCode {
    let Err(failure) = run() else {
        return ExitCode::SUCCESS;
    };
    eprintln!("error: {failure}");
    let kind = failure.downcast_ref::<device_memory::Error>();
    match kind.map(device_memory::Error::kind) {
        Some(ErrorKind::CanNotReplan { .. }) => ExitCode::from(CAN_NOT_REPLAN),
        _ => ExitCode::from(WRONG),
    }
}

fn run() -> Result<(), Failure> {
    let (mut file, mut output, mut page) = (None, None, None);
    let mut words = std::env::args_os().skip(1).map(PathBuf::from);
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("-o") => output = Some(words.next().ok_or(USAGE)?),
            Some("--html") => page = Some(words.next().ok_or(USAGE)?),
            Some(flag) if flag.starts_with('-') => return Err(USAGE.into()),
            _ if file.is_none() => file = Some(word),
            _ => return Err(USAGE.into()),
        }
    }
    let file = file.ok_or(USAGE)?;
    let old = std::fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let new = replan(&old, &PlanOptions::default())?;
    println!("method            arena  device       before        after  lower bound");
    for arena in &new.arenas {
        println!(
            "{:<16} {:>6}  {:<8} {:>10} {:>12} {:>12}",
            arena.method,
            arena.index,
            arena.device.to_string(),
            arena.before,
            arena.after,
            arena.lower_bound
        );
    }
    let sum = |bytes: fn(&ArenaChange) -> usize| new.arenas.iter().map(bytes).sum::<usize>();
    let (before, after) = (sum(|arena| arena.before), sum(|arena| arena.after));
    println!("together {before} bytes before, {after} after");
    if let Some(page) = page {
        let title = file.file_name().unwrap_or_default().to_string_lossy();
        std::fs::write(page, draw(&title, &old)?)?;
    }
    if let Some(output) = output {
        std::fs::write(output, &new.bytes)?;
    }
    Ok(())
}

/// An arena with two plans of it.
struct Drawn {
    heading: String,
    request: PlanRequest,
    greedy: PlanReport,
    auto: PlanReport,
}

/// All arenas of all methods on one page.
fn draw(title: &str, program: &[u8]) -> Result<String, Failure> {
    let program = Program::parse(program)?;
    let mut drawn = Vec::new();
    for method in program.methods() {
        for index in 0..method.buffers().len() {
            let request = method.plan_request(index)?;
            drawn.push(Drawn {
                heading: format!("method {}, arena {index}", method.name()),
                greedy: request.plan(&PlanOptions::new(Algorithm::ExecutorchGreedy))?,
                auto: request.plan(&PlanOptions::default())?,
                request,
            });
        }
    }
    let page = drawn.iter().fold(PlanPage::new(title), |page, arena| {
        let plans = [("ExecuTorch greedy", &arena.greedy), ("auto", &arena.auto)];
        page.with(&arena.heading, &arena.request, plans)
    });
    Ok(page.to_html())
}
