//! The runtime's own owner of device memory and its own offset arithmetic, for
//! comparison.
//!
//! The types do what the C++ ones do, and are safe as far as those are: no
//! address is followed.

use std::fmt;
use std::ptr::NonNull;

use device_memory::Device;

use crate::forward::Code;

/// The runtime's `DeviceMemoryBuffer`.
pub struct Buffer(NonNull<Opaque>);

/// The runtime's `HierarchicalAllocator`, over addresses that are not followed.
pub struct Planned(NonNull<Opaque>);

/// An object of C++.
#[repr(C)]
struct Opaque([u8; 0]);

#[expect(unsafe_code, reason = "calls functions of cpp/original.cpp")]
impl Buffer {
    /// One that owns nothing.
    ///
    /// # Errors
    ///
    /// Never, in effect: C++ ends the process where the heap is exhausted.
    pub fn empty() -> Result<Self, Code> {
        // SAFETY: the function has no conditions.
        NonNull::new(unsafe { original_buffer_empty() })
            .map(Self)
            .ok_or(1)
    }

    /// Asks the runtime's registry, with nothing checked first.
    ///
    /// # Errors
    ///
    /// The runtime's code.
    pub fn create(size: usize, device_type: i8, index: i8, align: usize) -> Result<Self, Code> {
        let mut code = 0;
        // SAFETY: `code` is a local variable; the others are plain numbers, which the
        // runtime passes on to the allocator.
        let buffer =
            unsafe { original_buffer_create(size, device_type, index, align, &raw mut code) };
        NonNull::new(buffer).map(Self).ok_or(code)
    }

    /// The address, or null.
    #[must_use]
    pub fn data(&self) -> *mut u8 {
        // SAFETY: the pointer came from `new` and is freed by `drop` only.
        unsafe { original_buffer_data(self.0.as_ptr()) }
    }

    /// The bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        // SAFETY: as above.
        unsafe { original_buffer_size(self.0.as_ptr()) }
    }

    /// Moves what this owns to a new one, by C++'s move constructor.
    ///
    /// # Errors
    ///
    /// Never, in effect: C++ ends the process where the heap is exhausted.
    pub fn take(&mut self) -> Result<Self, Code> {
        // SAFETY: as above.
        NonNull::new(unsafe { original_buffer_take(self.0.as_ptr()) })
            .map(Self)
            .ok_or(1)
    }

    /// Moves what `from` owns here, by C++'s move assignment.
    pub fn assign(&mut self, from: &mut Self) {
        // SAFETY: as above, for both.
        unsafe { original_buffer_assign(self.0.as_ptr(), from.0.as_ptr()) };
    }

    /// Moves what this owns to itself, which C++ allows.
    pub fn assign_to_itself(&mut self) {
        // SAFETY: as above; the function allows both to be the same.
        unsafe { original_buffer_assign(self.0.as_ptr(), self.0.as_ptr()) };
    }
}

#[expect(unsafe_code, reason = "calls a function of cpp/original.cpp")]
impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the pointer came from `new`, and this is the only place that frees it.
        unsafe { original_buffer_destroy(self.0.as_ptr()) };
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("data", &self.data())
            .field("size", &self.size())
            .finish()
    }
}

#[expect(unsafe_code, reason = "calls functions of cpp/original.cpp")]
impl Planned {
    /// Over `buffers`, each an address and a size, on `devices`.
    ///
    /// The runtime ends the process if there are not as many devices as buffers;
    /// which devices they are it does not look at.
    ///
    /// # Errors
    ///
    /// Never, in effect: C++ ends the process where the heap is exhausted.
    pub fn new(buffers: &[(usize, usize)], devices: &[Device]) -> Result<Self, Code> {
        let (addresses, sizes): (Vec<usize>, Vec<usize>) = buffers.iter().copied().unzip();
        // SAFETY: both lists have as many entries as is said.
        let planned = unsafe {
            original_planned_create(
                addresses.as_ptr(),
                sizes.as_ptr(),
                buffers.len(),
                devices.len(),
            )
        };
        NonNull::new(planned).map(Self).ok_or(1)
    }

    /// The address of `size` bytes at `offset` of a buffer.
    ///
    /// # Errors
    ///
    /// The runtime's code.
    pub fn get_offset_address(
        &self,
        memory_id: u32,
        offset: usize,
        size: usize,
    ) -> Result<usize, Code> {
        let mut address = 0;
        // SAFETY: the pointer came from `new` and is freed by `drop` only; `address` is
        // a local variable.
        let code = unsafe {
            original_planned_address(self.0.as_ptr(), memory_id, offset, size, &raw mut address)
        };
        if code == 0 { Ok(address) } else { Err(code) }
    }
}

#[expect(unsafe_code, reason = "calls a function of cpp/original.cpp")]
impl Drop for Planned {
    fn drop(&mut self) {
        // SAFETY: the pointer came from `new`, and this is the only place that frees it.
        unsafe { original_planned_destroy(self.0.as_ptr()) };
    }
}

impl fmt::Debug for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Planned").finish_non_exhaustive()
    }
}

/// The `sizeof` of the runtime's types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sizes {
    /// `DeviceMemoryBuffer`.
    pub buffer: usize,
    /// `Result<DeviceMemoryBuffer>`.
    pub result: usize,
    /// `HierarchicalAllocator`.
    pub planned: usize,
}

impl Sizes {
    /// What the compiler of C++ says.
    #[expect(unsafe_code, reason = "calls functions of cpp/original.cpp")]
    #[must_use]
    pub fn of_the_runtime() -> Self {
        Self {
            // SAFETY: the function returns a constant.
            buffer: unsafe { original_size_of_buffer() },
            // SAFETY: the function returns a constant.
            result: unsafe { original_size_of_result() },
            // SAFETY: the function returns a constant.
            planned: unsafe { original_size_of_planned() },
        }
    }
}

#[expect(unsafe_code, reason = "functions of cpp/original.cpp")]
unsafe extern "C" {
    fn original_buffer_empty() -> *mut Opaque;
    fn original_buffer_create(
        size: usize,
        device_type: i8,
        index: i8,
        align: usize,
        code: *mut Code,
    ) -> *mut Opaque;
    fn original_buffer_destroy(buffer: *mut Opaque);
    fn original_buffer_data(buffer: *const Opaque) -> *mut u8;
    fn original_buffer_size(buffer: *const Opaque) -> usize;
    fn original_buffer_take(from: *mut Opaque) -> *mut Opaque;
    fn original_buffer_assign(to: *mut Opaque, from: *mut Opaque);
    fn original_planned_create(
        addresses: *const usize,
        sizes: *const usize,
        buffer_count: usize,
        device_count: usize,
    ) -> *mut Opaque;
    fn original_planned_destroy(planned: *mut Opaque);
    fn original_planned_address(
        planned: *mut Opaque,
        memory_id: u32,
        offset: usize,
        size: usize,
        out: *mut usize,
    ) -> Code;
    fn original_size_of_buffer() -> usize;
    fn original_size_of_result() -> usize;
    fn original_size_of_planned() -> usize;
}
