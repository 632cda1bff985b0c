//! One operation, many times, for counting instructions from outside.
//!
//! `instructions OPERATION COUNT` runs the operation that often. The script
//! `instructions.sh` runs it under callgrind with two counts and divides the
//! difference, so that everything but the operation itself drops out.

#![expect(
    unsafe_code,
    clippy::print_stderr,
    reason = "a program; its allocator returns static memory"
)]

#[path = "../tests/support/constant_address.rs"]
mod constant_address;

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;

use constant_address::ConstantAddress;
use device_memory::adaptor::{
    Aligned, Arena, Binning, Fence, Limit, Log, Poison, Pool, PoolBuilder, Recorded,
    RecordedSegments, Recorder, Retry, Shared, Statistics, StreamAllocator, StreamId,
    StreamOrdered, Tracking,
};
#[cfg(feature = "pte")]
use device_memory::pte::Program;
use device_memory::{
    Device, DeviceAllocator, DeviceAllocatorRegistry, DeviceLayout, DeviceMemoryBuffer, DeviceType,
    HierarchicalAllocator, HostAllocator, MemoryPlan, Placement, PlannedBuffer, PlannedMemory,
    Result,
};

/// Where all memory is.
const AT: usize = 0x10_0000;

/// The only stream of the allocator, which is given no work.
const STREAM: StreamId = StreamId {
    device: Device::new(DeviceType::Cuda, 0),
    number: 1,
};

/// A mark in no work.
#[derive(Debug)]
struct Done;

impl Fence for Done {
    fn is_done(&self) -> Result<bool> {
        Ok(true)
    }

    fn wait(&self) -> Result<()> {
        Ok(())
    }
}

// SAFETY: the stream is always there, and its work is always done.
unsafe impl StreamAllocator for ConstantAddress<AT> {
    fn id(&self) -> StreamId {
        STREAM
    }

    fn fence(&self) -> Result<Box<dyn Fence>> {
        Ok(Box::new(Done))
    }
}

// SAFETY: what it is bound to copies nothing, as it does itself.
unsafe impl StreamOrdered for ConstantAddress<AT> {
    type Stream = StreamId;
    type Bound = Self;

    fn bind(&self, _: &StreamId) -> Result<Self> {
        Ok(Self)
    }
}

fn repeat(count: u64, mut operation: impl FnMut()) {
    for _ in 0..count {
        operation();
    }
}

/// Creates and drops a buffer through `allocator`.
fn through(allocator: impl DeviceAllocator + 'static, count: u64) {
    // For the life of the process, so that no reference is counted.
    let allocator: &'static dyn DeviceAllocator = Box::leak(Box::new(allocator));
    let layout = DeviceLayout::from_size(1024).expect("layout");
    repeat(count, || {
        let layout = black_box(layout);
        black_box(&DeviceMemoryBuffer::create_with(allocator, layout, 0));
    });
}

/// A recorder that is on or off, as the operation says at its end.
fn recorder(operation: &str) -> Recorder {
    let recorder = Recorder::new(100_000);
    if operation.ends_with("_on") {
        recorder.start();
    }
    recorder
}

fn arenas() -> Vec<DeviceMemoryBuffer> {
    (1..=4)
        .map(|kib| DeviceMemoryBuffer::create(kib * 1024, DeviceType::Cuda, 0).expect("arena"))
        .collect()
}

fn main() -> ExitCode {
    // `cargo bench` and `cargo test --benches` pass flags of their own; without
    // an operation there is nothing to do.
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [operation, count] = arguments.as_slice() else {
        return ExitCode::SUCCESS;
    };
    let Ok(count) = count.parse::<u64>() else {
        return ExitCode::SUCCESS;
    };
    let registry = DeviceAllocatorRegistry::global();
    registry.register(&ConstantAddress::<AT>).expect("first");

    match operation.as_str() {
        // The loop, and an argument and a result that the compiler knows nothing of.
        "nothing" => repeat(count, || {
            black_box(&black_box(1024));
        }),
        "registry_lookup" => repeat(count, || {
            black_box(registry.registered(black_box(DeviceType::Cuda)));
        }),
        "registry_get" => repeat(count, || {
            black_box(&registry.get(black_box(DeviceType::Cuda)));
        }),
        "create_destroy" => repeat(count, || {
            let size = black_box(1024);
            black_box(&DeviceMemoryBuffer::create(size, DeviceType::Cuda, 0));
        }),
        "create_destroy_counted" => {
            let local = DeviceAllocatorRegistry::new();
            local
                .register(Arc::new(ConstantAddress::<AT>))
                .expect("first");
            let layout = DeviceLayout::from_size(1024).expect("layout");
            let device = Device::new(DeviceType::Cuda, 0);
            repeat(count, || {
                let device = black_box(device);
                black_box(&DeviceMemoryBuffer::create_in(&local, layout, device));
            });
        }
        "offset_lookup" | "offset_refused" => {
            let mut arenas = arenas();
            let spans = arenas.iter_mut().map(DeviceMemoryBuffer::as_span_mut);
            let devices = [Device::new(DeviceType::Cuda, 0); 4];
            let planned = HierarchicalAllocator::new(spans.collect(), &devices).expect("devices");
            let offset = if operation == "offset_lookup" {
                64
            } else {
                1 << 20
            };
            repeat(count, || {
                let offset = black_box(offset);
                black_box(&planned.get_offset_address(2, offset, 256));
            });
        }
        "allocator_4_arenas" => {
            let devices = [Device::new(DeviceType::Cuda, 0); 4];
            let mut sets: Vec<Vec<DeviceMemoryBuffer>> = (0..count).map(|_| arenas()).collect();
            let views: Vec<_> = sets
                .iter_mut()
                .map(|set| {
                    set.iter_mut()
                        .map(DeviceMemoryBuffer::as_span_mut)
                        .collect()
                })
                .collect();
            for view in views {
                std::mem::forget(black_box(HierarchicalAllocator::new(view, &devices)));
            }
        }
        "allocator_4_arenas_setup" => {
            let mut sets: Vec<Vec<DeviceMemoryBuffer>> = (0..count).map(|_| arenas()).collect();
            let views: Vec<Vec<_>> = sets
                .iter_mut()
                .map(|set| {
                    set.iter_mut()
                        .map(DeviceMemoryBuffer::as_span_mut)
                        .collect()
                })
                .collect();
            for view in views {
                std::mem::forget(black_box(view));
            }
        }
        "planned_4_arenas" => {
            let device = Device::new(DeviceType::Cuda, 0);
            let buffers = (1..=4).map(|kib| PlannedBuffer::new(device, kib * 1024));
            let plan =
                MemoryPlan::new(buffers.collect(), vec![Placement::new(3, 64, 256)]).expect("plan");
            repeat(count, || {
                let mut memory = PlannedMemory::allocate(&plan, registry).expect("memory");
                drop(black_box(memory.view()));
            });
        }
        "layer_none" => through(ConstantAddress::<AT>, count),
        // What is read back has to be what was written.
        "layer_none_host" => through(HostAllocator, count),
        "layer_poison" => through(Poison::over(HostAllocator), count),
        "layer_aligned" => through(
            Aligned::over(ConstantAddress::<AT>, 256).expect("align"),
            count,
        ),
        "layer_arena" => through(Arena::over(ConstantAddress::<AT>, 1 << 20), count),
        "layer_binning" => through(
            Binning::over(ConstantAddress::<AT>)
                .bin(4096, ConstantAddress::<AT>)
                .expect("bin"),
            count,
        ),
        "layer_limit" => through(Limit::over(ConstantAddress::<AT>, 1 << 30), count),
        "layer_log" => through(Log::csv(ConstantAddress::<AT>, std::io::sink()), count),
        "layer_pool" => through(Pool::over(ConstantAddress::<AT>), count),
        "layer_pool_search" => through(
            PoolBuilder::new()
                .cache_limit(0)
                .build(ConstantAddress::<AT>),
            count,
        ),
        "layer_pool_on_stream" => {
            let pool = Pool::over(ConstantAddress::<AT>);
            through(pool.on_stream(&STREAM).expect("stream"), count);
        }
        "layer_recorded_off" | "layer_recorded_on" => {
            let recorder = recorder(operation);
            through(Recorded::over(ConstantAddress::<AT>, &recorder), count);
        }
        "layer_recorded_segments_off" | "layer_recorded_segments_on" => {
            let recorder = recorder(operation);
            through(
                RecordedSegments::over(ConstantAddress::<AT>, &recorder),
                count,
            );
        }
        "layer_retry" => through(Retry::over(ConstantAddress::<AT>, |_| false), count),
        "layer_shared" => through(Shared::from(Arc::new(ConstantAddress::<AT>)), count),
        "layer_statistics" => through(Statistics::over(ConstantAddress::<AT>), count),
        "layer_tracking" => through(Tracking::over(ConstantAddress::<AT>), count),
        #[cfg(feature = "pte")]
        "add_cuda0" | "transformer_cuda0" => {
            let file = format!(
                "{}/tests/data/pte/{operation}.pte",
                env!("CARGO_MANIFEST_DIR")
            );
            let bytes = std::fs::read(file).expect("test data");
            repeat(count, || {
                let program = Program::parse(black_box(&bytes)).expect("a good program");
                for method in program.methods() {
                    for tensor in method.planned_tensors() {
                        black_box(&(tensor.value(), tensor.placement()));
                    }
                }
            });
        }
        other => {
            eprintln!("error: unknown operation {other}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
