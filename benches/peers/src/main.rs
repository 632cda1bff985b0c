//! The pool beside other allocators: the same traces, on the same fake device.
//!
//! `benches/peers/report.sh` puts what this prints into `benches/README.md`. Parts:
//! `peers traces`, `peers threads`, `peers crowd`, `peers hits`; `peers list` says
//! what there is. For a profiler, `peers one NAME TRACE` has one allocator serve
//! one trace twice, the second time in a function named `counted`,
//! `peers among NAME COUNT` makes requests among so many live blocks in one, and
//! `peers hit NAME SIZE COUNT` does so many pairs.

mod crowd;
mod hits;
mod instructions;
mod lap;
mod peer;
mod peers;
mod random;
mod report;
mod serve;
mod shared;
mod table;
mod threads;

#[path = "../../../examples/support/traces.rs"]
mod traces;

use std::env;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let understood = match *arguments {
        [] => run(&[report::traces, report::threads, report::crowd, report::hits]),
        ["traces"] => run(&[report::traces]),
        ["threads"] => run(&[report::threads]),
        ["crowd"] => run(&[report::crowd]),
        ["hits"] => run(&[report::hits]),
        ["list"] => run(&[report::list]),
        ["one", name, trace] => report::one(name, trace),
        ["among", name, count] => report::among(name, count),
        ["hit", name, size, count] => report::hit(name, size, count),
        _ => None,
    };
    match understood {
        Some(()) => ExitCode::SUCCESS,
        None => {
            eprintln!(
                "peers [traces|threads|crowd|hits|list|one NAME TRACE|among NAME COUNT|\
                 hit NAME SIZE COUNT]"
            );
            ExitCode::FAILURE
        }
    }
}

fn run(parts: &[fn()]) -> Option<()> {
    parts.iter().for_each(|part| part());
    Some(())
}
