//! The hot paths, timed. `cargo bench --all-features --bench paths`
//!
//! Wall time is for people; `instructions.sh` counts what can be repeated.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use device_memory::pte::Program;
use device_memory::{
    Device, DeviceAllocatorRegistry, DeviceMemoryBuffer, DeviceType, HierarchicalAllocator,
    MemoryPlan, PlannedBuffer, PlannedMemory,
};

fn buffers(c: &mut Criterion) {
    let mut group = c.benchmark_group("create and drop, host");
    for size in [64, 4096, 1 << 20] {
        group.bench_with_input(BenchmarkId::from_parameter(size), &size, |b, &size| {
            b.iter(|| DeviceMemoryBuffer::create(black_box(size), DeviceType::Cpu, 0));
        });
    }
    group.finish();

    let mut group = c.benchmark_group("copy, host");
    for size in [64_usize, 4096, 1 << 20] {
        let bytes = vec![7; size];
        let mut buffer = DeviceMemoryBuffer::create(size, DeviceType::Cpu, 0).expect("host memory");
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_with_input(BenchmarkId::from_parameter(size), &bytes, |b, bytes| {
            b.iter(|| buffer.copy_from_host(black_box(bytes)));
        });
    }
    group.finish();
}

fn lookups(c: &mut Criterion) {
    let registry = DeviceAllocatorRegistry::new();
    registry
        .register(&device_memory::HostAllocator)
        .expect("first");
    c.bench_function("registry lookup", |b| {
        b.iter(|| black_box(registry.registered(black_box(DeviceType::Cpu)).is_some()));
    });

    let mut arenas: Vec<DeviceMemoryBuffer> = (0..4)
        .map(|_| DeviceMemoryBuffer::create(4096, DeviceType::Cpu, 0).expect("host memory"))
        .collect();
    let spans = arenas
        .iter_mut()
        .map(DeviceMemoryBuffer::as_span_mut)
        .collect();
    let planned = HierarchicalAllocator::new(spans, &[Device::CPU; 4]).expect("devices");
    c.bench_function("offset lookup", |b| {
        b.iter(|| planned.get_offset_address(black_box(2), black_box(64), black_box(256)));
    });
    c.bench_function("offset refused", |b| {
        b.iter(|| planned.get_offset_address(black_box(2), black_box(1 << 20), black_box(256)));
    });
}

fn plans(c: &mut Criterion) {
    let buffers = (1..=4).map(|kib| PlannedBuffer::new(Device::CPU, kib * 1024));
    let plan = MemoryPlan::new(buffers.collect(), Vec::new()).expect("plan");
    c.bench_function("four planned arenas", |b| {
        b.iter(|| PlannedMemory::allocate(&plan, DeviceAllocatorRegistry::global()));
    });

    let mut group = c.benchmark_group("verify a program and list its placements");
    for name in ["add_cuda0", "mlp_cuda0", "transformer_cuda0"] {
        let path = format!("{}/tests/data/pte/{name}.pte", env!("CARGO_MANIFEST_DIR"));
        let bytes = std::fs::read(path).expect("test data");
        group.throughput(Throughput::Bytes(bytes.len() as u64));
        group.bench_with_input(BenchmarkId::from_parameter(name), &bytes, |b, bytes| {
            b.iter(|| {
                let program = Program::parse(black_box(bytes)).expect("a good program");
                for method in program.methods() {
                    for tensor in method.planned_tensors() {
                        black_box((tensor.value(), tensor.placement()));
                    }
                }
            });
        });
    }
    group.finish();
}

criterion_group!(benches, buffers, lookups, plans);
criterion_main!(benches);
