//! Replay a log of allocations on a fake device, over any stack of adaptors.
//!
//! ```text
//! cargo run --release --example replay_log --features testing -- \
//!     (LOG | --trace NAME [--seed N]) [--stack LIST] [--capacity BYTES] \
//!     [--html FILE] [--chrome FILE] [--pytorch FILE] [--write FILE] [--json]
//! ```
//!
//! A log has the columns `Action`, `Pointer` and `Size`, as those have that RMM
//! writes and the adaptor `Log`. `--trace` takes a generated one instead:
//! `llm_serving`, `cnn_inference` or `fragmentation`; `--write` writes what is
//! replayed as a log. `--stack statistics,limit=1GiB,pool` is the stack, the first
//! on top. `--html`, `--chrome` and `--pytorch` write what the recorder has seen, for
//! a browser, for Perfetto and for PyTorch's viewer; `--json` prints figures for
//! programs.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an example talks to a person"
)]

#[path = "support/log.rs"]
mod log;
#[path = "support/replay.rs"]
mod replay;
#[path = "support/stack.rs"]
mod stack;
#[path = "support/traces.rs"]
mod traces;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use device_memory::DeviceType;
use device_memory::adaptor::{Recorded, RecordedSegments, Recorder};
use device_memory::testing::FakeDevice;
use indicatif::{ProgressBar, ProgressStyle};

use log::Log;
use replay::Outcome;
use traces::{NAMES, SEED, Trace};

/// What can end the program: one line for a person.
type Failure = Box<dyn std::error::Error>;

const USAGE: &str = "usage: replay_log (LOG | --trace NAME [--seed N]) [--stack LIST] \
                     [--capacity BYTES] [--html FILE] [--chrome FILE] [--pytorch FILE] \
                     [--write FILE] [--json]";

/// The events that a page is made of, the last ones.
const RECORDED: usize = 500_000;

/// The command line.
#[derive(Default)]
struct Arguments {
    log: Option<PathBuf>,
    trace: Option<String>,
    seed: Option<u64>,
    stack: String,
    capacity: Option<usize>,
    html: Option<PathBuf>,
    chrome: Option<PathBuf>,
    pytorch: Option<PathBuf>,
    write: Option<PathBuf>,
    json: bool,
}

impl Arguments {
    fn read() -> Result<Self, Failure> {
        let mut found = Self::default();
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(USAGE);
            match word.as_str() {
                "--trace" => found.trace = Some(value()?),
                "--seed" => found.seed = Some(value()?.parse()?),
                "--stack" => found.stack = value()?,
                "--capacity" => found.capacity = Some(stack::bytes(&value()?)?),
                "--html" => found.html = Some(value()?.into()),
                "--chrome" => found.chrome = Some(value()?.into()),
                "--pytorch" => found.pytorch = Some(value()?.into()),
                "--write" => found.write = Some(value()?.into()),
                "--json" => found.json = true,
                flag if flag.starts_with('-') => return Err(USAGE.into()),
                file if found.log.is_none() => found.log = Some(file.into()),
                _ => return Err(USAGE.into()),
            }
        }
        Ok(found)
    }

    /// Whether anything is asked for that a recorder gives.
    fn records(&self) -> bool {
        self.html.is_some() || self.chrome.is_some() || self.pytorch.is_some()
    }

    /// Writes what a recorder gives.
    fn show(&self, recorder: &Recorder) -> std::io::Result<()> {
        let recording = recorder.recording();
        if let Some(file) = &self.html {
            std::fs::write(file, recording.to_html())?;
        }
        if let Some(file) = &self.chrome {
            std::fs::write(file, recording.to_chrome_trace())?;
        }
        if let Some(file) = &self.pytorch {
            std::fs::write(file, recording.to_pytorch_snapshot(DeviceType::Cuda))?;
        }
        Ok(())
    }

    /// What to replay, and a word on it.
    fn log(&self) -> Result<(String, Log), Failure> {
        match (&self.log, &self.trace) {
            (Some(file), None) => {
                let name = file.display().to_string();
                let text = std::fs::read_to_string(file).map_err(|e| format!("{name}: {e}"))?;
                let log = Log::parse(&text).map_err(|error| format!("{name}: {error}"))?;
                Ok((name, log))
            }
            (None, Some(name)) => {
                let seed = self.seed.unwrap_or(SEED);
                let trace = Trace::named(name, seed).ok_or_else(|| {
                    format!("there is no trace {name:?}: there are {}", NAMES.join(", "))
                })?;
                let log = Log {
                    trace,
                    ..Log::default()
                };
                Ok((format!("{name}, seed {seed}"), log))
            }
            _ => Err(USAGE.into()),
        }
    }
}

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
    let arguments = Arguments::read()?;
    let (name, log) = arguments.log()?;
    let trace = &log.trace;
    if let Some(file) = &arguments.write {
        std::fs::write(file, trace.to_string())?;
    }

    let mut builder = FakeDevice::builder(DeviceType::Cuda).reuse_addresses(true);
    if let Some(capacity) = arguments.capacity {
        builder = builder.capacity(capacity);
    }
    let device = builder.build();
    let recorder = Recorder::new(RECORDED);
    let mut allocator: stack::Allocator = Arc::new(device.clone());
    if arguments.records() {
        recorder.start();
        allocator = Arc::new(RecordedSegments::over(allocator, &recorder));
    }
    allocator = stack::build(&arguments.stack, allocator)?;
    if arguments.records() {
        allocator = Arc::new(Recorded::over(allocator, &recorder));
    }

    let bar = ProgressBar::new(trace.steps().len() as u64);
    bar.set_style(ProgressStyle::with_template(
        "{wide_bar} {human_pos} of {human_len} calls, {eta} left",
    )?);
    let outcome = replay::replay(trace, &allocator, &device, |done| bar.inc(done))?;
    bar.finish_and_clear();

    if arguments.records() {
        arguments.show(&recorder)?;
    }
    if arguments.json {
        println!("{:#}", json(&name, &arguments.stack, trace, &outcome));
    } else {
        print(&name, &arguments.stack, &log, &outcome);
    }
    Ok(())
}

fn json(name: &str, stack: &str, trace: &Trace, outcome: &Outcome) -> serde_json::Value {
    serde_json::json!({
        "log": name,
        "stack": stack,
        "calls": trace.steps().len(),
        "allocations": outcome.allocations,
        "failures": outcome.failures,
        "device_allocations": outcome.device_allocations,
        "peak_asked": outcome.peak_asked,
        "peak_taken": outcome.peak_taken,
        "fragmentation": outcome.fragmentation(),
        "hit_rate": outcome.hit_rate(),
        "nanoseconds_per_call": outcome.nanoseconds_per_call(trace.steps().len()),
    })
}

fn print(name: &str, stack: &str, log: &Log, outcome: &Outcome) {
    let steps = log.trace.steps().len();
    let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
    println!("{name}: {steps} calls, {} blocks", log.trace.blocks());
    println!(
        "stack:           {}",
        if stack.is_empty() { "none" } else { stack }
    );
    println!("peak asked for:  {:>12.1} MiB", mib(outcome.peak_asked));
    println!("peak taken:      {:>12.1} MiB", mib(outcome.peak_taken));
    println!(
        "fragmentation:   {:>12.2} %",
        outcome.fragmentation() * 100.0
    );
    println!("hit rate:        {:>12.2} %", outcome.hit_rate() * 100.0);
    println!("failures:        {:>12}", outcome.failures);
    println!(
        "time of a call:  {:>12.0} ns",
        outcome.nanoseconds_per_call(steps)
    );
    if let Some(failure) = &outcome.first_failure {
        println!("first failure:   {failure}");
    }
    if log.failed > 0 {
        println!("failed when logged: {}", log.failed);
    }
    if log.leaked > 0 {
        println!("never freed in the log: {} blocks", log.leaked);
    }
}
