//! Tensors of candle on the host over memory of this workspace's crate, and back,
//! without a copy.
//!
//! candle's storage on the host is a `Vec` that it frees itself. A block of
//! [`HostAllocator`] is one of `std::alloc` with the layout that was asked for; if
//! that is the layout of a `Vec<f32>` without spare capacity, the memory can go from
//! one owner to the other. So it is owned by a buffer or by candle, never by both,
//! and whoever has it last frees it.

use std::cell::RefCell;
use std::mem::{self, ManuallyDrop};

use candle_core::backend::BackendStorage;
use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, DType, InplaceOp1, Layout, Shape, Storage, Tensor};
use device_memory::{DeviceLayout, DeviceMemoryBuffer, DevicePtr, HostAllocator};

/// What could not change its owner, unchanged, and why.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct Refused<T> {
    /// The buffer or the tensor, which still has its memory.
    pub from: T,
    /// Why it could not.
    #[source]
    pub reason: Reason,
}

/// Why memory can not change its owner.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// The memory is not of the host's heap: another allocator has to free it.
    #[error("memory of another allocator than the host's")]
    OtherAllocator,
    /// A `Vec` of floats would free the memory with another alignment.
    #[error("aligned to {align} bytes, floats to {}", align_of::<f32>())]
    Alignment {
        /// The alignment that the buffer was made with, in bytes.
        align: usize,
    },
    /// The buffer is larger or smaller than the tensor, of which it is to be the whole.
    #[error("{size} bytes for the floats of a tensor of shape {shape:?}")]
    Shape {
        /// The size of the buffer, in bytes.
        size: usize,
        /// The shape asked for.
        shape: Shape,
    },
    /// The tensor is not on the host.
    #[error("the tensor is not on the host")]
    NotOnHost,
    /// The elements are no floats of 32 bits.
    #[error("elements of type {0:?}, not floats of 32 bits")]
    NotFloats(DType),
    /// The tensor is a variable, or the result of one: gradients are told from it.
    #[error("gradients may be told from the tensor")]
    Tracked,
    /// The tensor is a part of its storage, or its elements are not in row-major order.
    #[error("the tensor is not the whole of its storage in row-major order")]
    NotWhole,
    /// The memory has room for more elements than there are.
    #[error("{len} elements in memory for {capacity}")]
    SpareCapacity {
        /// How many elements there are.
        len: usize,
        /// For how many there is room.
        capacity: usize,
    },
    /// Memory could not be had, or not be used by this process.
    #[error(transparent)]
    Memory(#[from] device_memory::Error),
    /// candle refused.
    #[error(transparent)]
    Candle(Box<candle_core::Error>),
}

/// The layout of `len` floats in a `Vec`, which a buffer needs to become a tensor.
///
/// # Errors
///
/// - [`Layout`](device_memory::ErrorKind::Layout): they are more than one allocation
///   can have.
pub fn layout_of_floats(len: usize) -> Result<DeviceLayout, device_memory::Error> {
    let size = DeviceLayout::array::<f32>(len)?.size();
    Ok(DeviceLayout::new(size, align_of::<f32>())?)
}

/// Makes a tensor of a buffer of floats on the host, at the same address.
///
/// The buffer is one of [`HostAllocator`] with a layout of [`layout_of_floats`]. Its
/// memory is candle's from now on; [`into_buffer`] has it back.
///
/// # Errors
///
/// [`Refused`] with the buffer, which is unchanged, and the reason.
pub fn into_tensor(
    buffer: DeviceMemoryBuffer,
    shape: impl Into<Shape>,
) -> Result<Tensor, Refused<DeviceMemoryBuffer>> {
    let shape = shape.into();
    match check_buffer(&buffer, &shape) {
        Ok(()) => {
            let storage = Storage::Cpu(CpuStorage::F32(into_floats(buffer)));
            Ok(Tensor::from_storage(
                storage,
                shape,
                BackpropOp::none(),
                false,
            ))
        }
        Err(reason) => Err(Refused {
            from: buffer,
            reason,
        }),
    }
}

/// Makes a buffer of a tensor of floats on the host, at the same address.
///
/// The tensor is the whole of its storage. It may be one that candle made itself:
/// any full `Vec` of floats has the layout of a block of [`HostAllocator`]. What else
/// shares the storage, as clones and views do, has zeros from now on.
///
/// # Errors
///
/// [`Refused`] with the tensor, which is unchanged, and the reason.
pub fn into_buffer(tensor: Tensor) -> Result<DeviceMemoryBuffer, Refused<Tensor>> {
    match take_floats(&tensor) {
        Ok(floats) => Ok(floats),
        Err(reason) => Err(Refused {
            from: tensor,
            reason,
        }),
    }
}

/// Checks that the memory of `buffer` can be a `Vec` with the floats of `shape`.
fn check_buffer(buffer: &DeviceMemoryBuffer, shape: &Shape) -> Result<(), Reason> {
    let allocator = buffer.allocator().as_any();
    if !allocator.is_some_and(|allocator| allocator.is::<HostAllocator>()) {
        return Err(Reason::OtherAllocator);
    }
    // Fails in a child that was forked off from the owner of the memory.
    buffer.as_slice()?;
    let layout = buffer.layout();
    let mut dims = shape.dims().iter();
    let size = dims.try_fold(size_of::<f32>(), |size, &dim| size.checked_mul(dim));
    if size != Some(layout.size()) {
        return Err(Reason::Shape {
            size: layout.size(),
            shape: shape.clone(),
        });
    }
    if !layout.is_empty() && layout.align() != align_of::<f32>() {
        return Err(Reason::Alignment {
            align: layout.align(),
        });
    }
    Ok(())
}

/// The memory of a buffer that [`check_buffer`] found good.
#[expect(unsafe_code, reason = "see SAFETY")]
fn into_floats(buffer: DeviceMemoryBuffer) -> Vec<f32> {
    if buffer.is_empty() {
        return Vec::new();
    }
    let len = buffer.size() / size_of::<f32>();
    let start = buffer.into_raw().into_ptr().as_raw().cast();
    // SAFETY:
    // - `HostAllocator` has the block from the global allocator, for a layout that
    //   is that of `[f32; len]`, as was checked [1].
    // - All its bytes are initialized (promise 5 of the trait), and any are floats.
    // - Its owner is dissolved, and had no views.
    //
    // [1] https://doc.rust-lang.org/1.95.0/std/vec/struct.Vec.html#method.from_raw_parts
    unsafe { Vec::from_raw_parts(start, len, len) }
}

/// The owner of the memory of `floats`, which are in a `Vec` without spare capacity.
#[expect(unsafe_code, reason = "see SAFETY")]
fn from_floats(floats: Vec<f32>) -> Result<DeviceMemoryBuffer, device_memory::Error> {
    let layout = layout_of_floats(floats.len())?;
    let mut floats = ManuallyDrop::new(floats);
    let Some(start) = DevicePtr::from_raw(floats.as_mut_ptr().cast()) else {
        // Not reached: the address in a `Vec` is never null.
        return Ok(DeviceMemoryBuffer::default());
    };
    // SAFETY:
    // - A full `Vec` has its memory from the global allocator, for the layout of
    //   `[f32; len]` [1]; that is what `allocate` of `HostAllocator` gives for
    //   `layout`, so that one can free it. One of no floats has none.
    // - All its bytes are initialized.
    // - The `Vec` is not dropped, and nothing borrows from it.
    //
    // [1] https://doc.rust-lang.org/1.95.0/std/vec/struct.Vec.html#guarantees
    unsafe { DeviceMemoryBuffer::from_raw_parts(&HostAllocator, start, layout, 0) }
}

/// The memory of `tensor`, in whose storage as many zeros are left.
fn take_floats(tensor: &Tensor) -> Result<DeviceMemoryBuffer, Reason> {
    if !tensor.device().is_cpu() {
        return Err(Reason::NotOnHost);
    }
    if tensor.track_op() {
        return Err(Reason::Tracked);
    }
    // Also of those whose elements overlap, which candle hands to no operation.
    if !tensor.is_contiguous() {
        return Err(Reason::NotWhole);
    }
    let take = Take {
        taken: RefCell::new(Err(Reason::NotOnHost)),
    };
    let done = tensor.inplace_op1(&take);
    done.map_err(|error| Reason::Candle(Box::new(error)))?;
    Ok(from_floats(take.taken.into_inner()?)?)
}

/// The operation that takes the memory out of a storage: candle lends a storage to be
/// written only to these.
struct Take {
    taken: RefCell<Result<Vec<f32>, Reason>>,
}

impl InplaceOp1 for Take {
    fn name(&self) -> &'static str {
        "take"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        *self.taken.borrow_mut() = take(storage, layout);
        Ok(())
    }
}

/// Takes the memory of `storage`, if all of it is what `layout` says.
///
/// As many elements are left, since what shares the storage relies on their number.
fn take(storage: &mut CpuStorage, layout: &Layout) -> Result<Vec<f32>, Reason> {
    let CpuStorage::F32(floats) = storage else {
        return Err(Reason::NotFloats(storage.dtype()));
    };
    let (len, capacity) = (floats.len(), floats.capacity());
    if layout.contiguous_offsets() != Some((0, len)) {
        return Err(Reason::NotWhole);
    }
    if len != capacity {
        return Err(Reason::SpareCapacity { len, capacity });
    }
    let zeros = DeviceMemoryBuffer::create_with(&HostAllocator, layout_of_floats(len)?, 0)?;
    Ok(mem::replace(floats, into_floats(zeros)))
}
