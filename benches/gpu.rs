//! Allocating, freeing and copying on a real driver, through the back end and by
//! the driver's own calls, in turn in one run.
//!
//! It prints tables, and under each the same as JSON, one object a line. Without a driver or
//! a device it says so and does nothing. `--quick` takes a few samples only, to see
//! that it works, and `--probe` only says what the device is. The context of the device is current all the time, and nobody
//! else should use the device meanwhile.

#![expect(
    unsafe_code,
    clippy::print_stdout,
    reason = "a program that calls the driver itself, to compare"
)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use device_memory::backend::cuda::cudarc::driver::{CudaContext, CudaStream, result, sys};
use device_memory::backend::cuda::{CudaAllocator, CudaHostAllocator};
use device_memory::{AllocatorHandle, DeviceAllocator, DeviceLayout, DeviceMemoryBuffer};
use serde_json::{Value, json};

const SIZES: [usize; 4] = [1 << 10, 64 << 10, 1 << 20, 64 << 20];

/// What pools of one's own keep, here and in the raw calls.
const THRESHOLD: u64 = 1 << 30;

const SYNCHRONOUS: &str = "cuMemAlloc, cuMemFree";
const ORDERED: &str = "cuMemAllocAsync, cuMemFreeAsync";
const ORDERED_WAITED: &str = "cuMemAllocAsync, cuMemFreeAsync, waiting";
const OWN_POOL: &str = "cuMemAllocFromPoolAsync, cuMemFreeAsync";
const COPY: &str = "cuMemcpy";
const COPY_WAITED: &str = "cuMemcpyAsync, cuStreamSynchronize";

/// Something that is done many times, and what to compare it with.
struct Case<'a> {
    name: &'static str,
    against: &'static [&'static str],
    run: Box<dyn FnMut() + 'a>,
    /// After each batch, within its time.
    finish: Box<dyn Fn() + 'a>,
}

impl<'a> Case<'a> {
    fn new(
        name: &'static str,
        against: &'static [&'static str],
        run: impl FnMut() + 'a,
        finish: impl Fn() + 'a,
    ) -> Self {
        Self {
            name,
            against,
            run: Box::new(run),
            finish: Box::new(finish),
        }
    }

    /// The time of a batch of `count`.
    fn batch(&mut self, count: u32) -> Duration {
        let begin = Instant::now();
        for _ in 0..count {
            (self.run)();
        }
        (self.finish)();
        begin.elapsed()
    }
}

/// How long all batches of some cases may take, if that leaves so many of them.
const PATIENCE: Duration = Duration::from_secs(1);
const MIN_BATCHES: usize = 7;

/// How many batches at most, and how long each is to take.
#[derive(Clone, Copy)]
struct Effort {
    batches: usize,
    target: Duration,
}

/// The median time of each case in nanoseconds, with batches of all in turn.
fn measure(cases: &mut [Case<'_>], effort: Effort) -> Vec<f64> {
    let mut round = Duration::ZERO;
    let mut counts = Vec::with_capacity(cases.len());
    for case in cases.iter_mut() {
        case.batch(3);
        let once = case.batch(3) / 3;
        let fit = effort.target.as_nanos() / once.as_nanos().max(1);
        let count = u32::try_from(fit).unwrap_or(u32::MAX).clamp(1, 2000);
        round += once * count;
        counts.push(count);
    }
    let fit = PATIENCE.as_nanos() / round.as_nanos().max(1);
    let batches = usize::try_from(fit).unwrap_or(usize::MAX);
    let batches = batches.max(MIN_BATCHES).min(effort.batches);
    let mut samples = vec![Vec::with_capacity(batches); cases.len()];
    for _ in 0..batches {
        for ((case, &count), samples) in cases.iter_mut().zip(&counts).zip(&mut samples) {
            samples.push(case.batch(count).as_secs_f64() * 1e9 / f64::from(count));
        }
    }
    samples.into_iter().map(median).collect()
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// Measures the cases, and prints them under a heading, and as JSON.
fn report(what: &str, size: usize, mut cases: Vec<Case<'_>>, effort: Effort) {
    let medians = measure(&mut cases, effort);
    let of = |name: &str| {
        let position = cases.iter().position(|case| case.name == name)?;
        medians.get(position).copied()
    };
    println!("\n{what}, {size} bytes");
    let mut lines = Vec::new();
    for (case, &nanoseconds) in cases.iter().zip(&medians) {
        let ratios: Vec<(&str, f64)> = case
            .against
            .iter()
            .filter_map(|&name| Some((name, nanoseconds / of(name)?)))
            .collect();
        let shown: String = ratios
            .iter()
            .map(|(name, ratio)| format!("  {ratio:.2} x {name}"))
            .collect();
        println!("  {:<45} {nanoseconds:>14.0} ns{shown}", case.name);
        let ratios: serde_json::Map<String, Value> = ratios
            .into_iter()
            .map(|(name, ratio)| (name.to_owned(), json!(ratio)))
            .collect();
        lines.push(json!({
            "bench": what,
            "size": size,
            "case": case.name,
            "median_ns": nanoseconds,
            "ratios": ratios,
        }));
    }
    for line in lines {
        println!("{line}");
    }
}

/// The device, its driver and what allocates on it.
struct Gpu {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    allocator: CudaAllocator,
    has_pools: bool,
}

impl Gpu {
    fn open(allocator: CudaAllocator) -> Self {
        let context = CudaContext::new(0).expect("device 0");
        let stream = context.new_stream().expect("a stream");
        Self {
            has_pools: context.has_async_alloc(),
            context,
            stream,
            allocator,
        }
    }

    fn raw(&self) -> sys::CUstream {
        self.stream.cu_stream()
    }

    fn wait(&self) {
        // SAFETY: the stream is alive.
        unsafe { result::stream::synchronize(self.raw()) }.expect("the stream");
    }

    fn wait_for_all(&self) {
        result::ctx::synchronize().expect("the context");
    }

    fn describe(&self) -> Value {
        let device = self.context.cu_device();
        let mut version = 0;
        // SAFETY: the variable is ours.
        let code = unsafe { sys::cuDriverGetVersion(&mut version) };
        assert_eq!(code as u32, 0);
        json!({
            "device": result::device::get_name(device).expect("its name"),
            "driver": format!("{}.{}", version / 1000, version % 1000 / 10),
            "memory_pools": self.has_pools,
        })
    }
}

/// A pool of device 0 that keeps what it frees, as the allocator makes one.
struct Pool(sys::CUmemoryPool);

impl Pool {
    fn create() -> Self {
        // SAFETY: all fields are numbers, pointers and enums, and 0 is a value of
        // each of the enums, and the number of the device.
        let mut properties: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
        properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        // SAFETY: the properties are those of a pool on device 0.
        let pool = unsafe { result::mem_pool::create(&properties) }.expect("a pool");
        let which = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        let mut threshold = THRESHOLD;
        // SAFETY: the attribute has 64 bits.
        unsafe { result::mem_pool::set_attribute(pool, which, (&raw mut threshold).cast()) }
            .expect("its threshold");
        Self(pool)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: the pool is ours, and nothing of it is in use.
        let _ = unsafe { result::mem_pool::destroy(self.0) };
    }
}

/// What creates buffers of `size` bytes with an allocator, and drops them.
fn buffers<'a>(allocator: &CudaAllocator, size: usize) -> impl FnMut() + 'a {
    let handle = AllocatorHandle::from(Arc::new(allocator.clone()));
    let layout = DeviceLayout::from_size(size).expect("a layout");
    move || {
        let buffer = DeviceMemoryBuffer::create_with(&handle, layout, 0);
        black_box(&buffer.expect("device memory"));
    }
}

fn allocate(gpu: &Gpu, size: usize, effort: Effort) {
    let ours = &gpu.allocator;
    let keeping = CudaAllocator::builder().release_threshold(THRESHOLD);
    let keeping = keeping.open().expect("the driver");
    let ordered = ours.on_stream(&gpu.stream).expect("a handle");
    let keeping_ordered = keeping.on_stream(&gpu.stream).expect("a handle");
    let pool = gpu.has_pools.then(Pool::create);
    let (none, wait, wait_for_all) = (|| {}, || gpu.wait(), || gpu.wait_for_all());

    let raw_synchronous = || {
        // SAFETY: the context is current.
        let ptr = unsafe { result::malloc_sync(size) }.expect("device memory");
        // SAFETY: the block was just allocated.
        unsafe { result::free_sync(black_box(ptr)) }.expect("a free");
    };
    let raw_ordered = || {
        // SAFETY: the context is current and the stream alive.
        let ptr = unsafe { result::malloc_async(gpu.raw(), size) }.expect("device memory");
        // SAFETY: the block was just allocated on this stream.
        unsafe { result::free_async(black_box(ptr), gpu.raw()) }.expect("a free");
    };
    let raw_waited = || {
        // SAFETY: as above.
        let ptr = unsafe { result::malloc_async(gpu.raw(), size) }.expect("device memory");
        gpu.wait();
        gpu.wait_for_all();
        // SAFETY: as above.
        unsafe { result::free_async(black_box(ptr), gpu.raw()) }.expect("a free");
    };
    let raw_pool = pool.as_ref().map(|pool| {
        || {
            // SAFETY: as above, and the pool is alive.
            let ptr = unsafe { result::mem_pool::alloc_async(pool.0, size, gpu.raw()) };
            let ptr = black_box(ptr.expect("device memory"));
            // SAFETY: as above.
            unsafe { result::free_async(ptr, gpu.raw()) }.expect("a free");
        }
    });

    let mut cases = vec![Case::new(SYNCHRONOUS, &[], raw_synchronous, none)];
    if let Some(raw_pool) = raw_pool {
        cases.push(Case::new(ORDERED, &[], raw_ordered, wait));
        cases.push(Case::new(ORDERED_WAITED, &[SYNCHRONOUS], raw_waited, wait));
        cases.push(Case::new(OWN_POOL, &[], raw_pool, wait));
    }
    cases.push(Case::new(
        "CudaAllocator",
        &[SYNCHRONOUS, ORDERED_WAITED],
        buffers(ours, size),
        wait_for_all,
    ));
    cases.push(Case::new(
        "CudaAllocator, own pool",
        &[SYNCHRONOUS, ORDERED_WAITED],
        buffers(&keeping, size),
        wait_for_all,
    ));
    cases.push(Case::new(
        "CudaAllocator::on_stream",
        &[SYNCHRONOUS, ORDERED],
        buffers(&ordered, size),
        wait,
    ));
    cases.push(Case::new(
        "CudaAllocator::on_stream, own pool",
        &[SYNCHRONOUS, OWN_POOL],
        buffers(&keeping_ordered, size),
        wait,
    ));
    report("allocate and free", size, cases, effort);
}

/// Buffers on the device: one in the order of the device, one of the stream.
fn on_device(gpu: &Gpu, size: usize) -> [DeviceMemoryBuffer; 2] {
    let ordered = gpu.allocator.on_stream(&gpu.stream).expect("a handle");
    [gpu.allocator.clone(), ordered].map(|allocator| {
        let layout = DeviceLayout::from_size(size).expect("a layout");
        let mut buffer =
            DeviceMemoryBuffer::create_with(Arc::new(allocator), layout, 0).expect("memory");
        buffer.fill(1).expect("a fill");
        buffer
    })
}

fn address(buffer: &DeviceMemoryBuffer) -> u64 {
    u64::try_from(buffer.ptr().addr()).expect("an address")
}

fn to_device(gpu: &Gpu, what: &str, host: &[u8], effort: Effort) {
    let [mut whole, mut ordered] = on_device(gpu, host.len());
    let at = address(&whole);
    let none = || {};

    let raw = || {
        // SAFETY: the block has room for the bytes.
        unsafe { result::memcpy_htod_sync(at, host) }.expect("a copy");
    };
    let raw_waited = || {
        // SAFETY: as above, and the bytes stay until the copy is waited for.
        unsafe { result::memcpy_htod_async(at, host, gpu.raw()) }.expect("a copy");
        gpu.wait();
    };
    let cases = vec![
        Case::new(COPY, &[], raw, none),
        Case::new(COPY_WAITED, &[], raw_waited, none),
        Case::new(
            "DeviceMemoryBuffer::copy_from_host",
            &[COPY, COPY_WAITED],
            || whole.copy_from_host(host).expect("a copy"),
            none,
        ),
        Case::new(
            "DeviceMemoryBuffer::copy_from_host, on_stream",
            &[COPY, COPY_WAITED],
            || ordered.copy_from_host(host).expect("a copy"),
            none,
        ),
    ];
    report(what, host.len(), cases, effort);
}

fn to_host(gpu: &Gpu, what: &str, host: &mut [u8], effort: Effort) {
    let size = host.len();
    let [whole, ordered] = on_device(gpu, size);
    let at = address(&whole);
    let none = || {};
    // Each case writes there, one at a time.
    let host = std::cell::RefCell::new(host);

    let raw = || {
        // SAFETY: the block has the bytes.
        unsafe { result::memcpy_dtoh_sync(&mut host.borrow_mut(), at) }.expect("a copy");
    };
    let raw_waited = || {
        let mut host = host.borrow_mut();
        // SAFETY: as above, and the room stays until the copy is waited for.
        unsafe { result::memcpy_dtoh_async(&mut host, at, gpu.raw()) }.expect("a copy");
        gpu.wait();
    };
    let cases = vec![
        Case::new(COPY, &[], raw, none),
        Case::new(COPY_WAITED, &[], raw_waited, none),
        Case::new(
            "DeviceMemoryBuffer::copy_to_host",
            &[COPY, COPY_WAITED],
            || whole.copy_to_host(&mut host.borrow_mut()).expect("a copy"),
            none,
        ),
        Case::new(
            "DeviceMemoryBuffer::copy_to_host, on_stream",
            &[COPY, COPY_WAITED],
            || {
                ordered
                    .copy_to_host(&mut host.borrow_mut())
                    .expect("a copy");
            },
            none,
        ),
    ];
    report(what, size, cases, effort);
}

fn copies(gpu: &Gpu, size: usize, effort: Effort) {
    let mut pageable = vec![1; size];
    let pinned = Arc::new(CudaHostAllocator::open().expect("the driver"));
    let layout = DeviceLayout::from_size(size).expect("a layout");
    let mut pinned = DeviceMemoryBuffer::create_with(pinned, layout, 0).expect("host memory");
    let pinned = pinned.as_slice_mut().expect("a slice");

    to_device(gpu, "pageable host to device", &pageable, effort);
    to_device(gpu, "page-locked host to device", pinned, effort);
    to_host(gpu, "device to pageable host", &mut pageable, effort);
    to_host(gpu, "device to page-locked host", pinned, effort);
}

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick" || argument == "--test");
    let effort = Effort {
        batches: if quick { 3 } else { 25 },
        target: Duration::from_micros(if quick { 50 } else { 2000 }),
    };
    let allocator = match CudaAllocator::open() {
        Ok(allocator) => allocator,
        Err(reason) => {
            println!("skipped: no GPU: {reason}");
            return;
        }
    };
    let gpu = Gpu::open(allocator);
    println!("{}", gpu.describe());
    if std::env::args().any(|argument| argument == "--probe") {
        return;
    }
    for size in SIZES {
        allocate(&gpu, size, effort);
        gpu.allocator.trim(0).expect("a trim");
    }
    for size in SIZES {
        copies(&gpu, size, effort);
    }
}
