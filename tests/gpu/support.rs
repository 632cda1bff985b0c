//! What the tests on hardware share.

use std::env;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use device_memory::backend::cuda::CudaAllocator;
use device_memory::backend::cuda::cudarc::driver::sys::CUdevice_attribute;
use device_memory::backend::cuda::cudarc::driver::{CudaContext, CudaStream, result};
use device_memory::{
    Device, DeviceAllocator, DeviceIndex, DeviceLayout, DeviceMemoryBuffer, DeviceType,
};

pub(crate) const KIB: usize = 1 << 10;
pub(crate) const MIB: usize = 1 << 20;
pub(crate) const CUDA_0: Device = Device::new(DeviceType::Cuda, 0);

/// What may be missing of the free memory for reasons of the driver's own. A leak
/// of one block a round would be many times as much.
pub(crate) const SLACK: usize = 32 * MIB;

/// Says that there has to be a GPU.
const DEMANDED: &str = "DEVICE_MEMORY_GPU";

/// A machine with at least one device, for one test at a time.
pub(crate) struct Gpu {
    pub(crate) allocator: CudaAllocator,
    _turn: MutexGuard<'static, ()>,
}

impl Gpu {
    /// Opens the driver, or says that there is none, and why.
    #[track_caller]
    pub(crate) fn open() -> Option<Self> {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        match CudaAllocator::open() {
            Ok(allocator) => Some(Self {
                allocator,
                _turn: turn,
            }),
            Err(reason) => {
                assert!(!is_demanded(), "{DEMANDED}=1, but no GPU: {reason}");
                skip(&format!("no GPU: {reason}"));
                None
            }
        }
    }

    /// How many devices there are.
    pub(crate) fn count(&self) -> usize {
        self.allocator.device_count()
    }

    /// The first two devices, or the one.
    pub(crate) fn indices(&self) -> Vec<DeviceIndex> {
        (0..2).take(self.count()).collect()
    }

    /// A property of a device, by the driver's number for it.
    #[expect(unsafe_code, reason = "calls the driver")]
    pub(crate) fn has(&self, index: DeviceIndex, which: CUdevice_attribute) -> bool {
        let device = result::device::get(i32::from(index)).unwrap();
        // SAFETY: the driver just gave the device.
        unsafe { result::device::get_attribute(device, which) }.unwrap() != 0
    }

    /// Whether a device allocates in stream order.
    pub(crate) fn has_pools(&self, index: DeviceIndex) -> bool {
        self.has(
            index,
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
        )
    }

    /// The free bytes of device 0, with no work left and nothing kept that is
    /// unused.
    pub(crate) fn settled_free_memory(&self) -> usize {
        self.allocator.synchronize(0).unwrap();
        self.allocator.trim(0).unwrap();
        self.allocator.memory_info(0).unwrap().unwrap().free
    }
}

fn is_demanded() -> bool {
    env::var_os(DEMANDED).is_some_and(|value| value == "1")
}

/// Says that something is not tested, and why.
#[expect(clippy::print_stderr, reason = "who runs the tests has to see it")]
pub(crate) fn skip(why: &str) {
    eprintln!("skipped: {why}");
}

/// Says something that the results are read with.
#[expect(clippy::print_stderr, reason = "who runs the tests has to see it")]
pub(crate) fn note(what: &str) {
    eprintln!("{what}");
}

/// A stream that waits for no other.
pub(crate) fn stream(index: usize) -> Arc<CudaStream> {
    CudaContext::new(index).unwrap().new_stream().unwrap()
}

pub(crate) fn layout(size: usize) -> DeviceLayout {
    DeviceLayout::from_size(size).unwrap()
}

/// A buffer of an allocator, not written to.
pub(crate) fn empty(
    allocator: &(impl DeviceAllocator + Clone + 'static),
    size: usize,
    index: DeviceIndex,
) -> DeviceMemoryBuffer {
    aligned(allocator, layout(size), index)
}

/// The same with an alignment.
pub(crate) fn aligned(
    allocator: &(impl DeviceAllocator + Clone + 'static),
    layout: DeviceLayout,
    index: DeviceIndex,
) -> DeviceMemoryBuffer {
    DeviceMemoryBuffer::create_with(Arc::new(allocator.clone()), layout, index).unwrap()
}

/// A buffer of an allocator with these bytes.
pub(crate) fn filled(
    allocator: &(impl DeviceAllocator + Clone + 'static),
    bytes: &[u8],
    index: DeviceIndex,
) -> DeviceMemoryBuffer {
    let mut buffer = empty(allocator, bytes.len(), index);
    buffer.copy_from_host(bytes).unwrap();
    buffer
}

/// `len` bytes of which no eight in a row are those of another place or seed.
pub(crate) fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len.next_multiple_of(8)];
    let mut word = seed << 40;
    for eight in bytes.chunks_exact_mut(8) {
        word += 1;
        eight.copy_from_slice(&word.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Checks bytes without printing all of them when they differ.
#[track_caller]
pub(crate) fn assert_same(found: &[u8], expected: &[u8], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    if found != expected {
        let at = found.iter().zip(expected).position(|(a, b)| a != b);
        panic!("{what}: {} bytes differ from byte {at:?} on", found.len());
    }
}

/// Where a buffer lies, in the driver's form.
pub(crate) fn address(buffer: &DeviceMemoryBuffer) -> u64 {
    u64::try_from(buffer.ptr().addr()).unwrap()
}

/// Gives a stream work that writes to all of a buffer, without waiting for it.
#[expect(unsafe_code, reason = "calls the driver")]
pub(crate) fn enqueue_fill(stream: &Arc<CudaStream>, buffer: &DeviceMemoryBuffer, byte: u8) {
    stream.context().bind_to_thread().unwrap();
    let (start, size) = (address(buffer), buffer.size());
    // SAFETY: the memory is there until the tests that call this have waited for
    // the stream, or freed it in an order that the crate was told of.
    unsafe { result::memset_d8_async(start, byte, size, stream.cu_stream()) }.unwrap();
}
