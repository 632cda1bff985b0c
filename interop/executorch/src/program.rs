//! Programs in the released runtime.
//!
//! A [`Session`] is the runtime's own `Module` with a program in it. Its methods
//! lie in memory that the runtime allocates, or in a
//! [`PlannedMemory`] that is handed to it.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Once;

use device_memory::pte::Program;
use device_memory::{
    DeviceAllocatorRegistry, DeviceLayout, DeviceMemoryBuffer, MemoryPlan, PlannedMemory,
};
use executorch::device::Device;
use executorch::evalue::{EValue, Tag};
use executorch::memory::HierarchicalAllocator;
use executorch::module::{Module, ModuleBuilder};
use executorch::util::Span;
use executorch_sys::ET_SpanU8;

use crate::Failure;
use crate::forward::Code;
use crate::value::{Input, Output, to_runtime};

/// A program that is loaded.
pub struct Session<'a> {
    /// Dropped first, so that no method outlives its memory.
    module: Module<'a>,
    file: PathBuf,
    /// The memory of outputs that no plan has a place for, by method and position.
    placed: BTreeMap<(String, usize), DeviceMemoryBuffer>,
}

impl<'a> Session<'a> {
    /// The program in `file`, with no method loaded.
    ///
    /// If `shared`, the runtime lets methods share what memory it allocates for
    /// them.
    fn new(file: &Path, shared: bool) -> Self {
        start();
        let builder = ModuleBuilder::new(file).share_memory_arenas(shared);
        Self {
            module: builder.build(),
            file: file.to_owned(),
            placed: BTreeMap::new(),
        }
    }

    /// Loads a method, in memory of the runtime's own.
    ///
    /// # Errors
    ///
    /// The runtime's.
    pub fn load(&mut self, method: &str) -> Result<(), executorch::Error> {
        self.module.load_method(method, None, None)
    }

    /// Unloads a method.
    pub fn unload(&mut self, method: &str) -> bool {
        self.module.unload_method(method)
    }

    /// The names of the methods, sorted.
    ///
    /// # Errors
    ///
    /// The runtime's.
    pub fn methods(&mut self) -> Result<Vec<String>, Failure> {
        let mut names: Vec<String> = self.module.method_names()?.into_iter().collect();
        names.sort();
        Ok(names)
    }

    /// Inputs for a method that follow from `seed`.
    ///
    /// # Errors
    ///
    /// As [`Input::all`].
    pub fn inputs(&mut self, method: &str, seed: u64) -> Result<Vec<Input>, Failure> {
        Input::all(&self.module.method_meta(method)?, seed)
    }

    /// Finds memory for each output that no plan has a place for, on its device,
    /// and loads the methods that have such outputs.
    ///
    /// # Errors
    ///
    /// The file can not be read, there is no memory, or the runtime's.
    pub fn place_outputs(&mut self, registry: &DeviceAllocatorRegistry) -> Result<(), Failure> {
        let bytes = std::fs::read(&self.file)?;
        for method in Program::parse(&bytes)?.methods() {
            for (index, (value, _)) in method.outputs().enumerate() {
                let mut unplanned = method.runtime_tensors();
                let Some(tensor) = unplanned.find(|tensor| tensor.value() == value) else {
                    continue;
                };
                let layout = DeviceLayout::from_size(tensor.nbytes())?;
                let buffer = DeviceMemoryBuffer::create_in(registry, layout, tensor.device())?;
                self.place_output(method.name(), index, buffer)?;
            }
        }
        Ok(())
    }

    /// Lets an output lie in `buffer`, which is kept.
    fn place_output(
        &mut self,
        method: &str,
        index: usize,
        buffer: DeviceMemoryBuffer,
    ) -> Result<(), Failure> {
        let name = CString::new(method)?;
        // SAFETY: the module lives, the name ends in zero, and the buffer is kept until
        // after the module is dropped or the output is placed elsewhere.
        #[expect(unsafe_code, reason = "see SAFETY")]
        let code = unsafe {
            interop_set_output(
                pointer(&self.module),
                name.as_ptr(),
                index,
                buffer.ptr().as_raw().cast(),
                buffer.size(),
            )
        };
        if code != 0 {
            return Err(format!("output {index} of {method} can not be placed: {code:#x}").into());
        }
        self.placed.insert((method.to_owned(), index), buffer);
        Ok(())
    }

    /// Checks that each output has memory: the runtime would write to address 0.
    fn check_outputs(&mut self, method: &str) -> Result<(), Failure> {
        let meta = self.module.method_meta(method)?;
        for index in 0..meta.num_outputs() {
            let is_planned = meta.output_tag(index)? != Tag::Tensor
                || meta.output_tensor_meta(index)?.is_memory_planned();
            if !is_planned && !self.placed.contains_key(&(method.to_owned(), index)) {
                return Err(format!("output {index} of {method} has no memory").into());
            }
        }
        Ok(())
    }

    /// Runs a method, and reads each output and its address.
    ///
    /// # Errors
    ///
    /// The runtime's, an output has no memory, or is no tensor.
    pub fn run(&mut self, method: &str, inputs: &[Input]) -> Result<Vec<(Output, usize)>, Failure> {
        self.check_outputs(method)?;
        let values: Vec<EValue<'_>> = inputs.iter().map(Input::value).collect();
        let outputs = self.module.execute(method, &values)?;
        let outputs = outputs.iter().enumerate().map(|(index, value)| {
            let (mut output, address) = Output::read(value)?;
            let placed = self.placed.get(&(method.to_owned(), index));
            if let (None, Some(buffer)) = (&output.bytes, placed) {
                output.bytes = Some(buffer.to_vec()?);
            }
            Ok((output, address))
        });
        outputs.collect()
    }

    /// Runs each method in turn, and that `rounds` times with other inputs each time.
    ///
    /// # Errors
    ///
    /// As [`inputs`](Self::inputs) and [`run`](Self::run).
    pub fn run_rounds(&mut self, rounds: u64) -> Result<Vec<Run>, Failure> {
        let methods = self.methods()?;
        let mut runs = Vec::new();
        for round in 1..=rounds {
            for method in &methods {
                let inputs = self.inputs(method, round.wrapping_mul(1000))?;
                let outputs = self.run(method, &inputs)?;
                runs.push(Run {
                    method: method.clone(),
                    round,
                    outputs: outputs.into_iter().map(|(output, _)| output).collect(),
                });
            }
        }
        Ok(runs)
    }
}

/// What a method gave in one round.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Run {
    /// The method.
    pub method: String,
    /// The round, counted from 1. Its inputs follow from it.
    pub round: u64,
    /// The outputs.
    pub outputs: Vec<Output>,
}

impl fmt::Debug for Session<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

/// Lets `work` use the program in `file`, whose methods the runtime finds memory
/// for. If `shared`, they share it.
///
/// # Errors
///
/// What `work` returns.
pub fn on_memory_of_the_runtime<T>(
    file: &Path,
    shared: bool,
    work: impl FnOnce(&mut Session<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    work(&mut Session::new(file, shared))
}

/// Lets `work` use the program in `file`, with `methods` in `memory`: the n-th in
/// the buffers of the n-th plan.
///
/// Nothing else may use `memory` meanwhile, which is why it is borrowed exclusively.
///
/// # Errors
///
/// A method can not be loaded, or what `work` returns.
pub fn on_planned_memory<T>(
    file: &Path,
    memory: &mut PlannedMemory,
    methods: &[&str],
    work: impl FnOnce(&mut Session<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let handed = (0..methods.len()).map(|plan| hand_over(memory, plan));
    let mut handed = handed.collect::<Result<Vec<_>, _>>()?;
    let mut allocators: Vec<HierarchicalAllocator<'_>> = handed
        .iter_mut()
        .map(|(spans, devices)| {
            // SAFETY: each buffer is on the device that it says it is on.
            #[expect(unsafe_code, reason = "see SAFETY")]
            unsafe {
                HierarchicalAllocator::new_with_devices(spans, devices)
            }
        })
        .collect();
    // Dropped before the memory that its methods lie in.
    let mut session = Session::new(file, false);
    for (method, allocator) in methods.iter().zip(&mut allocators) {
        session.module.load_method(method, Some(allocator), None)?;
    }
    work(&mut session)
}

/// Runs all methods of the program in `file`, in memory that the runtime finds.
/// Outputs that the program has no place for lie in memory of `registry`.
///
/// Methods share it where there are several and the runtime can do that, which it
/// can not with devices.
///
/// # Errors
///
/// The file can not be read, or the runtime's.
pub fn run_on_memory_of_the_runtime(
    file: &Path,
    registry: &DeviceAllocatorRegistry,
    rounds: u64,
) -> Result<Vec<Run>, Failure> {
    let bytes = std::fs::read(file)?;
    let program = Program::parse(&bytes)?;
    let mut devices = program.methods().iter().flat_map(|method| method.buffers());
    let shared = program.methods().len() > 1 && devices.all(|buffer| buffer.device.is_cpu());
    on_memory_of_the_runtime(file, shared, |session| {
        session.place_outputs(registry)?;
        session.run_rounds(rounds)
    })
}

/// Runs all methods of the program in `file`, in one planned memory that they
/// share, made from `registry`.
///
/// # Errors
///
/// The file can not be read, there is no memory, or the runtime's.
pub fn run_on_planned_memory(
    file: &Path,
    registry: &DeviceAllocatorRegistry,
    rounds: u64,
) -> Result<Vec<Run>, Failure> {
    let bytes = std::fs::read(file)?;
    let program = Program::parse(&bytes)?;
    let methods: Vec<&str> = program
        .methods()
        .iter()
        .map(|method| method.name())
        .collect();
    let plans = program.methods().iter().map(|method| method.plan());
    let plans = plans.collect::<Result<Vec<MemoryPlan>, _>>()?;
    let plans: Vec<&MemoryPlan> = plans.iter().collect();
    let mut memory = PlannedMemory::allocate_shared(&plans, registry)?;
    on_planned_memory(file, &mut memory, &methods, |session| {
        session.place_outputs(registry)?;
        session.run_rounds(rounds)
    })
}

/// The buffers of a plan, in the runtime's words.
fn hand_over<'a>(
    memory: &PlannedMemory,
    plan: usize,
) -> Result<(Vec<Span<'a, u8>>, Vec<Device>), Failure> {
    let buffers = (0..).map_while(|id| memory.buffer(plan, id));
    let handed = buffers.map(|buffer| {
        let span = ET_SpanU8 {
            data: buffer.ptr().as_raw(),
            len: buffer.size(),
        };
        Ok((to_span(span), to_runtime(buffer.device())?))
    });
    handed.collect::<Result<Vec<_>, Failure>>().map(|handed| {
        let (spans, devices) = handed.into_iter().unzip();
        (spans, devices)
    })
}

/// A span of memory that the host may not be able to read.
///
/// The binding makes spans from `&mut [u8]` only, and such a slice must not exist
/// over memory of a device. A span is nothing but the struct of C++, which is an
/// address and a length; the runtime adds offsets to the address and follows it
/// only where the memory is the host's.
#[expect(unsafe_code, reason = "see SAFETY")]
fn to_span<'a>(span: ET_SpanU8) -> Span<'a, u8> {
    // SAFETY: `Span<u8>` has one field that is not of size zero, an `ET_SpanU8`, and
    // the compiler checks that it has the same size, so the field is all of it. The
    // memory behind it is not claimed to be anything by making a span.
    unsafe { std::mem::transmute::<ET_SpanU8, Span<'a, u8>>(span) }
}

/// The runtime's object in a module.
#[expect(unsafe_code, reason = "see SAFETY")]
fn pointer(module: &Module<'_>) -> *mut c_void {
    const _: () = assert!(size_of::<Module<'_>>() == size_of::<*mut c_void>());
    let module: *const Module<'_> = module;
    // SAFETY: a `Module` has one field that is not of size zero, a `UniquePtr`, which
    // is the pointer of C++'s `unique_ptr`; it is as large as that, so it is all of it.
    unsafe { module.cast::<*mut c_void>().read() }
}

/// Starts the runtime, and registers the stand-in for the back end of the programs
/// in `tests/data/pte`. Every time but the first it does nothing.
pub fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        // SAFETY: this is called once, and before anything else of the runtime that
        // this crate calls.
        #[expect(unsafe_code, reason = "see SAFETY")]
        unsafe {
            executorch::platform::pal_init();
        }
        // SAFETY: the runtime has room for it, as it has for all that it comes with; if
        // it had not, loading a program would say that it does not know the back end.
        #[expect(unsafe_code, reason = "see SAFETY")]
        unsafe {
            stand_in_register();
        }
    });
}

#[expect(
    unsafe_code,
    reason = "functions of cpp/stand_in.cpp and cpp/module.cpp"
)]
unsafe extern "C" {
    fn stand_in_register() -> Code;
    fn interop_set_output(
        module: *mut c_void,
        name: *const c_char,
        index: usize,
        data: *mut c_void,
        size: usize,
    ) -> Code;
}
