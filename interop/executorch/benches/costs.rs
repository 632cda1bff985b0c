//! What the owners, registries and offset arithmetic of both cost, in one run.
//!
//! Each operation is done many times in a function of its own, so that a profiler
//! can tell them apart: `costs --count` does that and prints nothing, and
//! `costs --table FILE` prints instructions from callgrind's list of functions.
//! Without arguments it prints times, which are noisy. `ci/interop.sh` does the
//! first two. The allocators below return a constant address.

#![expect(
    unsafe_code,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program; its allocator returns static memory, and C++ is called"
)]

#[path = "../../../tests/support/constant_address.rs"]
mod constant_address;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

use constant_address::ConstantAddress;
use device_memory::{
    Device, DeviceAllocatorRegistry, DeviceMemoryBuffer, DeviceType, HierarchicalAllocator, Result,
};
use interop_executorch::Failure;
use interop_executorch::original::Sizes;
use interop_executorch::program::start;

/// How often an operation is done while it is counted.
const COUNT: u64 = 10_000;

/// The loop, and an argument and a result that the compiler knows nothing of.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn here_nothing(count: u64) {
    for _ in 0..count {
        black_box(&black_box(1024));
    }
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn here_registry_lookup(count: u64) {
    let registry = DeviceAllocatorRegistry::global();
    for _ in 0..count {
        black_box(registry.registered(black_box(DeviceType::Cuda)));
    }
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn here_create_destroy(count: u64) {
    for _ in 0..count {
        let size = black_box(1024);
        black_box(&DeviceMemoryBuffer::create(size, DeviceType::Cuda, 0));
    }
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn here_offset(count: u64) {
    offsets(count, 64);
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn here_offset_refused(count: u64) {
    offsets(count, 1 << 20);
}

#[inline(always)]
fn offsets(count: u64, offset: usize) {
    let arenas = (1..=4).map(|kib| DeviceMemoryBuffer::create(kib * 1024, DeviceType::Cuda, 0));
    let mut arenas: Vec<DeviceMemoryBuffer> = arenas.map(|arena| arena.expect("arena")).collect();
    let spans = arenas.iter_mut().map(DeviceMemoryBuffer::as_span_mut);
    let devices = [Device::new(DeviceType::Cuda, 0); 4];
    let planned = HierarchicalAllocator::new(spans.collect(), &devices).expect("devices");
    let planned = black_box(&planned);
    for _ in 0..count {
        let offset = black_box(offset);
        black_box(&planned.get_offset_address(2, offset, 256));
    }
}

// Functions of cpp/costs.cpp that do the same with the types of the runtime.
unsafe extern "C" {
    fn costs_register();
    safe fn costs_nothing(count: u64);
    safe fn costs_registry_lookup(count: u64);
    safe fn costs_create_destroy(count: u64);
    safe fn costs_offset(count: u64);
    safe fn costs_offset_refused(count: u64);
}

/// An operation on both sides, and what it is called.
struct Row {
    name: &'static str,
    here: (&'static str, extern "C" fn(u64)),
    original: (&'static str, extern "C" fn(u64)),
}

macro_rules! rows {
    ($($name:literal: $here:ident, $original:ident;)*) => {
        [$(Row {
            name: $name,
            here: (stringify!($here), $here),
            original: (stringify!($original), $original),
        }),*]
    };
}

/// The operations; the first is what every loop costs.
fn rows() -> [Row; 5] {
    rows! {
        "nothing": here_nothing, costs_nothing;
        "registry lookup": here_registry_lookup, costs_registry_lookup;
        "create and destroy": here_create_destroy, costs_create_destroy;
        "offset lookup": here_offset, costs_offset;
        "offset refused": here_offset_refused, costs_offset_refused;
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

fn run() -> std::result::Result<(), Failure> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo bench` passes it.
    arguments.retain(|argument| argument != "--bench");
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        [] => {
            register()?;
            print_sizes();
            print_rows("nanoseconds", |_, operation| Ok(time(operation)))
        }
        ["--count"] => {
            register()?;
            for row in rows() {
                row.here.1(COUNT);
                row.original.1(COUNT);
            }
            Ok(())
        }
        ["--table", file] => {
            let counts = read(&std::fs::read_to_string(file)?);
            print_sizes();
            print_rows("instructions", |name, _| {
                let count = counts.get(name).copied();
                let count = count.ok_or_else(|| format!("{name} was not counted"))?;
                Ok(count / COUNT as f64)
            })
        }
        _ => Err("usage: costs [--count | --table FILE]".into()),
    }
}

/// Registers the allocators that return a constant address, on both sides.
fn register() -> std::result::Result<(), Failure> {
    start();
    DeviceAllocatorRegistry::global().register(&ConstantAddress::<0x10_0000>)?;
    // SAFETY: the runtime has no allocator for the type yet.
    unsafe { costs_register() };
    Ok(())
}

fn print_sizes() {
    let original = Sizes::of_the_runtime();
    println!("{:<34} {:>8} {:>8}", "size_of, in bytes", "here", "C++");
    let rows = [
        (
            "DeviceMemoryBuffer",
            size_of::<DeviceMemoryBuffer>(),
            original.buffer,
        ),
        (
            "Result<DeviceMemoryBuffer>",
            size_of::<Result<DeviceMemoryBuffer>>(),
            original.result,
        ),
        (
            "HierarchicalAllocator",
            size_of::<HierarchicalAllocator<'_>>(),
            original.planned,
        ),
    ];
    for (name, here, original) in rows {
        println!("{name:<34} {here:>8} {original:>8}");
    }
}

/// Prints what each operation costs more than an empty loop.
fn print_rows(
    unit: &str,
    cost: impl Fn(&str, extern "C" fn(u64)) -> std::result::Result<f64, Failure>,
) -> std::result::Result<(), Failure> {
    let mut empty = None;
    println!(
        "{:<34} {:>8} {:>8}",
        format!("{unit} of one"),
        "here",
        "C++"
    );
    for row in rows() {
        let here = cost(row.here.0, row.here.1)?;
        let original = cost(row.original.0, row.original.1)?;
        match empty {
            None => empty = Some((here, original)),
            Some((nothing_here, nothing_there)) => println!(
                "{:<34} {:>8.0} {:>8.0}",
                row.name,
                here - nothing_here,
                original - nothing_there
            ),
        }
    }
    Ok(())
}

/// The least time that one takes, in a few tries.
fn time(operation: extern "C" fn(u64)) -> f64 {
    let tries = (0..9).map(|_| {
        let start = Instant::now();
        operation(COUNT);
        start.elapsed().as_secs_f64() * 1e9 / COUNT as f64
    });
    tries.fold(f64::INFINITY, f64::min)
}

/// The instructions of each function of this program, from callgrind's list: lines
/// with a number, a share in brackets, and a place that ends in the name.
fn read(listing: &str) -> BTreeMap<String, f64> {
    let lines = listing.lines().filter_map(|line| {
        let (count, rest) = line.trim_start().split_once(' ')?;
        let count = count.replace(',', "").parse().ok()?;
        let place = rest.rsplit_once(')').map_or(rest, |(_, place)| place);
        let name = rest.split(':').nth(1).unwrap_or(place);
        let name = name.split_whitespace().next()?;
        Some((name.to_owned(), count))
    });
    let mut counts = BTreeMap::new();
    for (name, count) in lines {
        counts.entry(name).or_insert(count);
    }
    counts
}
