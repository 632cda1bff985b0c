//! A small mixture of experts that decodes on the device.
//!
//! Token, position, keys and values, and everything else that a layer remembers
//! stay on the device from step to step. Per step, nothing is copied to the
//! device, and 8 bytes to the host: the token that was chosen. The same is run
//! with the host in the loop, to compare: there, all that a step is given or
//! leaves crosses. Should a step copy anything else, the example fails.
//!
//! ```text
//! cargo run --release --example moe --features testing,safetensors -- [STEM]
//!     [--host-in-the-loop]   only that
//!     [--cuda]               on a GPU, by kernels that NVRTC compiles
//!     [--ptx FILE]           with the kernels compiled before
//!     [--compile FILE]       compiles the kernels, and no more
//! ```
//!
//! `STEM` is the path of a model's files without `.config.json` and so on. Without
//! `--cuda` the device is fake, and its kernels are plain Rust: what is shown is
//! where memory is and what crosses, not speed.
//!
//! The exit code is 3 where `--cuda` or `--compile` finds no driver or no NVRTC, or one
//! whose kernels the driver does not take.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an example talks to a person"
)]
#![cfg_attr(
    not(feature = "cuda"),
    expect(dead_code, reason = "only a GPU uses all of it")
)]

mod config;
#[cfg(feature = "cuda")]
mod constants;
#[cfg(feature = "cuda")]
mod cuda;
mod device;
mod kernel;
mod kernels;
mod model;
mod reference;
mod sequence;
mod setup;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use device_memory::testing::FakeDevice;
use device_memory::{Device, DeviceAllocatorRegistry, DeviceType};

use device::Accelerator;
use model::Cache;
use reference::{Reference, TOLERANCE, decode, prompt};
use sequence::{Engine, Sequence};
use setup::{Crossing, Ready, Stem, load_weights};

const USAGE: &str = "usage: moe [STEM] [--host-in-the-loop] [--cuda] [--ptx FILE] [--compile FILE]";

/// Where the kernels are: on one device.
const DEVICE: Device = Device::new(DeviceType::Cuda, 0);

/// The positions of a block of keys and values.
const POSITIONS: usize = 4;

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let Err(failure) = run() else {
        return ExitCode::SUCCESS;
    };
    #[cfg(feature = "cuda")]
    if failure.is::<cuda::Missing>() {
        eprintln!("skipped: {failure}");
        return ExitCode::from(3);
    }
    eprintln!("error: {failure}");
    ExitCode::FAILURE
}

fn run() -> Result<(), Failure> {
    let arguments = Arguments::read()?;
    if let Some(file) = &arguments.compile {
        return compile(file);
    }
    if !arguments.host_in_the_loop {
        show(&arguments, Crossing::TokenOnly)?;
    }
    show(&arguments, Crossing::All)
}

/// Decodes, and prints what it took.
fn show(arguments: &Arguments, crossing: Crossing) -> Result<(), Failure> {
    let stem = &arguments.stem;
    let reference = Reference::read(&stem.file(".expect.json"))?;
    let steps = reference.greedy.len();
    let cache = Cache {
        positions: POSITIONS,
        blocks: (reference.prompt.len() + steps).div_ceil(POSITIONS),
    };
    let ready = Ready::new(&stem.file(".config.json"), cache, DEVICE, crossing)?;
    let machine = Machine::new(arguments, &ready)?;
    let weights = load_weights(stem, DEVICE, &machine.registry)?;
    let pool = ready.pool(2, DEVICE, &machine.registry)?;
    let engine = Engine {
        model: &ready.model,
        planned: &ready.planned,
        weights: &weights,
        pool: &pool,
        registry: &machine.registry,
        accelerator: &*machine.accelerator,
    };

    match crossing {
        Crossing::TokenOnly => println!("{} on {}:", stem.name(), machine.name),
        Crossing::All => println!("the same with the host in the loop:"),
    }
    let (planned, apart) = ready.sizes();
    println!("  planned     {planned} bytes a sequence, {apart} if no values shared any");
    let (size, count) = (pool.block_size(), pool.blocks());
    println!("  cache       {count} blocks of {size} bytes, {POSITIONS} positions each");
    let largest = reference.check(&engine)?;
    println!(
        "  reference   logits of {} positions and {steps} steps at most {largest:.1e} apart, of \
         {TOLERANCE:.0e} allowed; tokens equal",
        reference.prompt.len()
    );

    let mut sequence = Sequence::new(&engine)?;
    let first = prompt(&engine, &mut sequence, &reference.prompt)?;
    let mut fork = sequence.fork(&engine)?;
    let (forked_at, shared) = (sequence.len(), fork.blocks());
    let shared = shared.iter().filter(|block| block.shares() > 1).count();
    let used = pool.blocks() - pool.free_blocks();
    let begin = Instant::now();
    let (tokens, copies) = decode(&engine, &mut sequence, steps)?;
    let took = begin.elapsed();
    let (forked, forked_copies) = decode(&engine, &mut fork, steps)?;
    let each = ready.check_copies(&[copies, forked_copies].concat())?;
    let expected = &reference.greedy[1..];
    if first != reference.greedy[0] || !tokens.starts_with(expected) || forked != tokens {
        return Err("the tokens of a sequence and its fork are not the reference's".into());
    }
    println!(
        "  fork        after {forked_at} tokens: {used} blocks for both, {shared} of them shared; \
         the same tokens"
    );
    let (to, from) = ready.copied_bytes();
    println!(
        "  copies      {} to the device in a step, {to} bytes; {} from it, {from} bytes",
        each.host_to_device, each.device_to_host
    );
    let speed = steps as f64 / took.as_secs_f64();
    println!("  speed       {speed:.0} tokens per second");
    Ok(())
}

/// What computes, and where its memory is from.
struct Machine {
    name: String,
    registry: DeviceAllocatorRegistry,
    accelerator: Box<dyn Accelerator>,
}

impl Machine {
    fn new(arguments: &Arguments, ready: &Ready) -> Result<Self, Failure> {
        if arguments.cuda {
            return gpu(arguments.ptx.as_deref(), ready);
        }
        let fake = FakeDevice::new(DeviceType::Cuda, 1);
        let registry = DeviceAllocatorRegistry::new();
        registry.register(Arc::new(fake.clone()))?;
        Ok(Self {
            name: format!("{DEVICE} (simulated)"),
            registry,
            accelerator: Box::new(fake),
        })
    }
}

#[cfg(feature = "cuda")]
fn gpu(ptx: Option<&Path>, ready: &Ready) -> Result<Machine, Failure> {
    let (gpu, allocator) = cuda::Cuda::open(ptx, ready.model.kernels.values())?;
    let registry = DeviceAllocatorRegistry::new();
    registry.register(Arc::new(allocator))?;
    Ok(Machine {
        name: DEVICE.to_string(),
        registry,
        accelerator: Box::new(gpu),
    })
}

#[cfg(feature = "cuda")]
fn compile(file: &Path) -> Result<(), Failure> {
    Ok(std::fs::write(file, cuda::compile()?)?)
}

#[cfg(not(feature = "cuda"))]
fn gpu(_: Option<&Path>, _: &Ready) -> Result<Machine, Failure> {
    Err("built without the feature cuda".into())
}

#[cfg(not(feature = "cuda"))]
fn compile(_: &Path) -> Result<(), Failure> {
    Err("built without the feature cuda".into())
}

/// The command line.
struct Arguments {
    stem: Stem,
    host_in_the_loop: bool,
    cuda: bool,
    ptx: Option<PathBuf>,
    compile: Option<PathBuf>,
}

impl Arguments {
    fn read() -> Result<Self, Failure> {
        let mut found = Self {
            stem: Stem("tests/data/moe/qwen3_5_moe_tiny".into()),
            host_in_the_loop: false,
            cuda: false,
            ptx: None,
            compile: None,
        };
        let mut words = std::env::args().skip(1);
        let mut named = false;
        while let Some(word) = words.next() {
            match word.as_str() {
                "--host-in-the-loop" => found.host_in_the_loop = true,
                "--cuda" => found.cuda = true,
                "--ptx" => found.ptx = Some(words.next().ok_or(USAGE)?.into()),
                "--compile" => found.compile = Some(words.next().ok_or(USAGE)?.into()),
                flag if flag.starts_with('-') => return Err(USAGE.into()),
                stem if !named => {
                    found.stem = Stem(stem.into());
                    named = true;
                }
                _ => return Err(USAGE.into()),
            }
        }
        Ok(found)
    }
}
