//! Allocate all memory that an ExecuTorch program plans, place every tensor,
//! write and read its inputs, and free everything.
//!
//! `cargo run --example place_program --features pte,testing -- FILE [--method M] [--json]`
//!
//! Host memory is real. So is memory of CUDA devices where there is a driver that
//! has them; else it is that of a fake device, and the output says so.

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
    Device, DeviceAddress, DeviceAllocatorRegistry, DeviceTensor, DeviceType, HostAllocator,
    PlannedMemory, TensorViewMut,
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
    let rig = Rig::new(&parsed, &live)?;

    if !arguments.json {
        println!("{}  {} bytes", arguments.file.display(), bytes.len());
    }
    let mut objects = Vec::new();
    for method in methods {
        let placed = Placed::new(method, &rig)?;
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
        object["simulated_devices"] = rig.simulated_devices(&parsed).into();
        println!("{object:#}");
    } else {
        println!("\nlive bytes: {live}");
    }
    Ok(())
}

/// Where memory comes from.
struct Rig {
    registry: DeviceAllocatorRegistry,
    /// Whether devices other than the host are fake ones.
    is_simulated: bool,
}

impl Rig {
    /// Host memory, and for the devices of CUDA that the program names those of the
    /// driver, or fake ones if it has not so many.
    fn new(program: &Program<'_>, live: &Arc<AtomicUsize>) -> Result<Self, Failure> {
        let registry = DeviceAllocatorRegistry::new();
        registry.register(Arc::new(Counting::new(HostAllocator, Arc::clone(live))))?;
        let needed = devices(program).map(|device| usize::from(device.index()) + 1);
        let needed = needed.max().unwrap_or(0);
        let is_simulated = !register_driver(&registry, needed, live)?;
        if is_simulated && needed > 0 {
            let fake = FakeDevice::new(DeviceType::Cuda, needed);
            registry.register(Arc::new(Counting::new(fake, Arc::clone(live))))?;
        }
        Ok(Self {
            registry,
            is_simulated,
        })
    }

    /// The devices of the program whose memory is a fake device's.
    fn simulated_devices(&self, program: &Program<'_>) -> Vec<String> {
        let devices: BTreeSet<Device> = devices(program).collect();
        let simulated = devices.into_iter().filter(|_| self.is_simulated);
        simulated.map(|device| device.to_string()).collect()
    }
}

/// The devices that the arenas and tensors of a program are on, but for the host.
fn devices(program: &Program<'_>) -> impl Iterator<Item = Device> {
    let of_methods = program.methods().iter().flat_map(|method| {
        let arenas = method.buffers().iter().map(|buffer| buffer.device);
        arenas.chain(method.runtime_tensors().map(|tensor| tensor.device()))
    });
    of_methods.filter(|device| !device.is_cpu())
}

/// Lets the CUDA driver serve its devices, if there is one that has `needed`.
#[cfg(feature = "cuda")]
fn register_driver(
    registry: &DeviceAllocatorRegistry,
    needed: usize,
    live: &Arc<AtomicUsize>,
) -> Result<bool, Failure> {
    use device_memory::DeviceAllocator;
    use device_memory::backend::cuda::CudaAllocator;

    match CudaAllocator::open() {
        Ok(cuda) if cuda.device_count() >= needed => {
            registry.register(Arc::new(Counting::new(cuda, Arc::clone(live))))?;
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// There is no back end for CUDA.
#[cfg(not(feature = "cuda"))]
fn register_driver(
    _: &DeviceAllocatorRegistry,
    _: usize,
    _: &Arc<AtomicUsize>,
) -> Result<bool, Failure> {
    Ok(false)
}

/// A method with its memory, after its inputs were written and read.
struct Placed<'p, 'a> {
    method: &'p Method<'a>,
    rig: &'p Rig,
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
    fn new(method: &'p Method<'a>, rig: &'p Rig) -> Result<Self, Failure> {
        let plan = method.plan()?;
        let mut memory = PlannedMemory::allocate(&plan, &rig.registry)
            .map_err(|error| format!("method {:?}: {error}", method.name()))?;
        let addresses = memory.view()?.place_all(plan.placements())?;
        let inputs = check_inputs(method, &mut memory, &rig.registry)?;
        Ok(Self {
            method,
            rig,
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
                self.simulated(buffer.device()),
            );
            *peaks.entry(buffer.device()).or_default() += buffer.size();
        }
        let peaks: Vec<String> = peaks
            .into_iter()
            .map(|(device, bytes)| format!("{device} {bytes} B"))
            .collect();
        println!("  peak: {}", peaks.join(", "));
    }

    /// What to say of memory that is not there.
    fn simulated(&self, device: Device) -> &'static str {
        if self.rig.is_simulated && !device.is_cpu() {
            "  simulated: no driver was used"
        } else {
            ""
        }
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
