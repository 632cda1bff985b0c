//! The kernels of `kernels.cu` on a GPU.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use cudarc::driver::{
    CudaContext, CudaFunction, CudaStream, DriverError, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::{Ptx, compile_ptx};
use device_memory::backend::cuda::CudaAllocator;
use device_memory::{Device, DeviceSpan, DeviceSpanMut, DeviceType, Error, Operation};

use crate::constants::Constants;
use crate::device::{Accelerator, Blocks};
use crate::kernel::Kernel;

/// Of one block, as in `kernels.cu`.
const THREADS: u32 = 128;

/// The kernels as CUDA C.
const SOURCE: &str = include_str!("kernels.cu");

/// What this machine lacks.
#[derive(Debug)]
pub(crate) enum Missing {
    /// A driver that can be used, and a device.
    Driver(Error),
    /// The library that compiles CUDA C.
    Compiler,
    /// A compiler that works, and whose kernels the driver takes.
    Kernels(Box<dyn std::error::Error>),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Driver(error) => write!(f, "{error}"),
            Self::Compiler => f.write_str("NVRTC not found, which compiles the kernels"),
            Self::Kernels(error) => write!(f, "no kernels can be compiled here: {error}"),
        }
    }
}

impl std::error::Error for Missing {}

/// What compiling gave, as text for a driver to translate.
pub(crate) fn compile() -> Result<String, Box<dyn std::error::Error>> {
    if !is_compiler_present() {
        return Err(Missing::Compiler.into());
    }
    Ok(compile_ptx(SOURCE)?.to_src())
}

/// Whether there is an NVRTC; without one, cudarc panics.
#[expect(unsafe_code, reason = "loads a library")]
fn is_compiler_present() -> bool {
    // SAFETY: NVRTC does nothing when it is loaded.
    unsafe { cudarc::nvrtc::sys::is_culib_present() }
}

/// A stream of the first device, with the kernels loaded.
pub(crate) struct Cuda {
    stream: Arc<CudaStream>,
    kernels: HashMap<&'static str, CudaFunction>,
}

impl Cuda {
    /// Opens the driver and compiles the kernels, or loads them compiled from a file.
    /// Returns the allocator of the stream, too.
    pub(crate) fn open<'k>(
        compiled: Option<&Path>,
        kernels: impl Iterator<Item = &'k Kernel>,
    ) -> Result<(Self, CudaAllocator), Box<dyn std::error::Error>> {
        let allocator = CudaAllocator::open().map_err(Missing::Driver)?;
        let context = CudaContext::new(0)?;
        let stream = context.new_stream()?;
        let load = |text: String| context.load_module(Ptx::from_src(text));
        let module = match compiled {
            Some(file) => load(fs::read_to_string(file)?)?,
            None => compile()
                .and_then(|text| Ok(load(text)?))
                .map_err(Missing::Kernels)?,
        };
        let mut loaded = HashMap::new();
        for kernel in kernels {
            loaded.insert(kernel.name(), module.load_function(kernel.name())?);
        }
        let allocator = allocator.on_stream(&stream)?;
        let kernels = loaded;
        Ok((Self { stream, kernels }, allocator))
    }
}

impl Accelerator for Cuda {
    /// Kernels, copies and frees are all in the order of one stream, so that none is
    /// waited for but the copy of a token to the host.
    #[expect(unsafe_code, reason = "launches a kernel")]
    fn launch(
        &self,
        kernel: &Kernel,
        reads: &[DeviceSpan<'_>],
        writes: &mut [DeviceSpanMut<'_>],
        blocks: &Blocks,
    ) -> device_memory::Result<()> {
        let function = self.kernels.get(kernel.name());
        let function = function.ok_or_else(|| failed(format!("no kernel {}", kernel.name())))?;
        let sizes: Vec<usize> = reads.iter().map(DeviceSpan::len).collect();
        let written: Vec<usize> = writes.iter().map(|span| span.len()).collect();
        let Constants { longs, floats } = Constants::new(kernel, &sizes, &written);

        // In place of its blocks, a kernel is given the pool; it has their table.
        let mut addresses: Vec<usize> = reads.iter().map(|span| span.ptr().addr()).collect();
        if kernel.reads_blocks() {
            addresses.truncate(reads.len() - blocks.numbers.len());
            addresses.push(blocks.pool.addr());
        }
        if kernel.writes_block() {
            addresses.push(blocks.pool.addr());
        } else {
            addresses.extend(writes.iter().map(|span| span.as_span().ptr().addr()));
        }
        let addresses: Vec<u64> = addresses.into_iter().map(|addr| addr as u64).collect();

        let mut launch = self.stream.launch_builder(function);
        for address in &addresses {
            launch.arg(address);
        }
        for long in &longs {
            launch.arg(long);
        }
        for float in &floats {
            launch.arg(float);
        }
        let one_block = LaunchConfig {
            grid_dim: (1, 1, 1),
            block_dim: (THREADS, 1, 1),
            shared_mem_bytes: 0,
        };
        // SAFETY: the arguments are those of the kernel, and it writes only to what is
        // borrowed exclusively here. All of it lives until it is freed in the order of
        // this stream, on which the kernel comes first.
        unsafe { launch.launch(one_block) }.map_err(|error: DriverError| failed(error))?;
        Ok(())
    }
}

fn failed(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    let device = Device::new(DeviceType::Cuda, 0);
    Error::backend(device, Operation::Launch, source)
}
