//! Memory of the host that goes to candle and comes back.
//!
//! The heap of this process counts the blocks of floats by their length, so each test
//! uses a length of its own. A block that is freed with another layout than its own is
//! counted for another length, and one that is freed twice is below zero.

#![expect(unsafe_code, reason = "a heap that counts is an allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering};

use candle_core::{CpuStorage, DType, Device, InplaceOp1, Tensor, Var};
use device_memory::adaptor::Statistics;
use device_memory::{DeviceLayout, DeviceMemoryBuffer, HostAllocator};
use device_memory_candle::{Reason, Refused, into_buffer, into_tensor, layout_of_floats};

/// The heap of the system, counted.
struct CountedHeap;

/// The blocks aligned to 4 bytes that were ever allocated, and those that still are,
/// by their size in floats.
static MADE: [AtomicIsize; 4096] = [const { AtomicIsize::new(0) }; 4096];
static LIVE: [AtomicIsize; 4096] = [const { AtomicIsize::new(0) }; 4096];

fn count(counters: &[AtomicIsize; 4096], layout: Layout, by: isize) {
    if layout.align() == 4
        && layout.size().is_multiple_of(4)
        && let Some(counter) = counters.get(layout.size() / 4)
    {
        counter.fetch_add(by, Ordering::Relaxed);
    }
}

// SAFETY: all is done by the system's heap; reallocation is the default, through
// these.
unsafe impl GlobalAlloc for CountedHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(&MADE, layout, 1);
        count(&LIVE, layout, 1);
        // SAFETY: the caller's promises are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(&LIVE, layout, -1);
        // SAFETY: the caller's promises are the same.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static HEAP: CountedHeap = CountedHeap;

/// The blocks of `len` floats that were ever allocated, and those that still are.
fn blocks(len: usize) -> (isize, isize) {
    (
        MADE[len].load(Ordering::Relaxed),
        LIVE[len].load(Ordering::Relaxed),
    )
}

/// A buffer that holds 0, 1, 2 and so on.
fn counting(len: usize) -> DeviceMemoryBuffer {
    let layout = layout_of_floats(len).unwrap();
    let mut buffer = DeviceMemoryBuffer::create_with(&HostAllocator, layout, 0).unwrap();
    let (chunks, _) = buffer.as_slice_mut().unwrap().as_chunks_mut();
    for (chunk, number) in chunks.iter_mut().zip(0_u16..) {
        *chunk = f32::from(number).to_ne_bytes();
    }
    buffer
}

fn floats(buffer: &DeviceMemoryBuffer) -> Vec<f32> {
    let (chunks, _) = buffer.as_slice().unwrap().as_chunks();
    chunks.iter().copied().map(f32::from_ne_bytes).collect()
}

fn numbers(len: usize) -> Vec<f32> {
    (0_u16..).take(len).map(f32::from).collect()
}

/// The address of the first element of a tensor that is the whole of its storage.
fn address(tensor: &Tensor) -> *const f32 {
    let (storage, _) = tensor.storage_and_layout();
    match &*storage {
        candle_core::Storage::Cpu(CpuStorage::F32(floats)) => floats.as_ptr(),
        _ => panic!("not floats on the host"),
    }
}

/// What a tensor was refused for, and the tensor, of which nothing was taken.
fn refused(tensor: Tensor) -> (Tensor, Reason) {
    let Refused { from, reason } = into_buffer(tensor).unwrap_err();
    (from, reason)
}

#[test]
fn memory_goes_there_and_back_at_one_address_and_both_see_what_is_written() {
    const LEN: usize = 1001;
    let buffer = counting(LEN);
    let start = buffer.ptr().as_raw().cast_const().cast::<f32>();

    let tensor = into_tensor(buffer, (7, 143)).unwrap();
    assert_eq!(address(&tensor), start);
    assert_eq!(
        tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap(),
        numbers(LEN)
    );
    let row = Tensor::full(-1f32, (1, 143), &Device::Cpu).unwrap();
    tensor.slice_set(&row, 0, 0).unwrap();

    let buffer = into_buffer(tensor).unwrap();
    assert_eq!(buffer.ptr().as_raw().cast_const().cast::<f32>(), start);
    let seen = floats(&buffer);
    assert_eq!(seen[..143], [-1.0; 143]);
    assert_eq!(seen[143..], numbers(LEN)[143..]);
    drop(buffer);
    drop(seen);

    assert_eq!(blocks(LEN).1, 0);
}

#[test]
fn nothing_is_allocated_on_the_way_there_and_only_the_zeros_that_stay_on_the_way_back() {
    const LEN: usize = 1002;

    let mut buffer = counting(LEN);
    for round in 1..=3 {
        let tensor = into_tensor(buffer, LEN).unwrap();
        assert_eq!(blocks(LEN), (round, 1));
        buffer = into_buffer(tensor).unwrap();
        assert_eq!(blocks(LEN), (round + 1, 1));
    }
    drop(buffer);

    assert_eq!(blocks(LEN), (4, 0));
}

#[test]
fn a_tensor_that_does_not_come_back_is_freed_once() {
    const LEN: usize = 1003;

    let tensor = into_tensor(counting(LEN), LEN).unwrap();
    let clone = tensor.clone();
    drop(tensor);
    assert_eq!(blocks(LEN), (1, 1));
    drop(clone);

    assert_eq!(blocks(LEN), (1, 0));
}

#[test]
fn memory_that_candle_allocated_is_freed_once_by_the_buffer() {
    const LEN: usize = 1004;
    let tensor = Tensor::from_vec(numbers(LEN), LEN, &Device::Cpu).unwrap();
    let start = address(&tensor);

    let buffer = into_buffer(tensor).unwrap();
    assert_eq!(buffer.ptr().as_raw().cast_const().cast::<f32>(), start);
    assert_eq!(buffer.layout(), layout_of_floats(LEN).unwrap());
    let seen = floats(&buffer);
    assert_eq!(seen, numbers(LEN));
    drop(seen);
    assert_eq!(blocks(LEN).1, 1);
    buffer.free().unwrap();

    assert_eq!(blocks(LEN).1, 0);
}

#[test]
fn what_shares_the_storage_has_as_many_zeros_from_then_on() {
    const LEN: usize = 1005;
    let tensor = into_tensor(counting(LEN), (5, 201)).unwrap();
    let (clone, last) = (tensor.clone(), tensor.narrow(0, 4, 1).unwrap());

    let mut buffer = into_buffer(tensor).unwrap();
    buffer.fill(0xff).unwrap();

    assert_eq!(clone.to_vec2::<f32>().unwrap(), vec![vec![0.0; 201]; 5]);
    assert_eq!(last.to_vec2::<f32>().unwrap(), [[0.0; 201]]);
    assert_eq!(blocks(LEN).1, 2);
    drop((buffer, clone, last));
    assert_eq!(blocks(LEN).1, 0);
}

#[test]
fn a_tensor_of_no_floats_makes_the_round_trip() {
    let empty = DeviceMemoryBuffer::default();

    let tensor = into_tensor(empty, (0, 3)).unwrap();
    assert_eq!(tensor.dims(), [0, 3]);
    let buffer = into_buffer(tensor).unwrap();

    assert!(buffer.is_empty());
    buffer.free().unwrap();
}

#[test]
fn a_scalar_is_one_float() {
    let tensor = into_tensor(counting(1), ()).unwrap();

    assert_eq!(tensor.to_scalar::<f32>().unwrap(), 0.0);
    assert_eq!(floats(&into_buffer(tensor).unwrap()), [0.0]);
}

#[test]
fn a_buffer_of_another_size_than_the_shape_is_refused_and_given_back() {
    for shape in [vec![1006], vec![1008], vec![usize::MAX, 2], vec![0]] {
        let failure = into_tensor(counting(1007), shape).unwrap_err();

        assert!(matches!(failure.reason, Reason::Shape { size: 4028, .. }));
        assert_eq!(floats(&failure.from), numbers(1007));
    }
    let failure = into_tensor(counting(2), 3).unwrap_err();
    assert_eq!(
        failure.to_string(),
        "8 bytes for the floats of a tensor of shape [3]"
    );
    let odd = DeviceLayout::new(5, 4).unwrap();
    let odd = DeviceMemoryBuffer::create_with(&HostAllocator, odd, 0).unwrap();
    let failure = into_tensor(odd, 1).unwrap_err();
    assert!(matches!(failure.reason, Reason::Shape { size: 5, .. }));
}

#[test]
fn a_buffer_of_another_alignment_is_refused_and_given_back() {
    for align in [1, 2, 8, 64, 4096] {
        let layout = DeviceLayout::new(4036, align).unwrap();
        let buffer = DeviceMemoryBuffer::create_with(&HostAllocator, layout, 0).unwrap();

        let failure = into_tensor(buffer, 1009).unwrap_err();

        assert!(matches!(failure.reason, Reason::Alignment { align: found } if found == align));
        assert_eq!(
            failure.to_string(),
            format!("aligned to {align} bytes, floats to 4")
        );
        assert_eq!(failure.from.layout(), layout);
    }
    assert_eq!(blocks(1009).0, 0);
}

#[test]
fn a_buffer_of_another_allocator_is_refused_and_given_back() {
    const LEN: usize = 1010;
    let allocator = Arc::new(Statistics::over(HostAllocator));
    let layout = layout_of_floats(LEN).unwrap();
    let buffer = DeviceMemoryBuffer::create_with(allocator.clone(), layout, 0).unwrap();

    let failure = into_tensor(buffer, LEN).unwrap_err();

    assert!(matches!(failure.reason, Reason::OtherAllocator));
    assert_eq!(
        failure.to_string(),
        "memory of another allocator than the host's"
    );
    assert_eq!(allocator.usage(0).current, 4 * LEN);
    drop(failure);
    assert_eq!((allocator.usage(0).current, blocks(LEN)), (0, (1, 0)));
}

#[test]
fn the_host_s_allocator_behind_a_count_is_let_go_of() {
    let allocator = Arc::new(HostAllocator);
    let layout = layout_of_floats(1011).unwrap();
    let buffer = DeviceMemoryBuffer::create_with(allocator.clone(), layout, 0).unwrap();

    let tensor = into_tensor(buffer, 1011).unwrap();

    assert_eq!(Arc::strong_count(&allocator), 1);
    drop(tensor);
    assert_eq!(blocks(1011), (1, 0));
}

#[test]
fn a_tensor_of_another_type_is_refused_and_keeps_its_elements() {
    let tensor = Tensor::arange(0u32, 6u32, &Device::Cpu).unwrap();

    let (tensor, reason) = refused(tensor);

    assert!(matches!(reason, Reason::NotFloats(DType::U32)));
    assert_eq!(
        reason.to_string(),
        "elements of type U32, not floats of 32 bits"
    );
    assert_eq!(tensor.to_vec1::<u32>().unwrap(), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn a_part_of_a_storage_is_refused_and_keeps_its_elements() {
    const LEN: usize = 1012;
    let whole = into_tensor(counting(LEN), (4, 253)).unwrap();

    for part in [
        whole.narrow(0, 0, 2).unwrap(),
        whole.narrow(0, 2, 2).unwrap(),
        whole.narrow(1, 0, 2).unwrap(),
        whole.t().unwrap(),
        whole
            .narrow(0, 0, 1)
            .unwrap()
            .broadcast_as((4, 253))
            .unwrap(),
        whole.narrow(0, 0, 0).unwrap(),
    ] {
        let before = part.contiguous().unwrap().to_vec2::<f32>().unwrap();

        let (part, reason) = refused(part);

        assert!(matches!(reason, Reason::NotWhole), "{reason:?}");
        assert_eq!(part.contiguous().unwrap().to_vec2::<f32>().unwrap(), before);
    }
    let reshaped = whole.reshape((253, 4)).unwrap();
    drop(whole);
    assert_eq!(floats(&into_buffer(reshaped).unwrap()), numbers(LEN));
    assert_eq!(blocks(LEN).1, 0);
}

#[test]
fn memory_with_spare_capacity_is_refused_and_kept() {
    const LEN: usize = 1013;
    let mut vec = Vec::with_capacity(LEN + 1);
    vec.extend(numbers(LEN));
    let tensor = Tensor::from_vec(vec, LEN, &Device::Cpu).unwrap();

    let (tensor, reason) = refused(tensor);

    assert_eq!(
        reason.to_string(),
        "1013 elements in memory for 1014",
        "{reason:?}"
    );
    assert_eq!(tensor.to_vec1::<f32>().unwrap(), numbers(LEN));
}

#[test]
fn what_gradients_are_told_from_is_refused_until_it_is_detached() {
    const LEN: usize = 1014;
    let variable = Var::from_tensor(&Tensor::from_vec(numbers(LEN), LEN, &Device::Cpu).unwrap());
    let variable = variable.unwrap();
    let result = (variable.as_tensor() * 1.0).unwrap();

    for tracked in [variable.as_tensor().clone(), result.clone()] {
        let (tracked, reason) = refused(tracked);

        assert!(matches!(reason, Reason::Tracked));
        assert_eq!(reason.to_string(), "gradients may be told from the tensor");
        assert_eq!(tracked.to_vec1::<f32>().unwrap(), numbers(LEN));
    }
    assert_eq!(floats(&into_buffer(result.detach()).unwrap()), numbers(LEN));
}

/// Puts a storage of another type in place, as any operation on a storage may.
struct Retype;

impl InplaceOp1 for Retype {
    fn name(&self) -> &'static str {
        "retype"
    }

    fn cpu_fwd(
        &self,
        storage: &mut CpuStorage,
        _layout: &candle_core::Layout,
    ) -> candle_core::Result<()> {
        *storage = CpuStorage::U8(vec![0; 1016]);
        Ok(())
    }
}

#[test]
fn a_storage_that_another_operation_has_put_there_is_looked_at_itself() {
    let tensor = into_tensor(counting(1016), 1016).unwrap();
    tensor.inplace_op1(&Retype).unwrap();

    let (tensor, reason) = refused(tensor);

    assert_eq!(tensor.dtype(), DType::F32);
    assert!(matches!(reason, Reason::NotFloats(DType::U8)));
    assert_eq!(blocks(1016), (1, 0));
}

#[test]
fn more_floats_than_can_be_allocated_have_no_layout() {
    assert!(layout_of_floats(usize::MAX / 4).is_err());
    assert_eq!(
        layout_of_floats(3).unwrap(),
        DeviceLayout::new(12, 4).unwrap()
    );
}
