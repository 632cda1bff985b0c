//! Plan the memory of an ExecuTorch program again, and write the smaller one.
//!
//! `cargo run --release --example plan_program --features pte -- FILE [-o NEW] [--html PAGE]`
//!
//! The lifetimes of tensors are told from the instructions. A program whose
//! lifetimes can not be told is left alone, with the reason and exit code 1.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an example talks to a person"
)]

use std::path::PathBuf;
use std::process::ExitCode;

use device_memory::plan::{Algorithm, PlanOptions, PlanPage};
use device_memory::pte::{Program, replan};

/// What can end an example: one line for a person.
type Failure = Box<dyn std::error::Error>;

const USAGE: &str = "usage: plan_program FILE [-o NEW] [--html PAGE]";

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
    let sum = |bytes: fn(&device_memory::pte::ArenaChange) -> usize| {
        new.arenas.iter().map(bytes).sum::<usize>()
    };
    let (before, after) = (sum(|arena| arena.before), sum(|arena| arena.after));
    println!("together {before} bytes before, {after} after");
    if let Some(page) = page {
        std::fs::write(page, draw(&old)?)?;
    }
    if let Some(output) = output {
        std::fs::write(output, &new.bytes)?;
    }
    Ok(())
}

/// The first method's largest arena, planned by ExecuTorch's algorithm and by ours.
fn draw(program: &[u8]) -> Result<String, Failure> {
    let program = Program::parse(program)?;
    let method = program
        .methods()
        .first()
        .ok_or("the program has no method")?;
    let arenas = method.buffers().iter().enumerate();
    let largest = arenas.max_by_key(|(_, arena)| arena.size);
    let (index, _) = largest.ok_or("the method has no arena")?;
    let request = method.plan_request(index)?;
    let greedy = request.plan(&PlanOptions::new(Algorithm::ExecutorchGreedy))?;
    let auto = request.plan(&PlanOptions::default())?;
    let title = format!("method {}, arena {index}", method.name());
    let page = PlanPage::new(&title, &request);
    Ok(page
        .with("ExecuTorch greedy", &greedy)
        .with("auto", &auto)
        .to_html())
}
