//! Load a safetensors file to a device, read everything back, and compare.
//!
//! `cargo run --release --example load_weights --features safetensors,testing -- FILE [--device D] [--separate]`
//!
//! The device is `cpu:0` unless another is named. Memory of a CUDA device is real
//! where there is a driver, and is filled through page-locked memory; else it is
//! that of a fake device, and the output says so.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an example talks to a person"
)]

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use device_memory::testing::FakeDevice;
use device_memory::weights::{PlainUploader, Upload, Weights, WeightsHeader, WeightsLoader};
use device_memory::{
    Device, DeviceAllocatorRegistry, DeviceLayout, DeviceMemoryBuffer, DeviceType,
};
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};

const USAGE: &str = "usage: load_weights FILE [--device D] [--separate]";

type Failure = Box<dyn std::error::Error>;

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
    let device = arguments.device;
    let (registry, simulated) = registry(device)?;

    // All sizes are known before anything is allocated.
    let mut file = File::open(&arguments.file)?;
    let header = WeightsHeader::read(&mut file)?;
    header.check_file_size(file.metadata()?.len())?;
    let plan = if arguments.separate {
        header.separate(device, DeviceLayout::DEFAULT_ALIGN)?
    } else {
        header.arena(device, DeviceLayout::DEFAULT_ALIGN)?
    };
    println!(
        "{}  {} tensors, {}",
        arguments.file.display(),
        header.tensors().len(),
        HumanBytes(header.data_size() as u64)
    );
    for (device, bytes) in plan.requirements()? {
        let simulated = if simulated { " (simulated)" } else { "" };
        let buffers = plan.buffers().len();
        println!("{device}{simulated}  {buffers} buffers, {bytes} bytes");
    }

    let bar = ProgressBar::new(header.data_size() as u64).with_style(ProgressStyle::with_template(
        "{bytes}/{total_bytes} {bar:40} {bytes_per_sec}",
    )?);
    let mut progress = |done, _| bar.set_position(done);
    let mut uploader = uploader(device, simulated)?;
    // So that neither way below pays for the disk.
    fs::read(&arguments.file)?;
    let started = Instant::now();
    let weights = WeightsLoader::new(&registry)
        .with_uploader(&mut *uploader)
        .with_progress(&mut progress)
        .load(header, plan, file)?;
    let took = started.elapsed();
    bar.finish_and_clear();

    let hash = hash(&weights)?;
    let (plain, plain_hash) = read_and_copy(&arguments.file, &weights, &registry)?;
    println!("sha256  {hash}  read back from {device}");
    println!("sha256  {plain_hash}  of the file's data");
    if hash != plain_hash {
        return Err("what was read back is not what the file holds".into());
    }
    println!("loaded in                  {}", rate(took, &weights));
    println!("a plain read and one copy  {}", rate(plain, &weights));
    println!("both of a file that was read once before, so from the page cache");
    Ok(())
}

/// The hash of all tensors, in the order of the file, from where they are now.
fn hash(weights: &Weights) -> Result<String, Failure> {
    let mut hasher = Sha256::new();
    for tensor in weights.header().tensors() {
        hasher.update(weights.span(tensor.name())?.to_vec()?);
    }
    Ok(hex(&hasher.finalize()))
}

/// What loading costs at least without an overlap: the file is read into host
/// memory, and copied to the device at once. Returns the hash of the data too.
fn read_and_copy(
    file: &PathBuf,
    weights: &Weights,
    registry: &DeviceAllocatorRegistry,
) -> Result<(Duration, String), Failure> {
    let device = weights.plan().buffers().first().map(|buffer| buffer.device);
    let started = Instant::now();
    let bytes = fs::read(file)?;
    let data = &bytes[usize::try_from(weights.header().size())?..];
    let buffer = DeviceMemoryBuffer::from_host_in(registry, data, device.unwrap_or(Device::CPU))?;
    let took = started.elapsed();
    drop(buffer);
    Ok((took, hex(&Sha256::digest(data))))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn rate(took: Duration, weights: &Weights) -> String {
    let per_second = weights.header().data_size() as f64 / took.as_secs_f64();
    format!("{took:>9.1?}  {}/s", HumanBytes(per_second as u64))
}

/// The allocators, and whether those of the device are simulated.
fn registry(device: Device) -> Result<(DeviceAllocatorRegistry, bool), Failure> {
    let registry = DeviceAllocatorRegistry::new();
    let simulated =
        device.device_type() == DeviceType::Cuda && registry.try_get(DeviceType::Cuda).is_err();
    if simulated {
        let count = usize::from(device.index()) + 1;
        registry.register(Arc::new(FakeDevice::new(DeviceType::Cuda, count)))?;
    }
    Ok((registry, simulated))
}

/// What brings the bytes to the device: for a GPU, two page-locked buffers of which
/// one is read into while the other is copied.
fn uploader(device: Device, simulated: bool) -> Result<Box<dyn Upload>, Failure> {
    #[cfg(feature = "cuda")]
    if device.device_type() == DeviceType::Cuda && !simulated {
        use device_memory::backend::cuda::cudarc::driver::CudaContext;
        use device_memory::backend::cuda::{CudaHostAllocator, StagedUploader};

        let stream = CudaContext::new(usize::from(device.index()))?.new_stream()?;
        let pinned = Arc::new(CudaHostAllocator::open()?);
        let piece = std::num::NonZeroUsize::new(64 << 20).ok_or("no piece")?;
        return Ok(Box::new(StagedUploader::new(&stream, pinned, piece)?));
    }
    #[cfg(not(feature = "cuda"))]
    let _ = (device, simulated);
    Ok(Box::new(PlainUploader::default()))
}

/// The command line.
struct Arguments {
    file: PathBuf,
    device: Device,
    separate: bool,
}

impl Arguments {
    fn read() -> Result<Self, Failure> {
        let mut found = Self {
            file: PathBuf::new(),
            device: Device::CPU,
            separate: false,
        };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            match word.as_str() {
                "--device" => found.device = words.next().ok_or(USAGE)?.parse()?,
                "--separate" => found.separate = true,
                flag if flag.starts_with('-') => return Err(USAGE.into()),
                file if found.file.as_os_str().is_empty() => found.file = file.into(),
                _ => return Err(USAGE.into()),
            }
        }
        if found.file.as_os_str().is_empty() {
            return Err(USAGE.into());
        }
        Ok(found)
    }
}
