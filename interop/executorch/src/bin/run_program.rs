//! Run programs in the released ExecuTorch runtime, and compare what they give.
//!
//! `run_program FILE [OTHER] [--rounds N]`
//!
//! Each program runs in memory that the runtime finds for it, and in planned
//! memory of this project. Inputs are the same in every run of the same program.
//! Exits with 1 if any output differs in any bit: between the two memories, or
//! between the two programs, which then have the same methods, such as one before
//! and one after it was planned anew. Devices are fake, and their back end is a
//! stand-in.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program that talks to a person"
)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use device_memory::testing::FakeDevice;
use device_memory::{DeviceAllocatorRegistry, DeviceType};
use interop_executorch::forward::install;
use interop_executorch::program::{Run, run_on_memory_of_the_runtime, run_on_planned_memory};
use interop_executorch::{Bridge, Failure};

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::from(2)
        }
    }
}

/// Whether all that is compared is equal.
fn run() -> Result<bool, Failure> {
    let arguments = Arguments::read()?;
    let registry = Arc::new(DeviceAllocatorRegistry::new());
    registry.register(Arc::new(FakeDevice::new(DeviceType::Cuda, 128)))?;
    let _installed = install(Arc::new(Bridge::new(Arc::clone(&registry))));

    let mut is_equal = true;
    let mut first: Option<(&Path, Vec<Run>)> = None;
    for file in &arguments.files {
        let runs = run_on_memory_of_the_runtime(file, &registry, arguments.rounds)?;
        print(file, &runs);
        let planned = run_on_planned_memory(file, &registry, arguments.rounds)?;
        is_equal &= compare(
            "in memory of the runtime",
            &runs,
            "in planned memory",
            &planned,
        );
        match &first {
            None => first = Some((file, runs)),
            Some((other, other_runs)) => {
                let (other, file) = (other.display().to_string(), file.display().to_string());
                is_equal &= compare(&other, other_runs, &file, &runs);
            }
        }
    }
    Ok(is_equal)
}

/// What is asked for.
struct Arguments {
    files: Vec<PathBuf>,
    rounds: u64,
}

impl Arguments {
    fn read() -> Result<Self, Failure> {
        const USAGE: &str = "usage: run_program FILE [OTHER] [--rounds N]";
        let mut files = Vec::new();
        let mut rounds = 3;
        let mut arguments = std::env::args_os().skip(1);
        while let Some(argument) = arguments.next() {
            if argument == "--rounds" {
                let number = arguments.next().and_then(|text| text.into_string().ok());
                rounds = number.ok_or(USAGE)?.parse()?;
            } else {
                files.push(PathBuf::from(argument));
            }
        }
        if files.is_empty() || files.len() > 2 || rounds == 0 {
            return Err(USAGE.into());
        }
        Ok(Self { files, rounds })
    }
}

fn print(file: &Path, runs: &[Run]) {
    println!("{}", file.display());
    for run in runs {
        for (index, output) in run.outputs.iter().enumerate() {
            let bytes = match &output.bytes {
                Some(bytes) => format!("{} bytes, hash {:016x}", bytes.len(), output.hash()),
                None => "on a device".to_owned(),
            };
            println!(
                "  {} round {} output {index}: {} {:?}, {bytes}",
                run.method, run.round, output.scalar_type, output.sizes
            );
        }
    }
}

/// Says whether all outputs are the same, and which are not.
fn compare(one: &str, runs: &[Run], other: &str, other_runs: &[Run]) -> bool {
    let mut differences = 0_usize;
    for (run, other_run) in runs.iter().zip(other_runs) {
        if run != other_run {
            differences += 1;
            let Run { method, round, .. } = run;
            println!("  DIFFERS: {method} in round {round}: {one} and {other}");
        }
    }
    let is_equal = differences == 0 && runs.len() == other_runs.len();
    let verdict = if is_equal { "equal" } else { "NOT EQUAL" };
    println!(
        "  {verdict}, bit for bit: {one} and {other}, {} runs",
        runs.len()
    );
    is_equal
}
