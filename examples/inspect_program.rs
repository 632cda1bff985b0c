//! Show what memory an ExecuTorch program plans, without allocating any.
//!
//! `cargo run --example inspect_program --features pte -- FILE [--method M] [--json]`

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an example talks to a person"
)]

#[path = "support/program.rs"]
mod program;

use std::process::ExitCode;

use device_memory::pte::{Method, Program};

use program::{Arguments, Failure};

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
    let arguments = Arguments::read("usage: inspect_program FILE [--method M] [--json]")?;
    let bytes = arguments.bytes()?;
    let parsed = Program::parse(&bytes)?;
    for warning in program::warnings(&parsed)? {
        eprintln!("warning: {warning}");
    }
    let methods = arguments.methods(&parsed)?;
    if arguments.json {
        let methods = methods.into_iter().map(program::method_json).collect();
        let object = program::program_json(&arguments.file, bytes.len(), methods);
        println!("{object:#}");
        return Ok(());
    }
    println!("{}  {} bytes", arguments.file.display(), bytes.len());
    for method in methods {
        print_method(method);
    }
    Ok(())
}

fn print_method(method: &Method<'_>) {
    println!(
        "\nmethod {}: {} values, {} instructions, {} inputs, {} outputs",
        method.name(),
        method.num_values(),
        method.num_instructions(),
        method.inputs().count(),
        method.outputs().count(),
    );
    for (index, buffer) in method.buffers().iter().enumerate() {
        println!(
            "  arena {index} on {}: {} bytes",
            buffer.device, buffer.size
        );
    }
    for tensor in method.planned_tensors() {
        println!(
            "  value {:>4} in arena {} at {:>8}: {:>8} bytes, {} {}{}",
            tensor.value(),
            tensor.buffer_index(),
            tensor.offset(),
            tensor.nbytes(),
            tensor.scalar_type(),
            program::sizes(&tensor),
            tensor
                .name()
                .map(|name| format!(" {name:?}"))
                .unwrap_or_default(),
        );
    }
    println!(
        "  besides: {} constant and {} unplanned tensors, {} operators, {} delegates",
        method.constant_tensors().count(),
        method.runtime_tensors().count(),
        method.operators().count(),
        method.delegates().count(),
    );
}
