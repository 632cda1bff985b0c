//! Allocate all memory that an ExecuTorch program plans, place every tensor,
//! write and read its inputs, and free everything.
//!
//! `cargo run --example place_program --features pte,testing -- FILE [--method M] [--json]`
//!
//! Host memory is real. Memory of other devices is that of a fake device, and the
//! output says so.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    unsafe_code,
    reason = "an example talks to a person, and counts through an allocator of its own"
)]

#[path = "support/counting.rs"]
mod counting;
#[path = "support/program.rs"]
mod program;

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use device_memory::pte::{Method, PlannedTensor, Program, ValueKind};
use device_memory::testing::FakeDevice;
use device_memory::{
    Device, DeviceAddress, DeviceAllocatorRegistry, DeviceIndex, DeviceTensor, DeviceType,
    HostAllocator, PlannedMemory, TensorViewMut,
};

use counting::Counting;
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
    let arguments = Arguments::read("usage: place_program FILE [--method M] [--json]")?;
    let bytes = arguments.bytes()?;
    let parsed = Program::parse(&bytes)?;
    for warning in program::warnings(&parsed)? {
        eprintln!("warning: {warning}");
    }
    let methods = arguments.methods(&parsed)?;
    let live = Arc::new(AtomicUsize::new(0));
    let registry = registry(&parsed, &live)?;

    if !arguments.json {
        println!("{}  {} bytes", arguments.file.display(), bytes.len());
    }
    let mut objects = Vec::new();
    for method in methods {
        let placed = Placed::new(method, &registry)?;
        if arguments.json {
            objects.push(program::method_json(method));
        } else {
            placed.print();
        }
    }

    let live = live.load(Ordering::Relaxed);
    if arguments.json {
        let mut object = program::program_json(&arguments.file, bytes.len(), objects);
        object["live_bytes"] = live.into();
        object["simulated_devices"] = simulated_devices(&parsed).into();
        println!("{object:#}");
    } else {
        println!("\nlive bytes: {live}");
    }
    Ok(())
}

/// Host memory, and fake devices for every other device that the program names.
fn registry(
    program: &Program<'_>,
    live: &Arc<AtomicUsize>,
) -> Result<DeviceAllocatorRegistry, Failure> {
    let registry = DeviceAllocatorRegistry::new();
    let mut counts: BTreeMap<DeviceType, DeviceIndex> = BTreeMap::new();
    for method in program.methods() {
        let arenas = method.buffers().iter().map(|buffer| buffer.device);
        let tensors = method.runtime_tensors().map(|tensor| tensor.device());
        for device in arenas.chain(tensors).filter(|device| !device.is_cpu()) {
            let highest = counts.entry(device.device_type()).or_default();
            *highest = (*highest).max(device.index());
        }
    }
    registry.register(Arc::new(Counting::new(HostAllocator, Arc::clone(live))))?;
    for (device_type, highest) in counts {
        let fake = FakeDevice::new(device_type, usize::from(highest) + 1);
        registry.register(Arc::new(Counting::new(fake, Arc::clone(live))))?;
    }
    Ok(registry)
}

/// A method with its memory, after its inputs were written and read.
struct Placed<'p, 'a> {
    method: &'p Method<'a>,
    memory: PlannedMemory,
    addresses: Vec<DeviceAddress>,
    inputs: Inputs,
}

/// What became of the inputs of a method.
#[derive(Default)]
struct Inputs {
    planned: usize,
    unplanned: usize,
    not_tensors: usize,
    bytes: usize,
}

impl<'p, 'a> Placed<'p, 'a> {
    fn new(method: &'p Method<'a>, registry: &DeviceAllocatorRegistry) -> Result<Self, Failure> {
        let plan = method.plan()?;
        let mut memory = PlannedMemory::allocate(&plan, registry)
            .map_err(|error| format!("method {:?}: {error}", method.name()))?;
        let addresses = memory.view()?.place_all(plan.placements())?;
        let inputs = check_inputs(method, &mut memory, registry)?;
        Ok(Self {
            method,
            memory,
            addresses,
            inputs,
        })
    }

    fn print(&self) {
        let method = self.method;
        println!(
            "\nmethod {}: {} values, {} instructions",
            method.name(),
            method.num_values(),
            method.num_instructions()
        );
        self.print_arenas();
        self.print_tensors();
        let Inputs {
            planned,
            unplanned,
            not_tensors,
            bytes,
        } = self.inputs;
        print!("\ninputs: {bytes} bytes written to {planned} planned tensors and read back equal");
        if unplanned > 0 {
            print!("; {unplanned} not planned, in memory of their own");
        }
        if not_tensors > 0 {
            print!("; {not_tensors} no tensors");
        }
        println!();
    }

    fn print_arenas(&self) {
        println!("\n  arena  device          size        used  tensors");
        let mut peaks: BTreeMap<Device, usize> = BTreeMap::new();
        for (index, buffer) in self.memory.buffers().iter().enumerate() {
            let inside = || tensors_of(self.method, index);
            let used = inside()
                .map(|tensor| tensor.offset() + tensor.nbytes())
                .max();
            println!(
                "  {index:>5}  {:<10}  {:>8} B  {:>8} B  {:>7}{}",
                buffer.device().to_string(),
                buffer.size(),
                used.unwrap_or(0),
                inside().count(),
                simulated(buffer.device()),
            );
            *peaks.entry(buffer.device()).or_default() += buffer.size();
        }
        let peaks: Vec<String> = peaks
            .into_iter()
            .map(|(device, bytes)| format!("{device} {bytes} B"))
            .collect();
        println!("  peak: {}", peaks.join(", "));
    }

    fn print_tensors(&self) {
        println!("\n  value  arena    offset     bytes  address             type       sizes");
        let inputs: Vec<u32> = self.method.inputs().map(|(value, _)| value).collect();
        let outputs: Vec<u32> = self.method.outputs().map(|(value, _)| value).collect();
        let mut rows: Vec<_> = self.method.planned_tensors().zip(&self.addresses).collect();
        rows.sort_by_key(|(tensor, _)| (tensor.buffer_index(), tensor.offset(), tensor.value()));
        for (tensor, address) in rows {
            let role = match tensor.value() {
                value if inputs.contains(&value) => "  input",
                value if outputs.contains(&value) => "  output",
                _ => "",
            };
            println!(
                "  {:>5}  {:>5}  {:>8}  {:>8}  {:<18}  {:<9}  {}{role}{}",
                tensor.value(),
                tensor.buffer_index(),
                tensor.offset(),
                tensor.nbytes(),
                address.ptr.to_string(),
                tensor.scalar_type().to_string(),
                program::sizes(&tensor),
                tensor
                    .name()
                    .map(|name| format!("  {name:?}"))
                    .unwrap_or_default(),
            );
        }
    }
}

/// The tensors planned in one arena.
fn tensors_of<'m, 'a>(
    method: &'m Method<'a>,
    arena: usize,
) -> impl Iterator<Item = PlannedTensor<'a>> + 'm {
    method
        .planned_tensors()
        .filter(move |tensor| usize::try_from(tensor.buffer_index()) == Ok(arena))
}

/// The devices of a program whose memory is a fake device's.
fn simulated_devices(program: &Program<'_>) -> Vec<String> {
    let arenas = program.methods().iter().flat_map(Method::buffers);
    let devices: BTreeSet<Device> = arenas.map(|buffer| buffer.device).collect();
    let simulated = devices.into_iter().filter(|device| !device.is_cpu());
    simulated.map(|device| device.to_string()).collect()
}

/// What to say of memory that is not there.
fn simulated(device: Device) -> &'static str {
    if device.is_cpu() {
        ""
    } else {
        "  simulated: no driver was used"
    }
}

/// Writes a pattern into every input, wherever it is, and reads it back.
fn check_inputs(
    method: &Method<'_>,
    memory: &mut PlannedMemory,
    registry: &DeviceAllocatorRegistry,
) -> Result<Inputs, Failure> {
    let mut inputs = Inputs::default();
    for (value, kind) in method.inputs() {
        let planned = method
            .planned_tensors()
            .find(|tensor| tensor.value() == value);
        let runtime = method
            .runtime_tensors()
            .find(|tensor| tensor.value() == value);
        if let Some(tensor) = planned {
            let mut view = memory.view()?;
            let span = view.span_mut(tensor.placement())?;
            // Programs that were planned without devices have tensors that are
            // meant for one in host memory.
            let mut bound = if span.device().is_cpu() {
                TensorViewMut::bind_in_host_memory(tensor.spec()?, span)?
            } else {
                TensorViewMut::bind(tensor.spec()?, span)?
            };
            check_input(value, &mut bound)?;
            inputs.planned += 1;
            inputs.bytes += tensor.nbytes();
        } else if let Some(tensor) = runtime {
            let mut owned = DeviceTensor::create_in(registry, tensor.spec()?)?;
            check_input(value, &mut owned.view_mut()?)?;
            inputs.unplanned += 1;
        } else if kind == ValueKind::Tensor {
            return Err(format!("input {value} is a constant").into());
        } else {
            inputs.not_tensors += 1;
        }
    }
    Ok(inputs)
}

/// Writes a pattern into one input and reads it back.
fn check_input(value: u32, tensor: &mut TensorViewMut<'_>) -> Result<(), Failure> {
    let pattern: Vec<u8> = (0..=u8::MAX)
        .cycle()
        .take(tensor.spec().size_in_bytes())
        .collect();
    tensor.copy_from_host(&pattern)?;
    if tensor.as_view().to_vec()? == pattern {
        Ok(())
    } else {
        Err(format!("input {value} reads back other bytes than were written").into())
    }
}
